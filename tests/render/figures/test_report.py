import math
import re
from importlib.resources import files

from msgspec.structs import replace

from gradscope.render.figures import style
from gradscope.render.figures.report import COLORS
from gradscope.render.figures.style import DARK
from gradscope.render.registry import draw_figures
from gradscope.results.report import Chart, ChartKind, Series
from tests.render.examples import run_index, run_report

REPORT = run_report()


def with_chart(chart: Chart) -> object:
    return replace(REPORT, sections=(replace(REPORT.sections[0], charts=(chart,)),))


def test_every_chart_is_drawn_and_named_for_its_section() -> None:
    extra = replace(run_index(), sections=REPORT.sections[:1])
    assert list(draw_figures(extra)) == ["signal_1", "signal_2", "signal_3"]
    assert draw_figures(run_index()) == {}


def test_a_long_name_of_a_bar_has_room_and_the_longest_bar_is_in_the_title() -> None:
    series = (Series(name="cosine", values=(0.5, -0.75)),)
    chart = Chart(
        title="Cosine", kind="bars", places=("optimal_baseline_of_22", "sign"), series=series, x_label="cosine"
    )
    (figure,) = draw_figures(with_chart(chart)).values()
    figure.canvas.draw()
    assert figure.texts[0].get_text() == "Cosine: 0.5 optimal_baseline_of_22, -0.75 sign"
    assert min(text.get_window_extent().x0 for text in figure.axes[0].get_yticklabels()) >= 0


def test_a_title_says_where_lines_begin_and_end() -> None:
    def title(*values: tuple[float | None, ...], kind: ChartKind = "lines") -> str:
        series = tuple(Series(name=f"run {index}", values=points) for index, points in enumerate(values))
        chart = Chart(title="Reward", kind=kind, places=(1, 2, 3), series=series)
        (figure,) = draw_figures(with_chart(chart)).values()
        return figure.texts[0].get_text()

    assert title((0.25, None, 0.5)) == "Reward: 0.25 to 0.5"
    assert title((0.25, 0.5, math.nan), (None, 0.75, 1.0)) == "Reward: 0.5 run 0, 0.75 run 1"
    assert title((0.25, 0.0, 0.5), (0.25, 0.5, 0.25), kind="stack") == "Reward: 0.5 to 0.75"
    assert title(*[(0.25, 0.5, 0.5)] * 4) == title((None, None, None)) == "Reward"


def test_a_value_that_is_not_finite_is_marked() -> None:
    values = (1.0, math.nan, None, 2.0)
    chart = Chart(title="norm", kind="lines", places=(1, 2, 3, 4), series=(Series(name="norm", values=values),))
    (figure,) = draw_figures(with_chart(chart)).values()
    marks = [line for line in figure.axes[0].lines if line.get_marker() == "X"]
    assert [list(mark.get_xdata()) for mark in marks] == [[2.0]]


def test_a_label_stands_at_the_end_of_its_line() -> None:
    """Lines that end at a fifth and at four fifths of the axis have their names there."""
    series = (Series(name="low", values=(0.0, 1.0, 0.2)), Series(name="high", values=(1.0, 0.0, 0.8)))
    chart = Chart(title="t", kind="lines", places=(1, 2, 3), series=series)
    (figure,) = draw_figures(with_chart(chart)).values()
    (axes,) = figure.axes
    heights = {text.get_text(): text.get_position()[1] for text in axes.texts}
    low, high = axes.get_ylim()
    assert abs(heights["low"] - (0.2 - low) / (high - low)) < 0.01
    assert abs(heights["high"] - (0.8 - low) / (high - low)) < 0.01


def test_a_kind_has_one_color_in_figures_and_on_pages() -> None:
    """The page's style sheet names the colors of the figures, on light, on dark and on paper."""
    sheet = files("gradscope.render.html").joinpath("page.css").read_text(encoding="utf-8")
    for kind, color in COLORS.items():
        if kind != "tied":  # hatched
            named = re.findall(rf"--{kind.replace('_', '-')}: (#[0-9a-f]{{6}})", sheet)
            assert named == [color, DARK[color], color], kind
            assert f"var(--{kind.replace('_', '-')})" in sheet
    assert COLORS["all_fail"] == style.SLATE
