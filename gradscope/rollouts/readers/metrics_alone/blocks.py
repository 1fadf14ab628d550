"""Metrics that a console shows as a block of lines, which become one line ``step:N - name:value``, as verl writes it.

EasyR1 prints ``Step N`` and an outline in YAML below it, torchforge ``METRICS STEP N`` with indented lines, RLinf a box
with a section for each prefix of names, and open-instruct a box with a prefix before ``name: value | name: value``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from gradscope.rollouts.readers.metrics_alone.published import COLOR, NUMBER, RAY, Text

_BEFORE = re.compile(rf"^(?:{COLOR})*{RAY}(?:{COLOR})* ?|{COLOR}")
"""What Ray puts before a line, but for the indentation behind it, and colors."""
_HEADING = re.compile(r"(?:Step|.{0,1000} - METRICS STEP) (?P<step>[0-9]{1,15})(?: ===)?")
_OUTLINED = re.compile(
    rf"(?P<indent> {{0,40}})(?P<key>[\w@./-]{{1,200}}):(?: (?P<value>{NUMBER}|-?\.(?:inf|nan)))?", re.IGNORECASE
)
_BOX = re.compile(r"[╭├]─+ Metric(?:s| Table) ─+[╮┤]")
_SECTION = re.compile(r"├─+ (?P<title>[\w/ ]{1,80}) ─+┤")
_STEP_IN_BOX = re.compile(r"│ Global Step:\s{1,15}(?P<step>[0-9]{1,15})/")
_CELL = re.compile(rf"│(?P<key>[^\s│=]{{1,80}})=(?P<value>{NUMBER})\s{{0,80}}(?=│)", re.IGNORECASE)
_ROW = re.compile(r"│ {2}(?P<title>\S*)\s{1,80}(?P<cells>\S.*?)\s*│")
_BEGIN = ("Step ", "METRICS STEP", " Metric")  # one of which is in the first line of each block
_LONGEST = 1000  # lines of a block


def blocks_joined(lines: Iterable[Text]) -> Iterator[Text]:
    """Lines of a console, with a block of metrics as one."""
    held: list[Text] = []
    is_box = False
    for location, line in lines:
        plain = _BEFORE.sub("", line).rstrip() if held or any(word in line for word in _BEGIN) else ""
        if held:
            is_inside = plain[:1] in ("│", "├") if is_box else _OUTLINED.fullmatch(plain) is not None
            if is_inside and len(held) < _LONGEST:
                held.append((location, plain))
                continue
            yield from _joined(held)
            held = []
        is_box = _BOX.fullmatch(plain) is not None
        if is_box or _HEADING.fullmatch(plain):
            held = [(location, plain)]
        else:
            yield location, line
    yield from _joined(held)


def _joined(block: list[Text]) -> list[Text]:
    """The line of a block; the block itself, where it has no metrics."""
    first, *below = (line for _, line in block) if block else ("",)
    heading = _HEADING.fullmatch(first)
    step, metrics = (heading["step"], _in_outline(below)) if heading else _in_box(below)
    if not step or not metrics:
        return block
    return [(block[0][0], " - ".join([f"step:{step}", *(f"{name}:{value}" for name, value in metrics.items())]))]


def _in_outline(lines: Sequence[str]) -> dict[str, str]:
    metrics, parents = dict[str, str](), list[tuple[int, str]]()
    for match in filter(None, map(_OUTLINED.fullmatch, lines)):
        parents = [parent for parent in parents if parent[0] < len(match["indent"])]
        parents.append((len(match["indent"]), match["key"]))
        if match["value"] is not None:
            metrics["/".join(key for _, key in parents)] = re.sub(r"\.(?=inf|nan)", "", match["value"].lower())
    return metrics


def _in_box(lines: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The step of a box, and its metrics."""
    metrics, rows, step, title = dict[str, str](), dict[str, str](), "", ""
    for line in lines:
        if section := _SECTION.fullmatch(line):
            title = section["title"].lower().replace(" ", "_")
        elif of_all := _STEP_IN_BOX.match(line):
            step = of_all["step"]
        elif "=" in line:
            metrics |= {f"{title}/{cell['key']}": cell["value"] for cell in _CELL.finditer(line)}
        elif row := _ROW.fullmatch(line):
            title = row["title"] or title
            rows[title] = f"{rows.get(title, '')} {row['cells']}"
    for title, text in rows.items():
        cells = (cell.strip().partition(": ") for cell in text.split("|"))
        metrics |= {name if title == "other" else f"{title}/{name}": value for name, _, value in cells if value}
    return step or metrics.get("training_step", ""), metrics
