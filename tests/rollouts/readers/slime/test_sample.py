from __future__ import annotations

from typing import Any

import pytest

from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.slime.sample import logged_tokens, num_logged_tokens

SAMPLE = {"tokens": [5, 9, 2], "response_length": 2, "loss_mask": None, "rollout_log_probs": None}


def test_the_last_tokens_are_the_completion() -> None:
    tokens = logged_tokens({**SAMPLE, "loss_mask": [0, 1], "rollout_log_probs": [0.0, -0.5]})
    assert (tokens.prompt_ids, tokens.completion_ids, tokens.logprobs) == ((5, 9), (2,), (-0.5,))
    assert logged_tokens(SAMPLE).mask == (True, True)
    assert num_logged_tokens({**SAMPLE, "loss_mask": [0, 1]}) == 1
    assert num_logged_tokens(SAMPLE) == 2


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"tokens": None}, "not a list of whole numbers"),
        ({"response_length": None}, "not a list of whole numbers"),
        ({"response_length": 4}, "not a list of whole numbers"),
        ({"response_length": 0}, "not a list of whole numbers"),
        ({"loss_mask": [1]}, "differ in length"),
        ({"rollout_log_probs": [-0.5]}, "differ in length"),
        ({"loss_mask": [0, 0]}, "no token of the row was sampled"),
    ],
)
def test_tokens_that_contradict_themselves_are_of_no_use(cells: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnusableRowError, match=reason):
        logged_tokens({**SAMPLE, **cells})
    with pytest.raises(UnusableRowError, match=reason):
        num_logged_tokens({**SAMPLE, **cells})
