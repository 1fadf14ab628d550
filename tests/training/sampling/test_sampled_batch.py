"""Several calls as one batch: the tensors that a single call would have returned."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradscope.training.sampling.sampled_batch import Scored, merge

PAD = 9


def scored(prompts: list[list[int]], completions: list[list[int]], **more: Any) -> Scored:
    """A call of TRL's method, with the padding that it has."""

    def padded(rows: list[list[int]], filler: int, *, left: bool) -> torch.Tensor:
        width = max(map(len, rows))
        fill = [[filler] * (width - len(row)) for row in rows]
        return torch.tensor([(gap + row) if left else (row + gap) for row, gap in zip(rows, fill, strict=True)])

    ones = [[1] * len(row) for row in prompts], [[1] * len(row) for row in completions]
    mask = padded(ones[1], 0, left=False)
    return Scored(
        rows=[{"prompt_id": str(prompt)} for prompt in prompts],
        output={
            "prompt_ids": padded(prompts, PAD, left=True),
            "prompt_mask": padded(ones[0], 0, left=True),
            "completion_ids": padded(completions, PAD, left=False),
            "completion_mask": mask,
            "advantages": torch.arange(len(prompts), dtype=torch.float32),
            "num_items_in_batch": mask.sum(),
            "ref_per_token_logps": -mask.float(),
            **more,
        },
        rewards={"answer": [float(len(row)) for row in completions], "style": [0.5] * len(completions)},
        trained=("answer", "style"),
    )


FIRST = ([[1], [1, 2]], [[3, 4, 5, 6], [3]])
SECOND = ([[1, 2, 3], [7]], [[5, 6], [8, 8, 8]])


def test_two_rounds_are_what_one_call_would_have_been() -> None:
    merged = merge([scored(*FIRST), scored(*SECOND)], [0, 1, 2, 3], padding=PAD)
    whole = scored(FIRST[0] + SECOND[0], FIRST[1] + SECOND[1])
    assert merged.rows == whole.rows
    assert merged.rewards == whole.rewards
    assert merged.totals.tolist() == [4.5, 1.5, 2.5, 3.5]
    assert merged.num_tokens.tolist() == [4, 1, 2, 3]
    assert merged.output.keys() == whole.output.keys()
    for name in whole.output.keys() - {"advantages"}:
        assert merged.output[name].dtype == whole.output[name].dtype
        assert torch.equal(merged.output[name], whole.output[name]), name
    assert merged.output["advantages"].tolist() == [0.0, 1.0, 0.0, 1.0]


def test_rows_left_out_leave_no_padding_behind() -> None:
    merged = merge([scored(*FIRST), scored(*SECOND)], [3, 1], padding=PAD)
    whole = scored([[7], [1, 2]], [[8, 8, 8], [3]])
    for name in whole.output.keys() - {"advantages"}:
        assert torch.equal(merged.output[name], whole.output[name]), name
    assert merged.output["num_items_in_batch"] == 4
    assert merged.rewards == {"answer": [3.0, 1.0], "style": [0.5, 0.5]}


@pytest.mark.parametrize("unknown", [torch.tensor(1.0), [1, 2], torch.zeros(2, 1, 1)])
def test_what_is_not_one_row_a_rollout_is_no_batch(unknown: Any) -> None:
    rounds = [scored(*FIRST, pixels=unknown), scored(*SECOND, pixels=unknown)]
    with pytest.raises(ValueError, match="pixels of TRL's batch is not one row a rollout"):
        merge(rounds, [0], padding=PAD)
