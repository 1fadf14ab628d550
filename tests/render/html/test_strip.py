"""The numbers on top: as a person says them, with the badge of their section and the course as a line."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from gradscope.estimate import Estimate
from gradscope.render.html.strip import strip_of
from gradscope.results.report import KeyNumber
from tests.render.report_example import run_report

DEAD, REACH = strip_of(run_report())


def test_a_share_is_said_in_per_cent_with_its_interval() -> None:
    assert (DEAD.text, DEAD.interval, DEAD.severity, DEAD.anchor) == (
        "25.0\N{NO-BREAK SPACE}%",
        "[10.0 %, 40.0 %]",
        "look",
        "signal",
    )


def test_a_number_that_cannot_be_had_says_why() -> None:
    assert (REACH.text, REACH.interval, REACH.severity) == ("— → —", "", "unknown")
    assert REACH.note.startswith("no samples in")


def test_a_second_number_stands_behind_an_arrow() -> None:
    pair = replace(
        run_report().strip[1], value=Estimate(value=0.5, low=0.4, high=0.6, num_units=9), then=Estimate.exact(0.75)
    )
    (item,) = strip_of(replace(run_report(), strip=(pair,)))
    assert (item.text, item.interval) == ("50.0\N{NO-BREAK SPACE}% → 75.0\N{NO-BREAK SPACE}%", "[40.0 %, 60.0 %]")


def test_the_line_has_the_course_without_its_gaps() -> None:
    svg = ElementTree.fromstring(DEAD.line)
    places = [tuple(map(float, point.split(","))) for point in svg[0].get("points", "").split()]
    assert [x for x, _ in places] == [2.0, 118.0]
    assert places[0][1] < places[1][1]


def test_a_course_of_one_step_is_none_and_a_long_one_is_put_together() -> None:
    def line(length: int) -> str:
        number = KeyNumber(
            name="replay",
            title="norm",
            value=Estimate.exact(1.0),
            style="norm",
            places=tuple(range(length)),
            course=tuple(float(step) for step in range(length)),
        )
        return str(strip_of(replace(run_report(), strip=(number,)))[0].line)

    assert line(1) == ""
    assert 100 < line(1000).count(",") <= 160
