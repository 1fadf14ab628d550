from __future__ import annotations

from itertools import pairwise, product

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


@settings(deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=7), st.integers(1, 40), st.none() | st.integers(0, 20))
def test_no_other_cut_costs_less(lengths, budget, cost):
    batches = split_rows(lengths, budget, cost)
    ordered = sorted(lengths, reverse=True)
    cuts = []
    for chosen in product((False, True), repeat=len(lengths) - 1):
        edges = [0, *(at for at, is_cut in enumerate(chosen, start=1) if is_cut), len(lengths)]
        padded = [ordered[start] * (stop - start) for start, stop in pairwise(edges)]
        if all(
            stop - start == 1 or size <= budget for size, (start, stop) in zip(padded, pairwise(edges), strict=True)
        ):
            cuts.append((len(padded), sum(padded)))
    found = len(batches), sum(max(lengths[row] for row in batch) * len(batch) for batch in batches)
    assert found in cuts
    if cost is None:
        assert found == min(cuts)
    else:
        assert found[1] + cost * found[0] == min(padded + cost * number for number, padded in cuts)


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
