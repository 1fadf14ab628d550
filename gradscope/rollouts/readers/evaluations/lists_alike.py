"""Rows that hold their samples alike: the same keys, lists as long as that of responses, an id of the prompt.

What :func:`samples_of` and the names of prompts make of such rows follows from the keys and types alone, and the
metadata of a Parquet file tells that all its rows are alike, of which no response has then to be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct

from gradscope.rollouts.arrays import to_indices, to_numpy, to_strings
from gradscope.rollouts.groups import REWARD
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers import column_roles as roles
from gradscope.rollouts.readers.evaluations.shapes import NUMBERS, PROMPTS, ROW_IDS, PromptSamples, objects_as_lists
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing.tables import open_parquet
from gradscope.rollouts.readers.reduction.columns import (
    Cells,
    Columns,
    Fact,
    TableColumns,
    arrow_numbers,
    step_numbers,
    texts_in,
)

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_TOLD_BY_CELLS = frozenset(("n", "dataset", *roles.POLICIES))  # keys that mean one thing or another, as their cells are
_TEXTS = (*roles.ANSWER_KEYS, *roles.TEXT_LISTS)


class Prompt(NamedTuple):
    """A prompt of a row, with its samples."""

    row: int
    step: int
    name: str  # its id
    how: str  # what the id comes from
    cell: Any  # the prompt itself
    samples: PromptSamples
    policy: str | None  # the policy of all its samples, where the row names one


class LogColumns(Struct, frozen=True, kw_only=True):
    """The columns of a log that mean the same in every row."""

    named: ColumnNames  # by the user
    step: str | None  # the column of steps
    benchmark: str | None  # the column of the benchmark within which ids count


class _Roles(Struct, frozen=True, kw_only=True):
    """The columns that rows alike are read from."""

    id: str
    is_text: bool  # whether the id is the text of the prompt
    prompt: str | None
    reward: str
    further: tuple[str, ...]  # all lists of numbers
    texts: str
    how: str  # what names the prompts

    def names(self, columns: LogColumns) -> tuple[str, ...]:
        """The columns that are read of a table."""
        named = (columns.step, columns.benchmark, self.id, self.prompt, *self.further)
        return tuple(dict.fromkeys(filter(None, named)))


def _roles_of(types: Mapping[str, set[type]], elements: Mapping[str, set[type]], columns: LogColumns) -> _Roles | None:
    """The roles of the columns of rows by the types of their cells, and of the elements of lists; None: not alike."""
    named, keys = columns.named, types.keys()
    id_key = roles.first_present(keys, (*ROW_IDS, *roles.USUAL["prompt"]))
    is_named = named != ColumnNames(reward=named.reward, step=named.step)
    if is_named or id_key is None or not _TOLD_BY_CELLS.isdisjoint(keys):
        return None
    is_text = id_key in roles.USUAL["prompt"]
    reward = named.reward or roles.first_present(elements, roles.REWARD_LISTS)
    texts = roles.first_present(elements, _TEXTS)
    has_id = types[id_key] == {str} or (types[id_key] == {int} and not is_text)
    are_plain = all(kinds == {str} or kinds <= NUMBERS for kinds in elements.values())
    are_known = not any(list in types[key] for key in keys - elements.keys()) and elements.keys().isdisjoint(PROMPTS)
    if not (has_id and are_plain and are_known) or reward is None or reward not in elements or texts is None:
        return None
    return _Roles(
        id=id_key,
        is_text=is_text,
        prompt=roles.first_present(keys, roles.USUAL["prompt"]),
        reward=reward,
        further=tuple(key for key, kinds in elements.items() if key == reward or kinds <= NUMBERS),
        texts=texts,
        how=f"the text of {id_key}" if is_text else ", ".join(filter(None, (columns.benchmark, id_key))),
    )


def prompts_alike(rows: Sequence[Mapping[str, Any]], columns: LogColumns) -> list[Prompt]:
    """The prompts of rows that are alike; none of others."""
    rows = objects_as_lists(rows, columns.named.reward)
    keys = tuple(rows[0]) if rows else ()
    if not keys or set(map(tuple, rows)) != {keys}:
        return []
    by_key = dict(zip(keys, zip(*(row.values() for row in rows), strict=True), strict=True))
    types = {key: set(map(type, cells)) for key, cells in by_key.items()}
    elements = {key: set(map(type, chain.from_iterable(by_key[key]))) for key in keys if types[key] == {list}}
    of = _roles_of(types, elements, columns)
    sizes = {tuple(map(len, by_key[key])) for key in elements}
    if of is None or len(sizes) != 1 or 0 in next(iter(sizes)) or "" in by_key[of.id]:
        return []
    steps = [0] * len(rows) if columns.step is None else step_numbers(by_key.get(columns.step, ())).tolist()
    if min(steps, default=-1) < 0:
        return []
    names = map(parse.prompt_text_id if of.is_text else parse.text_of, by_key[of.id])
    names = map(parse.in_environment, by_key[columns.benchmark], names) if columns.benchmark in by_key else names
    prompts = by_key.get(of.prompt or "", [None] * len(rows))
    samples = [
        PromptSamples(
            shape="lists",
            rewards=row[of.reward],
            further={name: row[name] for name in of.further},
            texts=row[of.texts],
        )
        for row in rows
    ]
    return [
        Prompt(at, step, name, of.how, prompt, of_row, None)
        for at, (step, name, prompt, of_row) in enumerate(zip(steps, names, prompts, samples, strict=True))
    ]


def table_alike(path: Path, columns: LogColumns) -> TableColumns | None:
    """How a Parquet file becomes columns whose metadata tells that all its rows are alike; else None."""
    with open_parquet(path) as file:
        kinds, metadata = {field.name: field.type for field in file.schema_arrow}, file.metadata
    types = {name: _types_of(kind) for name, kind in kinds.items()}
    lists = {name: kind.value_type for name, kind in kinds.items() if types[name] == {list}}
    elements = {name: _types_of(kind) for name, kind in lists.items() if _matters(name, kind, columns)}
    of = _roles_of({name: types[name] for name in types if name in elements or name not in lists}, elements, columns)
    chunks: dict[str, list[pq.ColumnChunkMetaData]] = {name: [] for name in kinds}
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            chunks[chunk.path_in_schema.partition(".")[0]].append(chunk)
    # an empty list or null counts as a value that is null
    sizes = {tuple(chunk.num_values for chunk in chunks[name]) for name in elements}
    are_whole = all(map(_has_no_null, chain.from_iterable(chunks[name] for name in elements)))
    if of is None or len(sizes) != 1 or not are_whole or columns.step not in (None, *kinds):
        return None
    if of.prompt != roles.first_present(kinds, roles.USUAL["prompt"]):
        return None
    return TableColumns(names=of.names(columns), to_columns=partial(_columns_of_lists, of=of, columns=columns))


def _types_of(kind: pa.DataType) -> set[type]:
    """The type of the cells of a column; ``object`` of one that holds no samples."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {list}
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return {str}
    if pa.types.is_boolean(kind):
        return {bool}
    if pa.types.is_integer(kind):
        return {int}
    return {float} if pa.types.is_floating(kind) else {object}


