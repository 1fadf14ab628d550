"""The reference of the site: a page a command, made of its own ``--help-all`` and of the numbers that it computes."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradscope.__main__ import main
from gradscope.catalog.lookup import CATALOG
from gradscope.render.markdown import metric_table

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

COMMANDS = (
    *("degeneracy", "replay", "report", "rank", "spike", "passk", "compare", "claims", "check", "train", "explain"),
    "demo",
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages; mkdocs calls this when it has collected the others.

    Returns:
        All files.
    """
    from mkdocs.structure.files import File

    for name in COMMANDS:
        files.append(File.generated(config, f"reference/{name}.md", content=page_of(name)))
    return files


def page_of(name: str) -> str:
    """A command's help, then the formulas of what it computes.

    Returns:
        Markdown.
    """
    metrics = [entry for entry in CATALOG.values() if entry.command == name]
    numbers = f"\n## What it computes\n\n{metric_table(metrics)}" if metrics else ""
    return f"# gradscope {name}\n\n```text\n{_help_of(name)}\n```\n{numbers}"


def _help_of(name: str) -> str:
    printed = io.StringIO()
    with _columns(80), contextlib.redirect_stdout(printed):
        code = main([name, "--help-all"])
    if code != 0:
        raise RuntimeError(f"gradscope {name} --help-all ended with {code}")
    return "\n".join(line.rstrip() for line in printed.getvalue().strip("\n").splitlines())


@contextlib.contextmanager
def _columns(number: int) -> Iterator[None]:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(number)
    try:
        yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before
