from itertools import pairwise, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gradscope.gradients.model.batches import Frame, TrainerPadding, pad_batch, split_rows
from gradscope.rollouts.run import TrainerSettings
from tests.gradients.models import sequence_of


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 200))
def test_every_row_is_in_one_batch_within_the_budget(lengths, budget):
    batches = split_rows(lengths, budget)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= budget
    in_order = [lengths[row] for batch in batches for row in batch]
    assert in_order == sorted(lengths, reverse=True)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=7), st.integers(1, 40), st.none() | st.integers(0, 20))
def test_no_other_cut_costs_less(lengths, budget, cost):
    batches = split_rows(lengths, budget, cost)
    ordered = sorted(lengths, reverse=True)
    cuts = []
    for chosen in product((False, True), repeat=len(lengths) - 1):
        edges = [0, *(i for i, is_cut in enumerate(chosen, start=1) if is_cut), len(lengths)]
        padded = [ordered[start] * (stop - start) for start, stop in pairwise(edges)]
        if all(stop - start == 1 or n <= budget for n, (start, stop) in zip(padded, pairwise(edges), strict=True)):
            cuts.append((len(padded), sum(padded)))
    result = len(batches), sum(max(lengths[row] for row in batch) * len(batch) for batch in batches)
    assert result in cuts
    if cost is None:
        assert result == min(cuts)
    else:
        assert result[1] + cost * result[0] == min(padded + cost * number for number, padded in cuts)


def test_padding_keeps_tokens_and_positions():
    batch = pad_batch([3, 4], [sequence_of((5, 6), (7,)), sequence_of((8,), (9,))], torch.device("cpu"))
    assert batch.input_ids.tolist() == [[5, 6, 7], [8, 9, 0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch.position_ids[1].tolist() == [0, 1, 1]
    assert batch.spans == ((0, 3), (0, 2))
    assert (batch.rows, batch.length) == ((3, 4), 3)


def test_a_sequence_is_as_long_as_its_tokens_or_with_the_padding_of_its_frame() -> None:
    single = sequence_of((1, 2, 3), (4, 5))
    assert (single.length, single.num_tokens, single.start) == (5, 5, 0)
    framed = replace(single, frame=Frame(prompt_width=7, completion_width=4, padding_id=0))
    assert (framed.length, framed.num_tokens, framed.start) == (11, 5, 4)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, (1, 1)),
        ({"generation_batch_size": 32, "per_device_train_batch_size": 4, "steps_per_generation": 2}, (4, 1)),
        ({"generation_batch_size": 32, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 8}, (1, 1)),
        ({"generation_batch_size": 32, "per_device_train_batch_size": 4}, (1, 1)),
        ({"pad_to_multiple_of": 8}, (1, 8)),
    ],
)
def test_the_arguments_tell_how_rows_were_padded(values: dict, expected: tuple[int, int]) -> None:
    padding = TrainerPadding.from_settings(TrainerSettings(values=values))
    assert (padding.num_processes, padding.multiple) == expected


def test_each_process_pads_to_its_own_longest() -> None:
    rows = [sequence_of([5] * prompt, [6] * completion) for prompt, completion in ((2, 3), (5, 1), (3, 2), (1, 1))]
    framed = TrainerPadding(num_processes=2, multiple=4).framed(rows, padding_id=9)
    assert [(row.frame.prompt_width, row.frame.completion_width) for row in framed] == [(8, 4), (8, 4), (4, 4), (4, 4)]
    assert [row.start for row in framed] == [6, 3, 1, 3]


def test_a_framed_row_stands_in_a_batch_as_the_trainer_had_it() -> None:
    rows = [sequence_of([5] * 2, [6] * 3), sequence_of([5] * 4, [6])]
    first, second = TrainerPadding().framed(rows, padding_id=9)
    batch = pad_batch([0, 1], [first, second], torch.device("cpu"))
    assert batch.input_ids.tolist() == [[9, 9, 5, 5, 6, 6, 6], [5, 5, 5, 5, 6, 9, 9]]
    assert batch.attention_mask.tolist() == [[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]]
    assert batch.position_ids is None
    assert batch.spans == ((2, 7), (0, 5))
