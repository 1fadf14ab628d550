"""The groups of a step, whole or cut, and the advantages of each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.rank.rollouts.sub_groups import advantages_of, baseline_weights_of, sub_groups
from gradscope.errors import InputError
from gradscope.rollouts.function_rewards import FunctionRewards
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


def test_lengths_weigh_the_baseline_of_opo() -> None:
    rows = replace(
        make_rows([1, 0, 1, 0, 0], ["a", "a", "b", "b", "b"])[0], lengths=np.array([1.0, 3.0, 2.0, 2.0, 2.0])
    )
    first, second = advantages_of(rows, sub_groups(rows, None), "opo")
    assert first.tolist() == [0.75, -0.25]  # (1 x 1 + 3 x 0) / 4
    np.testing.assert_allclose(second, [2 / 3, -1 / 3, -1 / 3])
    assert baseline_weights_of(rows, "opo").tolist() == [1.0, 3.0, 2.0, 2.0, 2.0]
    assert baseline_weights_of(rows, "grpo").tolist() == [1.0] * 5


def test_each_function_is_scaled_by_itself() -> None:
    functions = FunctionRewards(table=np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 7.0], [0.0, 0.0]]), weights=np.ones(2))
    rows = replace(make_rows([1, 0, 7, 0], ["a", "a", "b", "b"])[0], functions=functions)
    first, second = advantages_of(rows, sub_groups(rows, None), "gdpo")
    np.testing.assert_allclose(first, second, rtol=1e-3)


@pytest.mark.parametrize(
    ("advantage", "message"),
    [
        ("opo", "opo depends on the lengths of completions, which are not known here"),
        ("gdpo", "gdpo needs the rewards of each function at step 3"),
    ],
)
def test_what_a_formulation_lacks_is_named(advantage: str, message: str) -> None:
    rows, _ = make_rows([1, 0], ["a", "a"])
    with pytest.raises(InputError, match=message):
        advantages_of(rows, sub_groups(rows, None), advantage)


def test_a_missing_advantage_is_named() -> None:
    rows, _ = make_rows([0, 1], ["a", "a"])
    with pytest.raises(InputError, match="No advantages were logged at step 3"):
        advantages_of(rows, sub_groups(rows, None), LOGGED)
