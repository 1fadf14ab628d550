"""Steps that can be recomputed: their rollouts, the weights before their update, and the Gram matrix of both.

`rank`, `replay` and `report` walk over the same steps in the same way: :func:`measure_steps` loads the weights before
each, measures the Gram matrix of its rollouts and puts a row question to it. A step that cannot be computed comes back
with its reason instead of a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradscope.diagnostics.inputs.kept_steps import KeptStep
from gradscope.diagnostics.inputs.row_questions import RowQuestion
from gradscope.errors import InputError
from gradscope.gradients.engine_options import EngineOptions
from gradscope.progress import ProgressCallback
from gradscope.rollouts.run import Run, WeightsRef
from gradscope.rollouts.types import RolloutGroup

if TYPE_CHECKING:
    from gradscope.gradients.model.policy import MeasuredPolicy
    from gradscope.gradients.plan.objective import Objective
    from gradscope.gradients.step.step_gram import StepGram


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One step and its Gram matrix, or the reason why there is none."""

    step: int
    """The trainer's step."""
    groups: tuple[RolloutGroup, ...]
    """The rollouts of the step."""
    weights: WeightsRef | None
    """The weights before the update, where they are on disk."""
    gram: StepGram | None
    """Gram matrix of the step's score vectors."""
    reason: str | None
    """Why there is no Gram matrix."""
    answer: tuple[Any, ...] = ()
    """What the row question asked for, by tensor or group, as its ``measure`` returns it; empty without a question."""


def select_steps(run: Run, steps: Sequence[int] | None) -> tuple[int, ...]:
    """The steps to look at.

    Args:
        steps: The steps that were asked for; None: every step of the log.

    Returns:
        Steps in ascending order, without repetition.

    Raises:
        InputError: A step was asked for that the log does not hold.
    """
    if steps is None:
        return run.steps
    absent = sorted(set(steps) - set(run.steps))
    if absent:
        raise InputError(
            f"{run.path} has no rollouts of step {', '.join(map(str, absent))}.",
            hint=f"It has steps {run.steps[0]} to {run.steps[-1]}." if run.steps else None,
        )
    return tuple(sorted(set(steps)))


def missing_weights(run: Run, step: int) -> str:
    """Why the weights of a step cannot be used, and what would help: a sentence without a final period."""
    if step < 1:
        return f"which weights made step {step} is not known: steps are counted from 1"
    saved = ", ".join(str(weights.num_updates) for weights in run.weights)
    have = f"on disk are the weights after {saved} updates" if saved else "no weights are on disk"
    updates = "1 update" if step == 2 else f"{step - 1} updates"
    advice = "; pass the weights before the first update with --initial" if step == 1 else ""
    return f"the weights after {updates}, which made step {step}, are not on disk ({have}){advice}"


def measure_steps(
    run: Run,
    steps: Sequence[int],
    options: EngineOptions,
    progress: ProgressCallback,
    question: RowQuestion | None = None,
) -> Iterator[MeasuredStep]:
    """The Gram matrix of each step, as soon as it is there.

    Args:
        question: What else is asked of each step while its weights are loaded; None: nothing.

    Yields:
        One result per step, in the order given.
    """
    from gradscope.gradients.plan.objective import Objective

    objective = Objective.from_settings(run.settings)
    with _arithmetic(options):
        for done, step in enumerate(steps):
            progress(done, len(steps), f"step {step}")
            yield _measure(run, step, objective, options, question)
    progress(len(steps), len(steps), "steps")


def _arithmetic(options: EngineOptions) -> AbstractContextManager[None]:
    """What was asked for, while steps are measured."""
    if options.precision != "high":
        return nullcontext()
    from gradscope.gradients.model.precision import without_tf32

    return without_tf32()


def _measure(
    run: Run, step: int, objective: Objective, options: EngineOptions, question: RowQuestion | None
) -> MeasuredStep:
    """One step: refused with a reason, taken as an earlier call kept it, or computed."""
    from gradscope.gradients.model.budget import names_out_of_memory

    groups, weights = run.groups_at(step), run.weights_before(step)
    measured = MeasuredStep(step=step, groups=groups, weights=weights, gram=None, reason=None)
    reason = _reason_against(run, step, objective)
    if reason is not None or weights is None:
        return replace(measured, reason=reason)
    # only the Gram matrix of the rollouts is kept, so a question needs the weights again
    kept = _kept(run, step, objective, options) if question is None else None
    gram = kept.read() if kept else None
    if gram is not None:
        return replace(measured, gram=gram)
    with names_out_of_memory(f"step {step}"):
        gram, answer = _compute(run, step, weights, objective, options, question)
    if kept:
        kept.write(gram)
    return replace(measured, gram=gram, answer=answer)


