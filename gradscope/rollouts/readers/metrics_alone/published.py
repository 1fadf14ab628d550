"""Published metrics: tables of notebooks, pages and model cards, MLflow's folders, charts that were saved.

Trainers show the same metrics under names for people, such as ``Training Loss`` or ``completions / mean_length``, which
:func:`plain_name` makes into keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from gradscope.outside.numerals import number_from

Table = list[list[str]]  # rows of cells, the head first


@lru_cache(maxsize=1 << 12)
def plain_name(name: str) -> str:
    """The key for a metric's name that is written for people; a logger's own key stays as it is.

    >>> plain_name("Training Loss"), plain_name("completions / mean_length"), plain_name("actor/grad_norm")
    ('training_loss', 'completions/mean_length', 'actor/grad_norm')
    """
    if " " not in name and "/" in name:
        return name
    return re.sub(r"\s+", "_", re.sub(r"\s*/\s*", "/", name.strip().replace(". ", " "))).lower()


def number_or_text(cell: str) -> float | str:
    """A cell as a number, else its text."""
    try:
        return number_from(cell)
    except ValueError:
        return cell


class _Tables(HTMLParser):
    """The tables of a page; rows of a nested table are appended to the outer one."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[Table] = []
        self._is_cell = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr" and self.tables:
            self.tables[-1].append([])
        self._is_cell = tag in ("td", "th") and bool(self.tables) and bool(self.tables[-1])
        if self._is_cell:
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._is_cell = self._is_cell and tag not in ("td", "th", "tr", "table")

    def handle_data(self, data: str) -> None:
        if self._is_cell:
            self.tables[-1][-1][-1] += data


def tables_of_page(text: str) -> list[Table]:
    """The tables of HTML.

    >>> tables_of_page("<table><tr><th>Step</th></tr><tr><td>1</td></tr></table>")
    [[['Step'], ['1']]]
    """
    parser = _Tables()
    parser.feed(text)
    parser.close()
    return parser.tables


_RULE = re.compile(r"^[\s|:-]*-[\s|:-]*$")


def tables_of_markdown(text: str) -> list[Table]:
    r"""The tables of Markdown: a head, a rule, rows.

    >>> tables_of_markdown("| Step | reward |\n|---:|---:|\n| 1 | 0.5 |\nthe end")
    [[['Step', 'reward'], ['1', '0.5']]]
    """
    tables: list[Table] = []
    before: list[str] | None = None
    is_inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if "|" in line else None
        if cells is not None and before is not None and _RULE.match(line) and len(cells) == len(before):
            tables.append([before])
            is_inside = True
        elif cells is not None and is_inside:
            tables[-1].append(cells)
        else:
            is_inside = False
        before = cells
    return tables


def outputs_of_notebook(document: Any) -> Iterator[tuple[int, str, str]]:
    """The outputs of a notebook: number of the cell, ``text/html`` or ``text/plain``, and the text."""
    cells = document.get("cells") if isinstance(document, dict) else None
    for number, cell in enumerate(cells if isinstance(cells, list) else (), start=1):
        outputs = cell.get("outputs") if isinstance(cell, dict) else None
        for output in outputs if isinstance(outputs, list) else ():
            if not isinstance(output, dict):
                continue
            data = output.get("data")
            if isinstance(data, dict) and "text/html" in data:
                yield number, "text/html", _joined(data["text/html"])
            elif output.get("output_type") == "stream":
                yield number, "text/plain", _joined(output.get("text"))


def _joined(text: Any) -> str:
    parts = text if isinstance(text, list) else [text]
    return "".join(part for part in parts if isinstance(part, str))


def rows_of_table(table: Table) -> Iterator[dict[str, float | str]]:
    """The rows of a table whose head names a step; no other tables, and no rows of another width."""
    head = [plain_name(name) for name in table[0]] if table else []
    if "step" in head and len(set(head)) == len(head):
        for cells in table[1:]:
            if len(cells) == len(head):
                yield dict(zip(head, map(number_or_text, map(str.strip, cells)), strict=True))


MLFLOW_LINE = re.compile(rb"[0-9]{10,17} \S+ [0-9]{1,15}\s*$")


def mlflow_name(file: Path) -> str:
    """The metric that a file of MLflow's folder ``metrics`` holds; empty outside such a folder.

    >>> mlflow_name(Path("mlruns/0/abc/metrics/train/reward"))
    'train/reward'
    """
    parts = file.parts
    return "/".join(parts[len(parts) - parts[::-1].index("metrics") :]) if "metrics" in parts[:-1] else ""


def tag_of(file: Path) -> str:
    """The tag whose scalars TensorBoard's page saved in a file, which it names ``run-RUN-tag-TAG``, / written as _.

    >>> tag_of(Path("run-grpo-tag-train_reward.csv")), tag_of(Path("reward.json"))
    ('train/reward', 'reward')
    """
    return re.sub(r"^(train|eval)_", r"\1/", file.stem.rpartition("-tag-")[2])


SAVED_SCALARS = ("Wall time", "Step", "Value")
"""Columns of a CSV that TensorBoard's page saves; its JSON is a list of the same triples."""


def scalars_saved(triples: Sequence[Any], file: Path) -> list[Any]:
    """Rows of a JSON document that TensorBoard's page saved; other elements stay as they are."""
    is_triple = [isinstance(triple, list) and len(triple) == len(SAVED_SCALARS) for triple in triples]
    return [
        {"step": triple[1], tag_of(file): triple[2]} if is_saved else triple
        for triple, is_saved in zip(triples, is_triple, strict=True)
    ]
