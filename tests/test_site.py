"""The site of docs and docstrings builds without a warning, with a page a command, and its links lead somewhere."""

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.hooks.reference import COMMANDS, page_of
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.slow


FIRST_HITS = {
    "why did my run plateau": "recipes/#why-did-my-run-plateau",
    "no gradient": "degeneracy/",
    "gradient norm spike": "spike/",
    "training widen pass@k": "passk/",
    "reward conflict length": "degeneracy/#several-rewards-in-conflict-such-as-length",
    "which prompts to drop": "recipes/#which-prompts-to-drop",
    "guard in CI": "check/",
    "compare two runs": "compare/",
    "trl log completions": "howto/#trl-as-it-is-from-its-log-of-completions",
    "replay mismatch": "replay/",
    "loss is zero": "report/#the-loss-is-zero",
    "nan gradient": "spike/#a-nan-gradient",
    "entropy collapse": "report/#the-entropy-collapses",
    "which tokens": "rank/#which-tokens-carry-the-gradient",
    "out of memory": "engine/#out-of-memory-or-of-time",
}
"""What a person in trouble types into the site's search -> where it should lead, or to the page of it."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="needs mkdocs: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    # mkdocstrings would start a process of ruff for each signature, to break its lines; nothing of a site is garbage
    code = "import gc, sys; gc.disable(); sys.modules['ruff.__main__'] = None; from mkdocs.__main__ import cli; cli()"
    command = [sys.executable, "-c", code, "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "SITE_COLORS": "false"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_the_site_has_docstrings_and_help(site: Path) -> None:
    page = (site / "api" / "metrics" / "index.html").read_text(encoding="utf-8")
    assert 'id="gradscope.metrics.gram.spectrum.effective_rank"' in page
    results = (site / "api" / "results" / "index.html").read_text(encoding="utf-8")
    assert "Rollouts of each group, G." in results, "the comment behind a field is its text"
    help_page = (site / "reference" / "degeneracy" / "index.html").read_text(encoding="utf-8")
    assert "--target-degeneracy" in help_page
    assert "frac_reward_zero_std" in help_page


def test_the_search_leads_a_person_in_trouble_to_the_right_page(site: Path) -> None:
    """As the theme's own script builds its index and ranks what it finds; lunr.py ports the library below it."""
    builder_of = pytest.importorskip("lunr.builder", reason="needs lunr: pip install -e '.[test]'")
    stop_words = pytest.importorskip("lunr.stop_word_filter")
    builder = builder_of.Builder()
    builder.b(0)
    builder.pipeline.add(stop_words.stop_word_filter)
    builder.ref("location")
    builder.field("title", boost=1000)
    builder.field("text", boost=1)
    for page in json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]:
        plain = {name: html.unescape(re.sub(r"<[^>]+>", " ", page[name])) for name in ("title", "text")}
        builder.add({**plain, "location": page["location"]}, {"boost": page.get("boost", 1.0)})
    index = builder.build()

    def first_hit(question: str) -> str:
        words = re.split(r"[\s-]+", question.lower())
        scores = {}
        for hit in index.search(" ".join(f"{word}*" for word in words)):
            met = sum(any(term.startswith(word) for term in hit["match_data"].metadata) for word in words)
            scores[hit["ref"]] = hit["score"] * (1 + (("#" not in hit["ref"]) + met / len(words)) ** 2)
        return max(scores, key=scores.__getitem__)

    hits = {question: first_hit(question) for question in FIRST_HITS}
    wrong = {question: hit for question, hit in hits.items() if not FIRST_HITS[question].startswith(hit)}
    assert not wrong


def test_every_command_has_a_page_of_reference() -> None:
    nav = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    assert re.findall(r"reference/(\w+)\.md", nav) == [*COMMANDS, "formulations", "package"]


def test_a_command_that_is_none_is_told() -> None:
    with pytest.raises(RuntimeError, match="gradscope nothing --help-all ended with 2"):
        page_of("nothing")


@pytest.mark.parametrize("page", [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))], ids=str)
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists() and "reference/" not in target] == []
