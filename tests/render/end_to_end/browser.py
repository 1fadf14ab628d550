"""Pages as their readers meet them, asked of a real browser.

    python -m tests.render.end_to_end.browser report.html [...] [--pictures DIR]

One headless Chromium opens each page as it is, light, dark and as narrow as a phone, and prints it. What is wrong is
listed, and the exit code is 1: text too pale, too small, cut off or over other text, things without a name, what
scrolls sideways, words on the console, requests, and pages heavier, slower or longer than they may be.
``--pictures`` keeps what was seen, to be looked at.
"""

import argparse
import base64
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NEEDS_CHROMIUM = pytest.mark.skipif(PROGRAM is None, reason="needs a Chromium (Debian's package chromium)")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
)
AUDIT = (Path(__file__).parent / "audit.js").read_text(encoding="utf-8")
VIEWS = {"light": (1100, "light"), "dark": (1100, "dark"), "narrow": (400, "light")}
"""Width in CSS pixels, and what the reader's system prefers."""
MAX_BYTES, MAX_MILLISECONDS, MAX_SHEETS = 400_000, 1000.0, 12
_PATIENCE = 60.0
_PIECE = 2400


class Figures(NamedTuple):
    """What a page costs its reader."""

    num_bytes: int
    milliseconds: float
    """Processor time of the page's main thread until it is loaded: a wall clock measures other work, too."""
    sheets: int


class Seen(NamedTuple):
    """What a browser of its own made of a page, with every request that its network log holds."""

    dom: str
    console: list[str]
    urls: set[str]


def look_at(text: str, folder: Path, name: str = "report.html") -> Seen:
    """What the browser makes of a page, or of an image in SVG."""
    page, log = folder / name, folder / "net.json"
    page.write_text(text, encoding="utf-8")
    command = [
        *(str(PROGRAM), *FLAGS, f"--user-data-dir={folder / 'profile'}"),
        *("--enable-logging=stderr", f"--log-net-log={log}", "--dump-dom"),
    ]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    events = [event.get("params", {}) for event in json.loads(log.read_text(encoding="utf-8"))["events"]]
    # the browser's own requests (updates) have "not an origin" as their initiator
    asked = [event for event in events if "url" in event and event.get("initiator", "not an origin") != "not an origin"]
    return Seen(dom=done.stdout, console=console, urls={str(event["url"]) for event in asked})


