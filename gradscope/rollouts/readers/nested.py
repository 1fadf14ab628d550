"""Rollouts that lie within the rows of a log: lists under steps, prompts or the names of benchmarks, and batches.

What stands outside of a list holds for each of its elements, but for rewards, which are then means or sums.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct

from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.column_roles import (
    ANSWER_KEYS,
    REWARD_LISTS,
    TEXT_LISTS,
    TRIALS,
    USUAL,
    columns_in,
    key_of,
    resolve_columns,
    reward_columns,
    with_entries,
)
from gradscope.rollouts.readers.parsing.cells import is_list_of_objects, parse_reward, step_number, text_of
from gradscope.rollouts.readers.parsing.records import list_names

_OF_A_ROLLOUT = frozenset((*TRIALS, *ANSWER_KEYS, *USUAL["completion"]))
_NO_ROLLOUTS = re.compile(
    r"turn|step|message|histor|action|transition|dialog|conversation|tool|trajectory$|segment|sentence|token|criteri"
    r"|rubric|test|check|metric|judg",
    re.IGNORECASE,
)
"""How lists are called whose elements are parts of one rollout, or verdicts on it."""
_SINGULAR = {f"{name}s": name for names in USUAL.values() for name in names}
_MAX_LEVELS = 3
NUM_LISTED = 200  # rollouts by which columns are known


class Level(Struct, frozen=True, kw_only=True):
    """Where the rows within a row lie: in a list, under each key of an object, or across several lists."""

    name: str | None = None  # the key of the list or object; None: the row is the object itself
    key_column: str | None = None  # the column that the keys of the object become; None: there is no such object
    columns: tuple[str, ...] = ()  # the keys of lists with a cell for each row

    def rows(self, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The rows within a row; nothing of cells that are something else."""
        if self.columns:
            lists = [row[name] if isinstance(row.get(name), list) else [] for name in self.columns]
            for cells in zip(*lists, strict=False):
                named = zip(self.columns, cells, strict=True)
                yield {_named_singly(name, cell): cell for name, cell in named}
            return
        cell = row if self.name is None else row.get(self.name)
        if self.key_column is None:
            yield from (element for element in _listed(cell) if isinstance(element, dict))
            return
        for key, held in cell.items() if isinstance(cell, dict) else ():
            elements = [held] if isinstance(held, dict) else _listed(held)
            yield from ({self.key_column: key} | element for element in elements if isinstance(element, dict))

    @property
    def inner(self) -> frozenset[str | None]:
        """The keys that hold what is within."""
        return frozenset((self.name, *self.columns))


Layout = tuple[Level, ...]  # the levels of lists within a row, the outermost first


def rows_within(row: Mapping[str, Any], layout: Layout) -> Iterator[dict[str, Any]]:
    """The innermost rows of a row, each with what holds for it of those around it."""
    if not layout:
        yield dict(row)
        return
    outer = {name: cell for name, cell in row.items() if name not in layout[0].inner and _holds_within(name, cell)}
    for element in layout[0].rows(row):
        yield from rows_within(outer | element, layout[1:])


def layout_of(rows: Sequence[Mapping[str, Any]], named: ColumnNames) -> Layout | None:
    """Where the rollouts within some rows lie, where one place alone, the least deep, holds rollouts; else None."""
    first = next((row for row in rows if any(isinstance(cell, (list, dict)) and cell for cell in row.values())), {})
    layouts: list[Layout] = [()]
    for _ in range(_MAX_LEVELS):
        outer = [(layout, next(rows_within(first, layout), {})) for layout in layouts]
        layouts = [
            (*layout, level) for layout, row in outer for level in _levels_in(row, is_of_batch=_is_batch(layout))
        ]
        holding = [layout for layout in layouts if _holds_rollouts(rows, layout, named)]
        if holding:
            return holding[0] if len(holding) == 1 else None
    return None


def title_of(layout: Layout) -> str:
    """The lists of a layout, for a sentence."""
    names = dict.fromkeys(name for level in layout for name in (level.columns or (level.name,)) if name is not None)
    return f"the list{'s' * (len(names) > 1)} {list_names(names)}" if names else "the lists under the keys"


def first_rows_within(rows: Iterable[Mapping[str, Any]], layout: Layout) -> list[dict[str, Any]]:
    """The innermost rows of the first rows of a log."""
    return list(islice((inner for row in rows for inner in rows_within(row, layout)), NUM_LISTED))


