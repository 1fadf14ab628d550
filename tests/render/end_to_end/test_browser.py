"""The page in a real browser: it renders, says nothing on the console, asks for nothing, and runs nothing of a log."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from gradscope.render.html.index_page import render_index
from gradscope.render.html.page import render_page
from tests.render.html.test_index_page import INDEX
from tests.render.report_example import run_report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--enable-logging=stderr"),
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs a Chromium (Debian's package chromium)"),
]


class Seen(NamedTuple):
    dom: str
    console: list[str]
    urls: set[str]


def look_at(text: str, folder: Path, name: str = "report.html") -> Seen:
    """What the browser makes of a page, or of an image in SVG."""
    page, log = folder / name, folder / "net.json"
    page.write_text(text, encoding="utf-8")
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}", "--dump-dom"]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    events = [event.get("params", {}) for event in json.loads(log.read_text(encoding="utf-8"))["events"]]
    # the browser's own requests (updates) have "not an origin" as their initiator
    asked = [event for event in events if "url" in event and event.get("initiator", "not an origin") != "not an origin"]
    return Seen(dom=done.stdout, console=console, urls={str(event["url"]) for event in asked})


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return look_at(render_page(run_report()), tmp_path_factory.mktemp("browser"))


def test_a_page_that_asks_and_complains_is_noticed(tmp_path: Path) -> None:
    bad = look_at("<img src='http://127.0.0.1:9/pixel'><script>console.error('no')</script>", tmp_path)
    assert "http://127.0.0.1:9/pixel" in bad.urls
    assert any("no" in line for line in bad.console)


def test_the_page_renders_with_its_script(seen: Seen) -> None:
    assert "How much of the batch carries a gradient?" in seen.dom
    assert seen.dom.count("<button") == 6
    assert seen.dom.count("<select") == 4


def test_the_console_stays_silent(seen: Seen) -> None:
    assert seen.console == []


def test_no_request_leaves_the_page(seen: Seen) -> None:
    assert not [url for url in seen.urls if not url.startswith(("file:", "data:"))]


def test_a_hostile_log_does_not_run(seen: Seen) -> None:
    title = re.search(r"<title>(.*?)</title>", seen.dom)
    assert title is not None
    assert "pwned" not in title[1]
    assert "<img" not in seen.dom


AUDIT = (Path(__file__).parent / "audit.js").read_text(encoding="utf-8")


def audited(text: str, folder: Path, *options: str) -> dict[str, list[str]]:
    """What the audit's script finds on a page, in whose policy it is not named and which therefore is taken away."""
    open_page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    page = folder / "audited.html"
    page.write_text(open_page.replace("</body>", f"<script>{AUDIT}</script></body>"), encoding="utf-8")
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={folder / 'profile'}", *options, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found: dict[str, list[str]] = json.loads(html.unescape(done.stdout.split('<pre id="audit">')[1].split("</pre>")[0]))
    return found


CLEAN: dict[str, list[str]] = {"contrast": [], "unnamed": [], "wide": []}


def test_the_audit_notices_what_is_wrong(tmp_path: Path) -> None:
    bad = "<body><p style='color:#999;background:#fff'>pale</p><button></button><p style='width:9999px'>w</p></body>"
    found = audited(bad, tmp_path)
    assert ["pale" in one for one in found["contrast"]] == [True]
    assert [one.startswith("BUTTON") for one in found["unnamed"]] == [True]
    assert found["wide"]


@pytest.mark.parametrize(
    "options",
    [
        ("--window-size=1100,3000",),
        ("--window-size=400,3000",),
        ("--window-size=1100,3000", "--blink-settings=preferredColorScheme=0"),
    ],
    ids=["light", "narrow", "dark"],
)
@pytest.mark.parametrize("page", [render_page(run_report()), render_index(INDEX)], ids=["report", "index"])
def test_text_stands_out_everything_has_a_name_and_nothing_is_wider_than_the_screen(
    page: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    assert audited(page, tmp_path, *options) == CLEAN


def test_the_script_works(tmp_path: Path) -> None:
    """Its own try-out: the cursor under a key, rollouts by kind and share, a table sorted."""
    text = render_page(run_report())
    trial = (Path(__file__).parent / "trial.js").read_text(encoding="utf-8")
    page = tmp_path / "trial.html"
    page.write_text(
        re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text).replace(
            "</body>", f"<script>{trial}</script></body>"
        ),
        encoding="utf-8",
    )
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert [line for line in done.stderr.splitlines() if ":CONSOLE" in line] == []
    found = json.loads(html.unescape(done.stdout.split('<pre id="trial">')[1].split("</pre>")[0]))
    assert found["tip"].splitlines()[0] == "step 2"
    assert found["tip"].splitlines()[2] == "gaps  none"
    assert found["cursors"] == 2
    assert found["shown"] == ["1 of 2 groups", 1]
    assert found["order"] == ["0.4", "0.1"]
    assert found["sorted"] == ["9", "10", "100"]
    assert found["copy"] == ["Copy"]


def test_it_is_printed_without_its_tables_over_steps(tmp_path: Path) -> None:
    page, paper = tmp_path / "report.html", tmp_path / "report.pdf"
    page.write_text(render_page(run_report()), encoding="utf-8")
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", f"--print-to-pdf={paper}"]
    subprocess.run([*command, page.as_uri()], capture_output=True, timeout=120, check=True)
    assert paper.read_bytes().startswith(b"%PDF-")
    assert len(re.findall(rb"/Type /Page\b", paper.read_bytes())) <= 4


def test_a_hostile_index_does_not_run(tmp_path: Path) -> None:
    index = look_at(render_index(INDEX), tmp_path)
    title = re.search(r"<title>(.*?)</title>", index.dom)
    assert title is not None
    assert not title[1].startswith("pwned")
    assert index.console == []
    assert not [url for url in index.urls if not url.startswith(("file:", "data:"))]
