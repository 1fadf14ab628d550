from __future__ import annotations

from dataclasses import replace

from gradscope.gradients.model.token_sequence import Frame, TokenSequence

SEQUENCE = TokenSequence(
    group_id="g", sample=0, prompt_ids=(1, 2, 3), completion_ids=(4, 5), mask=(True, True), inferred=False
)


def test_a_sequence_alone_is_as_long_as_its_tokens() -> None:
    assert (SEQUENCE.length, SEQUENCE.num_tokens, SEQUENCE.start) == (5, 5, 0)


def test_in_its_frame_it_takes_the_padding_with_it() -> None:
    framed = replace(SEQUENCE, frame=Frame(prompt_width=7, completion_width=4, padding_id=0))
    assert (framed.length, framed.num_tokens, framed.start) == (11, 5, 4)
