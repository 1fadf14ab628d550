"""The rows of a JSON document, decoded or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

UNDECODED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
LIST = msgspec.json.Decoder(list[msgspec.Raw])  # whose elements are parsed later: of most files the first are enough
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LISTS = ("rollouts", "rows", "records", "data")  # keys under which a document that is an object has its rows
STEP_NAMES = (
    *("step", "global_step", "training_step", "train_step", "trainer_step", "iteration"),
    *("optimizer_step", "optim_step", "update_step", "rl_step", "grpo_step", "total_step"),
    *("training_iteration", "update"),
)
"""Usual names of the column of steps, and of the step of all rows in a document."""


def rows_of(document: Any) -> Sequence[Any]:
    """The rows of a document: the elements of a list, or of its one list under such a key, else itself.

    >>> rows_of({"step": 3, "rollouts": [{"reward": 1.0}]})
    [{'step': 3, 'reward': 1.0}]
    """
    if not isinstance(document, dict):
        return document if isinstance(document, list) else [document]
    if (table := table_rows(document)) is not None:
        return table
    lists = [document[name] for name in _LISTS if isinstance(document.get(name), list)]
    if len(lists) != 1:
        return [document]
    step = {name: document[name] for name in STEP_NAMES if isinstance(document.get(name), (int, float, str))}
    return [step | row if isinstance(row, dict) else row for row in lists[0]] if step else lists[0]


def entry_in(cell: Any, path: str) -> Any:
    """An entry of an object, by its key or by keys of objects within one another, joined by dots; UNSET without one.

    >>> entry_in({"report": {"resolved": True}}, "report.resolved")
    True
    """
    if not isinstance(cell, Mapping):
        return msgspec.UNSET
    of, dot, within = path.partition(".")
    return cell[path] if path in cell else entry_in(cell.get(of), within) if dot else msgspec.UNSET


def table_rows(document: Mapping[str, Any]) -> list[Any] | None:
    """The rows of a table, as W&B saves one and pandas writes one that is split; None where a document is none.

    >>> table_rows({"columns": ["step", "reward"], "data": [[3, 1.0]]})
    [{'step': 3, 'reward': 1.0}]
    """
    names, rows = document.get("columns"), document.get("data")
    if not isinstance(names, list) or not isinstance(rows, list) or not all(isinstance(name, str) for name in names):
        return None
    return [
        dict(zip(names, row, strict=True)) if isinstance(row, list) and len(row) == len(names) else row for row in rows
    ]


def undecoded_rows(data: bytes) -> Sequence[bytes | msgspec.Raw]:
    """The JSON of each row of :func:`rows_of`, of a document as JSON.

    Raises:
        msgspec.MsgspecError: It is no JSON.
    """
    if not data.startswith(b"{"):
        return LIST.decode(data)
    document = _OBJECT.decode(data)
    cells = {name: bytes(document[name]) for name in (*_LISTS, *STEP_NAMES) if name in document}  # others may be long
    lists = [cells[name] for name in _LISTS if cells.get(name, b"").startswith(b"[")]
    if len(lists) != 1 or "columns" in document:
        return [data.strip()]
    rows, steps = LIST.decode(lists[0]), [name for name in STEP_NAMES if cells.get(name, b"[")[:1] not in b"[{n"]
    if not steps:
        return rows
    step = b"".join(b'"%b":%b,' % (name.encode(), cells[name]) for name in steps)
    return [b"{" + step + bytes(row)[1:] for row in rows]  # of a key that is there twice the last counts
