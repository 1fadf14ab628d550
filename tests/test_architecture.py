"""The page that shows a newcomer around is held to the code: names are where it says, and its diffs apply."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.hooks.reference import package_page
from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "architecture.md"
LINKS = re.findall(r"\[`(\w+)`\]\(\.\./([\w/.]+)\)", PAGE.read_text(encoding="utf-8"))
DIFFS = sorted((REPOSITORY / "docs" / "recipes").glob("*.diff"))


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


def test_every_folder_is_on_the_page_of_the_package() -> None:
    folders = sorted(path.parent for path in (REPOSITORY / "gradscope").rglob("__init__.py"))[1:]
    rows = re.findall(r"^\| `(.+)/` \| .+ \|$", package_page(), flags=re.MULTILINE)
    assert rows == [str(folder.relative_to(REPOSITORY / "gradscope")) for folder in folders]


def test_the_page_links_every_recipe() -> None:
    assert [diff.name for diff in DIFFS] == sorted(re.findall(r"recipes/(\w+\.diff)", PAGE.read_text(encoding="utf-8")))


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git, which applies the diffs")
@pytest.mark.parametrize("diff", DIFFS, ids=lambda diff: diff.stem)
def test_a_recipe_applies_to_the_code_as_it_is(diff: Path) -> None:
    done = subprocess.run(
        ["git", "apply", "--check", diff], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="needs git, which applies the diffs")
def test_what_the_recipes_add_works(tmp_path: Path) -> None:
    for folder in ("gradscope", "fixtures"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", *DIFFS], cwd=tmp_path, check=True)
    row = {"update": 1, "problem": "p", "question": "?", "answer": "!"}
    rollouts = [json.dumps(row | {"score": score}) for score in (0.0, 1.0)]
    (tmp_path / "rollouts-1.jsonl").write_text("\n".join(rollouts) + "\n")
    for words, expected in (
        ("degeneracy rollouts-1.jsonl", "Acme rollouts, 1 file"),
        ("lengths fixtures/logs/open_instruct", "Completions have 2.0 tokens on average over 6 rollouts."),
        ("explain frac_mixed", "1 - frac_reward_zero_std"),
        ("explain half_negative", "1 if r = 1 else -1/2"),
    ):
        command = [sys.executable, "-m", "gradscope", *words.split()]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert expected in done.stdout + done.stderr
