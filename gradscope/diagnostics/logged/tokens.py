"""What logged tokens say of a policy: its entropy, its distance to the engine that sampled, its age.

Shapes: N tokens of a step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gradscope.diagnostics.logged.metrics import first_logged, logged_estimate, mean_as_logged
from gradscope.estimate import Estimate
from gradscope.metrics import sampler as sampler_metrics
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.metrics.uncertainty.steps import trend
from gradscope.results import logged as results
from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.rollouts.run import Run


class LoggedPart(NamedTuple):
    """How a part of :class:`LoggedPolicy` is combined from what each step has for it."""

    reduce_step: Callable[[int, Sequence[RolloutGroup]], Any]  # what a step has for it, without its tokens; or None
    combine: Callable[[Mapping[int, Any], Run, Resampling], Any]  # the part, from what each step of the run has


def logged_part(part: LoggedPart, run: Run, resampling: Resampling) -> Any:
    """One part of a run, in a pass over its steps."""
    steps = {step: part.reduce_step(step, groups) for step, groups in run.by_step()}
    return part.combine({step: reduced for step, reduced in steps.items() if reduced is not None}, run, resampling)


Array = NDArray[np.float64]
_Columns = tuple[Array, Array, Array, NDArray[np.int64]]

NO_SAMPLER = "no log-probabilities of the sampler"
NO_TRAINER = "no log-probabilities of the trainer"
OTHER_LENGTH = "log-probabilities of another number of tokens"
NOT_FINITE = "a log-probability that is missing, NaN or infinite"
NO_LOGPROB = "a number that is no log-probability"
PLACEHOLDERS = "zeros in place of log-probabilities"

_HIGHEST = 0.25  # a log-probability is at most 0; kernels in bfloat16 round it to a little more
_LOWEST = -1e4  # what a softmax in float32 can give; less is what masked logits leave
_NOTHING: _Columns = (np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64))


class _StepTokens(Struct, frozen=True, kw_only=True):
    """What was sampled at one step and counts in the loss."""

    sampler: Array  # the sampler's log-probabilities, [N]
    trainer: Array  # the trainer's, [N]
    advantages: Array  # NaN where they are not known, [N]
    positions: NDArray[np.int64]  # places in the completion, [N]
    lengths: NDArray[np.int64]  # tokens of each sequence, at least one, [S]
    rollouts: tuple[Rollout, ...]  # each sequence as a rollout of its own, [S]
    sequences: tuple[int, ...]  # which of its rollout's sequences each is, from 0, [S]
    prompts: tuple[str, ...]

    @property
    def log_ratios(self) -> Array:
        """Log p_trainer - log p_sampler, [N]."""
        return np.asarray(self.trainer - self.sampler)


def _counts_in_loss(rollout: Rollout) -> bool:
    """Whether any of its tokens is known to count, or all do."""
    return rollout.mask is None or any(rollout.mask) or any(any(tokens.mask) for tokens in rollout.earlier)


def _step_tokens(groups: Sequence[RolloutGroup], set_aside: Counter[str]) -> _StepTokens:
    usable: list[tuple[RolloutGroup, int, Rollout]] = []
    columns: list[_Columns] = []
    for group in groups:
        # as in most logs, which may have millions of rollouts
        if all(row.logprobs is None and row.mask is None and not row.earlier for row in group.rollouts):
            set_aside[NO_SAMPLER] += group.size
            continue
        for index, sequence in (pair for rollout in group.rollouts for pair in enumerate(rollout.sequences)):
            if not _counts_in_loss(sequence):
                continue
            sequence_columns = _columns(sequence)
            if isinstance(sequence_columns, str):
                set_aside[sequence_columns] += 1
            else:
                usable.append((group, index, sequence))
                columns.append(sequence_columns)
    sampler, trainer, advantages, positions = map(np.concatenate, zip(_NOTHING, *columns, strict=True))
    if sampler.any() != trainer.any():  # as NeMo-RL writes where it takes the ratio for 1
        set_aside[PLACEHOLDERS] += len(columns)
        return _step_tokens((), set_aside)
    return _StepTokens(
        sampler=sampler,
        trainer=trainer,
        advantages=advantages,
        positions=positions,
        lengths=np.array([len(column[0]) for column in columns], dtype=np.int64),
        rollouts=tuple(sequence for *_, sequence in usable),
        sequences=tuple(index for _, index, _ in usable),
        prompts=tuple(group.prompt_id for group, *_ in usable),
    )


def _columns(rollout: Rollout) -> _Columns | str:
    """Sampler, trainer, advantages and positions of the tokens that count, or why they cannot be compared."""
    if rollout.logprobs is None or rollout.trainer_logprobs is None:
        return NO_SAMPLER if rollout.logprobs is None else NO_TRAINER
    length = len(rollout.logprobs)
    if not length or any(
        values is not None and len(values) != length for values in (rollout.trainer_logprobs, rollout.mask)
    ):
        return OTHER_LENGTH
    counts = rollout.counted(length)
    sampler, trainer = (np.array(row, dtype=np.float64)[counts] for row in (rollout.logprobs, rollout.trainer_logprobs))
    logprobs = np.concatenate([sampler, trainer])
    if not np.all(np.isfinite(logprobs)):
        return NOT_FINITE
    if logprobs.max() > _HIGHEST or logprobs.min() < _LOWEST:
        return NO_LOGPROB
    advantages = np.full(length, np.nan if rollout.advantage is None else rollout.advantage)
    if rollout.token_advantages is not None and len(rollout.token_advantages) == length:
        advantages = np.array(rollout.token_advantages, dtype=np.float64)
    return sampler, trainer, advantages[counts], np.flatnonzero(counts)


METRICS = (
    *("entropy", "actor/entropy", "train/approx_entropy", "entropy/all/mean", "optim/entropy"),
    *("train/entropy", "policy/entropy", "actor/entropy/avg"),
)
"""What trainers call the mean entropy of a token, the first that is logged counts."""

_ROUNDING = 0.01
_GREATEST = 100.0  # the logarithm of any vocabulary is below
_Row = tuple[float, int, str]  # sum and number of a sequence's entropies, or of its |log ratios|, and its prompt


def _entropy_of_step(step: int, groups: Sequence[RolloutGroup]) -> list[_Row] | None:
    rows = [
        (float(values.sum()), len(values), group.prompt_id)
        for group in groups
        for rollout in group.rollouts
        if rollout.entropies or rollout.earlier
        for sequence in filter(_counts_in_loss, rollout.sequences)
        if (values := _entropies(sequence)) is not None
    ]
    return rows or None


def _entropy(steps: Mapping[int, list[_Row]], run: Run, resampling: Resampling) -> results.PolicyEntropy:
    if not steps:
        return _as_logged(run)
    all_rows = [row for rows in steps.values() for row in rows]
    overall, *by_step = (
        results.EntropyNumbers(step=step, mean=_mean_of(rows, resampling).within(0.0, _GREATEST))
        for step, rows in ((None, all_rows), *steps.items())
    )
    return results.PolicyEntropy(overall=overall, by_step=tuple(by_step), trend=_trend(by_step), origin="tokens")


ENTROPY = LoggedPart(_entropy_of_step, _entropy)


def _entropies(rollout: Rollout) -> NDArray[np.float64] | None:
    """Those of the tokens that count in the loss; None where one is missing or below 0."""
    if not rollout.entropies or (rollout.mask is not None and len(rollout.mask) != len(rollout.entropies)):
        return None
    values = np.array(rollout.entropies, dtype=np.float64)[rollout.counted(len(rollout.entropies))]
    return values if np.all((values > -_ROUNDING) & (values < _GREATEST)) else None


def _mean_of(rows: Sequence[_Row], resampling: Resampling) -> Estimate:
    sums, numbers, prompts = zip(*rows, strict=True)
    return sampler_metrics.token_mean(sums, numbers, prompts, resampling=resampling)


def _as_logged(run: Run) -> results.PolicyEntropy:
    match = first_logged(run, METRICS)
    if match is None:
        return results.PolicyEntropy()
    name, logged = match
    by_step = [results.EntropyNumbers(step=step, mean=logged_estimate(value)) for step, value in logged.items()]
    overall = results.EntropyNumbers(step=None, mean=mean_as_logged(logged).within(min(0.0, *logged.values()), np.inf))
    return results.PolicyEntropy(overall=overall, by_step=tuple(by_step), trend=_trend(by_step), origin=name)


def _trend(by_step: Sequence[results.EntropyNumbers]) -> Estimate:
    pairs = [(row.step or 0, row.mean.value) for row in by_step if row.mean.value is not None]
    return trend([step for step, _ in pairs], [value for _, value in pairs])


NUM_WORST = 10  # tokens that are named


class _StepMismatch(Struct, frozen=True, kw_only=True):
    """What is left of a step's tokens once they are summed."""

    sums: sampler_metrics.SequenceSums | None  # over its sequences; None where none can be compared
    prompts: tuple[str, ...]
    worst: list[results.TokenMismatch]
    set_aside: Counter[str]


