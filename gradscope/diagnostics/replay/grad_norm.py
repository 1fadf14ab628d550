"""The verdict on a logged gradient norm.

A norm in float32 is reproduced to rounding or not at all; where it is off by little, the step's own rounding is
measured. One that was computed in bfloat16 or float16, or that holds a
router's term over micro-batches nobody logged, can be told only as closely as its own arithmetic repeats: it matches
within the spread of random orders, is a mismatch well beyond it, and cannot be told in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.diagnostics.replay.log_arithmetic import Outcome, refused
from gradscope.findings.logged import LOGPROB_BOUND
from gradscope.reason import Reason
from gradscope.results.norms import LogprobDifference, Quantity
from gradscope.rollouts.groups import RolloutGroup
from gradscope.rollouts.run import Run
from gradscope.say import non_finite_word

if TYPE_CHECKING:
    from gradscope.gradients.step.step_gram import StepNorm
    from gradscope.gradients.trained.norms import TrainedNorms


WELL_BEYOND = 3.0
"""Half widths of the spread beyond which a norm in reduced precision is another one."""
_HALF_ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Relative rounding of one number: another device's kernels may shift a norm by as much, whatever the order."""
_NAME = "grad_norm"


def replay_grad_norm(run: Run, measured: MeasuredStep, tolerance: float) -> Outcome:
    """The gradient norm: verdict, recomputed value, relative error."""
    logged, found = run.metrics.get(measured.step, {}).get(_NAME), measured.recomputed
    if found is None:
        assert measured.reason is not None, "a step that was not recomputed has its reason"
        return refused(_NAME, measured.reason)
    if found.norm is None:
        return refused(_NAME, Reason("advantages_missing", "no advantages were logged"))
    value = found.trained.mean if found.trained else found.norm
    if logged is None:
        return refused(_NAME, Reason("not_logged", "the trainer logged no grad_norm at this step"), value)
    if not math.isfinite(logged):
        cause = f"the trainer logged {non_finite_word(logged)}, and the recomputed norm is {value:.6g}"
        return refused(_NAME, Reason("not_finite", cause), value)
    error = abs(value - logged) / abs(logged) if logged else abs(value)
    if max(value, abs(logged)) <= found.floor:
        return refused(_NAME, Reason("no_gradient", _why_zero(measured)), value, error)
    if abs(value - logged) <= max(tolerance * abs(logged), found.floor):
        return Quantity(name=_NAME, verdict="match", cause=_although(run, found)), value, error
    if found.trained is not None:
        return _judge_reduced(run, measured.step, found, found.trained, logged, value, error)
    return refused(
        _NAME, _off(run, measured.step, found, f"the recomputed norm is {_per_cent(error)} off"), value, error
    )


def replay_texts(found: StepNorm) -> Outcome:
    """Texts that are not of their ids: the norm is of the ids."""
    rows = ", ".join(map(str, found.other_texts[:8]))
    which = f"{len(found.other_texts)} of {found.num_rollouts} completions"
    text = f"the texts of {which} are not those of their ids, row {rows}"
    return refused("completion", Reason("texts_differ", text))


def _judge_reduced(
    run: Run, step: int, found: StepNorm, trained: TrainedNorms, logged: float, value: float, error: float
) -> Outcome:
    """The verdict on a norm that can be told only within a spread."""
    within = trained.told_within
    if trained.num_ties and error <= WELL_BEYOND * within:
        ties = (
            f"the entropies of {trained.num_ties} tokens lie within rounding of top_entropy_quantile: as these are "
            f"masked, the norm moves by {_per_cent(within)}, and the logged one is {_per_cent(error)} off"
        )
        return refused(_NAME, Reason("entropy_ties", ties), value, error)
    spread = f"the spread of {trained.dtype} over orders of the rollouts, {_per_cent(within)}"
    if error <= within:
        notes = [f"within {spread}", _although(run, found)]
        return Quantity(name=_NAME, verdict="match", cause="; ".join(note for note in notes if note)), value, error
    off = f"the recomputed norm is {_per_cent(error)} off, beyond {spread}"
    close = max(WELL_BEYOND * within, _HALF_ROUNDING.get(trained.dtype, 0.0))
    if error <= close and run.settings.origin is not None:
        hint = "Replay on the device that trained to settle it." if trained.dtype == "float32" else ""
        closer = Reason("precision", f"{off}, but not beyond what another device's arithmetic may shift it", hint)
        return refused(_NAME, closer, value, error)
    return refused(_NAME, _off(run, step, found, off), value, error)


