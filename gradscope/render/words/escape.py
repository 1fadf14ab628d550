r"""Text from a log is hostile: it reaches a terminal with every control character spelled out.

A log line can hold escape sequences that recolor or retitle a terminal, bidirectional marks that reorder what is
read, and square brackets that rich would take for markup. Controls are written as ``\x1b``; markup is never parsed,
because cells are rich ``Text`` and not strings.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def plain(text: str, *, limit: int | None = None) -> str:
    r"""A text as one line of visible characters.

    Args:
        text: Anything, such as a path, a prompt or a reward function's name.
        limit: Longest result in characters; a longer one ends in an ellipsis. None: unlimited.

    Returns:
        The text with control, format, bidirectional, surrogate and unassigned characters as backslash escapes.

    Example:
        >>> plain("a\x1b[31mb")
        'a\\x1b[31mb'
        >>> plain("a long prompt", limit=7)
        'a long…'
    """
    safe = "".join(_visible(character) for character in text)
    if limit is not None and len(safe) > limit:
        return safe[: limit - 1] + "…"
    return safe


def cell(text: str, *, limit: int | None = None, style: str = "") -> Text:
    """An escaped text as a table cell that rich prints as it stands: square brackets in it are not markup."""
    from rich.text import Text  # here, so that a report is made without it

    return Text(plain(text, limit=limit), style=style)


def _visible(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE_CATEGORIES:
        return character
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
