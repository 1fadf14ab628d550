from __future__ import annotations

import math
from typing import Any

import pytest

from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.parsing.token_lists import NOT_ALIGNED, NOT_IDS, NOTHING_SAMPLED, cut_sequence
from gradscope.rollouts.types import Tokens


def test_a_sequence_is_cut_before_the_first_sampled_token_and_keeps_what_lies_between_turns() -> None:
    cut = cut_sequence(
        [1, 2, 3, 4, 5], [0, 0, 1, 0, 1], logprobs=[9, 9, -0.5, 9, -0.25], advantages=[7, 7, 0.5, 7, 0.5]
    )
    assert cut == Tokens(
        prompt_ids=(1, 2),
        completion_ids=(3, 4, 5),
        mask=(True, False, True),
        logprobs=(-0.5, 0.0, -0.25),
        token_advantages=(0.5, 0.0, 0.5),
    )
    assert cut.advantage == 0.5


def test_advantages_that_differ_between_tokens_are_no_one_number() -> None:
    cut = cut_sequence([1, 2], [1, 1], advantages=[0.5, -0.5])
    assert (cut.advantage, cut.token_advantages) == (None, (0.5, -0.5))


def test_a_log_probability_that_is_missing_voids_all_of_them() -> None:
    cut = cut_sequence([1, 2], [1, 1], logprobs=[-0.5, None])
    assert cut.logprobs is None


@pytest.mark.parametrize(
    ("ids", "mask", "more", "reason"),
    [
        ("12", [1, 1], {}, NOT_IDS),
        ([1, 2.5], [1, 1], {}, NOT_IDS),
        ([1, 2], [1], {}, NOT_ALIGNED),
        ([1, 2], None, {}, NOT_ALIGNED),
        ([1, 2], [1, 1], {"logprobs": [0.0]}, NOT_ALIGNED),
        ([1, 2], [1, 1], {"advantages": 0.5}, NOT_ALIGNED),
        ([1, 2], [0, 0], {}, NOTHING_SAMPLED),
    ],
)
def test_lists_that_contradict_each_other_say_why(ids: Any, mask: Any, more: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnusableRowError, match=f"^{reason}$"):
        cut_sequence(ids, mask, **more)


def test_the_trainers_numbers_keep_their_gaps_where_tokens_were_sampled() -> None:
    tokens = cut_sequence([1, 2, 3], [0, 1, 0], trainer_logprobs=[None, -0.5, None], entropies=[1, "high", 2])
    assert tokens.trainer_logprobs == (-0.5, 0.0)
    assert tokens.entropies == pytest.approx((math.nan, 0.0), nan_ok=True)


@pytest.mark.parametrize("cell", [None, [], [-0.5], "text"])
def test_trainers_numbers_of_another_length_cost_no_row(cell: Any) -> None:
    tokens = cut_sequence([1, 2], [0, 1], trainer_logprobs=cell, entropies=cell)
    assert (tokens.trainer_logprobs, tokens.entropies) == (None, None)