def _mismatch_of_step(step: int, groups: Sequence[RolloutGroup]) -> _StepMismatch:
    set_aside = Counter[str]()
    tokens = _step_tokens(groups, set_aside)
    if not len(tokens.lengths):
        return _StepMismatch(sums=None, prompts=(), worst=[], set_aside=set_aside)
    sums = sampler_metrics.sequence_sums(tokens.log_ratios, tokens.lengths, tokens.advantages)
    return _StepMismatch(sums=sums, prompts=tokens.prompts, worst=_worst(step, tokens), set_aside=set_aside)


def _mismatch(steps: Mapping[int, _StepMismatch], _: Run, resampling: Resampling) -> results.SamplerMismatch:
    set_aside = dict(sum((mismatch.set_aside for mismatch in steps.values()), Counter[str]()))
    compared = [(step, mismatch.sums, mismatch.prompts) for step, mismatch in steps.items() if mismatch.sums]
    if not compared:
        return results.SamplerMismatch(set_aside=set_aside)
    joined = sampler_metrics.joined_sums([sums for _, sums, _ in compared])
    prompts = [prompt for *_, step_prompts in compared for prompt in step_prompts]
    worst = [token for mismatch in steps.values() for token in mismatch.worst if token.sampler != token.trainer]
    worst.sort(key=lambda token: abs(token.trainer - token.sampler), reverse=True)
    return results.SamplerMismatch(
        overall=_mismatch_numbers(None, joined, prompts, resampling),
        by_step=tuple(_mismatch_numbers(*numbers, resampling) for numbers in compared),
        worst=tuple(worst[:NUM_WORST]),
        set_aside=set_aside,
        is_identical=not joined.distance.any(),
    )


