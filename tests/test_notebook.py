import pytest
from msgspec.structs import replace

from gradscope import notebook
from gradscope.errors import UsageError
from gradscope.results.passk import PassAtKReport
from gradscope.results.report import RunIndex
from tests.render import examples
from tests.render.examples import comparison, run_report


def test_a_line_names_the_input_and_says_the_first_sentence() -> None:
    assert notebook.line_of(examples.replay_report()) == (
        "<ReplayReport of runs/example: Replay: mismatch at 1 of 20 steps; 3 match; 16 cannot>"
    )
    assert notebook.line_of(examples.check_report()) == (
        "<CheckReport of runs/example: Check: fail. 1 of 3 requirements hold>"
    )


def test_a_line_counts_further_inputs() -> None:
    report: PassAtKReport = examples.passk_report(3)
    more = len(report.tables) - 1
    assert f"of {report.tables[0].source.path} and {more} more: " in notebook.line_of(report)


def test_a_line_of_a_page_counts_its_answers() -> None:
    report = run_report()
    assert notebook.line_of(report).endswith(">")
    assert "look" in notebook.line_of(report) or "fine" in notebook.line_of(report)
    assert notebook.line_of(replace(report, sections=())).endswith("nothing to be told>")
    assert notebook.line_of(replace(comparison(), findings=())).endswith("nothing found>")


def test_a_section_without_a_table_gets_the_main_one() -> None:
    html = notebook.html_of(examples.check_report())
    assert "All rows of to_pandas(&#39;verdicts&#39;)." in html
    assert "no held-out samples in" in html
    assert "<script>" not in html


def test_a_long_table_is_cut_and_says_so() -> None:
    report = examples.check_report()
    html = notebook.html_of(replace(report, verdicts=report.verdicts * 7))
    assert "The first 12 of 21 rows of to_pandas(&#39;verdicts&#39;)." in html
    assert html.count("<tr>") == 13


def test_a_rank_that_the_page_has_no_section_of_gets_the_table_of_the_terminal() -> None:
    html = notebook.html_of(examples.weight_report())
    assert "As rank --show weights; to_pandas() has every number" in html
    assert ">tensor</th>" in html
    assert ">effective</th>" in html
    assert ">participation</th>" in html


def test_a_page_in_a_notebook_has_its_strip_and_what_is_missing() -> None:
    html = notebook.html_of(run_report())
    assert 'class="strip"' in html
    assert "that this log cannot answer" in html


def test_a_result_without_anything_to_draw_says_where_its_numbers_are() -> None:
    index = RunIndex(source=examples.source(), name="runs", runs=(), left_out=(), findings=("None.",))
    with pytest.raises(UsageError, match="This RunIndex has no figure") as caught:
        notebook.figure_of(index, None)
    assert caught.value.hint == "to_arrow() has its numbers."
    assert "None." in notebook.html_of(index)
