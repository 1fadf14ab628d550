from __future__ import annotations

from dataclasses import replace

import pytest

from gradscope.diagnostics.inputs.logged_tokens import other_texts, other_tokens
from gradscope.gradients.model.batches import TokenSequence
from gradscope.rollouts.run import Run
from tests.diagnostics.made_up_runs import group_of, run_of

COUNTS = {"completions/mean_length": 3.0, "num_tokens": 14.0}
"""Two rollouts of three sampled tokens and prompts of four."""


def run_with(metrics: dict[str, float], *, before: dict[str, float] | None = None, step: int = 1) -> Run:
    group = replace(group_of([1, 0]), step=step)
    run = run_of(group, metrics={step - 1: before or {}, step: metrics})
    return replace(run, source=replace(run.source, format="trl"))


def rows(*, num_prompt: int = 4, mask: tuple[bool, ...] = (True,) * 3, inferred: bool = False) -> list[TokenSequence]:
    sequence = TokenSequence(
        group_id="g",
        sample=0,
        prompt_ids=(1,) * num_prompt,
        completion_ids=(2,) * len(mask),
        mask=mask,
        inferred=inferred,
    )
    return [sequence, sequence]


@pytest.mark.parametrize(
    ("metrics", "sequences", "cause"),
    [
        (COUNTS, rows(), None),
        ({}, rows(num_prompt=9), None),
        ({**COUNTS, "completions/mean_length": 2.5}, rows(), "mask_unknown"),
        ({**COUNTS, "completions/mean_length": 2.5}, rows(inferred=True), "ids_inferred"),
        ({**COUNTS, "completions/mean_length": 2.0, "num_tokens": 12.0}, rows(mask=(True, False, True)), None),
        ({**COUNTS, "num_tokens": 18.0}, rows(), "prompt_unknown"),
        ({**COUNTS, "tools/call_frequency": 0.0}, rows(), "prompt_unknown"),
    ],
)
def test_the_trainers_counts_tell_other_tokens(
    metrics: dict[str, float], sequences: list[TokenSequence], cause: str | None
) -> None:
    reason = other_tokens(run_with(metrics), 1, sequences)
    assert (reason and reason.cause) == cause


def test_counts_add_up_from_step_to_step() -> None:
    metrics = {**COUNTS, "num_tokens": 114.0}
    assert other_tokens(run_with(metrics, before={"num_tokens": 100.0}, step=2), 2, rows()) is None
    found = other_tokens(run_with(metrics, before={"num_tokens": 96.0}, step=2), 2, rows())
    assert found is not None
    assert "the trainer counted 12 tokens of prompts, and their text gives 8" in found.text
    assert other_tokens(run_with(metrics, step=2), 2, rows(num_prompt=9)) is None  # nothing to start from


def test_what_was_logged_exactly_is_not_doubted() -> None:
    run = run_with({**COUNTS, "num_tokens": 99.0, "tools/call_frequency": 0.0})
    (group,) = run.groups
    logged = replace(group, rollouts=tuple(replace(rollout, prompt_ids=(1, 1, 1, 1)) for rollout in group.rollouts))
    assert other_tokens(replace(run, groups=(logged,)), 1, rows()) is None


@pytest.mark.parametrize("change", [{"windows": {1: 2}}, {"repeats": {1: 0}}])
def test_counts_of_other_steps_are_not_compared(change: dict) -> None:
    run = replace(run_with({**COUNTS, "num_tokens": 99.0}), **change)
    assert other_tokens(run, 1, rows()) is None
    assert other_tokens(replace(run, source=replace(run.source, format="verl")), 1, rows()) is None


class Words:
    """A tokenizer of words, which leaves 0 out where special tokens are skipped."""

    def decode(self, ids: tuple[int, ...], *, skip_special_tokens: bool) -> str:
        return " ".join(f"w{token}" for token in ids if token or not skip_special_tokens)


@pytest.mark.parametrize(
    ("texts", "tokenizer", "other"),
    [
        (("w1", "w2", "w3"), Words(), ()),
        (("w1", "w3", "w2"), Words(), ()),  # most are not read back: the tokenizer is another one
        (("w1", "w2", "w9"), Words(), (2,)),
        (("w1", "w9", "w3 w0"), Words(), (1,)),
        (("w1", "w2", "w9"), None, ()),
    ],
)
def test_texts_are_held_to_their_ids(texts: tuple[str, ...], tokenizer: Words | None, other: tuple[int, ...]) -> None:
    made = group_of([1, 0, 1]).rollouts
    rollouts = [
        replace(one, completion=text, completion_ids=(place + 1, 0))
        for place, (one, text) in enumerate(zip(made, texts, strict=True))
    ]
    assert other_texts(rollouts, tokenizer) == other
