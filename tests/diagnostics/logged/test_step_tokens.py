from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from gradscope.diagnostics.logged.step_tokens import (
    NO_LOGPROB,
    NO_SAMPLER,
    NO_TRAINER,
    NOT_FINITE,
    OTHER_LENGTH,
    PLACEHOLDERS,
    counts_in_loss,
    step_tokens,
)
from gradscope.rollouts.types import Tokens
from tests.diagnostics.logged.made_up_tokens import both, tokens_of


def test_masked_tokens_are_left_out_and_positions_are_those_of_the_completion() -> None:
    group = tokens_of(
        both([-1.0, 0.0, -2.0], [-1.5, math.nan, -2.0], mask=(True, False, True), advantage=0.5),
        both([-0.25], [-0.5], token_advantages=(-1.0,), advantage=0.5),
        both([-0.25], [-0.5], mask=(False,)),
    )
    set_aside: Counter[str] = Counter()
    tokens = step_tokens([group], set_aside)
    assert tokens.log_ratios.tolist() == [-0.5, 0.0, -0.25]
    assert tokens.positions.tolist() == [0, 2, 0]
    assert tokens.lengths.tolist() == [2, 1]
    assert tokens.advantages.tolist() == [0.5, 0.5, -1.0]
    assert [rollout.sample for rollout in tokens.rollouts] == [0, 1]
    assert not set_aside


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, NO_SAMPLER),
        ({"logprobs": (-1.0,)}, NO_TRAINER),
        ({"trainer_logprobs": (-1.0,)}, NO_SAMPLER),
        (both([-1.0], [-1.0, -2.0]), OTHER_LENGTH),
        (both([-1.0], [-1.0], mask=(True, True)), OTHER_LENGTH),
        (both([], []), OTHER_LENGTH),
        (both([-1.0, -1.0], [-1.0, math.nan]), NOT_FINITE),
        (both([-math.inf], [-1.0]), NOT_FINITE),
        (both([-1.0], [math.inf]), NOT_FINITE),
        (both([1.0], [-1.0]), NO_LOGPROB),
        (both([-1.0], [-1e30]), NO_LOGPROB),
    ],
)
def test_rows_that_cannot_be_compared_are_counted_by_reason(fields: dict[str, Any], reason: str) -> None:
    set_aside: Counter[str] = Counter()
    tokens = step_tokens([tokens_of(fields, both([-1.0], [-2.0]))], set_aside)
    assert set_aside == {reason: 1}
    assert tokens.log_ratios.tolist() == [-1.0]


def test_a_little_above_zero_is_rounding() -> None:
    assert step_tokens([tokens_of(both([0.25], [-0.25]))], Counter()).log_ratios.tolist() == [-0.5]


@pytest.mark.parametrize(
    ("sampler", "trainer", "kept"),
    [((-1.0, -2.0), (0.0, 0.0), 0), ((0.0, 0.0), (-1.0, -2.0), 0), ((0.0, 0.0), (0.0, 0.0), 3), ((-1.0,), (0.0,), 3)],
)
def test_zeros_of_a_whole_step_stand_for_no_log_probabilities(
    sampler: tuple[float, ...], trainer: tuple[float, ...], kept: int
) -> None:
    set_aside: Counter[str] = Counter()
    third = both([-1.0], [-1.0]) if len(sampler) == 1 else both(sampler, trainer)
    tokens = step_tokens([tokens_of(both(sampler, trainer), both(sampler, trainer), third)], set_aside)
    assert len(tokens.lengths) == kept
    assert set_aside == ({} if kept else {PLACEHOLDERS: 3})


def test_no_rollout_gives_no_token() -> None:
    tokens = step_tokens([], Counter())
    assert (len(tokens.sampler), len(tokens.lengths), tokens.prompts) == (0, 0, ())


def test_advantages_of_another_length_are_not_taken() -> None:
    tokens = step_tokens([tokens_of(both([-1.0], [-1.0], token_advantages=(1.0, 2.0)))], Counter())
    assert np.isnan(tokens.advantages).all()


def test_a_rollout_of_which_no_token_counts_is_in_no_loss() -> None:
    masks = (None, (True, False), (False, False), ())
    assert [counts_in_loss(tokens_of({"mask": mask}).rollouts[0]) for mask in masks] == [True, True, False, False]


def test_each_sequence_of_a_rollout_has_its_own_tokens_and_its_prompt() -> None:
    before = Tokens(
        prompt_ids=(5,), completion_ids=(7, 8), mask=(False, True), logprobs=(0.0, -1.0), trainer_logprobs=(0.0, -1.25)
    )
    unknown = Tokens(prompt_ids=(5,), completion_ids=(7,), mask=(True,), logprobs=(-1.0,))
    outside = Tokens(prompt_ids=(5,), completion_ids=(7,), mask=(False,))
    set_aside: Counter[str] = Counter()
    several = both([-0.5], [-0.5], mask=(True,), advantage=0.5, earlier=(before, unknown, outside))
    tokens = step_tokens([tokens_of(several, both([-2.0], [-2.0]))], set_aside)
    assert tokens.log_ratios.tolist() == [-0.25, 0.0, 0.0]
    assert (tokens.positions.tolist(), tokens.lengths.tolist()) == ([1, 0, 0], [1, 1, 1])
    assert (tokens.sequences, [one.sample for one in tokens.rollouts]) == ((0, 3, 0), [0, 0, 1])
    assert tokens.prompts == ("p", "p", "p")
    assert set_aside == {NO_TRAINER: 1}


def test_a_rollout_counts_where_any_of_its_sequences_does() -> None:
    (one,) = tokens_of(both([-0.5], [-0.5], mask=(False,))).rollouts
    before = Tokens(prompt_ids=(5,), completion_ids=(7,), mask=(True,))
    assert not counts_in_loss(one)
    assert counts_in_loss(dataclasses.replace(one, earlier=(before,)))
