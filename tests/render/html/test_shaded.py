from __future__ import annotations

import pytest

from gradscope.render.html.shaded import NUM_SHADES, shade_of
from gradscope.results.report import ShadedToken


@pytest.mark.parametrize(
    ("strength", "is_raised", "classes"),
    [
        (1.0, True, "up h8"),
        (0.3, False, "down h3"),
        (0.125, True, "up h2"),
        (0.124, True, "up h1"),
        (1e-9, False, "down h1"),
        (0.0, True, "up h0"),
        (None, True, "unseen"),
    ],
)
def test_the_stronger_the_darker(strength: float | None, is_raised: bool, classes: str) -> None:
    assert shade_of(ShadedToken(text="a", strength=strength, is_raised=is_raised, note="")) == classes


def test_equal_steps_of_strength_fill_every_shade() -> None:
    tokens = [ShadedToken(text="", strength=(k + 0.5) / NUM_SHADES, is_raised=True, note="") for k in range(NUM_SHADES)]
    assert [shade_of(token) for token in tokens] == [f"up h{shade}" for shade in range(1, NUM_SHADES + 1)]
