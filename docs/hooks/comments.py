"""Fields and constants of the reference get the comments behind them as their text."""

from __future__ import annotations

import io
import tokenize
from functools import cache
from pathlib import Path
from typing import Any

import griffe


class TrailingComments(griffe.Extension):
    """Takes the comment behind a field or constant that has no docstring of its own."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Griffe calls this for each attribute that it has read."""
        if attr.docstring is None and attr.endlineno is not None and isinstance(attr.filepath, Path):
            text = _comments(attr.filepath).get(attr.endlineno)
            if text is not None:
                attr.docstring = griffe.Docstring(text, parent=attr, lineno=attr.endlineno)


@cache
def _comments(path: Path) -> dict[int, str]:
    """Line -> the comment at its end, as a sentence."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    behind = [token for token in tokens if token.type == tokenize.COMMENT and token.line[: token.start[1]].strip()]
    texts = {token.start[0]: token.string.lstrip("# ") for token in behind}
    return {line: f"{text[:1].upper()}{text[1:].rstrip('.')}." for line, text in texts.items() if text}
