"""What a study's page shows of its tables: the first section; the others are CSV files beside it, which it names."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_CELL = re.compile(r"(?P<value>[+-]?[\d.]+)(?: \[(?P<low>[^,]+), (?P<high>[^]]+)\]| ± (?P<half>[\d.]+))?")
_ENDS = ("", "_low", "_high", "_half")
"""What follows a title in the names of its columns."""


def shown_and_filed(name: str, tables: str) -> tuple[str, dict[str, str]]:
    """Splits the tables of a study.

    Args:
        name: The study's, with which its files begin.
        tables: Markdown; a section of the third level for each table that is not shown.

    Returns:
        What stands before the second section, and a line for each of the others; file name -> CSV.
    """
    first, *others = re.split(r"\n\n(?=### )", tables)
    files: dict[str, str] = {}
    lines = []
    for section in others:
        title, *said, table = section.split("\n\n")
        file = f"{name}_{re.sub('[^a-z]+', '_', title.partition(',')[0].lower()).strip('_')}.csv"
        files[file] = _csv(table)
        lines.append(" ".join([f"- [{title.removeprefix('### ')}]({file}).", *said]))
    return "\n\n".join([first, *(["As CSV:", "\n".join(lines)] if lines else [])]), files


def fill_page(page: Path, begin: str, end: str, name: str, tables: str) -> None:
    """Puts the tables of a study between two lines of its page and beside it."""
    shown, files = shown_and_filed(name, tables)
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n\n{shown}\n\n{end}{after}", encoding="utf-8")
    for file, text in files.items():
        (page.parent / file).write_text(text, encoding="utf-8")


def _csv(table: str) -> str:
    """A Markdown table as CSV: an interval is two columns of its own, or half of its width one."""
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
    records = [dict(_columns(zip(head, row, strict=True))) for row in rows]
    known = {name for record in records for name in record}
    stream = io.StringIO(newline="")
    columns = [f"{title}{end}" for title in head for end in _ENDS if f"{title}{end}" in known]
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return stream.getvalue()


def _columns(cells: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for title, cell in cells:
        found = _CELL.fullmatch(cell)
        if found is None:
            yield title, "" if cell == "—" else cell
        else:
            yield title, found["value"]
            yield from ((f"{title}_{end}", found[end]) for end in ("low", "high", "half") if found[end])
