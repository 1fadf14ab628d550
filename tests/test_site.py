"""The site of docs and docstrings builds without a warning, with a page a command, and its links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.hooks.reference import COMMANDS, page_of
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.slow


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs mkdocs: pip install -e '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "site" / "api" / "metrics" / "index.html").read_text(encoding="utf-8")
    assert 'id="gradscope.metrics.gram.spectrum.effective_rank"' in page
    help_page = (tmp_path / "site" / "reference" / "degeneracy" / "index.html").read_text(encoding="utf-8")
    assert "--target-degeneracy" in help_page
    assert "frac_reward_zero_std" in help_page


def test_every_command_has_a_page_of_reference() -> None:
    nav = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    assert re.findall(r"reference/(\w+)\.md", nav) == [*COMMANDS, "formulations", "package"]


def test_a_command_that_is_none_is_told() -> None:
    with pytest.raises(RuntimeError, match="gradscope nothing --help-all ended with 2"):
        page_of("nothing")


@pytest.mark.parametrize("page", [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))], ids=str)
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [one for one in targets if not (page.parent / one).exists() and "reference/" not in one] == []
