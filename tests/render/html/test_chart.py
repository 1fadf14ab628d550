import math
import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradscope.render.html import chart as charts
from gradscope.render.html.page import _environment
from gradscope.results.report import Chart, Series
from tests.render.examples import run_report

MACROS: Any = _environment().get_template("chart.html").module
CHARTS = run_report().sections[0].charts
LINES, STACK, _ = CHARTS


def drawing(*arguments: Any, **options: Any) -> str:
    """A chart without its title and its legend."""
    figure = str(MACROS.figure(*arguments, **options))
    return figure[figure.rindex("<svg ") : figure.rindex("</figure>")]


def drawn(chart: Chart) -> ElementTree.Element:
    """The chart read as XML: stricter than a browser."""
    return ElementTree.fromstring(drawing(chart, "a-1", "It falls."))


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
    names = ElementTree.fromstring(MACROS.legend(LINES, "a-1"))
    assert ["".join(item.itertext()) for item in names][1] == "gaps"
    assert [line.get("class") for line in names.iter("polyline")] == ["line s0", "line s1"]


def test_shares_stand_on_each_other() -> None:
    layers = [element.get("d", "").split("z")[:-1] for element in drawn(STACK).iter("path")]
    assert [len(bars) for bars in layers] == [12, 12, 12]
    first = [[float(part) for part in re.findall(r"M[\d.]+,([\d.]+)h[\d.]+V([\d.]+)", bars[0])[0]] for bars in layers]
    assert [below for below, _ in first[1:]] == [above for _, above in first[:-1]]
    assert first[0][0] - first[-1][1] == pytest.approx(
        0.6 * (charts.FULL.height - charts.FULL.top - charts.FULL.bottom), abs=0.15
    )


@pytest.mark.parametrize("values", [(None, None), (0.0, 0.0), (5.0, 5.0), (-3.0, None)])
def test_flat_and_empty_lines_are_drawn(values: tuple[float | None, ...]) -> None:
    chart = Chart(title="t", kind="lines", places=(1.0, 2.0), series=(Series(name="s", values=values),))
    assert not re.search(r"nan|inf", drawing(chart, "a"))


def test_a_single_step_is_inside() -> None:
    chart = Chart(title="t", kind="lines", places=(7.0,), series=(Series(name="s", values=(1.0,)),))
    (circle,) = drawn(chart).iter("circle")
    assert 0 < float(circle.get("cx", 0)) < charts.FULL.width


def test_a_value_that_is_not_finite_is_marked_at_the_edge_and_breaks_the_line() -> None:
    values = (1.0, math.nan, 2.0, -math.inf, 3.0, None)
    chart = Chart(title="norm", kind="lines", places=tuple(range(6)), series=(Series(name="grad_norm", values=values),))
    svg = drawn(chart)
    marks = [element for element in svg.iter("text") if element.get("class") == "not-finite"]
    assert [mark[0].text for mark in marks] == ["grad_norm: NaN at 1", "grad_norm: -Infinity at 3"]
    assert float(marks[0].get("y", 0)) < charts.FULL.height / 2 < float(marks[1].get("y", 0)) < charts.FULL.height
    assert [element.get("points", "").count(",") for element in svg.iter("polyline")] == [1, 1, 1]


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.kind)
def test_a_drawing_says_what_it_shows_to_those_who_do_not_see_it(chart: Chart) -> None:
    svg = drawn(chart)
    description = next(svg.iter("desc"))
    assert description.text == "It falls."
    assert svg.get("aria-describedby") == description.get("id") == "a-1-finding"
    assert "<desc" not in drawing(chart, "a-1")


def test_long_labels_get_the_room_that_they_need() -> None:
    """On a phone a digit is as wide as `letter`; labels end six units before the axis."""
    for small, canvas in ((False, charts.FULL), (True, charts.CARD)):
        for top in (1.0, 2.5e-4, 31_000_000.0):
            values = Series(name="s", values=(0.0, top))
            chart = Chart(title="t", kind="lines", places=(1, 2), series=(values,))
            svg = ElementTree.fromstring(drawing(chart, "a", small=small))
            labels = [text for text in svg.iter("text") if text.get("text-anchor") == "end"]
            assert labels
            assert all(float(label.get("x", 0)) > canvas.letter * len(label.text or "") for label in labels)
            assert float(svg.get("viewBox", "").split()[2]) == canvas.width


