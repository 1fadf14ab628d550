"""The page that shows a newcomer around is held to the code: names are where it says, and its diffs apply."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "architecture.md"
LINKS = re.findall(r"\[`(\w+)`\]\(\.\./([\w/.]+)\)", PAGE.read_text(encoding="utf-8"))
DIFFS = re.findall(r"```diff\n(.*?\n)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


def names_in(file: Path) -> set[str]:
    """What a module defines at its top level."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    defined = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in body if isinstance(node, ast.AnnAssign)]
    return defined | {target.id for target in targets if isinstance(target, ast.Name)}


@pytest.mark.parametrize(("name", "file"), LINKS, ids=[name for name, _ in LINKS])
def test_a_function_is_where_the_page_says(name: str, file: str) -> None:
    assert name in names_in(REPOSITORY / file)


def test_every_folder_is_in_the_tree_with_its_own_caption() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for package in (REPOSITORY / "gradscope").rglob("__init__.py"):
        if package.parent.name != "gradscope":
            first = ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))).splitlines()[0]
            assert f"`{package.parent.name}/` | {first.rstrip('.')} |" in page


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git, which applies the diffs")
@pytest.mark.parametrize("diff", DIFFS, ids=["metric", "reader", "formulation", "loss", "command"])
def test_a_recipe_applies_to_the_code_as_it_is(diff: str) -> None:
    done = subprocess.run(
        ["git", "apply", "--check", "-"], input=diff, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
