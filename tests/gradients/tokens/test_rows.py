"""Which tokens are rows, and which share a forward pass."""

from __future__ import annotations

import numpy as np
import pytest

from gradscope.gradients.model.token_sequence import TokenSequence
from gradscope.gradients.tokens.rows import TokenRow, chunks_of, sample_tokens


def test_every_token_is_equally_likely_to_be_drawn():
    rows = [TokenRow(sequence=0, position=position) for position in range(6)]
    drawn = [row.position for seed in range(600) for row in sample_tokens(rows, 2, seed)]
    counts = np.bincount(drawn, minlength=6)
    assert np.all(np.abs(counts - 200) < 60)
    assert sample_tokens(rows, 9, 0) == tuple(rows)


def test_a_sample_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one token is needed"):
        sample_tokens([TokenRow(sequence=0, position=0)], 0, 0)


def test_chunks_are_neighbors_of_one_sequence_and_end_with_their_last_token():
    sequences = [
        TokenSequence(
            group_id="g",
            sample=sample,
            prompt_ids=(1,),
            completion_ids=(2, 3, 4, 5),
            mask=(True,) * 4,
            inferred=False,
        )
        for sample in range(2)
    ]
    places = [(1, 0), (0, 3), (0, 0), (0, 1)]
    rows = [TokenRow(sequence=sequence, position=position) for sequence, position in places]
    first, second, third = chunks_of(rows, sequences, 2)
    assert (first.rows, first.positions, first.sequence, first.prefix.completion_ids) == ((2, 3), (0, 1), 0, (2, 3))
    assert (second.rows, second.positions, second.prefix.length) == ((1,), (3,), 5)
    assert (third.rows, third.sequence, third.prefix.mask) == ((0,), 1, (True,))
