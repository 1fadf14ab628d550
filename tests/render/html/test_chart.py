from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from gradscope.render.html.chart import HEIGHT, WIDTH, render_chart
from gradscope.render.html.scale import Scale, ticks, widened
from gradscope.results.report import Chart, Series
from tests.render.report_example import run_report

CHARTS = run_report().sections[0].charts
LINES, STACK, BARS = CHARTS


def drawing(chart: Chart) -> ElementTree.Element:
    """The chart read as XML: stricter than a browser."""
    return figure(chart).find("svg")  # type: ignore[return-value]


def figure(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(render_chart(chart, "a-1"))


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.kind)
def test_every_coordinate_is_inside_the_drawing(chart: Chart) -> None:
    svg = drawing(chart)
    width, height = (float(number) for number in svg.get("viewBox", "").split()[2:])
    for element in svg.iter():
        for name in ("x", "x1", "x2", "cx", "width"):
            assert 0 <= float(element.get(name, 0)) <= width
        for name in ("y", "y1", "y2", "cy", "height"):
            assert 0 <= float(element.get(name, 0)) <= height


def test_a_gap_is_not_drawn_as_a_line() -> None:
    lines = [element.get("points", "").split() for element in drawing(LINES).iter("polyline")]
    assert [len(points) for points in lines] == [12, 1, 10]


def test_lines_differ_in_dash_and_marker_and_carry_their_names() -> None:
    svg = drawing(LINES)
    assert {element.get("class") for element in svg.iter("polyline")} == {"line s0", "line s1"}
    assert list(svg.iter("circle"))
    assert list(svg.iter("polygon"))
    legend = figure(LINES).find("ul")
    assert legend is not None
    assert ["".join(item.itertext()) for item in legend][1] == "gaps"
    assert [line.get("class") for line in legend.iter("polyline")] == ["line s0", "line s1"]


def test_shares_stand_on_each_other() -> None:
    bars = [element for element in drawing(STACK).iter("rect") if "bar" in element.get("class", "")]
    first = sorted(bars, key=lambda bar: float(bar.get("x", 0)))[:3]
    tops = sorted(float(bar.get("y", 0)) for bar in first)
    heights = [float(bar.get("height", 0)) for bar in first]
    assert tops[1] - tops[0] == pytest.approx(heights[0], abs=0.02)
    assert sum(heights) == pytest.approx(0.6 * (HEIGHT - 46), abs=0.1)


def test_a_negative_bar_ends_at_zero() -> None:
    svg = drawing(BARS)
    up, down = (element for element in svg.iter("rect"))
    assert float(down.get("x", 0)) + float(down.get("width", 0)) == pytest.approx(float(up.get("x", 0)), abs=0.02)


@pytest.mark.parametrize("values", [(None, None), (0.0, 0.0), (5.0, 5.0), (-3.0, None)])
def test_flat_and_empty_lines_are_drawn(values: tuple[float | None, ...]) -> None:
    chart = Chart(title="t", kind="lines", places=(1.0, 2.0), series=(Series(name="s", values=values),))
    assert not re.search(r"nan|inf", render_chart(chart, "a"))


def test_one_step_has_a_place() -> None:
    chart = Chart(title="t", kind="lines", places=(7.0,), series=(Series(name="s", values=(1.0,)),))
    (circle,) = drawing(chart).iter("circle")
    assert 0 < float(circle.get("cx", 0)) < WIDTH


def test_a_scale_is_a_line_and_its_ticks_are_round() -> None:
    scale = Scale(low=-1.0, high=3.0, start=10.0, end=50.0)
    assert (scale(-1.0), scale(3.0), scale(0.0)) == (10.0, 50.0, 20.0)
    assert ticks(-1.0, 3.0) == [-1.0, 0.0, 1.0, 2.0, 3.0]
    assert widened([-4.0, -1.0]) == (-4.0, 0.0)
