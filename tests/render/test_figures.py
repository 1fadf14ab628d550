from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gradscope.estimate import Estimate
from gradscope.render.figures.save import save_figure
from gradscope.render.figures.style import name_of, power_of_ten
from gradscope.render.registry import draw_figures
from tests.render import examples

EXPECTED: dict[str, tuple[object, set[str]]] = {
    "degeneracy": (examples.degeneracy_report(), {"degeneracy", "degeneracy_by_group_size", "pass_rates"}),
    "long": (examples.degeneracy_report(num_steps=300), {"degeneracy", "degeneracy_by_group_size", "pass_rates"}),
    "one step": (examples.degeneracy_report(num_steps=1), {"degeneracy_by_group_size", "pass_rates"}),
    "passk": (examples.passk_report(), {"passk"}),
    "one file": (examples.passk_report(num_files=1), {"passk"}),
    "rank": (examples.rank_report(), {"rank_curve", "rank_nulls", "rank_sizes", "rank_sparsity", "rank_spectrum"}),
    "weights": (examples.weight_report(), {"rank_layers"}),
    "replay": (examples.replay_report(), {"replay"}),
    "spike": (examples.spike_report(), {"spike"}),
    "check": (examples.check_report(), set()),
}


@pytest.mark.parametrize(("report", "names"), EXPECTED.values(), ids=EXPECTED)
def test_each_result_has_its_figures(report: object, names: set[str]) -> None:
    assert set(draw_figures(report)) == names


@pytest.mark.slow
@pytest.mark.parametrize(("report", "names"), EXPECTED.values(), ids=EXPECTED)
def test_no_text_leaves_the_figure(report: object, names: set[str]) -> None:
    for name, figure in draw_figures(report).items():
        figure.canvas.draw()
        bounds = figure.bbox
        for text in figure.texts + [text for axes in figure.axes for text in axes.texts]:
            extent = text.get_window_extent()
            inside = extent.x0 >= 0 and extent.x1 <= bounds.x1 + 1 and extent.y1 <= bounds.y1 + 1
            assert inside, f"{text.get_text()!r} leaves {name}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["degeneracy", "rank", "replay"])
def test_the_same_result_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    report = EXPECTED[name][0]
    for stem, figure in draw_figures(report).items():
        first = [path.read_bytes() for path in save_figure(figure, tmp_path / stem)]
        again = save_figure(draw_figures(report)[stem], tmp_path / f"{stem}-again")
        assert [path.read_bytes() for path in again] == first


def test_text_from_a_log_is_neither_mathematics_nor_a_missing_glyph(tmp_path: Path) -> None:
    report = examples.passk_report()
    tables = (dataclasses.replace(report.tables[0], name=r"$\frac{$ 提示"), report.tables[1])
    for stem, figure in draw_figures(dataclasses.replace(report, tables=tables)).items():
        assert save_figure(figure, tmp_path / stem)


def test_a_result_without_numbers_has_no_figure() -> None:
    report = examples.passk_report(num_files=1)
    nothing = Estimate.undefined_because("no samples")
    rows = tuple(dataclasses.replace(row, pass_at_k=nothing) for row in report.tables[0].rows)
    assert draw_figures(dataclasses.replace(report, tables=(dataclasses.replace(report.tables[0], rows=rows),))) == {}
    replay = examples.replay_report()
    silent = tuple(dataclasses.replace(step, logged={}) for step in replay.steps)
    assert draw_figures(dataclasses.replace(replay, steps=silent)) == {}


def test_names_are_shortened_and_powers_spelled_out() -> None:
    assert name_of("提示", limit=10) == r"\u63d0\u7…"
    assert power_of_ten(0.001) == "10⁻³"


def test_a_logged_norm_that_is_not_finite_is_marked_in_the_figure() -> None:
    report = examples.replay_report()
    first = dataclasses.replace(report.steps[0], logged={"grad_norm": float("nan")})
    (above, _) = draw_figures(dataclasses.replace(report, steps=(first, *report.steps[1:])))["replay"].axes
    assert "logged as NaN or infinity" in [text.get_text() for text in above.texts]
    only = dataclasses.replace(report, steps=(dataclasses.replace(first, recomputed={}, relative_error={}),))
    assert set(draw_figures(only)) == {"replay"}


def test_a_step_of_which_nothing_was_logged_has_no_figure_and_one_without_gradients_has_a_course() -> None:
    report = examples.spike_report()
    assert draw_figures(dataclasses.replace(report, course={}, metrics=())) == {}
    drawn = draw_figures(dataclasses.replace(report, removals=(), metrics=()))["spike"]
    assert len(drawn.axes) == 1