def test_axes_have_names_and_the_values_stand_beside_the_lines() -> None:
    chart = Chart(
        title="t",
        kind="lines",
        places=(3, 5),
        series=(Series(name="norm", values=(1 / 3, None)), Series(name="other", values=(2.0, 1e-9))),
        y_label="nats a token",
    )
    svg = drawn(chart)
    assert {"nats a token", "step"} <= {text.text for text in svg.iter("text")}
    assert (svg.get("data-over"), svg.get("data-x")) == ("step", "3 5")
    values = {line.get("data-name"): line.get("data-y") for line in svg.iter("g")}
    assert values == {"norm": "0.3333 -", "other": "2 1e-09"}


@pytest.mark.parametrize("kind", ["lines", "stack"])
def test_a_thousand_steps_are_as_long_as_a_hundred(kind: str) -> None:
    """Windows with their means as the line, and a band that holds the spike."""

    def chart(length: int) -> Chart:
        values = tuple(0.9 if step == 618 else 0.1 + 0.05 * (step % 3) for step in range(length))
        return Chart(title="t", kind=kind, places=tuple(range(length)), series=(Series(name="s", values=values),))  # type: ignore[arg-type]

    assert len(drawing(chart(1000), "a")) < 3 * len(drawing(chart(100), "a"))
    names = drawn(chart(1000)).get("data-x", "").split()
    assert (names[0], names[-1]) == ("0-6", "994-999")
    if kind == "lines":
        (band,) = drawn(chart(1000)).iter("polygon")
        heights = [float(point.split(",")[1]) for point in band.get("points", "").split()]
        assert min(heights) == 34.0


def test_what_has_a_color_of_its_own_keeps_it() -> None:
    kinds = ("all_fail", "tied", None)
    series = tuple(Series(name=str(kind), values=(0.2, 0.3), kind=kind) for kind in kinds)  # type: ignore[arg-type]
    chart = Chart(title="t", kind="stack", places=(1, 2), series=series)
    assert [layer.get("class") for layer in drawn(chart).iter("path")] == ["bar all_fail", "bar tied", "bar b2"]
    lines = Chart(title="t", kind="lines", places=(1, 2), series=(Series(name="a", values=(1, 2), kind="logged"),))
    assert [line.get("class") for line in drawn(lines).iter("polyline")] == ["line s0 logged"]


def bars_of(names: tuple[str, ...], values: tuple[float | None, ...]) -> ElementTree.Element:
    chart = Chart(title="t", kind="bars", places=names, series=(Series(name="s", values=values),), x_label="share")
    return ElementTree.fromstring(drawing(chart, "a-1"))


def test_a_negative_bar_ends_where_a_positive_one_begins() -> None:
    svg = bars_of(("up", "down"), (0.7, -0.2))
    up, down = svg.iter("rect")
    assert float(down.get("x", 0)) + float(down.get("width", 0)) == pytest.approx(float(up.get("x", 0)), abs=0.11)
    assert float(down.get("width", 0)) / float(up.get("width", 0)) == pytest.approx(2 / 7, abs=0.001)
    assert (up.get("class"), down.get("class")) == ("bar b0", "bar b1")
    labels = {text.text: float(text.get("x", 0)) for text in svg.iter("text")}  # beyond the ends of their bars
    assert labels["0.700"] == pytest.approx(float(up.get("x", 0)) + float(up.get("width", 0)) + 6)
    assert labels["-0.200"] == pytest.approx(float(down.get("x", 0)) - 6)
    assert [bar.get("width") for bar in bars_of(("x", "y"), (0.0, None)).iter("rect")] == ["0", "0"]


