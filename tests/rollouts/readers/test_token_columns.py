from typing import Any

import pytest

from gradscope.rollouts.groups import Tokens
from gradscope.rollouts.readers.token_columns import hold_tokens, tokens_by_names

PROMPT, COMPLETION, ADVANTAGES, LOGPROBS = [5, 9], [7, 11, 2], [0.5, 0.25, -0.5], [-1.0, -0.5, -1.5]
WHOLE = [*PROMPT, *COMPLETION]
TOKENS = Tokens(
    prompt_ids=tuple(PROMPT),
    completion_ids=tuple(COMPLETION),
    mask=(True, True, True),
    logprobs=tuple(LOGPROBS),
    token_advantages=tuple(ADVANTAGES),
)
OF_COMPLETION = {"advantages": ADVANTAGES, "logprobs": LOGPROBS}
OF_WHOLE = {name: [0.0, 0.0, *values] for name, values in OF_COMPLETION.items()}
OF_PREDICTED = {name: values[1:] for name, values in OF_WHOLE.items()}


def read(row: dict[str, Any]) -> Tokens | None:
    assert hold_tokens(row)
    return tokens_by_names(row.get, "advantages")


@pytest.mark.parametrize("values", [OF_COMPLETION, OF_WHOLE, OF_PREDICTED])
@pytest.mark.parametrize(
    "row",
    [
        {"input_ids": WHOLE, "labels": [-100, -100, *COMPLETION]},
        {"sequence_ids": WHOLE, "action_mask": [False, True, True, True]},  # of what is predicted
        {"tokens": WHOLE, "loss_mask": [0, 0, 1, 1, 1]},
        {"token_ids": WHOLE, "prompt_len": 2},
    ],
)
def test_ids_of_prompt_and_completion_in_one_are_divided(row: dict[str, Any], values: dict[str, Any]) -> None:
    assert read(row | values) == TOKENS


def test_padding_and_what_an_environment_wrote_are_no_sampled_tokens() -> None:
    padded = {
        "input_ids": [0, 0, *WHOLE, 0],
        "attention_mask": [0, 0, 1, 1, 1, 1, 1, 0],
        "completion_mask": [0, 0, 0, 0, 1, 0, 1, 0],
        "advantages": [0.5, -0.5],
    }
    tokens = read(padded)
    assert tokens is not None
    assert (tokens.prompt_ids, tokens.completion_ids) == ((5, 9), (7, 11, 2))
    assert (tokens.mask, tokens.token_advantages) == ((True, False, True), (0.5, 0.0, -0.5))


@pytest.mark.parametrize(
    "row",
    [
        {"tokens": 5, "prompt_len": 2},  # a count
        {"tokens": ["2", "+", "2"], "prompt_len": 1},  # texts
        {"input_ids": WHOLE, "labels": [-100] * 5},
        {"input_ids": WHOLE, "labels": [1, 2], "prompt_len": None},
        {"input_ids": WHOLE, "loss_mask": [1, 1]},
        {"input_ids": WHOLE, "loss_mask": [0, 0, 1, 1, 1], "advantages": [0.5]},
    ],
)
def test_columns_of_something_else_are_no_tokens(row: dict[str, Any]) -> None:
    assert read(row) is None


def test_a_mask_of_another_length_is_none() -> None:
    assert read({"input_ids": WHOLE, "prompt_len": 2, "attention_mask": [1, 1], **OF_WHOLE}) == TOKENS


def test_a_name_alone_is_no_token() -> None:
    assert not hold_tokens({"tokens": 5, "reward": 1.0})
    assert not hold_tokens({"labels": [1]})
