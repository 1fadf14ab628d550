from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from gradscope.render.html.chart import HEIGHT, WIDTH, drawing, legend
from gradscope.results.report import Chart, Series
from tests.render.report_example import run_report

CHARTS = run_report().sections[0].charts
LINES, STACK, _ = CHARTS


def drawn(chart: Chart) -> ElementTree.Element:
    """The chart read as XML: stricter than a browser."""
    return ElementTree.fromstring(drawing(chart, "a-1"))


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.kind)
def test_every_coordinate_is_inside_the_drawing(chart: Chart) -> None:
    svg = drawn(chart)
    width, height = (float(number) for number in svg.get("viewBox", "").split()[2:])
    for element in svg.iter():
        for name in ("x", "x1", "x2", "cx", "width"):
            assert 0 <= float(element.get(name, 0)) <= width
        for name in ("y", "y1", "y2", "cy", "height"):
            assert 0 <= float(element.get(name, 0)) <= height


def test_a_gap_is_not_drawn_as_a_line() -> None:
    lines = [element.get("points", "").split() for element in drawn(LINES).iter("polyline")]
    assert [len(points) for points in lines] == [12, 1, 10]


def test_lines_differ_in_dash_and_marker_and_carry_their_names() -> None:
    svg = drawn(LINES)
    assert {element.get("class") for element in svg.iter("polyline")} == {"line s0", "line s1"}
    assert list(svg.iter("circle"))
    assert list(svg.iter("polygon"))
    names = ElementTree.fromstring(legend(LINES, "a-1"))
    assert ["".join(item.itertext()) for item in names][1] == "gaps"
    assert [line.get("class") for line in names.iter("polyline")] == ["line s0", "line s1"]


def test_shares_stand_on_each_other() -> None:
    bars = [element for element in drawn(STACK).iter("rect") if "bar" in element.get("class", "")]
    first = sorted(bars, key=lambda bar: float(bar.get("x", 0)))[:3]
    tops = sorted(float(bar.get("y", 0)) for bar in first)
    heights = [float(bar.get("height", 0)) for bar in first]
    assert tops[1] - tops[0] == pytest.approx(heights[0], abs=0.02)
    assert sum(heights) == pytest.approx(0.6 * (HEIGHT - 46), abs=0.1)


@pytest.mark.parametrize("values", [(None, None), (0.0, 0.0), (5.0, 5.0), (-3.0, None)])
def test_flat_and_empty_lines_are_drawn(values: tuple[float | None, ...]) -> None:
    chart = Chart(title="t", kind="lines", places=(1.0, 2.0), series=(Series(name="s", values=values),))
    assert not re.search(r"nan|inf", drawing(chart, "a"))


def test_one_step_has_a_place() -> None:
    chart = Chart(title="t", kind="lines", places=(7.0,), series=(Series(name="s", values=(1.0,)),))
    (circle,) = drawn(chart).iter("circle")
    assert 0 < float(circle.get("cx", 0)) < WIDTH


def test_a_value_that_is_not_finite_is_marked_at_the_edge_and_breaks_the_line() -> None:
    values = (1.0, math.nan, 2.0, -math.inf, 3.0, None)
    chart = Chart(title="norm", kind="lines", places=tuple(range(6)), series=(Series(name="grad_norm", values=values),))
    svg = drawn(chart)
    marks = [element for element in svg.iter("text") if element.get("class") == "not-finite"]
    assert [mark[0].text for mark in marks] == ["grad_norm: NaN at 1", "grad_norm: -Infinity at 3"]
    assert float(marks[0].get("y", 0)) < HEIGHT / 2 < float(marks[1].get("y", 0)) < HEIGHT
    assert [element.get("points", "").count(",") for element in svg.iter("polyline")] == [1, 1, 1]
