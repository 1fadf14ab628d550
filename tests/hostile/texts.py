"""Texts that would run, load, close a tag or move a cursor, in every text field of each format, in all that shows them.

What shows them is parsed by others: pages and notebooks as HTML, JUnit as XML, summaries as Markdown with HTML allowed,
charts as SVG; a sample of the pages in Chromium.
"""

import csv
import io
import json
import os
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.hostile.cases import EVALUATIONS, called, options_of, subjects, summarize

_RUN = "console.error('ran');fetch('http://127.0.0.1:9/ran')"
TEXTS = (
    *(f"<script>{_RUN}</script>", f"</script><script>{_RUN}</script>", f'<img src=x onerror="{_RUN}">'),
    *(f'\'><svg onload="{_RUN}">', f'"><body onload="{_RUN}">', f"</title><script>{_RUN}</script>"),
    *(f"</style><script>{_RUN}</script>", f"--><script>{_RUN}</script>", f"]]><script>{_RUN}</script>"),
    *(f"</textarea><script>{_RUN}</script>", f"</text></svg><script>{_RUN}</script>", f"javascript:{_RUN}"),
    *(f'<a href="javascript:{_RUN}">a</a>', f'<iframe srcdoc="<script>{_RUN}</script>">', f"';{_RUN};'"),
    *(f'";{_RUN};"', f"`${{{_RUN}}}`", f"\\u003cscript>{_RUN}</script>", f'<details open ontoggle="{_RUN}">'),
    *(f'<math><mi xlink:href="data:x,<script>{_RUN}</script>">', f'<object data="data:text/html,{_RUN}">'),
    *("<link rel=stylesheet href=http://127.0.0.1:9/s>", "<base href=http://127.0.0.1:9/>"),
    *("<img src=http://127.0.0.1:9/>", "<style>*{background:url(http://127.0.0.1:9/)}</style>"),
    *("<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>", "{{ 7*7 }}{% raw %}", "&lt;b&gt;&#60;", "<!--"),
    *("\x1b]8;;http://127.0.0.1:9/\x07a\x1b]8;;\x07", "\x1b[2J\x1b[31m", "\x9b31m", "\u202eabc\u2066"),
    *("\x00\x07\x08\r", "::error::a%0A::set-output name=x::y", "[red]a[/red][link=x]", "$x^2$ \\frac"),
    *("]]>&amp;<![CDATA[", "\ud800", "\uffff\ufdd0", "a\u2028b\u2029c", "=1+1", "<svg><script>alert(1)</script></svg>"),
)

_AROUND = (
    *("{}", "'{}", '"{}', "`{}`", "\"'>{}", "]]>{}", "--></script></style></title>{}", "[a]({})", "![a]({})", "<{}>"),
    *("| {} |", "\n{}", "\r\n{}", "\u202e{}\u2066", "%0A{}", "</svg>{}", "\x1b]0;{}\x07", "&#x3c;{}", "=cmd|{}"),
    *("{{{{{}}}}}", "javascript:{}", "vbscript:{}", "data:text/html,{}", "file:///etc/passwd{}"),
    *("http://127.0.0.1:9/{}", "//127.0.0.1:9/{}"),
)
_LOADING = ("src", "srcset", "srcdoc", "action", "formaction", "data", "background", "xlink:href", "ping", "poster")
_TAGS = {"iframe", "object", "embed", "base", "math", "img", "textarea", "form", "foreignobject", "video"}
"""What no page of ours has."""


def made_texts(number: int, seed: int) -> list[str]:
    """Hostile texts: each of ``TEXTS`` in what it may break out of, with further ones of 1 MB."""
    chance = random.Random(seed)
    cores = [*TEXTS, _RUN, "".join(map(chr, chance.choices(range(0x20, 0x3000), k=40)))]
    texts = [chance.choice(_AROUND).format(chance.choice(_AROUND).format(chance.choice(cores))) for _ in range(number)]
    for start in range(0, number, 500):
        texts[start] = "w" * (1 << 20) + texts[start]
    return texts


