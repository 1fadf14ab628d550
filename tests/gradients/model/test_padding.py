from __future__ import annotations

import pytest

from gradscope.gradients.model.batches import pad_batch
from gradscope.gradients.model.padding import TrainerPadding
from gradscope.gradients.model.token_sequence import TokenSequence
from gradscope.rollouts.run import TrainerSettings


def sequence(num_prompt: int, num_completion: int) -> TokenSequence:
    return TokenSequence(
        group_id="g",
        sample=0,
        prompt_ids=(5,) * num_prompt,
        completion_ids=(6,) * num_completion,
        mask=(True,) * num_completion,
        inferred=False,
    )


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
    rows = [sequence(2, 3), sequence(5, 1), sequence(3, 2), sequence(1, 1)]
    framed = TrainerPadding(num_processes=2, multiple=4).framed(rows, padding_id=9)
    assert [(row.frame.prompt_width, row.frame.completion_width) for row in framed] == [(8, 4), (8, 4), (4, 4), (4, 4)]
    assert [row.start for row in framed] == [6, 3, 1, 3]


def test_a_framed_row_stands_in_a_batch_as_the_trainer_had_it() -> None:
    import torch

    first, second = TrainerPadding().framed([sequence(2, 3), sequence(4, 1)], padding_id=9)
    batch = pad_batch([0, 1], [first, second], torch.device("cpu"), "left")
    assert batch.input_ids.tolist() == [[9, 9, 5, 5, 6, 6, 6], [5, 5, 5, 5, 6, 9, 9]]
    assert batch.attention_mask.tolist() == [[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]]
    assert batch.position_ids is None
    assert batch.spans == ((2, 7), (0, 5))
