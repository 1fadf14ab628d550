import io
import re

import pytest

from gradscope.render.figures import style
from gradscope.render.registry import draw_figures
from tests.conftest import REPOSITORY
from tests.render.printing import contrast
from tests.render.test_figures import EXPECTED

PAPER = "#ffffff"


@pytest.mark.slow
@pytest.mark.parametrize("result", ["degeneracy", "rank", "weights", "replay"])
def test_no_color_stays_light_on_a_dark_page(result: str) -> None:
    for stem, figure in draw_figures(EXPECTED[result][0]).items():
        drawing = io.StringIO()
        with style.figure_style():
            figure.savefig(drawing, format="svg")
        colors = set(re.findall(r'style="[^"]*?(#[0-9a-f]{6})', drawing.getvalue()))
        colors |= set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", drawing.getvalue()))
        assert colors
        assert colors <= set(style.DARK), stem


@pytest.mark.parametrize(
    "color", [style.INK, style.MUTED, style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.RED]
)
def test_words_can_be_read_on_white_and_on_dark(color: str) -> None:
    assert contrast(color, PAPER) > 3.5
    assert contrast(style.DARK[color], style.DARK[PAPER]) > 4.5


@pytest.mark.parametrize("color", [style.BLUE, style.SLATE])
def test_areas_stand_out_from_the_page_and_carry_their_text(color: str) -> None:
    assert contrast(color, PAPER) > 3
    assert contrast(style.DARK[color], style.DARK[PAPER]) > 3
    assert contrast(style.DARK[color], style.DARK[style.ON_COLOR]) > contrast(style.DARK[color], style.DARK[style.INK])


@pytest.mark.parametrize("color", [style.FAINT, style.PALE])
def test_what_is_faint_on_white_is_faint_on_dark(color: str) -> None:
    assert contrast(color, PAPER) < 2.5
    assert contrast(style.DARK[color], style.DARK[PAPER]) < 2.7


def test_the_colors_of_a_light_page_stay_where_they_are() -> None:
    drawing = f'<svg><defs><style>*{{x: y}}</style></defs><path style="fill: {style.BLUE}; stroke: {style.INK}"/></svg>'
    dark = style.for_dark_pages(drawing)
    assert f'<path style="fill: {style.BLUE}; stroke: {style.INK}"/></svg>' in dark
    assert dark.startswith("<svg><defs><style>*{x: y}@media (prefers-color-scheme:dark){")
    assert f'[style*="stroke: {style.INK}"]{{stroke:{style.DARK[style.INK]}!important}}' in dark


def test_pictures_of_the_docs_are_right_on_dark_pages() -> None:
    for drawing in (REPOSITORY / "docs/images").glob("*.svg"):
        text = drawing.read_text(encoding="utf-8")
        assert "prefers-color-scheme:dark" in text, drawing.name
        assert set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", text)) <= set(style.DARK), drawing.name


def test_a_notebook_shows_a_figure_without_pyplot() -> None:
    figure, *_ = draw_figures(EXPECTED["passk"][0]).values()
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_title_or_subtitle_of_several_lines_moves_the_axes_down() -> None:
    texts = {"one": ("a", "b"), "title": ("a " * 60, "b"), "subtitle": ("a", "b\nc"), "both": ("a " * 60, "b\nc")}
    tops = {name: style.new_figure(*text)[1][0].get_position().y1 for name, text in texts.items()}
    assert tops["one"] > tops["title"] > tops["both"]
    assert tops["one"] > tops["subtitle"] > tops["both"]
