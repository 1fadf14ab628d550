"""Completions read by their gradient: the stronger a token pulls, the darker it stands.

What the update makes less likely is underlined, so that the page is read without color too; the numbers of a token are
in its title.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.render.html.escape import block, text
from gradscope.results.report import ShadedText, ShadedToken

_NUM_SHADES = 8


def render_shaded(texts: Sequence[ShadedText]) -> str:
    """Shaded completions with the key to read them.

    Args:
        texts: The completions.

    Returns:
        A ``figure`` element; nothing where there are no texts.
    """
    if not texts:
        return ""
    shades = "".join(f'<span class="up h{shade}">&#8201;{shade}&#8201;</span>' for shade in range(1, _NUM_SHADES + 1))
    key = (
        f'<p class="key">Norm of a token\'s gradient, least to most: {shades}. '
        '<span class="up h5">More likely</span> after the update; <span class="down h5">less likely</span> is '
        'underlined. Plain: no gradient; <span class="unseen">dotted</span>: not measured.</p>'
    )
    return (
        "<figure><figcaption>Completions by the gradient of their tokens</figcaption>"
        f"{key}{''.join(map(_text, texts))}</figure>"
    )


def _text(shaded: ShadedText) -> str:
    return f'<p class="tokens"><span class="who">{text(shaded.title)}</span> {"".join(map(_token, shaded.tokens))}</p>'


def _token(token: ShadedToken) -> str:
    # a line break is shown and made: the token that ends a line has its own gradient
    shown = block(token.text.replace("\n", "↵\n"))
    return f'<span class="{_class(token)}" title="{text(token.note)}">{shown}</span>'


def _class(token: ShadedToken) -> str:
    if token.strength is None:
        return "unseen"
    shade = min(_NUM_SHADES, 1 + int(token.strength * _NUM_SHADES)) if token.strength > 0 else 0
    return f"{'up' if token.is_raised else 'down'} h{shade}"
