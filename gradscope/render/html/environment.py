r"""The templates of the pages: whatever a template prints is escaped, whoever wrote it.

Two rules hold for every expression of every template, so that none can be forgotten: characters that could act on a
terminal or reorder what is read are spelled out (``\x1b``), and characters of markup are escaped. Only what code
returns as ``Markup``, such as a drawing, passes as it is.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gradscope.render.html.browser import rollout_line, share_of_group, summary_of
from gradscope.render.html.chart import drawing, legend
from gradscope.render.html.shaded import NUM_SHADES, shade_of
from gradscope.render.html.table import page_table
from gradscope.render.words.escape import plain


def render(template: str, **context: object) -> str:
    """A page from a template of this package and what it shows."""
    return _environment().get_template(template).render(**context)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("gradscope.render.html"),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {
        "drawing": drawing,
        "legend": legend,
        "num_shades": NUM_SHADES,
        "page_table": page_table,
        "rollout_line": rollout_line,
        "shade_of": shade_of,
        "share_of_group": share_of_group,
        "summary_of": summary_of,
    }
    environment.filters |= {"lines": _lines, "broken_lines": _broken_lines}
    return environment


def _visible(value: Any) -> Any:
    """What an expression prints: text as one line of visible characters."""
    return value if isinstance(value, Markup) else plain(str(value))


def _lines(text: str) -> Markup:
    """A text whose line breaks stay, where the page shows it with ``white-space: pre-wrap``."""
    return Markup("\n").join(plain(line) for line in text.split("\n"))


def _broken_lines(text: str) -> Markup:
    """A text whose line breaks are shown and made: the token that ends a line has its own gradient."""
    return _lines(text.replace("\n", "↵\n"))
