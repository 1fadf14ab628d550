"""The advantages of a step as a matrix, rollouts by tokens."""

from __future__ import annotations

import numpy as np
import pytest

from gradscope.diagnostics.rank.rollouts.advantage_matrix import advantage_rows
from gradscope.diagnostics.rank.rollouts.step_spectra import step_spectra
from gradscope.errors import InputError
from gradscope.rollouts.types import Rollout, RolloutGroup, Tokens

EMPTY = {"group_id": "g", "prompt": "", "completion": ""}


def group_of(*rollouts: dict[str, object]) -> list[RolloutGroup]:
    made = [
        Rollout(**{**EMPTY, "sample": i, "row": i, "reward": float(i % 2), **one}) for i, one in enumerate(rollouts)
    ]
    return [RolloutGroup(step=1, group_id="g", prompt_id="p", rollouts=tuple(made))]


def rank_of(groups: list[RolloutGroup], advantage: str = "logged") -> float | None:
    (point,) = step_spectra(advantage_rows(1, groups), advantage, None, by_group=False)[1]
    return point.effective_rank.value


def test_one_advantage_a_rollout_has_rank_one_where_lengths_are_equal() -> None:
    rollouts = [{"completion_ids": (1, 2, 3), "advantage": a} for a in (1.0, -1.0, 0.5)]
    assert rank_of(group_of(*rollouts)) == pytest.approx(1.0)
    assert rank_of(group_of(*rollouts), "sign") == pytest.approx(1.0)


def test_other_lengths_and_masks_raise_it() -> None:
    ragged = group_of({"completion_ids": (1, 2, 3), "advantage": 1.0}, {"completion_ids": (1,), "advantage": -1.0})
    values = np.linalg.svd([[1.0, 1.0, 1.0], [-1.0, 0.0, 0.0]], compute_uv=False)
    share = values / values.sum()
    assert rank_of(ragged) == pytest.approx(np.exp(-np.sum(share * np.log(share))))
    masked = group_of(
        {"completion_ids": (1, 2), "mask": (True, False), "advantage": 1.0},
        {"completion_ids": (1, 2), "mask": (False, True), "advantage": 1.0},
    )
    assert rank_of(masked) == pytest.approx(2.0)


def test_advantages_of_tokens_have_their_own_rank() -> None:
    groups = group_of({"token_advantages": (1.0, 0.0)}, {"token_advantages": (0.0, 1.0)})
    rows = advantage_rows(1, groups)
    assert rows.advantages is None
    assert rank_of(groups) == pytest.approx(2.0)
    assert rank_of(groups, "sign") == pytest.approx(1.0)  # one advantage a rollout again


def test_without_logged_advantages_only_formulations_remain() -> None:
    rows = advantage_rows(1, group_of({"completion_ids": (1, 2)}, {"logprobs": (-0.1, -0.2)}))
    assert rows.policy_gram is None
    assert rows.advantages is None


def test_a_formulation_of_gradients_has_no_such_matrix() -> None:
    rows = advantage_rows(1, group_of({"completion_ids": (1, 2)}, {"completion_ids": (1,)}))
    with pytest.raises(InputError, match="optimal_baseline depends on the norms of gradients"):
        step_spectra(rows, "optimal_baseline", None, by_group=False)


def test_a_rollout_of_unknown_length_is_named() -> None:
    with pytest.raises(InputError, match="Rollout 1 of group g has no token ids"):
        advantage_rows(1, group_of({"completion_ids": (1,), "advantage": 1.0}, {"advantage": 1.0}))


def test_a_rollout_of_several_sequences_is_no_row() -> None:
    before = Tokens(prompt_ids=(5,), completion_ids=(7,), mask=(True,))
    with pytest.raises(InputError, match="Rollout 0 of group g is several sequences") as raised:
        advantage_rows(1, group_of({"completion_ids": (1,), "advantage": 1.0, "earlier": (before,)}))
    assert raised.value.cause == "several_sequences"
