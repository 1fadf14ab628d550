"""Texts that would run, load, close a tag or move a cursor, wherever a log can put them, in all that shows them."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.hostile.cases import called
from tests.render.end_to_end.browser import PROGRAM, look_at

_RUN = "console.error('ran');fetch('http://127.0.0.1:9/ran')"
TEXTS = (
    *(f"<script>{_RUN}</script>", f"</script><script>{_RUN}</script>", f'<img src=x onerror="{_RUN}">'),
    *(f'\'><svg onload="{_RUN}">', f'"><body onload="{_RUN}">', f"</title><script>{_RUN}</script>"),
    *(f"</style><script>{_RUN}</script>", f"--><script>{_RUN}</script>", f"]]><script>{_RUN}</script>"),
    *(f"</textarea><script>{_RUN}</script>", f"</text></svg><script>{_RUN}</script>", f"javascript:{_RUN}"),
    *(f'<a href="javascript:{_RUN}">a</a>', f'<iframe srcdoc="<script>{_RUN}</script>">', f"';{_RUN};'"),
    *(f'";{_RUN};"', f"`${{{_RUN}}}`", f"\\u003cscript>{_RUN}</script>", f'<details open ontoggle="{_RUN}">'),
    *(f'<math><mi xlink:href="data:x,<script>{_RUN}</script>">', f'<object data="data:text/html,{_RUN}">'),
    *(
        "<link rel=stylesheet href=http://127.0.0.1:9/s>",
        "<base href=http://127.0.0.1:9/>",
        "<img src=http://127.0.0.1:9/>",
    ),
    *("<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>", "{{ 7*7 }}{% raw %}", "&lt;b&gt;&#60;", "<!--"),
    *(
        "<style>*{background:url(http://127.0.0.1:9/)}</style>",
        "\x1b]8;;http://127.0.0.1:9/\x07a\x1b]8;;\x07",
        "\x1b[2J\x1b[31m",
    ),
    *(
        "\x9b31m",
        "\u202eabc\u2066",
        "\x00\x07\x08\r",
        "::error::a%0A::set-output name=x::y",
        "[red]a[/red][link=x]",
        "$x^2$ \\frac",
    ),
    *("]]>&amp;<![CDATA[", "\ud800", "\uffff\ufdd0", "a\u2028b\u2029c", "=1+1", "<svg><script>alert(1)</script></svg>"),
)


_LOADING = ("src", "srcset", "srcdoc", "action", "formaction", "data", "background", "xlink:href")


class _Elements(HTMLParser):
    """The tags of a page, and attributes that run something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.running: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.running += [f"{tag} {name}={value}" for name, value in attrs if name.startswith("on") or name in _LOADING]


def write_hostile(folder: Path) -> None:
    """A log with each of the texts as prompt, id, completion, status, answer, reward function and more."""
    rows = []
    for at, text in enumerate(TEXTS):
        for sample in range(4):
            rewards = {f"r{at}{text}" if sample < 2 else text: float(sample % 2)}
            row = {
                "step": 1 + at % 2,
                "prompt_id": text,
                "prompt": text,
                "completion": f"{text}{sample}",
                "status": text,
            }
            rows.append(row | {"reward": float(sample % 2 and at % 3), "answer": text, "rewards": rewards, text: text})
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


@pytest.mark.slow
@pytest.mark.parametrize("page", ["page.html", "index.html"])
def test_no_element_of_a_page_is_a_logs(shown: Path, page: str) -> None:
    found = _Elements()
    text = (shown / page).read_text(encoding="utf-8")
    found.feed(text)
    assert found.running == []
    assert not {"iframe", "object", "base", "math", "img", "textarea"} & set(found.tags)
    assert found.tags.count("script") <= 1
    assert "&lt;img src=x onerror=" in text
    assert not any(letter in text for letter in "\x00\x07\x1b\x9b\u202e\u2066")


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="needs a Chromium (Debian's package chromium)")
@pytest.mark.parametrize("page", ["page.html", "index.html"])
def test_no_text_runs_or_loads_in_a_browser(shown: Path, tmp_path: Path, page: str) -> None:
    seen = look_at((shown / page).read_text(encoding="utf-8"), tmp_path)
    assert (seen.console, {url for url in seen.urls if not url.startswith(("file:", "data:"))}) == ([], set())


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="needs a Chromium (Debian's package chromium)")
def test_no_image_runs_or_loads_in_a_browser(shown: Path, tmp_path: Path) -> None:
    images = sorted([*(shown / "charts").rglob("*.svg"), *(shown / "out").rglob("*.svg")])
    assert images
    for image in images:
        tags = {one.tag.rpartition("}")[2] for one in ElementTree.parse(image).iter()}
        assert not {"script", "foreignObject", "image", "a", "animate", "set"} & tags
    seen = look_at(images[0].read_text(encoding="utf-8"), tmp_path, "image.svg")
    assert (seen.console, {url for url in seen.urls if not url.startswith(("file:", "data:"))}) == ([], set())


@pytest.mark.slow
def test_nothing_reaches_a_terminal_or_breaks_what_machines_read(shown: Path) -> None:
    log, gate = str(shown / "log.jsonl"), ("--require", "frac_reward_zero_std <= 1")
    for arguments in (("degeneracy", log, "--show", "all"), ("check", log, *gate), ("report", log, "--no-gradients")):
        options = ("--output", str(shown / "again.html")) if arguments[0] == "report" else ()
        _, out, err = called([*arguments, *options])
        assert not any(ord(letter) < 32 and letter != "\n" for letter in out + err)
        assert not any(letter in out + err for letter in "\x9b\u202e\u2066\u2028")
    _, junit, _ = called(["check", log, *gate, "--format", "junit"])
    assert {one.tag for one in ElementTree.fromstring(junit).iter()} <= {
        *("testsuites", "testsuite", "testcase", "failure", "error", "skipped", "system-out", "properties", "property"),
    }
    _, notes, err = called(["check", log, *gate, "--format", "github"])
    assert all(
        line.startswith(("::error", "::warning", "::notice")) for line in notes.splitlines() if line.startswith("::")
    )
    assert "set-output" not in [line.split(" ")[0] for line in (notes + err).splitlines()]
