"""Completions read by their gradient: the stronger a token pulls, the darker it stands.

What the update makes less likely is underlined, so that the page is read without color too; the numbers of a token are
in its title.
"""

from __future__ import annotations

from gradscope.results.report import ShadedToken

NUM_SHADES = 8
"""Strengths that the style sheet tells apart, classes ``h1`` to ``h8``; ``h0`` is no gradient."""


def shade_of(token: ShadedToken) -> str:
    """The classes of a token in the style sheet: its direction and its shade."""
    if token.strength is None:
        return "unseen"
    shade = min(NUM_SHADES, 1 + int(token.strength * NUM_SHADES)) if token.strength > 0 else 0
    return f"{'up' if token.is_raised else 'down'} h{shade}"
