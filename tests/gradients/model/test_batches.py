from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.gradients.model.batches import pad_batch, split_rows
from gradscope.gradients.model.token_sequence import TokenSequence


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 200))
def test_every_row_is_in_one_batch_within_the_budget(lengths, budget):
    batches = split_rows(lengths, budget)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= budget
    in_order = [lengths[row] for batch in batches for row in batch]
    assert in_order == sorted(lengths, reverse=True)


def sequence(prompt, completion):
    mask = (True,) * len(completion)
    return TokenSequence(
        group_id="g", sample=0, prompt_ids=prompt, completion_ids=completion, mask=mask, inferred=False
    )


def test_padding_on_either_side_keeps_tokens_and_positions():
    rows = [sequence((5, 6), (7,)), sequence((8,), (9,))]
    right = pad_batch([3, 4], rows, torch.device("cpu"))
    left = pad_batch([3, 4], rows, torch.device("cpu"), "left")
    assert right.input_ids.tolist() == [[5, 6, 7], [8, 9, 0]]
    assert left.input_ids.tolist() == [[5, 6, 7], [0, 8, 9]]
    assert right.attention_mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert left.position_ids[1].tolist() == [0, 0, 1]
    assert (right.spans, left.spans) == (((0, 3), (0, 2)), ((0, 3), (1, 3)))
    assert right.rows == (3, 4)
    assert right.length == 3
