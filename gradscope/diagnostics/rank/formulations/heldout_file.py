"""Correct answers to held-out prompts, from any file of samples of known correctness, each answer once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gradscope.diagnostics.passk.samples import sample_files, with_own_verdicts
from gradscope.errors import InputError
from gradscope.metrics.outcomes.groups import binary_threshold
from gradscope.progress import ProgressCallback, no_progress
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.types import Rollout, RolloutGroup

MOST_ANSWERS = 256
"""Distinct answers that are run beside each step; of more, some are drawn. Each costs a row of the step's engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutAnswers:
    """The correct answers that a step's gradients are held against."""

    prompts: tuple[RolloutGroup, ...]
    """One group a held-out prompt with a correct answer: its distinct correct answers."""
    shares: tuple[tuple[float, ...], ...]
    """The share of each answer among the correct samples of its prompt."""
    notes: tuple[str, ...]
    """What was read, drawn and left out, in sentences."""


def read_heldout(
    path: str | Path, *, threshold: float | None = None, seed: int = 0, progress: ProgressCallback = no_progress
) -> HeldoutAnswers:
    """Read the correct answers to held-out prompts.

    Args:
        path: A file of samples; a gradscope run or its folder ``heldout``, whose samples before and after training
            count alike; any other log, whose correct rollouts are answers to their prompts.
        threshold: A sample is correct when its reward reaches this; None: 1 for rewards of 0/1 or -1/1. The held-out
            samples of a run of ours say themselves which are correct.
        seed: Decides which answers are drawn where there are more than :data:`MOST_ANSWERS`.
        progress: Told how far a long reading is.

    Returns:
        The answers.

    Raises:
        InputError: Which samples are correct is not known, none is, or the text of none is there.
    """
    given = Path(path)
    folder = given.parent if given.name == "heldout" and given.is_dir() else path
    groups: list[RolloutGroup] = []
    for file in sample_files(folder, progress):
        read = ReadOptions() if threshold is not None else with_own_verdicts(file, ReadOptions())
        groups += read_run(file, read, progress=progress).groups
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    correct = _correct(path, rollouts, threshold)
    usable = [rollout for rollout in correct if _has_answer(rollout)]
    if not usable:
        raise InputError(
            f"{path} holds {len(correct)} correct samples, and of none both the prompt and the answer.",
            hint="Give a file with the columns prompt, completion and reward, one row a sample.",
        )
    prompts = _by_prompt(usable)
    drawn = _drawn(prompts, np.random.default_rng(seed))
    notes = [_read_note(path, prompts, usable)]
    if len(usable) < len(correct):
        notes.append(f"{len(correct) - len(usable)} correct samples without text, or of several sequences, left out.")
    if sum(map(len, drawn)) < len(usable):
        notes.append(_drawn_note(drawn, seed))
    names = {rollout.group_id: group.prompt_id for group in groups for rollout in group.rollouts}
    kept = [(own[0], Counter(map(_answer, own)), own) for own in drawn if own]
    return HeldoutAnswers(
        prompts=tuple(_group(names[first.group_id], own) for first, _, own in kept),
        shares=tuple(tuple(count / len(own) for count in counts.values()) for _, counts, own in kept),
        notes=tuple(notes),
    )


def _correct(path: str | Path, rollouts: Sequence[Rollout], threshold: float | None) -> list[Rollout]:
    graded = [(rollout, rollout.reward) for rollout in rollouts if rollout.reward is not None]
    if not graded:
        raise InputError(f"{path} holds no sample with a reward.", hint="Give every sample a reward of 0 or 1.")
    least = binary_threshold([reward for _, reward in graded]) if threshold is None else threshold
    if least is None:
        raise InputError(
            f"{path} has rewards that are neither 0/1 nor -1/1: which samples are correct is not known.",
            hint="Say from which reward on a sample counts as correct: --heldout-threshold 0.5",
        )
    correct = [rollout for rollout, reward in graded if reward >= least]
    if not correct:
        raise InputError(
            f"None of the {len(graded):,} samples in {path} is correct, so there is no answer to hold a step against.",
            hint="Give samples of a policy that solves some of the prompts, or known solutions with reward 1.",
        )
    return correct


def _has_answer(rollout: Rollout) -> bool:
    has_prompt = rollout.prompt_ids is not None or rollout.messages is not None or bool(rollout.prompt)
    return has_prompt and (rollout.completion_ids is not None or bool(rollout.completion)) and not rollout.earlier


def _by_prompt(rollouts: Sequence[Rollout]) -> list[list[Rollout]]:
    """Samples of the same prompt together, whichever file or step they are from."""
    found: dict[object, list[Rollout]] = {}
    for rollout in rollouts:
        messages = json.dumps([dict(one) for one in rollout.messages or ()], default=str)
        found.setdefault(rollout.prompt_ids or (messages, rollout.prompt), []).append(rollout)
    return list(found.values())


def _answer(rollout: Rollout) -> object:
    return rollout.completion_ids or rollout.completion


def _drawn(prompts: Sequence[Sequence[Rollout]], rng: np.random.Generator) -> list[list[Rollout]]:
    """Samples of each prompt in random order, one of every prompt in turn, up to the most distinct answers.

    Returns:
        The samples that were drawn, by prompt; all of them where they have no more answers.
    """
    if sum(len(set(map(_answer, own))) for own in prompts) <= MOST_ANSWERS:
        return [list(own) for own in prompts]
    drawn: list[list[Rollout]] = [[] for _ in prompts]
    seen: set[tuple[int, object]] = set()
    for at, rollout in _in_turn(prompts, rng):
        if (at, _answer(rollout)) not in seen and len(seen) == MOST_ANSWERS:
            break
        seen.add((at, _answer(rollout)))
        drawn[at].append(rollout)
    return drawn


def _in_turn(prompts: Sequence[Sequence[Rollout]], rng: np.random.Generator) -> Iterator[tuple[int, Rollout]]:
    orders = [rng.permutation(len(own)) for own in prompts]
    places = rng.permutation(len(prompts)).tolist()
    for turn in range(max(map(len, prompts))):
        yield from ((at, prompts[at][orders[at][turn]]) for at in places if turn < len(prompts[at]))


def _group(prompt_id: str, samples: Sequence[Rollout]) -> RolloutGroup:
    """The distinct answers of one prompt, under a name that says what they are."""
    name = f"held-out {prompt_id}"
    distinct = {_answer(rollout): rollout for rollout in reversed(samples)}
    ordered = [distinct[key] for key in dict.fromkeys(map(_answer, samples))]
    rollouts = tuple(replace(rollout, group_id=name, sample=index) for index, rollout in enumerate(ordered))
    return RolloutGroup(step=0, group_id=name, prompt_id=prompt_id, rollouts=rollouts)


def _read_note(path: str | Path, prompts: Sequence[Sequence[Rollout]], usable: Sequence[Rollout]) -> str:
    distinct = sum(len(set(map(_answer, own))) for own in prompts)
    return (
        f"Held-out answers: {len(usable):,} correct samples in {path}; distinct answers {distinct:,}, prompts "
        f"{len(prompts):,}."
    )


def _drawn_note(drawn: Sequence[Sequence[Rollout]], seed: int) -> str:
    num_prompts = sum(1 for own in drawn if own)
    return f"{MOST_ANSWERS} distinct answers of {num_prompts:,} prompts were drawn at random (seed {seed})."