def _reason_against(run: Run, step: int, objective: Objective) -> str | None:
    """Why the gradient of a step cannot be formed, the most useful reason first."""
    if step in run.notes:
        return run.notes[step]
    if objective.cannot is not None:
        return objective.cannot
    weights = run.weights_before(step)
    if weights is None:
        return missing_weights(run, step)
    if objective.beta and weights.kind == "full" and run.weights_before(1) is None:
        return "the KL term needs the weights before the first update; pass them with --initial"
    return objective.reason_against([rollout for group in run.groups_at(step) for rollout in group.rollouts])


def _kept(run: Run, step: int, objective: Objective, options: EngineOptions) -> KeptStep | None:
    """Where the step is kept; None where nothing is."""
    if options.unfinished is None:
        return None
    choices = (options.engine, options.verify, options.device, options.dtype, options.precision, options.batch_tokens)
    return KeptStep(options.unfinished, run, step, objective, choices, options.notice)


def _compute(
    run: Run,
    step: int,
    weights: WeightsRef,
    objective: Objective,
    options: EngineOptions,
    question: RowQuestion | None,
) -> tuple[StepGram, tuple[Any, ...]]:
    """The step's Gram matrix and the answer to the question, from weights that are loaded once."""
    from gradscope.gradients.model.budget import TokenBudget, first_batch_tokens
    from gradscope.gradients.plan.prepared_step import prepare_step
    from gradscope.gradients.step.measure import measure_step

    policy = policy_of(run, weights, objective, options)
    budget = TokenBudget(
        options.batch_tokens or first_batch_tokens(policy),
        fixed=options.batch_tokens is not None,
        notice=options.notice,
    )
    prepared = prepare_step(policy, run.groups_at(step), objective, budget)
    gram = measure_step(prepared, engine=options.engine, verify=options.verify)
    gram = replace(gram, notes=(*gram.notes, *_what_the_disk_cannot_tell(run, policy, objective, gram)))
    return gram, question.measure(prepared, gram) if question else ()


def policy_of(run: Run, weights: WeightsRef, objective: Objective, options: EngineOptions) -> MeasuredPolicy:
    """A set of a run's weights as the trainer had it; the reference policy only where the loss has a KL term."""
    from gradscope.gradients.model.policy import load_measured_policy

    first = run.weights_before(1)
    return load_measured_policy(
        weights,
        device=options.device,
        dtype="float32" if options.precision == "high" else options.dtype,
        tokenizer=run.tokenizer,
        initial=first if objective.beta else None,
        origin=first.path if first is not None and first.kind == "full" else None,
    )


def _what_the_disk_cannot_tell(run: Run, policy: MeasuredPolicy, objective: Objective, gram: StepGram) -> Iterator[str]:
    """Sentences on where the trainer's forward pass may have been another one."""
    from gradscope.gradients.model.embeddings import padding_row

    first, padding = run.weights_before(1), padding_row(policy.model)
    if policy.kind == "full" and first is None and _occurs(padding, run.groups_at(gram.step)):
        yield (
            f"Token {padding} is the padding token and occurs in the rollouts: its embedding is taken to have had no "
            "gradient, as the checkpoint's configuration says; that of the model that training started from decides: "
            "--initial."
        )
    if objective.beta and policy.kind == "adapter" and first is None:
        yield (
            "The KL reference is the base model alone; where training went on from an adapter, its reference was that "
            "adapter: --initial."
        )
    for dtype in ("bf16", "fp16"):
        if run.settings.get(dtype) and gram.precision == "high":
            yield f"The trainer computed in {dtype}, this is {gram.dtype}: grad_norm need not agree to the tolerance."


def _occurs(token: int | None, groups: Sequence[RolloutGroup]) -> bool:
    """Whether a token is read anywhere before the last of its rollout, as far as ids were logged."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    return token is not None and any(
        token in (*(rollout.prompt_ids or ()), *(rollout.completion_ids or ()))[:-1] for rollout in rollouts
    )


def describe_engine(gram: StepGram, before: Mapping[str, object]) -> dict[str, object]:
    """How a run's steps were computed: the latest step's facts, with the notes of all.

    Args:
        before: The description of the steps before it; empty for the first.

    Returns:
        Engine, dtype, device, parameters, coverage, self-check and notes.
    """
    described, noted = gram.describe(), before.get("notes")
    notes = [*(noted if isinstance(noted, list) else ()), *gram.notes]
    return {**described, "notes": list(dict.fromkeys(notes))}


def describe_weights(weights: WeightsRef) -> str:
    """The weights' folder as people know it."""
    return Path(weights.path).name
