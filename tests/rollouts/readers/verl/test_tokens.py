from __future__ import annotations

import math
from typing import Any

import pytest

from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.verl.tokens import row_tokens

ROW: dict[str, Any] = {
    "prompts": [0, 0, 5, 6],
    "responses": [7, 8, 9, 0],
    "attention_mask": [0, 0, 1, 1, 1, 1, 1, 0],
    "response_mask": [1, 0, 1, 0],
    "rollout_log_probs": [-0.5, 0.0, -0.25, 0.0],
    "advantages": [1.0, 0.0, 1.0, 0.0],
}


def test_padding_is_cut_where_the_attention_mask_says_so() -> None:
    tokens = row_tokens(ROW)
    assert tokens is not None
    assert (tokens.prompt_ids, tokens.completion_ids, tokens.mask) == ((5, 6), (7, 8, 9), (True, False, True))
    assert (tokens.logprobs, tokens.advantage) == ((-0.5, 0.0, -0.25), 1.0)


def test_ids_under_their_other_names_with_one_advantage() -> None:
    tokens = row_tokens({"prompt_ids": [5], "response_ids": [7, 8], "advantages": 0.5})
    assert tokens is not None
    assert (tokens.mask, tokens.logprobs, tokens.token_advantages) == ((True, True), None, (0.5, 0.5))


def test_a_response_outside_the_loss_stays() -> None:
    tokens = row_tokens({**ROW, "response_mask": [0, 0, 0, 0]})
    assert tokens is not None
    assert tokens.mask == (False, False, False)


@pytest.mark.parametrize(
    "cells",
    [{"prompts": "5 6"}, {"attention_mask": [1]}, {"response_mask": [1, 1]}, {"rollout_log_probs": [None] * 4}],
)
def test_lists_that_do_not_fit_are_no_row(cells: dict[str, Any]) -> None:
    with pytest.raises(UnusableRowError):
        row_tokens({**ROW, **cells})


def test_text_has_no_tokens() -> None:
    assert row_tokens({"input": "a", "output": "b"}) is None


def test_the_trainers_numbers_are_cut_alike_and_their_gaps_kept() -> None:
    tokens = row_tokens({**ROW, "old_log_probs": [-0.6, None, -0.3, 9.0], "entropys": [0.5, 0.25, "high", 0.0]})
    assert tokens is not None
    assert tokens.trainer_logprobs == pytest.approx((-0.6, math.nan, -0.3), nan_ok=True)
    assert tokens.entropies == pytest.approx((0.5, 0.25, math.nan), nan_ok=True)


@pytest.mark.parametrize("cell", [None, [-0.5], "text", -0.5])
def test_trainers_numbers_that_do_not_fit_are_none_and_cost_no_row(cell: Any) -> None:
    tokens = row_tokens({**ROW, "old_log_probs": cell})
    assert tokens is not None
    assert (tokens.trainer_logprobs, tokens.entropies) == (None, None)
