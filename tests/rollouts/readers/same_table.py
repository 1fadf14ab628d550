"""A log that is reduced to its rewards has the answers of the row reader, whatever its files hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gradscope.errors import InputError
from gradscope.rollouts.groups import GroupsOfTable, RewardTable
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from tests.rollouts.readers.reduced import read_by_row

_OF_A_REDUCTION = ("place", "sample")
"""What no table of rollouts has."""
_MAY_BE_LEFT_OUT = ("advantage", "prompt_texts")
"""What not every reduction has: then shares of the advantage are undefined, and prompts have their ids alone."""


def assert_reduced_alike(path: Path, options: ReadOptions | None = None) -> Run | str:
    """Read a log both ways; return the reduced run, or the error that both ways end in."""
    by_row = _read(path, options, read_by_row)
    reduced = _read(path, options, partial(read_run, rewards_only=True))
    if isinstance(by_row, str) or isinstance(reduced, str):
        assert reduced == by_row
        return reduced
    assert isinstance(reduced.groups, GroupsOfTable)
    _assert_same_table(reduced.groups.table, RewardTable.of_groups(by_row.groups))
    assert reduced.source == by_row.source
    for name in ("metrics", "settings", "weights", "notes", "windows", "repeats"):
        assert getattr(reduced, name) == getattr(by_row, name), name
    return reduced


def _read(path: Path, options: ReadOptions | None, read: Callable[..., Run]) -> Run | str:
    try:
        return read(path, options)
    except InputError as error:
        return str(error)


def _assert_same_table(reduced: RewardTable, by_row: RewardTable) -> None:
    assert reduced.ids() == by_row.ids()
    further = reduced.rewards.keys() - by_row.rewards.keys()  # of rows that repeat others, and do not count
    assert all(np.isnan(reduced.rewards[name]).all() for name in further)
    for name, values in by_row.rewards.items():
        np.testing.assert_array_equal(reduced.rewards[name], values, name)
    for field in fields(RewardTable):
        found = getattr(reduced, field.name)
        if field.name not in ("names", "rewards", *_OF_A_REDUCTION) and not (
            found is None and field.name in _MAY_BE_LEFT_OUT
        ):
            _assert_same(found, getattr(by_row, field.name), field.name)


def _assert_same(found: Any, wanted: Any, name: str) -> None:
    if isinstance(wanted, np.ndarray):
        assert found.dtype == wanted.dtype, name
        np.testing.assert_array_equal(found, wanted, name)
    else:
        assert found == wanted, name
