"""What the cells of a column are as numbers, steps and names, of Arrow once for each different cell."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import UNSET
from numpy.typing import NDArray

from gradscope.rollouts import arrays
from gradscope.rollouts.arrays import Counts, Floats
from gradscope.rollouts.groups import REWARD
from gradscope.rollouts.readers.parsing import cells as parse

_NUMBERS = frozenset({float, int, bool, type(None)})
NO_STEP = -1
"""What stands for the step of a row that has none."""


def _distinct(column: pa.Array) -> tuple[list[Any], Counts]:
    """The different cells of a column, and which of them each row has; -1 for null, [R]."""
    if not pa.types.is_dictionary(column.type):
        if pa.types.is_nested(column.type):  # which Arrow does not encode; equal cells mostly stand side by side
            starts = arrays.nested_starts(column)
            codes = np.where(arrays.to_numpy(column.is_valid().cast(pa.int8())), np.cumsum(starts) - 1, -1)
            return arrays.to_cells(column.take(arrays.to_indices(np.flatnonzero(starts)))), codes
        column = column.dictionary_encode()
    codes = arrays.dictionary_codes(column)
    if len(column.dictionary) <= len(column):
        return arrays.to_cells(column.dictionary), codes
    used, codes = np.unique(codes, return_inverse=True)  # of a dictionary of many batches
    has_null = int(used[:1].sum() < 0)
    return arrays.to_cells(column.dictionary.take(arrays.to_indices(used[has_null:]))), codes - has_null


def of_distinct(column: pa.Array, made_of: Callable[[list[Any]], NDArray[Any]], missing: float) -> NDArray[Any]:
    """What is made of each different cell of a column, once; ``missing`` for null, [R]."""
    cells, codes = _distinct(column)
    return np.asarray(np.append(made_of(cells), missing)[codes])


def mapped_names(column: pa.Array, name_of: Callable[[Any], str]) -> pa.Array:
    """Names of cells; "" for null and for an empty text, [R]."""
    cells, codes = _distinct(column)
    names = [name_of(cell) if cell not in (None, "") else "" for cell in cells]
    return arrays.to_strings([*names, ""]).take(arrays.to_indices(np.where(codes < 0, len(names), codes)))


def arrow_numbers(column: pa.Array, *, from_text: bool = False) -> Floats:
    """Rewards by ``parse_reward``; NaN where one is none, [R]."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return _finite(arrays.to_filled(column.cast(pa.float64(), safe=False), math.nan))
    if from_text and pa.types.is_string(kind):
        with suppress(pa.ArrowInvalid):
            return arrow_numbers(column.cast(pa.float64()))
    return of_distinct(column, partial(parsed_numbers, from_text=from_text), math.nan)


def parsed_numbers(cells: Iterable[Any], *, from_text: bool) -> Floats:
    """:func:`numbers_of` of any cells, of text too where ``from_text``."""
    parsed = (parse.parse_reward(cell, from_text=from_text) for cell in cells)
    return arrays.to_floats(None if isinstance(number, str) else number for number in parsed)


def numbers_of(cells: Sequence[Any]) -> Floats:
    """Numbers, booleans as 1 and 0; NaN for any other cell and what is not finite, [R]."""
    with suppress(TypeError, OverflowError):  # the latter for a whole number beyond all floats
        return _finite(np.asarray(array("d", cells)))  # which takes only numbers and booleans, in half the time
    if _NUMBERS.issuperset(map(type, cells)):
        with suppress(OverflowError):
            return _finite(np.array(cells, dtype=np.float64))
    return arrays.to_floats(None if cell is UNSET else parse.finite_or_none(cell) for cell in cells)


def _finite(numbers: Floats) -> Floats:
    return numbers if np.isfinite(numbers).all() else np.where(np.isfinite(numbers), numbers, math.nan)


def rewards_of(cells: Sequence[Any]) -> dict[str, Floats]:
    """The columns of reward functions from objects of their rewards, of which other cells are left out."""
    objects = [cell if type(cell) is dict else {} for cell in cells]
    functions = {}
    for name in dict.fromkeys(name for keys in dict.fromkeys(map(tuple, objects)) for name in keys):
        values = [cells_of_row.get(name) for cells_of_row in objects]
        if any(type(value) in _NUMBERS and value is not None for value in values):
            functions[REWARD + name] = numbers_of(values)
    return functions


def step_numbers(cells: Sequence[Any]) -> Counts:
    """Steps by ``step_number``; -1 where one is none, [R]."""
    are_ints = {int}.issuperset(map(type, cells))
    if cells and (are_ints or type(cells[0]) is str) and cells.count(cells[0]) == len(cells):  # rows of one step
        return np.full(len(cells), _parsed_step(cells[0]))
    if are_ints:
        with suppress(OverflowError):
            steps = np.array(cells, dtype=np.int64)
            return np.where((steps < 0) | (steps > parse.LARGEST_STEP), NO_STEP, steps)
    if not {str}.issuperset(map(type, cells)):
        return np.fromiter(map(_parsed_step, cells), np.int64, len(cells))
    of_text = {cell: _parsed_step(cell) for cell in set(cells)}
    return np.fromiter(map(of_text.__getitem__, cells), np.int64, len(cells))


def _parsed_step(cell: Any) -> int:
    return NO_STEP if (number := parse.step_number(cell)) is None else number


def int_steps(cells: Sequence[Any]) -> Counts:
    """:func:`step_numbers` of whole numbers alone: neither text nor 3.0 is one, [R]."""
    are_ints = {int}.issuperset(map(type, cells))
    return step_numbers(cells if are_ints else [cell if type(cell) is int else None for cell in cells])


def texts_of(cells: Sequence[Any]) -> list[str]:
    """Cells of text; "" for any other, [R]."""
    if {str}.issuperset(map(type, cells)):
        return list(cells)
    return [cell if isinstance(cell, str) else "" for cell in cells]