def _is_batch(layout: Layout) -> bool:
    return bool(layout and layout[-1].columns)


def _levels_in(row: Mapping[str, Any], is_of_batch: bool) -> Iterator[Level]:
    if row and all(step_number(name) is not None and rows_under(cell) for name, cell in row.items()):
        yield Level(key_column="step")
        return
    for name, cell in row.items():
        if is_list_of_objects(cell):
            yield Level(name=name)
        elif isinstance(cell, Mapping) and len(cell) > 1 and all(map(rows_under, cell.values())):
            yield Level(name=name, key_column=key_column(cell))
    rewards = next((name for name in REWARD_LISTS if isinstance(row.get(name), list) and row[name]), None)
    if rewards is not None:
        size = len(row[rewards])
        aligned = tuple(name for name, cell in row.items() if isinstance(cell, list) and len(cell) == size)
        if is_of_batch or any(name in TEXT_LISTS or _SINGULAR.get(name, name) in USUAL["prompt"] for name in aligned):
            yield Level(columns=aligned)


def rows_under(cell: Any) -> Sequence[Mapping[str, Any]]:
    """The rows under a key: a list, or the one list in an object; none where there is no such list."""
    lists = [held for held in cell.values() if is_list_of_objects(held)] if isinstance(cell, Mapping) else [cell]
    return lists[0] if len(lists) == 1 and is_list_of_objects(lists[0]) else ()


def key_column(held: Mapping[str, Any]) -> str:
    """What keys of rows are: steps, policies where they have the same prompts, else benchmarks."""
    if all(step_number(key) is not None for key in held):
        return "step"
    lists = {key: rows_under(cell) for key, cell in held.items()}
    names = columns_in(element for listed in lists.values() for element in listed[:1])
    prompt = next((name for name in USUAL["prompt"] if name in names), None)
    prompts = [{text_of(element.get(prompt)) for element in listed} for listed in lists.values()] if prompt else []
    return "policy" if prompts and len(set.intersection(*prompts)) > len(set.union(*prompts)) / 2 else "benchmark"


def _holds_rollouts(rows: Sequence[Mapping[str, Any]], layout: Layout, named: ColumnNames) -> bool:
    """Whether the innermost rows are rollouts, each with its reward, of the prompts that they or outer rows name."""
    inner = with_entries(first_rows_within(rows, layout))
    names = columns_in(inner)
    if not set(names).issuperset(filter(None, (named.reward, named.prompt, named.prompt_id, named.group, named.step))):
        return False
    columns = resolve_columns(names, named)
    key, level = key_of(columns), layout[-1]
    outer = next((row for row in rows if any(rows_within(row, layout))), {})
    around = next(rows_within(outer, layout[:-1]), {})
    own = set(columns_in(with_entries(islice(level.rows(around), NUM_LISTED))))
    if columns.reward is None or key is None or columns.reward not in own:
        return False
    if not any(isinstance(parse_reward(row.get(columns.reward)), float) for row in inner):
        return False
    steps = [text_of(row.get(columns.step)) for row in level.rows(around)] if columns.step in own else []
    if len(steps) > 1 and len(set(steps)) > len(steps) / 2:
        return False  # an episode's, or a row for each update
    groups = Counter((text_of(row.get(columns.step or "")), text_of(row.get(key))) for row in inner)
    if columns.step is not None and sum(size > 1 for size in groups.values()) <= len(groups) / 2:
        return False  # examples beside the metrics of each step
    of_several = len({text_of(row.get(key)) for row in level.rows(around)}) > 1 if key in own else False
    is_answered = bool(level.columns) or not own.isdisjoint(_OF_A_ROLLOUT)
    return of_several or (is_answered and not _NO_ROLLOUTS.search(level.name or ""))


def _holds_within(name: str, cell: Any) -> bool:
    """Whether a cell around rows is also one of each row."""
    if isinstance(cell, (list, dict)) and name not in USUAL["prompt"]:
        return False
    return not reward_columns([name], "") and name not in (*USUAL["advantage"], *USUAL["completion"])


def _named_singly(name: str, cell: Any) -> str:
    """The name of one cell of a list: ``prompt`` of ``prompts``, but ``rewards`` as long as it is a list again."""
    single = _SINGULAR.get(name, name)
    return name if isinstance(cell, list) and single not in USUAL["prompt"] else single


def _listed(cell: Any) -> Sequence[Any]:
    return cell if isinstance(cell, list) else ()
