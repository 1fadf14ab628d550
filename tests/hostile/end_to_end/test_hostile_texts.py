"""The hostile texts in all that shows them; the campaign puts many more into every field of every format."""

import json
import shutil
from pathlib import Path

import pytest

from tests.hostile.cases import called
from tests.hostile.texts import TEXTS, campaign, outputs, wrong_with
from tests.render.end_to_end.browser import NEEDS_CHROMIUM, look_at

pytestmark = pytest.mark.slow


def write_hostile(folder: Path) -> None:
    """A log with each of the texts as prompt, id, completion, status, answer, reward function and more."""
    rows = []
    for index, text in enumerate(TEXTS):
        for sample in range(4):
            rewards = {f"r{index}{text}" if sample < 2 else text: float(sample % 2)}
            row = {
                "step": 1 + index % 2,
                "prompt_id": text,
                "prompt": text,
                "completion": f"{text}{sample}",
                "status": text,
            }
            rows.append(
                row | {"reward": float(sample % 2 and index % 3), "answer": text, "rewards": rewards, text: text}
            )
    rows += [{"step": text, "prompt_id": text, "reward": text} for text in TEXTS]
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shown")
    write_hostile(folder)
    log = str(folder / "log.jsonl")
    options = ("--no-gradients", "--quiet", "--output", str(folder / "page.html"), "--figures", str(folder / "charts"))
    assert called(["report", log, *options])[0] == 0
    other = shutil.copy(log, folder / "<img src=x onerror=console.error(1)>.jsonl")
    assert called(["report", log, str(other), "--quiet", "--output", str(folder / "index.html")])[0] == 0
    assert called(["degeneracy", log, "--quiet", "--output", str(folder / "out")])[0] == 0
    return folder


def test_nothing_of_a_log_is_more_than_seen(shown: Path, tmp_path: Path) -> None:
    texts = outputs(tmp_path, shown / "log.jsonl")
    texts["index"] = ("html", (shown / "index.html").read_text(encoding="utf-8"))
    assert {kind for kind, _ in texts.values()} == {"html", "xml", "svg", "notes", "summary", "text"}
    assert {where: wrong for where, (kind, text) in texts.items() if (wrong := wrong_with(kind, text))} == {}
    assert all("&lt;img src=x onerror=" in texts[name][1] for name in ("page", "index"))


def test_no_field_of_any_format_is_more_than_seen() -> None:
    assert [outcome for outcome in campaign(12, seed=4) if outcome[1]] == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("html", "<a onclick=x>"),
        ("html", "<script></script><script>"),
        ("html", "<a href=' javascript:x'>"),
        ("html", "a\x1b"),
        ("xml", "<a><script/></a>"),
        ("notes", "::set-output name=x::y"),
        ("summary", "<img src=x>"),
        ("summary", "[a](b)"),
        ("text", "\u202e"),
    ],
)
def test_what_is_more_is_told(kind: str, text: str) -> None:
    assert wrong_with(kind, text)


@NEEDS_CHROMIUM
@pytest.mark.parametrize("page", ["page.html", "index.html"])
def test_no_text_runs_or_loads_in_a_browser(shown: Path, tmp_path: Path, page: str) -> None:
    seen = look_at((shown / page).read_text(encoding="utf-8"), tmp_path)
    assert (seen.console, {url for url in seen.urls if not url.startswith(("file:", "data:"))}) == ([], set())


@NEEDS_CHROMIUM
def test_no_image_runs_or_loads_in_a_browser(shown: Path, tmp_path: Path) -> None:
    images = sorted([*(shown / "charts").rglob("*.svg"), *(shown / "out").rglob("*.svg")])
    assert images
    for image in images:
        assert wrong_with("svg", image.read_text(encoding="utf-8")) == []
    seen = look_at(images[0].read_text(encoding="utf-8"), tmp_path, "image.svg")
    assert (seen.console, {url for url in seen.urls if not url.startswith(("file:", "data:"))}) == ([], set())
