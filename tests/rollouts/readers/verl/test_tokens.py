import json
import math
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.verl.rollouts import dump_columns
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
    "cells", [{"prompts": "5 6"}, {"attention_mask": [1]}, {"response_mask": [1, 1]}, {"rollout_log_probs": [None] * 4}]
)
def test_lists_that_do_not_fit_are_no_row(cells: dict[str, Any]) -> None:
    with pytest.raises(UnusableRowError):
        row_tokens({**ROW, **cells})


ODD = (None, [], [None], "x", 0.5, True, -1, [[1]], [1.0], [True, False], {})
ODD_ENDS = (None, True, 2, 0.5, -3, "a", 1e400, 10**400, [1])


def changed(rng: random.Random, cell: Any) -> Any:
    """A cell as it is, mostly; else another one, or a list with another end."""
    if rng.random() < 0.7 or not isinstance(cell, list):
        return cell
    return rng.choice([rng.choice(ODD), cell[:-1], [*cell, 0], [*cell[:-1], rng.choice(ODD_ENDS)]])


def test_columns_count_tokens_as_rows_do() -> None:
    rng = random.Random(1)
    decoder = (lines := dump_columns([], None, has_tokens=True)).decoder
    num_compared = 0
    for _ in range(1000):
        num_prompt, size = rng.randrange(4), rng.randrange(5)
        cells = {
            rng.choice(["prompts", "prompt_ids"]): [5] * num_prompt,
            rng.choice(["responses", "response_ids"]): [7] * size,
            "attention_mask": rng.choices([0, 1, 1], k=num_prompt + size),
            "response_mask": rng.choices([0, 1, 1], k=size),
            "rollout_log_probs": rng.choices([-0.5, -1e-05, 0], k=size),
            "advantages": rng.choice([[0.5] * size, rng.choices([0.5, 0.0], k=size), 0.25, -1]),
        }
        cells = {name: changed(rng, cell) for name, cell in cells.items() if rng.random() < 0.9}
        text = json.dumps(
            {"input": "2+2", "output": "4", "score": 1.0, "step": 1, **cells},
            separators=rng.choice([(", ", ": "), (",", ":")]),
        )
        with suppress(msgspec.MsgspecError):  # the row reader reads what the decoder refuses
            columns = lines.take([decoder.decode(text.encode())], Path("1.jsonl"))
            num_compared += 1
            try:
                tokens = row_tokens(json.loads(text))
            except UnusableRowError:
                assert columns.is_odd is not None
                assert columns.is_odd.all()
            else:
                expected = (-1, None) if tokens is None else (len(tokens.completion_ids), tokens.advantage)
                length, advantage = columns.numbers["num_tokens"][0], columns.numbers["advantage"][0]
                assert (length, None if math.isnan(advantage) else advantage) == expected
    assert num_compared > 700


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
