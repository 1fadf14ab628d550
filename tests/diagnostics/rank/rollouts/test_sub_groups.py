"""The groups of a step, whole or cut, and the advantages of each."""

from __future__ import annotations

import pytest

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.rank.rollouts.sub_groups import advantages_of, sub_groups
from gradscope.errors import InputError
from tests.diagnostics.rank.rollouts.test_step_spectra import make_rows


def test_a_group_of_four_splits_into_disjoint_pairs() -> None:
    rows, _ = make_rows([0, 1, 0, 1, 1, 1, 0], ["a"] * 4 + ["b"] * 3)
    parts = sub_groups(rows, 2)
    assert [(part.group_id, part.samples) for part in parts] == [
        ("a", (0, 1)),
        ("a", (2, 3)),
        ("b", (0, 1)),
    ]
    assert [part.index.tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]


def test_interleaved_groups_are_kept_apart() -> None:
    rows, _ = make_rows([0, 1, 0, 1], ["a", "b", "a", "b"])
    assert [part.index.tolist() for part in sub_groups(rows, None)] == [[0, 2], [1, 3]]


def test_a_missing_advantage_is_named() -> None:
    rows, _ = make_rows([0, 1], ["a", "a"])
    with pytest.raises(InputError, match="No advantages were logged at step 3"):
        advantages_of(rows, sub_groups(rows, None), LOGGED)