class _Elements(HTMLParser):
    """What a document holds that would run, load or lead away."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.num_scripts = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.num_scripts += tag == "script"
        self.wrong += [tag] * (tag in _TAGS or self.num_scripts > 1)
        for name, value in attrs:
            if (tag, value) == ("link", "data:,"):  # no icon is asked for
                continue
            if name.startswith("on") or name in _LOADING or (tag == "meta" and value == "refresh"):
                self.wrong.append(f"{tag} {name}={value}")
            if name in ("href", "style") and re.match(
                r"\s*(javascript|data|vbscript|file):|.*(url\((?!#)|127\.0)", value or ""
            ):
                self.wrong.append(f"{tag} {name}={value}")


def _unseen(text: str) -> list[str]:
    return [
        f"{ord(letter):#x}"
        for letter in text
        if (ord(letter) < 32 and letter != "\n") or letter in "\x7f\x9b\u202e\u2066\u2028\ud800"
    ]


def wrong_with(kind: str, text: str) -> list[str]:
    """What is wrong with a text that was made from hostile ones, by its kind: html, xml, svg, notes, summary, text."""
    wrong = _unseen(text)
    if kind == "html":
        wrong += _Elements(text).wrong
    elif kind in ("xml", "svg"):
        names = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(text).iter()}
        wrong += sorted(names & {"script", "foreignObject", "image", "a", "animate", "set", "handler"})
    elif kind == "notes":
        wrong += [
            line
            for line in text.splitlines()
            if line.startswith("::") and not re.match("::(error|warning|notice) title=", line)
        ]
    elif kind == "summary":
        from markdown_it import MarkdownIt

        html = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
        wrong += re.findall(r"<(?!/?(?:h3|table|thead|tbody|tr|th|td|code|p)\b)[a-z!/][^>]*>", html)
    return wrong


def fields_of(subject: Path) -> list[str]:
    """The names of what holds text in a log's files."""
    names: set[str] = set()
    for file in _files(subject):
        _rewritten(file, lambda name, text: names.add(name) or text)
    return sorted(names)


def _files(subject: Path) -> Iterator[Path]:
    paths = [subject] if subject.is_file() else sorted(subject.rglob("*"))
    yield from (path for path in paths if path.suffix in (".jsonl", ".json", ".csv", ".parquet") and path.is_file())


def _rewritten(file: Path, change: Callable[[str, str], str]) -> bytes:
    """A file's bytes with each text changed, given the name of its field."""

    def changed(name: str, text: str) -> str:
        replaced = change(name, text)  # columns hold no half of a surrogate pair
        return replaced.encode(errors="backslashreplace").decode() if file.suffix == ".parquet" else replaced

    def walk(value: Any, name: str) -> Any:
        if isinstance(value, dict):
            return {
                changed(f"{name}.key", key): walk(inner, f"{name}.{key}" if len(value) < 30 else name)
                for key, inner in value.items()
            }
        if isinstance(value, list):
            return [walk(inner, name) for inner in value]
        return changed(name, value) if isinstance(value, str) else value

    if file.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        table = pyarrow.Table.from_pylist([walk(row, "") for row in parquet.read_table(file).to_pylist()])
        parquet.write_table(table, sink := io.BytesIO())
        return sink.getvalue()
    text = file.read_text(encoding="utf-8", errors="surrogateescape")
    if file.suffix == ".csv":
        rows, sink_of_text = list(csv.DictReader(text.splitlines())), io.StringIO()
        walked = [walk(row, "") for row in rows]
        writer = csv.DictWriter(sink_of_text, list(dict.fromkeys(name for row in walked for name in row)))
        writer.writeheader()
        writer.writerows(walked)
        return sink_of_text.getvalue().encode("utf-8", "backslashreplace")
    lines = []
    for part in [text] if file.suffix == ".json" else text.splitlines():
        with suppress(ValueError):
            part = json.dumps(walk(json.loads(part), ""))
        lines.append(f"{part}\n")
    return "".join(lines).encode("utf-8", "surrogateescape")


