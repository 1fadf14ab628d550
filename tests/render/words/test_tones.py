from __future__ import annotations

import itertools

import pytest
from rich.color import Color, ColorSystem

from gradscope.render.words.tones import QUIET, STYLES

BACKGROUNDS = {
    "white": (255, 255, 255),
    "black": (0, 0, 0),
    "dark gray": (30, 30, 30),
    "solarized light": (253, 246, 227),
    "solarized dark": (0, 43, 54),
}


def luminance(color: tuple[int, ...]) -> float:
    """WCAG 2.1, relative luminance."""
    parts = (part / 255 for part in color)
    linear = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("background", BACKGROUNDS.values(), ids=BACKGROUNDS)
@pytest.mark.parametrize("style", [*filter(None, STYLES.values()), QUIET])
def test_every_color_reads_on_light_and_on_dark(style: str, background: tuple[int, ...]) -> None:
    low, high = sorted(map(luminance, (tuple(Color.parse(style).get_truecolor()), background)))
    assert (high + 0.05) / (low + 0.05) >= 3.0


@pytest.mark.parametrize("system", [ColorSystem.EIGHT_BIT, ColorSystem.STANDARD])
def test_no_two_tones_look_alike_even_with_sixteen_colors(system: ColorSystem) -> None:
    shown = [Color.parse(style).downgrade(system).number for style in (*filter(None, STYLES.values()), QUIET)]
    assert all(one != other for one, other in itertools.combinations(shown, 2))
