"""The reference of the site: commands with their help and numbers, formulations, and the folders of the package."""

from __future__ import annotations

import ast
import contextlib
import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import gradscope
from gradscope.__main__ import main
from gradscope.advantages.registry import ALL_FORMULATIONS
from gradscope.catalog.lookup import CATALOG
from gradscope.diagnostics.claims.registry import CLAIMS
from gradscope.reason import CAUSES
from gradscope.render.terminal.explain import metric_table

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

COMMANDS = (
    *("degeneracy", "replay", "report", "rank", "spike", "passk", "compare", "claims", "check", "train", "explain"),
    "demo",
)
_SEARCHED_AFTER = {"reference": 0.5, "research": 0.05, "api": 0.01}
"""Folder -> what a hit there counts beside one in a written page, which a search leads to first."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages; mkdocs calls this when it has collected the others.

    Returns:
        All files.
    """
    from mkdocs.structure.files import File

    pages = {name: page_of(name) for name in COMMANDS}
    for name, text in (pages | {"formulations": formulations_page(), "package": package_page()}).items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Say how much a hit in a page counts; mkdocs calls this before it renders one."""
    folder = page.file.src_uri.partition("/")[0]
    page.meta["search"] = {"boost": _SEARCHED_AFTER.get(folder, 1.0)}


def page_of(name: str) -> str:
    """A command's help, then the formulas of what it computes.

    Returns:
        Markdown.
    """
    metrics = [entry for entry in CATALOG.values() if entry.command == name]
    numbers = f"\n## What it computes\n\n{metric_table(metrics)}" if metrics else ""
    declared = {"replay": _causes, "claims": _claims}.get(name, str)()
    return f"# gradscope {name}\n\n```text\n{_help_of(name)}\n```\n{declared}{numbers}"


def _causes() -> str:
    with (Path(__file__).parents[1] / "research" / "causes.csv").open(encoding="utf-8") as stream:
        met = dict(csv.reader(stream))
    rows = [f"| `{name}` | {cause.verdict} | {met[name]} | {cause.advice} |" for name, cause in CAUSES.items()]
    head = "| cause | verdict | met where | what to do |\n|---|---|---|---|\n"
    return f"\n## All causes\n\n{head}" + "\n".join(rows) + "\n"


def _claims() -> str:
    rows = [f"| `{one.name}` | {one.claim} | {one.metric} | {one.source} | {one.settle} |" for one in CLAIMS]
    head = "| name | claim | what is measured | source | what would settle it |\n|---|---|---|---|---|\n"
    return f"\n## All claims\n\n{head}" + "\n".join(rows) + "\n"


def formulations_page() -> str:
    """Every advantage formulation: r is a rollout's reward, G the rollouts of a group, c its passes.

    Returns:
        Markdown.
    """
    rows = [
        f"| `{name}` | {entry.formula} | {'tokens' if entry.scope == 'token' else entry.scope} | "
        f"{'0 and 1 only' if entry.needs_binary else 'any'} | {'yes' if entry.zero_sum else 'no'} | {entry.source} |"
        for name, entry in ALL_FORMULATIONS.items()
    ]
    head = "| name | advantage | needs | rewards | zero sum | source |\n|---|---|---|---|---|---|\n"
    words = "r is a rollout's reward, G the rollouts of a group, N the groups of a step, c the passes of a group.\n\n"
    return f"# Advantage formulations, all\n\n{words}{head}" + "\n".join(rows) + "\n"


def package_page() -> str:
    """Every folder of the package with the first line of its docstring.

    Returns:
        Markdown.
    """
    root = Path(gradscope.__path__[0])
    rows = []
    for package in sorted(path.parent for path in root.rglob("__init__.py"))[1:]:
        text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
        rows.append(f"| `{package.relative_to(root)}/` | {text.splitlines()[0]} |")
    return "# The package, folder by folder\n\n| folder | what it holds |\n|---|---|\n" + "\n".join(rows) + "\n"


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