def infect(place: Path, field: str, texts: Sequence[str]) -> int:
    """Put texts behind what stands in one field of a log, each of its words another one; how many were put there."""
    seen: dict[str, str] = {}

    def hostile(name: str, text: str) -> str:
        return seen.setdefault(text, text + texts[len(seen) % len(texts)]) if name == field else text

    for file in _files(place):
        file.write_bytes(_rewritten(file, hostile))
    return min(len(seen), len(texts))


def outputs(folder: Path, place: Path, *, figures: bool = True) -> dict[str, tuple[str, str]]:
    """What every command makes of a log: where -> the kind of what was shown, and it itself."""
    from gradscope import measure_degeneracy
    from gradscope.errors import GradscopeError

    shown: dict[str, tuple[str, str]] = {}
    gate = ("check", str(place), "--require", "frac_reward_zero_std <= 1", "--format")
    os.environ["GITHUB_STEP_SUMMARY"] = str(folder / "summary.md")
    charts = ("--figures", str(folder / "charts")) if figures else ()
    calls = {
        "terminal": ("degeneracy", str(place), "--show", "all"),
        "passk": ("passk", str(place)),
        "page": ("report", str(place), "--no-gradients", "--output", str(folder / "page.html"), *charts),
        "junit": (*gate, "junit"),
        "github": (*gate, "github"),
    }
    for name, arguments in calls.items():
        if (name == "passk") != place.name.startswith(EVALUATIONS) and name in ("passk", "page", "github"):
            continue
        code, out, err = called(list(arguments))
        if code not in (0, 1, 2):
            shown[f"{name}, exit {code}"] = ("failed", err)
        shown[f"{name}, stderr"] = ("notes" if name == "github" else "text", err)
        shown[f"{name}, stdout"] = ({"junit": "xml", "github": "notes"}.get(name, "text") if out else "text", out)
    if (folder / "page.html").exists():
        shown["page"] = ("html", (folder / "page.html").read_text(encoding="utf-8"))
    for image in sorted((folder / "charts").rglob("*.svg")):
        shown[image.name] = ("svg", image.read_text(encoding="utf-8"))
    if (folder / "summary.md").exists():
        shown["summary"] = ("summary", (folder / "summary.md").read_text(encoding="utf-8"))
    with suppress(GradscopeError):
        shown["notebook"] = ("html", measure_degeneracy(place)._repr_html_())
    return shown


def campaign(number: int, seed: int, *, each: int = 30, browser: int = 0) -> Iterator[tuple[str, str]]:
    """Show so many texts, at most ``each`` in one log, in one field of one format after the other.

    Every ``browser``-th page is opened in Chromium. The log and its field, and what is wrong with what shows it.
    """
    texts, chance = made_texts(number, seed), random.Random(seed)
    fields = [(subject, field) for subject in subjects() for field in fields_of(subject)]
    chance.shuffle(fields)
    done = tries = 0
    while done < number:
        subject, field = fields[tries % len(fields)]
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / subject.name
            shutil.copytree(subject, place) if subject.is_dir() else shutil.copy(subject, place)
            done += max(1, infect(place, field, texts[done : done + each]))
            shown = outputs(Path(folder), place, figures=tries % 10 == 0)
        tries += 1
        results = {
            where: [text] if kind == "failed" else wrong_with(kind, text) for where, (kind, text) in shown.items()
        }
        yield (
            f"parsed by others|{subject.name}, {field}",
            "; ".join(f"{where}: {text[:300]}" for where, texts in results.items() for text in texts[:5]),
        )
        if browser and tries % browser == 0 and "page" in shown:
            from tests.render.end_to_end.browser import look_at

            with tempfile.TemporaryDirectory() as folder:
                seen = look_at(shown["page"][1], Path(folder))
            asked_for = sorted(url for url in seen.urls if not url.startswith(("file:", "data:")))
            yield f"in a browser|{subject.name}, {field}", "; ".join([*seen.console, *asked_for])


if __name__ == "__main__":
    options = options_of("texts", __doc__, texts=5000, seed=0, browser=50)
    outcomes = campaign(options.texts, options.seed, browser=options.browser)
    sys.exit(summarize(outcomes, f"seed {options.seed}, of {options.texts:,} texts: "))
