"""What the groups of a step do to held-out correct answers: which answers, their gradients, and the cosines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gradscope.diagnostics.passk.measure import sample_files, with_own_verdicts
from gradscope.diagnostics.rank.formulations import group_index, influences_of, weights_by_name
from gradscope.diagnostics.rank.rows import StepRows
from gradscope.errors import InputError, UsageError
from gradscope.gradients.engine_options import EngineOptions
from gradscope.metrics.gram.alignment import heldout_effects
from gradscope.metrics.outcomes.groups import binary_threshold
from gradscope.progress import ProgressCallback, no_progress
from gradscope.reason import Reason
from gradscope.results.rank import GroupInfluence, HeldoutTransfer
from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run

if TYPE_CHECKING:
    from gradscope.gradients.plan.prepared_step import PreparedStep
    from gradscope.gradients.step.heldout import HeldoutGram
    from gradscope.gradients.step.step_gram import StepGram


MAX_ANSWERS = 256
"""Distinct answers that are run along with each step; of more, this many are drawn. Each costs the engine a row."""


class HeldoutAnswers(Struct, frozen=True, kw_only=True):
    """The correct answers that a step's gradients are held against."""

    prompts: tuple[RolloutGroup, ...]  # one group a held-out prompt with a correct answer: its distinct correct answers
    shares: tuple[tuple[float, ...], ...]  # the share of each answer among the correct samples of its prompt
    notes: tuple[str, ...]  # what was read, drawn and left out, in sentences


def read_heldout(
    path: str | Path, *, threshold: float | None = None, seed: int = 0, progress: ProgressCallback = no_progress
) -> HeldoutAnswers:
    """The correct answers of a file of samples, a gradscope run or its folder ``heldout``, or any other log."""
    # The samples of a run of ours before and after training count alike, and say themselves which are correct. The
    # seed decides which answers are drawn where there are more than MAX_ANSWERS.
    source = Path(path)
    folder = source.parent if source.name == "heldout" and source.is_dir() else path
    groups: list[RolloutGroup] = []
    for file in sample_files(folder, progress):
        read = ReadOptions() if threshold is not None else with_own_verdicts(file, ReadOptions())
        groups += read_run(file, read, progress=progress).groups
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    correct = _correct(path, rollouts, threshold)
    usable = [rollout for rollout in correct if _has_answer(rollout)]
    if not usable:
        raise InputError(
            f"{path} holds {len(correct)} correct samples, but none with both a prompt and an answer.",
            hint="Give a file with the columns prompt, completion and reward, one row a sample.",
        )
    grouped: dict[object, list[Rollout]] = {}  # of the same prompt together, whichever file or step they are from
    for rollout in usable:
        messages = json.dumps([dict(message) for message in rollout.messages or ()], default=str)
        grouped.setdefault(rollout.prompt_ids or (messages, rollout.prompt), []).append(rollout)
    prompts = list(grouped.values())
    drawn = _drawn(prompts, np.random.default_rng(seed))
    distinct = sum(len(set(map(_answer, samples))) for samples in prompts)
    notes = [
        f"Held-out answers: {len(usable):,} correct samples in {path}; distinct answers {distinct:,}, prompts "
        f"{len(prompts):,}."
    ]
    if len(usable) < len(correct):
        notes.append(f"{len(correct) - len(usable)} correct samples without text, or of several sequences, left out.")
    if sum(map(len, drawn)) < len(usable):
        num_prompts = sum(map(bool, drawn))
        notes.append(f"{MAX_ANSWERS} distinct answers of {num_prompts:,} prompts were drawn at random (seed {seed}).")
    names = {rollout.group_id: group.prompt_id for group in groups for rollout in group.rollouts}
    answered = [samples for samples in drawn if samples]
    return HeldoutAnswers(
        prompts=tuple(_group(names[samples[0].group_id], samples) for samples in answered),
        shares=tuple(
            tuple(count / len(samples) for count in Counter(map(_answer, samples)).values()) for samples in answered
        ),
        notes=tuple(notes),
    )


def _correct(path: str | Path, rollouts: Sequence[Rollout], threshold: float | None) -> list[Rollout]:
    graded = [(rollout, rollout.reward) for rollout in rollouts if rollout.reward is not None]
    if not graded:
        raise InputError(f"{path} holds no sample with a reward.", hint="Give every sample a reward of 0 or 1.")
    if threshold is None:
        threshold = binary_threshold([reward for _, reward in graded])
    if threshold is None:
        raise InputError(
            f"{path} has rewards that are neither 0/1 nor -1/1: which samples are correct is not known.",
            hint="Say from which reward on a sample counts as correct: --heldout-threshold 0.5",
        )
    correct = [rollout for rollout, reward in graded if reward >= threshold]
    if not correct:
        raise InputError(
            f"None of the {len(graded):,} samples in {path} is correct, so there is no answer to compare a step with.",
            hint="Give samples of a policy that solves some of the prompts, or known solutions with reward 1.",
        )
    return correct