def _why_zero(measured: MeasuredStep) -> str:
    """Why a step has no gradient."""
    rollouts = [rollout for group in measured.groups for rollout in group.rollouts]
    if all(rollout.advantage == 0.0 for rollout in rollouts):
        return "every advantage is 0, so that the norm is zero in the log and here whatever weights and ids are"
    return (
        "the norm is zero in the log and here although advantages are not: no gradient reaches what was trained, as "
        "where the invocation tokens of an aLoRA adapter do not occur"
    )


def _although(run: Run, found: StepNorm) -> str | None:
    """What a match rests on that was not logged."""
    notes = [_inferred(found)]
    if run.settings.origin is None:
        notes.append("the loss settings were not given and the trainer's defaults fit")
    return "; ".join(note for note in notes if note) or None


def _off(run: Run, step: int, found: StepNorm, off: str) -> Reason:
    """Why a norm is another one, the most likely cause first."""
    if run.settings.origin is None:
        known = ", which the log contradicts, for it has a kl," if run.metrics.get(step, {}).get("kl") else ""
        text = f"the loss settings are not in the folder, and with the trainer's defaults{known} {off}"
        return Reason("settings_unknown", text)
    if (trainer := run.settings.get("trl_trainer", "GRPO")) != "GRPO":
        text = f"{off}; README.md says that the run was trained with {trainer}, whose loss has no rule here"
        return Reason("loss_unknown", text, hint="Nothing to do: the losses of GRPOTrainer alone are known.")
    if inferred := _inferred(found):
        return Reason("ids_inferred", f"{off}; {inferred}, and text loses special tokens and token boundaries")
    if _rendered_elsewhere(run, step):
        why = "prompts were rendered with a tokenizer that the run did not save, and its chat template may be another"
        return Reason("prompt_unknown", f"{off}; {why}")
    return Reason("differs", f"{off}, with exact ids: other weights, another loss, or another advantage made this step")


def _rendered_elsewhere(run: Run, step: int) -> bool:
    """Whether conversations were made into ids with another tokenizer than the one in the run's folder."""
    rollouts = [rollout for group in run.groups_at(step) for rollout in group.rollouts]
    rendered = any(rollout.prompt_ids is None and rollout.messages is not None for rollout in rollouts)
    root = run.path if run.path.is_dir() else run.path.parent
    return rendered and (run.tokenizer is None or not run.tokenizer.resolve().is_relative_to(root.resolve()))


def _inferred(found: StepNorm) -> str | None:
    if not found.num_inferred_ids:
        return None
    return (
        f"the token ids of {found.num_inferred_ids} of {found.num_rollouts} completions were inferred from their text"
    )


def _per_cent(share: float) -> str:
    """Two digits of a share in per cent, however small: a spread of bfloat16 is some ten-thousandths."""
    return f"{100 * share:.2g} %" if share < 1 else f"{100 * share:.0f} %"


def logprob_difference(groups: Sequence[RolloutGroup], recomputed: Sequence[np.ndarray]) -> LogprobDifference | None:
    """|logged - recomputed| over a step's sampled tokens; None where no log-probabilities of exact ids were logged."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    differences = [
        np.abs(np.asarray(rollout.logprobs, dtype=np.float64) - own)[_sampled(rollout.mask, len(own))]
        for rollout, own in zip(rollouts, recomputed, strict=True)
        if rollout.logprobs is not None and len(rollout.logprobs) == len(own)
    ]
    every = np.concatenate([np.zeros(0), *differences])
    if not every.size or not np.all(np.isfinite(every)):
        return None
    return LogprobDifference(
        num_tokens=int(every.size),
        mean=float(every.mean()),
        max=float(every.max()),
        frac_beyond=float(np.mean(every > LOGPROB_BOUND)),
        bound=LOGPROB_BOUND,
    )


def _sampled(mask: Sequence[bool] | None, length: int) -> np.ndarray:
    """Tokens that the policy sampled: a mask leaves out what a tool or an environment wrote."""
    return np.ones(length, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