MISMATCH = LoggedPart(_mismatch_of_step, _mismatch)


def _mismatch_numbers(
    step: int | None, sums: sampler_metrics.SequenceSums, prompts: Sequence[str], resampling: Resampling
) -> results.MismatchNumbers:
    return results.MismatchNumbers(
        step=step,
        num_tokens=int(sums.num_tokens.sum()),
        num_sequences=len(sums.num_tokens),
        **sampler_metrics.mismatch_estimates(sums, prompts, resampling=resampling),
    )


def _worst(step: int, tokens: _StepTokens) -> list[results.TokenMismatch]:
    # the largest without sorting all of them, ties in order
    distance = np.abs(tokens.log_ratios)
    threshold = np.partition(distance, -NUM_WORST)[-NUM_WORST] if len(distance) > NUM_WORST else -math.inf
    candidates = np.flatnonzero(distance >= threshold)
    indices = candidates[np.argsort(-distance[candidates], kind="stable")][:NUM_WORST]
    sequences = np.searchsorted(np.cumsum(tokens.lengths), indices, side="right")
    return [
        results.TokenMismatch(
            step=step,
            row=tokens.rollouts[sequence].row,
            sequence=tokens.sequences[sequence],
            position=int(tokens.positions[index]),
            sampler=float(tokens.sampler[index]),
            trainer=float(tokens.trainer[index]),
        )
        for index, sequence in zip(indices, sequences, strict=True)
    ]