def _has_answer(rollout: Rollout) -> bool:
    has_prompt = rollout.prompt_ids is not None or rollout.messages is not None or bool(rollout.prompt)
    return has_prompt and (rollout.completion_ids is not None or bool(rollout.completion)) and not rollout.earlier


def _answer(rollout: Rollout) -> object:
    return rollout.completion_ids or rollout.completion


def _drawn(prompts: Sequence[Sequence[Rollout]], rng: np.random.Generator) -> list[list[Rollout]]:
    """Samples of each prompt in random order, one of every prompt in turn, up to the most distinct answers."""
    if sum(len(set(map(_answer, samples))) for samples in prompts) <= MAX_ANSWERS:
        return [list(samples) for samples in prompts]
    drawn: list[list[Rollout]] = [[] for _ in prompts]
    seen: set[tuple[int, object]] = set()
    orders = [rng.permutation(len(samples)) for samples in prompts]
    prompt_order = rng.permutation(len(prompts)).tolist()
    for turn, index in product(range(max(map(len, prompts))), prompt_order):
        if turn >= len(prompts[index]):
            continue
        rollout = prompts[index][orders[index][turn]]
        if (index, _answer(rollout)) not in seen and len(seen) == MAX_ANSWERS:
            break
        seen.add((index, _answer(rollout)))
        drawn[index].append(rollout)
    return drawn


def _group(prompt_id: str, samples: Sequence[Rollout]) -> RolloutGroup:
    """The distinct answers of one prompt, under a name that says what they are."""
    name = f"held-out {prompt_id}"
    distinct = {_answer(rollout): rollout for rollout in reversed(samples)}
    ordered = [distinct[key] for key in dict.fromkeys(map(_answer, samples))]
    rollouts = tuple(replace(rollout, group_id=name, sample=index) for index, rollout in enumerate(ordered))
    return RolloutGroup(step=0, group_id=name, prompt_id=prompt_id, rollouts=rollouts)


def heldout_products(
    prepared: PreparedStep,
    gram: StepGram,
    *,
    progress: ProgressCallback = no_progress,
    answers: HeldoutAnswers,
    engine: EngineOptions,
) -> HeldoutGram | Reason:
    """The inner products of a step's rollouts with correct answers of held-out prompts, or why there are none."""
    from gradscope.gradients.processes import shared_errors
    from gradscope.gradients.step.heldout import measure_heldout_gram

    try:
        with shared_errors():
            return measure_heldout_gram(
                prepared,
                gram,
                answers.prompts,
                answers.shares,
                engine=engine.engine,
                verify=engine.verify,
                progress=progress,
            )
    except (InputError, UsageError) as error:  # the step itself stands either way
        return Reason(error.cause or "unusable", error.message.rstrip("."), error.hint or "")


_NOT_BINARY = "rewards other than 0 and 1 do not say which of the step's own answers are correct"
_UNEVEN = "the loss weighs the tokens of an answer unequally, so what the step does to its own is not known"


def measure_heldout(
    rows: StepRows, heldout: HeldoutGram, advantages: Sequence[str]
) -> tuple[list[HeldoutTransfer], list[GroupInfluence]]:
    """What the groups do to held-out prompts' correct answers, by formulation; each group's part under the first."""
    # Logged advantages that differ by token have no row here.
    names, table = weights_by_name(rows, advantages)
    own_products, unknown, is_correct = None, _UNEVEN, np.zeros(len(rows.rewards), dtype=np.bool_)
    if not np.isin(rows.rewards, (0.0, 1.0)).all():
        unknown = _NOT_BINARY
    elif heldout.scales is not None:
        own_products, is_correct = rows.gram * heldout.scales, (rows.rewards == 1.0) & (heldout.scales > 0)
    groups = group_index(rows)
    measured = [
        heldout_effects(rows.gram, weights, groups, is_correct, heldout.cross, heldout.norms, own_products, unknown)
        for weights in table
    ]
    transfers = [
        HeldoutTransfer(
            step=rows.step,
            advantage=name,
            num_groups=effects.effect.shape[0],
            num_heldout=effects.effect.shape[1],
            frac_hurt=effects.frac_hurt(),
            cosine=effects.mean_cosine(),
            transfer=effects.transfer(),
        )
        for name, effects in zip(names, measured, strict=True)
    ]
    if not names:
        return [], []
    return transfers, influences_of(rows, names[0], measured[0].pulls, measured[0].influences())