def test_a_long_name_is_cut_and_markup_in_it_stays_text() -> None:
    texts = [text.text for text in bars_of(("a" * 25, "<b>&"), (1.0, None)).iter("text")]
    assert texts == ["a" * 23 + "…", "1.000", "<b>&", "0.000", "share"]


def course(values: list[float | None]) -> Chart:
    indices = tuple(range(1, len(values) + 1))
    return Chart(title="t", kind="lines", places=indices, series=(Series(name="s", values=tuple(values)),))


@pytest.mark.parametrize("length", [1, 2, 159, 160, 161, 320, 321, 600, 1000, 4801])
def test_every_place_is_in_one_window_and_there_are_few(length: int) -> None:
    windows = charts.windows_of(course([0.0] * length))
    assert len(windows) <= charts.MAX_POINTS
    assert [window.start for window in windows[1:]] == [window.end for window in windows[:-1]]
    assert (windows[0].start, windows[-1].end) == (0, length)
    assert (windows[0].low, windows[-1].high) == (1, length)
    assert len(windows) == length or length > charts.MAX_POINTS
    names = {1: ("1", "1"), 321: ("1-3", "319-321")}
    assert length not in names or (windows[0].name, windows[-1].name) == names[length]


def test_a_spike_is_in_the_band_and_means_are_those_of_the_steps() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    values[618] = 50.0
    windows = charts.windows_of(course(values.tolist()))
    points = [point for point in charts.points_of(values.tolist(), windows) if point is not None]
    assert max(point.high for point in points) == 50.0
    for window, point in zip(windows, points, strict=True):
        assert point.value == pytest.approx(values[window.start : window.end].mean())


def test_what_is_missing_or_not_finite_is_no_part_of_a_mean() -> None:
    values: list[float | None] = [1.0, None, math.nan, 3.0, None, None]
    (first, *_, last) = charts.points_of(values * 160, charts.windows_of(course(values * 160)))
    assert (first.value, first.low, first.high) == (2.0, 1.0, 3.0)  # type: ignore[union-attr]
    assert last == first
    assert charts.points_of([None, math.inf], charts.windows_of(course([None, math.inf]))) == [None, None]


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([1.0, 4.0], (0.0, 4.0)),
        ([3.0, 4.0], (3.0, 4.0)),
        ([-4.0, -1.0], (-4.0, 0.0)),
        ([2.0, 2.0], (0.0, 2.0)),
        ([-2.0], (-2.0, 0.0)),
        ([0.0, 0.0], (-0.5, 0.5)),
    ],
)
def test_zero_is_on_the_scale_where_it_is_near(values: list[float], ends: tuple[float, float]) -> None:
    assert charts.widened(values) == ends


@pytest.mark.parametrize(
    ("low", "high", "most", "marks"),
    [
        (-1.0, 3.0, 5, [-1.0, 0.0, 1.0, 2.0, 3.0]),
        (0.0, 1.0, 5, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (0.0, 0.3, 5, [0.0, 0.1, 0.2, 0.3]),
        (1.0, 60.0, 8, [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]),
        (0.0, 4e-14, 5, [0.0, 1e-14, 2e-14, 3e-14, 4e-14]),
        (-1.7e308, 1.7e308, 5, [0.0]),
        (1e300, 1.7e308, 5, []),
    ],
)
def test_ticks_are_round_and_places_have_one_decimal(low: float, high: float, most: int, marks: list[float]) -> None:
    assert charts.ticks(low, high, max_ticks=most) == marks
    assert [charts.rounded(value) for value in (12.0, 1 / 3, 0.1, 100.0)] == ["12", "0.3", "0.1", "100"]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=3), st.integers(2, 12))
def test_every_finite_number_and_every_tick_is_on_the_scale(values: list[float], most: int) -> None:
    low, high = charts.widened(values)
    scale = charts.Scale(low=low, high=high, start=50.0, end=10.0)
    assert (scale(low), scale(high)) == (50.0, 10.0)
    marks = charts.ticks(low, high, max_ticks=most)
    assert all(10.0 - 1e-6 <= scale(value) <= 50.0 + 1e-6 for value in (*values, *marks))
    assert len(marks) <= most
