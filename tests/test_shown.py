import copy
import csv
import pickle

import pytest
from matplotlib.figure import Figure

from gradscope.errors import UsageError
from gradscope.render.files import render_csv, tidy_tables
from gradscope.shown import Shown
from tests.render import examples
from tests.results import golden

RESULTS = {name: result for name, result in golden.reports().items() if name != "report_index"}
RESULTS["rollouts"] = examples.rank_report()


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_a_result_shows_itself_in_a_short_visible_line_and_in_a_notebook_without_markup_of_a_log(result: Shown) -> None:
    line = repr(result)
    assert line.startswith(f"<{type(result).__name__} of ")
    assert line.endswith(">")
    assert line.isprintable()
    assert len(line) <= 241
    html = result._repr_html_()
    assert html.count('class="answer"') + html.count('class="missing"') >= 1
    assert "<script" not in html


@pytest.mark.slow
@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_every_table_comes_as_a_frame(result: Shown) -> None:
    assert result.table_names
    for name, rows in zip(result.table_names, tidy_tables(result).values(), strict=True):
        table = result.to_arrow(name)
        assert table.column_names == next(csv.reader([render_csv(rows).partition("\n")[0]]))
        assert table.num_rows == len(result.to_pandas(name)) > 0
        assert list(result.to_pandas(name).columns) == table.column_names
    assert result.to_arrow().equals(result.to_arrow(result.table_names[0]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["degeneracy", "passk", "replay", "report"])
def test_a_drawn_result_gives_a_figure_by_name(name: str) -> None:
    result = RESULTS[name]
    assert isinstance(result.plot(), Figure)
    assert isinstance(result.plot(result.figure_names[-1]), Figure)
    with pytest.raises(UsageError, match="has no figure 'nothing'") as caught:
        result.plot("nothing")
    assert str(caught.value.hint).startswith(f"There are: {result.figure_names[0]}")


@pytest.mark.parametrize("name", ["check", "claims"])
def test_what_has_nothing_to_draw_offers_no_figure(name: str) -> None:
    assert RESULTS[name].figure_names == ()
    with pytest.raises(UsageError, match=r"This (CheckReport|ClaimsReport) has no figure\."):
        RESULTS[name].plot()


def test_a_result_is_still_equal_to_its_copies() -> None:
    result = examples.replay_report()
    assert copy.deepcopy(result) == pickle.loads(pickle.dumps(result)) == result
