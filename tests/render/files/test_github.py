from __future__ import annotations

from dataclasses import replace

from gradscope.render.files.github import render_annotations, render_summary
from tests.render import examples

REPORT = examples.check_report()


def test_annotations_are_one_line_a_verdict() -> None:
    lines = render_annotations(REPORT).splitlines()
    assert [line.split(" ", 1)[0] for line in lines] == ["::error", "::error", "::notice"]
    assert lines[0].startswith("::error title=FAIL frac_reward_zero_std <= 0.3::0.4125 of groups give no gradient.")


def test_annotations_escape_as_github_documents() -> None:
    (verdict, *_) = REPORT.verdicts
    hostile = replace(verdict, metric="a:b,c", meaning="100 %\n::error::x")
    (line,) = render_annotations(replace(REPORT, verdicts=(hostile,))).splitlines()
    assert line.startswith(r"::error title=FAIL a%3Ab%2Cc <= 0.3::100 %25\x0a::error::x")


def test_the_summary_is_a_table_that_shows_text_as_it_stands() -> None:
    text = render_summary(REPORT)
    assert text.startswith("### gradscope check: fail\n")
    assert len([line for line in text.splitlines() if line.startswith("| ")]) == 4
    assert "<script>" not in text
    assert r"&lt;script&gt;\[red\]\\x1b" in text


def test_what_may_be_unknown_is_a_warning() -> None:
    allowed = replace(REPORT, verdicts=tuple(replace(one, allowed=one.outcome == "unknown") for one in REPORT.verdicts))
    assert "::warning title=UNKNOWN (allowed) pass@4" in render_annotations(allowed)
    assert "| UNKNOWN (allowed) |" in render_summary(allowed)