class Browser:
    """One Chromium, told over a pipe what to do (the DevTools protocol)."""

    def __init__(self, profile: Path) -> None:
        assert PROGRAM is not None, "needs a Chromium (Debian's package chromium)"
        self._numbers, self._rest, self.events = count(1), b"", list[dict[str, Any]]()
        theirs, self._to = os.pipe()
        self._from, answers = os.pipe()
        command = f'exec "$@" 3</dev/fd/{theirs} 4>/dev/fd/{answers}'  # the two descriptors that it talks through
        self._process = subprocess.Popen(
            ["sh", "-c", command, "sh", PROGRAM, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"],
            pass_fds=(theirs, answers),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(answers)

    def close(self) -> None:
        self.call("Browser.close")
        self._process.wait(_PATIENCE)
        os.close(self._to)
        os.close(self._from)

    def call(self, method: str, *, session: str = "", **parameters: Any) -> dict[str, Any]:
        """The result of one command; events that come meanwhile are kept."""
        message = {"id": next(self._numbers), "method": method, "params": parameters}
        os.write(self._to, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while (answer := self._next()).get("id") != message["id"]:
            self.events.append(answer)
        assert "error" not in answer, (method, answer)
        result: dict[str, Any] = answer["result"]
        return result

    def wait_for(self, event: str, session: str) -> None:
        while not any(seen["method"] == event and seen.get("sessionId") == session for seen in self.events):
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._from], [], [], _PATIENCE)[0], "the browser says nothing"
            self._rest += os.read(self._from, 1 << 20)
        line, _, self._rest = self._rest.partition(b"\0")
        event: dict[str, Any] = json.loads(line)
        return event


class Tab:
    """A page that is open."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, session=self._session, **parameters)

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript in the page, whose policy does not hold for it."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def milliseconds(self) -> float:
        metrics = {metric["name"]: metric["value"] for metric in self.call("Performance.getMetrics")["metrics"]}
        return 1000.0 * float(metrics["TaskDuration"])

    def console(self) -> list[str]:
        """Everything that the page or the browser said of it, errors included."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self._own(*kinds)]

    def requests(self) -> list[str]:
        """The addresses that were asked for, but for files and for what stands in the page itself."""
        urls = [str(event["params"]["request"]["url"]) for event in self._own("Network.requestWillBeSent")]
        return [url for url in urls if not url.startswith(("file:", "data:"))]

    def _own(self, *kinds: str) -> list[dict[str, Any]]:
        self.run("0")  # what was said before this answer has come
        return [
            event for event in self._browser.events if event["method"] in kinds and event["sessionId"] == self._session
        ]

    def printed(self) -> bytes:
        """The page on paper, without backgrounds, as the dialog of a browser prints it."""
        return base64.b64decode(self.call("Page.printToPDF")["data"])

    def pictures(self) -> Iterator[bytes]:
        """The whole page as PNGs, one below the other."""
        width, height = self.run("[innerWidth, document.documentElement.scrollHeight]")
        for top in range(0, height, _PIECE):
            clip = {"x": 0, "y": top, "width": width, "height": min(_PIECE, height - top), "scale": 1}
            yield base64.b64decode(self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"])


@contextmanager
def opened(browser: Browser, page: Path, *, width: int = 1100, scheme: str = "light") -> Iterator[Tab]:
    """A page in a tab of its own, loaded."""
    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
    session = str(browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
    tab = Tab(browser, session)
    for domain in ("Page", "Runtime", "Log", "Network"):
        tab.call(f"{domain}.enable")
    tab.call("Performance.enable", timeDomain="threadTicks")
    tab.call("Emulation.setDeviceMetricsOverride", width=width, height=300, deviceScaleFactor=1, mobile=False)
    tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    tab.call("Page.navigate", url=page.resolve().as_uri())
    browser.wait_for("Page.loadEventFired", session)
    yield tab
    browser.call("Target.closeTarget", targetId=target)


@contextmanager
def started() -> Iterator[Browser]:
    """A browser with a profile that is gone with it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(Path(profile))
        try:
            yield browser
        finally:
            browser.close()


def judged(browser: Browser, page: Path, pictures: Path | None = None) -> tuple[Figures, list[str]]:
    """What a page costs, and what is wrong with it, a line each."""
    wrong: list[str] = []
    times = []
    for view, (width, scheme) in VIEWS.items():
        with opened(browser, page, width=width, scheme=scheme) as tab:
            times.append(tab.milliseconds())
            wrong += [f"{view}: on the console: {words}" for words in tab.console()]
            wrong += [f"{view}: asks for {url}" for url in tab.requests()]
            if view == "light":
                paper = tab.printed()
            if pictures is not None:
                for number, picture in enumerate(tab.pictures(), start=1):
                    (pictures / f"{page.stem}_{view}_{number:02}.png").write_bytes(picture)
            wrong += [f"{view}: {kind}: {complaint}" for kind, result in tab.run(AUDIT).items() for complaint in result]
    if pictures is not None:
        (pictures / f"{page.stem}.pdf").write_bytes(paper)
    figures = Figures(page.stat().st_size, max(times), len(re.findall(rb"/Type /Page\b", paper)))
    wrong += [
        f"{result:,.0f} {unit}, at most {most:,.0f}"
        for result, most, unit in zip(
            figures, (MAX_BYTES, MAX_MILLISECONDS, MAX_SHEETS), ("bytes", "ms to open", "sheets"), strict=True
        )
        if result > most
    ]
    return figures, wrong


def main() -> int:
    """Judge the pages that are named; 1 where one is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.render.end_to_end.browser", description=__doc__)
    parser.add_argument("pages", type=Path, nargs="+")
    parser.add_argument("--pictures", type=Path, help="gets PNGs and a PDF of each page")
    options = parser.parse_args()
    if options.pictures is not None:
        options.pictures.mkdir(parents=True, exist_ok=True)
    all_wrong = []
    with started() as browser:
        for page in options.pages:
            figures, wrong = judged(browser, page, options.pictures)
            sys.stdout.write(
                f"{page.name}: {figures.num_bytes:,} bytes, {figures.milliseconds:.0f} ms of processor to open, "
                f"{figures.sheets} sheets, {len(wrong)} complaints\n"
                + "".join(f"  {complaint}\n" for complaint in wrong)
            )
            all_wrong += wrong
    return 1 if all_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
