"""Uniform rows of samples: the same keys, counts or lists as long as that of responses, an id of the prompt.

What :func:`samples_of` and the names of prompts make of such rows follows from the keys and types alone. The metadata
of a Parquet file says whether all its rows have such lists, and then no response has to be read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
from gradscope.rollouts.readers.evaluations.shapes import (
    NUMBERS,
    PROMPTS,
    ROW_IDS,
    PromptSamples,
    from_counts,
    objects_as_lists,
)
from gradscope.rollouts.readers.flat_columns import IMAGES
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing.columnar import open_parquet
from gradscope.rollouts.readers.reduction.columns import Cells, Columns, Fact, TableColumns, texts_in
from gradscope.rollouts.readers.reduction.numbers import step_numbers

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_VARIABLE = frozenset(("dataset", "test_id", *roles.POLICIES))  # keys whose cells say what they mean


class Prompt(NamedTuple):
    """A prompt of a row, with its samples."""

    row: int
    step: int
    name: str  # its id
    identity: str  # what the id comes from
    cell: Any  # the prompt itself
    samples: PromptSamples
    policy: str | None  # the policy of all its samples, where the row names one


class LogColumns(Struct, frozen=True, kw_only=True):
    """The columns of a log that mean the same in every row."""

    named: ColumnNames  # by the user
    step: str | None  # the column of steps
    benchmark: str | None  # the column of the benchmark within which ids count
    level: int | None = None  # which of the keys that lead to samples names their policy
    rewards: frozenset[str]  # the numbers of samples that are those of reward functions
    end: str | None = None  # what says of samples how they ended
    steps: Mapping[Path, int] = {}  # the step of each file, where rows name none


class _Ids(NamedTuple):
    """What names the prompts of uniform rows."""

    key: str
    is_text: bool  # whether it is the text of the prompt
    prompt: str | None  # the column of texts
    identity: str


class _Lists(NamedTuple):
    """The lists of uniform rows."""

    reward: str
    rewards: tuple[str, ...]  # the lists of rewards
    ends: tuple[str, ...]  # that of how samples ended, if there is one
    texts: str


def _ids_of(types: Mapping[str, set[type]], columns: LogColumns) -> _Ids | None:
    """What names the prompts of rows, by the types of their cells."""
    key = roles.first_present(types, (*ROW_IDS, *roles.USUAL["prompt"]))
    is_named = (columns.named.group, columns.named.prompt_id, columns.named.prompt) != (None, None, None)
    if is_named or key is None or not _VARIABLE.isdisjoint(types):
        return None
    is_text = key in roles.USUAL["prompt"]
    if types[key] != {str} and (is_text or types[key] != {int}):
        return None
    if is_text and not types.keys().isdisjoint(IMAGES):
        return None
    identity = f"the text of {key}" if is_text else ", ".join(filter(None, (columns.benchmark, key)))
    return _Ids(key, is_text, roles.first_present(types, roles.USUAL["prompt"]), identity)


def _lists_of(types: Mapping[str, set[type]], elements: Mapping[str, set[type]], columns: LogColumns) -> _Lists | None:
    """The lists of samples in rows, by the types of their cells, and of the elements of lists."""
    named = columns.named
    reward = named.reward or roles.first_present(elements, roles.REWARD_LISTS)
    texts = roles.first_present(elements, (*roles.ANSWER_KEYS, *roles.TEXT_LISTS))
    if reward is None or texts is None or not elements.get(reward, {str}) <= NUMBERS:
        return None
    are_plain = all(kinds == {str} or kinds <= NUMBERS for kinds in elements.values())
    has_other = any(list in types[key] for key in types.keys() - elements.keys())
    is_named = named != ColumnNames(reward=named.reward, step=named.step)
    # a number n may be that of samples, and a list of prompts is that of a batch
    if not are_plain or has_other or is_named or "n" in types or not elements.keys().isdisjoint(PROMPTS):
        return None
    rewards = (key for key, kinds in elements.items() if key in columns.rewards and kinds <= NUMBERS)
    ends = tuple(key for key in elements if key == columns.end)
    return _Lists(reward, tuple(dict.fromkeys((reward, *rewards))), ends, texts)


def uniform_prompts(rows: Sequence[Mapping[str, Any]], columns: LogColumns) -> list[Prompt]:
    """The prompts of uniform rows; none of others."""
    rows = objects_as_lists(rows, columns.named.reward)
    keys = tuple(rows[0]) if rows else ()
    if not keys or set(map(tuple, rows)) != {keys}:
        return []
    by_key = dict(zip(keys, zip(*(row.values() for row in rows), strict=True), strict=True))
    types = {key: set(map(type, cells)) for key, cells in by_key.items()}
    ids = _ids_of(types, columns)
    samples = [] if ids is None or "" in by_key[ids.key] else _uniform_samples(rows, by_key, types, columns)
    steps = [0] * len(rows) if columns.step is None else step_numbers(by_key.get(columns.step, ())).tolist()
    if ids is None or not samples or min(steps, default=-1) < 0:
        return []
    names = map(parse.prompt_text_id if ids.is_text else parse.text_of, by_key[ids.key])
    names = map(parse.in_environment, by_key[columns.benchmark], names) if columns.benchmark in by_key else names
    prompts = by_key.get(ids.prompt or "", [None] * len(rows))
    return [
        Prompt(index, step, name, ids.identity, prompt, prompt_samples, None)
        for index, (step, name, prompt, prompt_samples) in enumerate(zip(steps, names, prompts, samples, strict=True))
    ]


def _uniform_samples(
    rows: Sequence[Mapping[str, Any]],
    by_key: Mapping[str, Sequence[Any]],
    types: Mapping[str, set[type]],
    columns: LogColumns,
) -> list[PromptSamples]:
    """The samples of rows with counts or with lists of one length; none of others."""
    if all(kinds.isdisjoint((list, dict)) for kinds in types.values()):
        counted = [from_counts(row, columns.named) for row in rows]
        samples = [part for part in counted if isinstance(part, PromptSamples)]
        return samples if len(samples) == len(rows) else []
    elements = {key: set(map(type, chain.from_iterable(by_key[key]))) for key in types if types[key] == {list}}
    lists = _lists_of(types, elements, columns)
    sizes = {tuple(map(len, by_key[key])) for key in elements}
    if lists is None or len(sizes) != 1 or 0 in next(iter(sizes)):
        return []
    reward, rewards, ends, texts = lists
    names = (*rewards, *ends)
    return [
        PromptSamples(shape="lists", rewards=row[reward], columns={name: row[name] for name in names}, texts=row[texts])
        for row in rows
    ]


def uniform_table(path: Path, columns: LogColumns) -> TableColumns | None:
    """How a Parquet file becomes columns where its metadata shows uniform rows; else None."""
    with open_parquet(path) as file:
        kinds, metadata = {field.name: field.type for field in file.schema_arrow}, file.metadata
    types = {name: _types_of(kind) for name, kind in kinds.items()}
    listed = {name: kind.value_type for name, kind in kinds.items() if types[name] == {list}}
    elements = {name: _types_of(kind) for name, kind in listed.items() if _matters(name, kind, columns)}
    types = {name: types[name] for name in types if name in elements or name not in listed}
    ids, lists = _ids_of(types, columns), _lists_of(types, elements, columns)
    chunks = _chunks_of(metadata, elements)
    # an empty list or null counts as a value that is null
    sizes = {tuple(chunk.num_values for chunk in chunks[name]) for name in elements}
    are_whole = all(map(_has_no_null, chain.from_iterable(chunks[name] for name in elements)))
    if ids is None or lists is None or len(sizes) != 1 or not are_whole or columns.step not in (None, *kinds):
        return None
    if ids.prompt != roles.first_present(kinds, roles.USUAL["prompt"]):
        return None
    read = filter(None, (columns.step, columns.benchmark, ids.key, ids.prompt, *lists.rewards, *lists.ends))
    to_columns = partial(_columns_of_lists, ids=ids, lists=lists, columns=columns)
    return TableColumns(names=tuple(dict.fromkeys(read)), to_columns=to_columns)


def _chunks_of(metadata: pq.FileMetaData, names: Collection[str]) -> dict[str, list[pq.ColumnChunkMetaData]]:
    """The chunks of columns of a file, and of the parts of nested ones: a name may have dots, as the path of a part."""
    chunks: dict[str, list[pq.ColumnChunkMetaData]] = {name: [] for name in names}
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            path = chunk.path_in_schema
            column = max((name for name in names if f"{path}.".startswith(f"{name}.")), key=len, default=None)
            if column is not None:
                chunks[column].append(chunk)
    return chunks


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
    named = (columns.named.reward, columns.end)
    is_named = name in (*named, *roles.ANSWER_KEYS, *roles.TEXT_LISTS, *roles.REWARD_LISTS)
    if pa.types.is_struct(kind):
        entries = {kind.field(index).name for index in range(kind.num_fields)}
        return is_named or not entries.isdisjoint((columns.named.reward, *roles.USUAL["reward"]))
    return is_named or name in PROMPTS or _types_of(kind) != {str}


def _has_no_null(chunk: pq.ColumnChunkMetaData) -> bool:
    statistics = chunk.statistics
    return statistics is not None and statistics.has_null_count and statistics.null_count == 0


def _columns_of_lists(cells: Cells, *, ids: _Ids, lists: _Lists, columns: LogColumns) -> Columns:
    listed = {name: cells.column(name) for name in (*lists.rewards, *lists.ends)}
    sizes = {name: np.diff(to_numpy(column.offsets)) for name, column in listed.items()}
    size, numbers = sizes[lists.reward], dict[str, Any]()
    are_aligned = all(np.array_equal(other, size) for other in sizes.values())
    if are_aligned:
        samples = Cells(cells.path, sum(size), listed, lambda name: listed[name or ""].flatten())
        numbers = {REWARD + name: samples.numbers(name) for name in lists.rewards}
        for name in lists.ends:
            numbers["truncated"] = samples.truncated(name)
    row = np.repeat(np.arange(len(cells)), size if are_aligned else 0)
    names: Any = cells.prompt_ids(ids.key) if ids.is_text else cells.names(ids.key)
    if columns.benchmark in cells.keys:
        named = zip(cells.cells(columns.benchmark), texts_in(names), strict=True)
        names = to_strings([name and parse.in_environment(benchmark, name) for benchmark, name in named])
    steps = np.zeros(len(cells), dtype=np.int64) if columns.step is None else cells.steps(columns.step)
    return Columns(
        row=row,
        flaws=[] if are_aligned else [(0, "lists differ in length")],  # some row is odd, whichever it is
        step=steps[row],
        group=names.take(to_indices(row)),
        texts=lambda chosen: list(map(parse.text_of, cells.cells(ids.prompt, row[chosen].tolist()))),
        numbers={"reward": numbers.get(REWARD + lists.reward, steps[:0]), **numbers},
        notes=[Fact("shape", "lists"), Fact("identity", ids.identity)],
    )