_FROM_THE_FUTURE = "the log names weights that are newer than its steps, so versions and steps are counted differently"
_NO_GAP = "no rollout of this lag has log-probabilities of both sampler and trainer"

_TokenAge = tuple[int, str, tuple[int, int]]
"""Step, prompt, and the versions that sampled a rollout's first and last token."""


class _StepAges(Struct, frozen=True, kw_only=True):
    """The versions that sampled the rollouts of a step."""

    rows: list[_TokenAge]
    gaps: list[tuple[int, _Row]]  # each with the step minus the version that sampled the first token


def _staleness_of_step(step: int, groups: Sequence[RolloutGroup]) -> _StepAges | None:
    rows = [
        (step, group.prompt_id, rollout.policy_versions)
        for group in groups
        for rollout in group.rollouts
        if rollout.policy_versions is not None and _counts_in_loss(rollout)
    ]
    if not rows:
        return None
    tokens = _step_tokens(groups, Counter())
    distances = np.split(np.abs(tokens.log_ratios), np.cumsum(tokens.lengths)[:-1])
    gaps = [
        (step - rollout.policy_versions[0], (float(distance.sum()), len(distance), prompt))
        for rollout, prompt, distance in zip(tokens.rollouts, tokens.prompts, distances, strict=False)
        if rollout.policy_versions is not None
    ]
    return _StepAges(rows=rows, gaps=gaps)


def _staleness(steps: Mapping[int, _StepAges], _: Run, resampling: Resampling) -> results.Staleness:
    rows = [row for ages in steps.values() for row in ages.rows]
    gaps: dict[int, list[_Row]] = {}
    for behind, gap in (pair for ages in steps.values() for pair in ages.gaps):
        gaps.setdefault(behind, []).append(gap)
    if not rows:
        return results.Staleness()
    origin = sampler_metrics.first_step([step for step, *_ in rows], [versions[1] for *_, versions in rows])
    if origin is None:
        return results.Staleness(contradiction=_FROM_THE_FUTURE)
    numbers = Counter(_lag(row, origin) for row in rows)
    return results.Staleness(
        overall=_staleness_numbers(None, rows, origin, resampling),
        by_step=tuple(_staleness_numbers(step, ages.rows, origin, resampling) for step, ages in steps.items()),
        by_lag=tuple(
            results.LagShare(
                lag=lag,
                num_rollouts=numbers[lag],
                share=numbers[lag] / len(rows),
                logprob_gap=_mean_of(gaps[lag + origin], resampling)
                if lag + origin in gaps
                else Estimate.undefined_because(_NO_GAP),
            )
            for lag in sorted(numbers)
        ),
    )


STALENESS = LoggedPart(_staleness_of_step, _staleness)


def _lag(row: _TokenAge, origin: int) -> int:
    return row[0] - origin - row[2][0]


def _staleness_numbers(
    step: int | None, rows: Sequence[_TokenAge], origin: int, resampling: Resampling
) -> results.StalenessNumbers:
    prompts = [prompt for _, prompt, _ in rows]
    mixed = [float(first != last) for *_, (first, last) in rows]
    return results.StalenessNumbers(
        step=step,
        num_rollouts=len(rows),
        frac_mixed=bootstrap_mean(mixed, prompts, resampling=resampling),
        **sampler_metrics.lag_estimates([_lag(row, origin) for row in rows], prompts, resampling=resampling),
    )
