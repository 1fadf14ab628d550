from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from gradscope.render.ci import render_annotations, render_junit, render_summary
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
    assert text.endswith("|\n"), "the next summary begins on a line of its own"
    assert len([line for line in text.splitlines() if line.startswith("| ")]) == 4
    assert "<script>" not in text
    assert r"&lt;script&gt;\[red\]\\x1b" in text
    quoted = replace(REPORT, verdicts=(replace(REPORT.verdicts[0], meaning="the metric 'x' is \"y\""),))
    assert "the metric 'x' is \"y\"" in render_summary(quoted)


def test_what_may_be_unknown_is_a_warning() -> None:
    allowed = replace(
        REPORT, verdicts=tuple(replace(verdict, allowed=verdict.outcome == "unknown") for verdict in REPORT.verdicts)
    )
    assert "::warning title=UNKNOWN (allowed) pass@4" in render_annotations(allowed)
    assert "| UNKNOWN (allowed) |" in render_summary(allowed)


def test_junit_counts_and_names_every_verdict() -> None:
    suite = ElementTree.fromstring(render_junit(REPORT))
    assert suite.tag == "testsuite"
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "3",
        "failures": "1",
        "errors": "1",
        "skipped": "0",
    }
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == ["frac_reward_zero_std <= 0.3", "pass@4 >= 0.5", "pass_rate > 0.1"]
    assert [[child.tag for child in case] for case in cases] == [["failure"], ["error"], []]
    assert cases[0][0].text == "Try prompts of middling difficulty."


def test_what_may_be_unknown_is_skipped() -> None:
    allowed = replace(
        REPORT, verdicts=tuple(replace(verdict, allowed=verdict.outcome == "unknown") for verdict in REPORT.verdicts)
    )
    suite = ElementTree.fromstring(render_junit(allowed))
    assert (suite.get("errors"), suite.get("skipped")) == ("0", "1")


# What junit-10.xsd of Jenkins' xUnit plugin says of the elements that a check writes.
_REQUIRED = {"testsuite": {"name", "tests", "failures", "errors"}, "testcase": {"name"}}
_OPTIONAL = {
    "testsuite": {"group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url"},
    "testcase": {"time", "classname", "group"},
    **{tag: {"type", "message"} for tag in ("failure", "error", "skipped")},
}
_CHILDREN = {"testsuite": {"testcase"}, "testcase": {"failure", "error", "skipped"}}


@pytest.mark.parametrize("allowed", [False, True])
def test_junit_keeps_the_rules_of_the_schema(allowed: bool) -> None:
    verdicts = tuple(replace(verdict, allowed=allowed and verdict.outcome == "unknown") for verdict in REPORT.verdicts)
    for element in ElementTree.fromstring(render_junit(replace(REPORT, verdicts=verdicts))).iter():
        required = _REQUIRED.get(element.tag, set())
        assert required <= set(element.attrib) <= required | _OPTIONAL[element.tag]
        assert {child.tag for child in element} <= _CHILDREN.get(element.tag, set())


def test_junit_spells_out_what_xml_cannot_hold() -> None:
    text = render_junit(REPORT)
    assert "\x1b" not in text
    assert r"&lt;script&gt;[red]\x1b[31mred\u202egnp" in text