def _matters(name: str, kind: pa.DataType, columns: LogColumns) -> bool:
    """Whether a list of such elements may say something of samples; others are not read."""
    is_named = name in (columns.named.reward, *_TEXTS, *roles.REWARD_LISTS)
    if pa.types.is_struct(kind):
        entries = {kind.field(at).name for at in range(kind.num_fields)}
        return is_named or not entries.isdisjoint((columns.named.reward, *roles.USUAL["reward"]))
    return is_named or name in PROMPTS or _types_of(kind) != {str}


def _has_no_null(chunk: pq.ColumnChunkMetaData) -> bool:
    statistics = chunk.statistics
    return statistics is not None and statistics.has_null_count and statistics.null_count == 0


def _columns_of_lists(cells: Cells, *, of: _Roles, columns: LogColumns) -> Columns:
    sizes = {name: np.diff(to_numpy(cells.column(name).offsets)) for name in of.further}
    size_of, numbers = sizes[of.reward], {}
    are_aligned = all(np.array_equal(size, size_of) for size in sizes.values())
    if are_aligned:
        numbers = {name: arrow_numbers(cells.column(name).flatten()) for name in of.further}
    row = np.repeat(np.arange(len(cells)), size_of if are_aligned else 0)
    names: Any = cells.prompt_ids(of.id) if of.is_text else cells.names(of.id)
    if columns.benchmark in cells.keys:
        within = zip(cells.cells(columns.benchmark), texts_in(names), strict=True)
        names = to_strings([name and parse.in_environment(benchmark, name) for benchmark, name in within])
    steps = np.zeros(len(cells), dtype=np.int64) if columns.step is None else cells.steps(columns.step)
    return Columns(
        row=row,
        flaws=[] if are_aligned else [(0, "lists differ in length")],  # some row is odd, whichever it is
        step=steps[row],
        group=names.take(to_indices(row)),
        texts=lambda chosen: list(map(parse.text_of, cells.cells(of.prompt, row[chosen].tolist()))),
        numbers={
            "reward": numbers.get(of.reward, steps[:0]),
            **{REWARD + name: values for name, values in numbers.items()},
        },
        notes=[Fact("shape", "lists"), Fact("identity", of.how)],
    )
