r"""Text from a log on its way into HTML: it can never become markup, and never reorder what is read."""

from __future__ import annotations

import html

from gradscope.render.words.escape import plain


def text(value: str) -> str:
    r"""A text as one line of HTML.

    Args:
        value: Anything.

    Returns:
        The text with control characters spelled out and every character of markup escaped, quotes included.

    Example:
        >>> text('<b onclick="x">\x1b')
        '&lt;b onclick=&quot;x&quot;&gt;\\x1b'
    """
    return html.escape(plain(value), quote=True)


def block(value: str) -> str:
    r"""A text of several lines, whose line breaks stay (the page shows it with ``white-space: pre-wrap``).

    Args:
        value: Anything.

    Returns:
        Its lines, each escaped.

    Example:
        >>> block("a\n<b>")
        'a\n&lt;b&gt;'
    """
    return "\n".join(text(line) for line in value.split("\n"))
