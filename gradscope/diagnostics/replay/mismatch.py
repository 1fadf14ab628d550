"""Why a gradient norm is off: what is not known of the step, another loss that gives the norm, or another argument."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gradscope.diagnostics.inputs import steps as inputs
from gradscope.diagnostics.inputs.step_loss import SAME_POLICY_KL
from gradscope.diagnostics.replay.log_arithmetic import num_norms_without_rollouts
from gradscope.metrics.gram.geometry import GRAD_NORM_TOLERANCE
from gradscope.progress import ProgressCallback, part
from gradscope.reason import Reason
from gradscope.results.norms import Quantity, StepReplay
from gradscope.rollouts.run import Run
from gradscope.say import counted, in_two_digits, named_steps

if TYPE_CHECKING:
    from gradscope.gradients.engine_options import EngineOptions
    from gradscope.gradients.step.step_gram import StepNorm

NORM = "grad_norm"


def why_unmet(run: Run, measured: inputs.MeasuredStep, step_norm: StepNorm, difference: str) -> Reason:
    """The likeliest cause of a norm that is ``off``, which is a sentence that says by how much."""
    if contradiction := _contradiction(run, measured.step):
        difference = f"{difference}; {contradiction}"
    if run.settings.origin is None:
        text = f"the loss settings are not in the folder, and with {defaults(run)} {difference}"
        hint = "" if run.trained_by_trl or run.settings.get("trainer") else _LOSS_OF_SCRIPT
        return Reason("settings_unknown", text, hint=hint)
    if (trainer := run.settings.get("trl_trainer", "GRPO")) != "GRPO" and not run.settings.are_of_rloo:
        text = f"{difference}; README.md says that the run was trained with {trainer}, whose loss has no rule here"
        return Reason(
            "loss_unknown", text, hint="Nothing to do: the losses of GRPOTrainer and RLOOTrainer alone are known."
        )
    if run.source.format == "generic" and (unclear := _step_numbering(run, measured.step)) is not None:
        return Reason(unclear.cause, f"{difference}; {unclear}", hint=unclear.hint)
    if other := _other_reference(run, step_norm):
        hint = "TRL loads it by the model's name: save a model that you change after loading, and train from there."
        return Reason("reference_missing", f"{difference}; {other}", hint=hint)
    if from_text := inferred(step_norm):
        hint = _IDS_OF_SCRIPT if run.source.format == "generic" else ""
        text = f"{difference}; {from_text}, and text loses special tokens and token boundaries"
        return Reason("ids_inferred", text, hint)
    if unnamed := _unnamed(run, measured):
        names = ", ".join(unnamed)
        text = f"the arguments do not name {names}, and with {defaults(run)} {difference}"
        return Reason("settings_unknown", text, hint=f"Give {names} with --run-config.")
    rollouts = [rollout for group in run.groups_at(measured.step) for rollout in group.rollouts]
    rendered = any(rollout.prompt_ids is None and rollout.messages is not None for rollout in rollouts)
    root = run.path if run.path.is_dir() else run.path.parent
    if rendered and (run.tokenizer is None or not run.tokenizer.resolve().is_relative_to(root.resolve())):
        why = "prompts were rendered with a tokenizer that the run did not save, and its chat template may be another"
        return Reason("prompt_unknown", f"{difference}; {why}")
    if contradiction:
        return Reason("differs", difference, hint="Give the arguments of this run with --run-config.")
    average, is_met = _other_average(run, measured)
    if is_met:
        hint = "Give the loss that was used with --run-config, or average over the tokens of the update."
        return Reason("differs", f"{difference}{_WITH}{average}, the logged norm is met", hint=hint)
    causes = "other weights, ids, masks, loss or advantages", average, "a norm logged after clipping or as a mean of "
    return Reason("differs", f"{difference}: {', or '.join(filter(None, causes))}several updates")


_WITH = "; with "


def without_chance(steps: Sequence[StepReplay]) -> list[StepReplay]:
    """Steps whose norm another average gives, each with the others that are off and that it does not give."""
    averages = {
        step.step: norm.cause.partition(_WITH)[2] for step in steps if (norm := _unmet_norm(step)) and norm.cause
    }
    explained = []
    for step in steps:
        unmet = [number for number, average in averages.items() if average != averages.get(step.step)]
        if averages.get(step.step) and unmet and (norm := _unmet_norm(step)):
            reason = Reason("differs", f"{norm.cause}, but not at {named_steps(unmet)}")
            step = _explained(step, norm, reason.text, reason.advice)
        explained.append(step)
    return explained


def _unmet_norm(step: StepReplay) -> Quantity | None:
    """The norm of a step, where it was recomputed and does not match, perhaps for a setting that is not named."""
    norms = (quantity for quantity in step.quantities if quantity.name == NORM and NORM in step.relative_error)
    return next((norm for norm in norms if norm.verdict == "mismatch" or norm.reason == "settings_unknown"), None)


def _explained(step: StepReplay, norm: Quantity, cause: str, advice: str | None) -> StepReplay:
    explained = replace(norm, cause=cause, advice=advice)
    quantities = tuple(explained if quantity is norm else quantity for quantity in step.quantities)
    return replace(step, cause=cause if step.cause == norm.cause else step.cause, quantities=quantities)


def _contradiction(run: Run, step: int) -> str:
    """A contradiction between TRL's log and the arguments on the loss; "" where they agree."""
    logged, get = run.metrics.get(step, {}), run.settings.get
    if step in run.repeats and run.settings.updates_per_batch == 1:
        reuse = f"the log has the rollouts of step {run.repeats[step]} again"
        return f"{reuse}, so that num_iterations or steps_per_generation gave a batch several updates"
    if logged.get("kl") and not (get("beta") or get("trainer") or run.settings.are_of_rloo):
        return "the log has a kl, so that beta was not 0"
    stated = get("entropy_coef", 0.0)
    coefficient = stated if get("use_adaptive_entropy") else logged.get("entropy_coef", stated)
    if not math.isclose(coefficient, stated, rel_tol=_SAME):
        return f"the log has entropy_coef = {coefficient:g}, and the arguments {stated:g}"
    return ""


def _other_average(run: Run, measured: inputs.MeasuredStep) -> tuple[str, bool]:
    """An average over tokens and rollouts that may give the logged norm, and whether it does; "" where none may."""
    matrix = measured.gram.logged_gram if measured.gram else None
    if measured.gram is None or matrix is None or measured.loss is None or measured.loss.objective.entropy_coef:
        return "", False
    logged, objective = run.metrics[measured.step][NORM], measured.loss.objective
    rollouts = [rollout for group in measured.groups for rollout in group.rollouts]
    lengths = map(len, measured.gram.logprobs)
    masks = [
        objective.counted(rollout, rollout.counted(length).tolist())
        for rollout, length in zip(rollouts, lengths, strict=True)
    ]
    weights = objective.token_weights(masks)

    def norm(other: Sequence[float]) -> float:
        factors = np.array([new / old if old else 0.0 for new, old in zip(other, weights, strict=True)])
        return math.sqrt(max(float(factors @ matrix @ factors), 0.0))

    named, draw = run.settings.get("per_device_train_batch_size"), np.random.default_rng(0)
    sizes = [size for size in range(1, len(masks)) if len(masks) % size == 0 and named in (None, size)]
    may_be = ""
    orders = [draw.permutation(len(masks)).tolist() for _ in range(_DRAWS)]
    for name, averages in objective.other_averages(masks, sizes, orders):
        norms = [norm(other) for other in averages]
        if abs(norms[0] - logged) <= GRAD_NORM_TOLERANCE * logged:
            return name, True
        if min(norms) <= logged <= max(norms):
            may_be = may_be or f"{name}, which gives {min(norms):.6g} to {max(norms):.6g} in random orders"
    return may_be, False


_DRAWS = 200  # random orders of a step's rollouts


def defaults(run: Run) -> str:
    """The name of the defaults that stand for unknown settings."""
    return f"{run.settings.get('trainer', 'TRL')}'s defaults"


def _unnamed(run: Run, measured: inputs.MeasuredStep) -> tuple[str, ...]:
    """Settings that no argument names and that may move the step's norm."""
    names = measured.loss.objective.assumed if measured.loss else ()
    if run.settings.get("trainer"):  # its arguments have other names
        return names
    extra = ("epsilon", "importance_sampling_level") * (measured.step in run.repeats)
    truncated = any(rollout.status == "truncated" for group in measured.groups for rollout in group.rollouts)
    extra += ("mask_truncated_completions",) * truncated
    return (*names, *(name for name in extra if name not in run.settings.values))


def _step_numbering(run: Run, step: int) -> Reason | None:
    """Why the steps of a script may not be updates that start from the weights of that number."""
    are_tried = run.weights_before(step) is not None and run.weights_before(step + 1) is not None
    if inputs.counts_from_0(run) and not are_tried:
        text = "the log counts its steps from 0, so a checkpoint of the same number may be the one before or after"
        hint = "Count steps from 1, and name a checkpoint by the number of updates that it has had."
        return Reason("step_unknown", text, hint=hint)
    updates = run.settings.updates_per_batch
    if updates > 1 and any(step - (step - 1) % updates != step for step in run.steps):
        text = (
            f"the arguments make {updates} updates of a batch, and every step has rollouts of its own: its norm may be "
            "that of several updates"
        )
        return Reason("several_updates", text, hint=_EACH_UPDATE)
    if updates == 1 and (number := num_norms_without_rollouts(run)):
        text = f"{counted(number, 'step')} of the log without rollouts may have used parts of these"
        hint = "Log with each update the rollouts that it used; if it used a batch again, num_iterations says so."
        return Reason("batch_split", f"{text}, or other weights, another loss or advantage made this step", hint=hint)
    return None


_LOSS_OF_SCRIPT = "Give the loss with --run-config, in TRL's names or in verl's; see the docs on replay."
_IDS_OF_SCRIPT = "Log prompt_ids and completion_ids, and beside them masks and log-probabilities of the same length."
_EACH_UPDATE = "Log each update as a step of its own, with the rollouts of a batch at its first, or one update a batch."


def _other_reference(run: Run, norm: StepNorm) -> str | None:
    """That the KL reference was not the model that training began with, as the kl before any update tells."""
    kl, first = run.metrics.get(1, {}).get("kl", 0.0), run.weights_before(1)
    is_other = SAME_POLICY_KL < abs(kl) < math.inf and (norm.trained is None or norm.trained.dtype == "float32")
    if not (is_other and run.trained_by_trl and first and first.kind == "full" and 1 not in run.windows):
        return None
    return f"the log has a kl of {kl:.2g} at step 1, before any update: the KL reference was another model"


def inferred(norm: StepNorm) -> str | None:
    """How many token ids were made from text."""
    if not norm.num_inferred_ids:
        return None
    return f"the token ids of {norm.num_inferred_ids} of {norm.num_rollouts} rollouts were inferred from their text"


_COEFFICIENTS = {
    "kl": ("beta", "kl_loss_coef", "reference_policy_kl_penalty", "kl_tau"),
    "entropy": ("entropy_coef", "entropy_coeff"),
}
"""Part of the gradient -> last names of the argument that multiplies it and nothing else."""
_BY_CHANCE = 1e-3  # chance of all steps but the most telling to agree on a value, up to which it is named
_TELLING = 0.5  # share of all factors that a step allows, up to which its norm depends on the factor
_MAX_SPREAD = 1e-4  # spread of a norm; in bfloat16, beyond it, the part is another one than in float32 by some per cent
_NO_PART = 1e-7  # share of the gradient that float32 makes of a part that is zero
Interval = tuple[float, float]
Value = float | str | None
"""Of an argument."""


class Fit(Struct, frozen=True):
    """An argument of the loss, and what it has to be for the logged norms."""

    name: str  # the argument
    stated: Value  # its value in the arguments
    values: tuple[Value, ...]  # those that give the logged norms
    num_steps: int  # steps whose norm depends on it
    is_solved_for: bool = True  # whether it is a number that any single norm would give

    def explain(self, step: StepReplay) -> StepReplay:
        """A step with the argument as the cause of its norm, if that is off."""
        if (norm := _unmet_norm(step)) is None:
            return step
        values, advice = " or ".join(map(_spelled, self.values)), norm.advice
        if self.num_steps == 1 and self.is_solved_for:
            chance = "as one free number gives any single norm; another step would tell"
            text = f"{norm.cause}; {self.name} = {values} gives it, {chance}"
        else:
            text = f"the logged norm fits {self.name} = {values}"
            if self.num_steps > 1:
                text = f"the logged norms fit {self.name} = {values} at each of {self.num_steps} steps"
            if norm.verdict == "mismatch":
                stated = "give none" if self.stated is None else f"say {_spelled(self.stated)}"
                error = in_two_digits(step.relative_error[NORM])
                text = f"the recomputed norm is {error} off; {text}, and the arguments {stated}"
            else:
                text = f"{norm.cause}; {text}"
            advice = f"Give the {self.name} that was used with --run-config."
        return _explained(step, norm, text, advice)


def _spelled(value: Value) -> str:
    return f"{value:g}" if type(value) is float else str(value)


def fit_of(run: Run, steps: Sequence[StepReplay]) -> Fit | None:
    """The argument that one other value of gives the logged norm of all steps; None where there is none."""
    # A part K of the gradient g enters it times its coefficient, so that with s times the coefficient the gradient is g
    # + (s - 1) K, whose norm is a quadratic of s.
    judged = [step for step in steps if step.logged.get(NORM) and step.relative_error.get(NORM) is not None]
    if not judged or any((step.told_within or 0.0) > _MAX_SPREAD for step in judged):
        return None
    for component, names in _COEFFICIENTS.items():
        stated_values = run.settings.values.items()
        matches = ((path, value) for path, value in stated_values if path.rpartition(".")[2] in names and value)
        name, stated = next(matches, ("", 0.0))
        is_adaptive = component == "entropy" and run.settings.get("use_adaptive_entropy")
        if not name or is_adaptive or not all(component in step.parts for step in judged):
            continue
        sets = [_factors(step, component, run.half_unit(step.step, NORM)) for step in judged]
        if not (common := reduce(_intersection, sets)):
            continue
        scale = 2.0 * max(1.0, common[-1][1])
        widths = (sum(min(high, scale) - min(low, scale) for low, high in factors) for factors in sets)
        shares = sorted(min(1.0, width / scale) for width in widths)
        num_steps = sum(share < _TELLING for share in shares)
        values = [_shortest(stated, between) for between in common]
        is_sure = len(values) == 1 and math.prod(shares[1:]) <= _BY_CHANCE
        if num_steps and is_sure == (num_steps > 1):
            return Fit(name, stated, tuple(values), num_steps)
    return None


TRIED = 4  # steps that a value is looked for at: two that agree are enough
_SECANTS = 8
_ROUND_CHANCE = 0.02  # largest chance of a temperature that gives one norm to be so near a number of three digits
_TEMPERATURES = ("temperature", "actor_rollout_ref.rollout.temperature", "policy.generation.temperature")


def fit_temperature(
    run: Run, steps: Sequence[StepReplay], engine: EngineOptions, progress: ProgressCallback
) -> Fit | None:
    """The temperature of three digits that gives the logged norms where none is met: by secants at one step."""
    judged = [step for step in steps if _unmet_norm(step)][:TRIED]
    named = [(path, value) for path, value in run.settings.values.items() if path in _TEMPERATURES and value]
    if len(named) != 1 or any(step.verdict_on(NORM) == "match" for step in steps):
        return None
    if not all(0 < norms[NORM] < math.inf for step in judged for norms in (step.logged, step.recomputed)):
        return None
    allowed = _allowed_errors(run, judged)
    if any(step.told_within or allowed[step.step] > _MAX_SPREAD for step in judged):
        return None
    errors = [math.log(step.recomputed[NORM] / step.logged[NORM]) for step in judged]
    near = max(allowed.values(), default=0.0)
    distances = (max(abs(other - errors[0]), near) for other in errors[1:])  # all by one factor is another scale
    if not judged or _ROUND_CHANCE * math.prod(near / distance for distance in distances) > _BY_CHANCE:
        return None
    ((name, stated),) = named

    def norm_error(step: StepReplay, value: float) -> float:
        return next(_norm_errors(run, [step], name, value, engine, progress))

    value, last = stated, errors[0]
    change = last  # of the logarithm: a norm is about inverse to the temperature
    for _ in range(_SECANTS):
        value *= math.exp(min(max(change, -1.0), 1.0))
        before, last = last, norm_error(judged[0], value)
        if last == before or not abs(last) > GRAD_NORM_TOLERANCE:
            break
        change *= last / (before - last)
    value = float(f"{value:.3g}")
    is_met = all(abs(norm_error(step, value)) <= allowed[step.step] for step in judged)
    return Fit(name, stated, (value,), len(judged)) if is_met else None


_CHOICES: dict[str, tuple[Value, ...]] = {
    "loss_type": ("grpo", "dapo", "dr_grpo", "bnpo", "luspo", "cispo", "sapo", "vespo"),
    "mask_truncated_completions": (True, False),
    "top_entropy_quantile": (1.0, 0.2, 0.5, 0.8),
}
"""Arguments of TRL's loss -> values that are tried where the stated one does not give the norm."""
_CHOICES_OF_RATIOS: dict[str, tuple[Value, ...]] = {
    "importance_sampling_level": ("token", "sequence"),
    "epsilon": (0.1, 0.2, 0.3, 0.4),
    "epsilon_high": (0.2, 0.25, 0.28, 0.3, 0.4),
    "delta": (None, 1.5, 2.0, 3.0, 4.0, 5.0, 10.0),
}
"""The same of arguments without an effect where every ratio is 1."""
_CHOICES_OF_KL: dict[str, tuple[Value, ...]] = {"use_bias_correction_kl": (False, True)}


def fit_choice(run: Run, steps: Sequence[StepReplay], engine: EngineOptions, progress: ProgressCallback) -> Fit | None:
    """The argument that one other usual value of gives the logged norms of all steps, by a pass for each value."""
    unmet = [step for step in steps if _unmet_norm(step)][:TRIED]
    met = [step for step in steps if step.verdict_on(NORM) == "match" and step.logged[NORM]][:TRIED]
    if run.settings.get("trainer") or any(_contradiction(run, step.step) for step in unmet):
        return None
    if not unmet or not all(0 < step.logged[NORM] < math.inf for step in unmet):
        return None
    allowed = _allowed_errors(run, (*unmet, *met))
    if any(step.told_within for step in unmet) or max(allowed.values()) > _MAX_SPREAD:
        return None

    choices = _CHOICES | (_CHOICES_OF_KL if run.settings.get("beta") else {})
    choices |= _CHOICES_OF_RATIOS if run.repeats.keys() >= {step.step for step in unmet} else {}
    pairs = [(name, value) for name, values in choices.items() for value in values if value != run.settings.get(name)]
    fitting: dict[str, list[Value]] = {}
    for done, (name, value) in enumerate(pairs):
        if fitting and name not in fitting:
            break
        if f"{name} = {value}" in unmet[0].untested:  # it would give the same norm
            continue
        trying = part(progress, done, len(pairs), f"trying {name} = {value}")
        errors = _norm_errors(run, (*unmet, *met), name, value, engine, trying)
        if all(abs(error) <= bound for error, bound in zip(errors, allowed.values(), strict=True)):
            fitting.setdefault(name, []).append(value)
    fits = (Fit(name, run.settings.get(name), tuple(values), len(unmet), False) for name, values in fitting.items())
    return next(fits, None)


def _allowed_errors(run: Run, steps: Sequence[StepReplay]) -> dict[int, float]:
    """The relative error of each norm up to which it is met, with how it was rounded for the log."""
    return {step.step: GRAD_NORM_TOLERANCE + run.half_unit(step.step, NORM) / step.logged[NORM] for step in steps}


def _norm_errors(
    run: Run,
    steps: Sequence[StepReplay],
    name: str,
    value: Value,
    engine: EngineOptions,
    progress: ProgressCallback,
) -> Iterator[float]:
    """The logarithms of recomputed over logged norms with another argument, a pass each; NaN where there is none."""
    # a step without a logged norm takes one pass, and nothing else is tried
    logs = {
        number: {name: value for name, value in logged.items() if name != NORM}
        for number, logged in run.metrics.items()
    }
    tried = replace(run, metrics=logs, settings=run.settings.with_values({name: value}))
    numbers = [step.step for step in steps]
    measured = inputs.measure_steps(tried, numbers, engine, progress, norm_only=True)
    for step, recomputed in zip(steps, (of_step.recomputed for of_step in measured), strict=True):
        norm = recomputed.norm if recomputed else None
        yield math.log(norm / step.logged[NORM]) if norm else math.nan


def _factors(step: StepReplay, part: str, half_unit: float) -> list[Interval]:
    """The factors on a part of the gradient, from 0 on, with which the norm is the logged one."""
    (size, along), logged, norm = step.parts[part], step.logged[NORM], step.recomputed[NORM]
    allowed = max(GRAD_NORM_TOLERANCE, step.told_within or 0.0) * logged + half_unit
    if size <= _NO_PART:
        return [(0.0, math.inf)] if abs(norm - logged) <= allowed else []
    # between the factors at which the norm reaches the two ends of its tolerance it is met
    met = [np.roots([size**2, 2 * along, 1 - ((logged + end) / norm) ** 2]) for end in (-allowed, allowed)]
    ends = sorted(1 + root.real for root in np.concatenate(met) if root.imag == 0)
    return [(max(low, 0.0), high) for low, high in zip(ends[::2], ends[1::2], strict=True) if high >= 0]


def _intersection(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    pairs = [(max(low, other[0]), min(high, other[1])) for low, high in first for other in second]
    return [(low, high) for low, high in pairs if low <= high]


def _shortest(stated: float, factors: Interval) -> float:
    """The value with the fewest digits among ``factors`` times the one that is stated."""
    low, high = (stated * factor for factor in factors)
    rounded = (float(f"{(low + high) / 2:.{digits}g}") for digits in range(1, 17))
    return 0.0 if low <= 0 else next((value for value in rounded if low <= value <= high), low)


def common_cause(run: Run, steps: Sequence[StepReplay]) -> Iterator[str]:
    """A common cause of norms that do not match."""
    settings = run.settings
    logged = np.array([step.logged[NORM] for step in steps])
    recomputed = np.array([step.recomputed[NORM] for step in steps])
    if len(steps) < 2 or not (logged.all() and recomputed.all()):
        return
    ratios, limit = logged / recomputed, settings.get("max_grad_norm") or 0.0
    spread = max(_SAME, *(step.told_within or 0.0 for step in steps))
    if np.ptp(ratios) <= spread * ratios.mean() < abs(ratios.mean() - 1) / _MIN_SPREADS:
        factor = f"{ratios.mean():.6g} times the recomputed ones at all {len(steps)} steps"
        length = (settings.get("max_completion_length") or 0.0) / ratios.mean()
        tolerance = min(spread * length, _NEAR_WHOLE)
        rollouts = (rollout for step in run.steps for group in run.groups_at(step) for rollout in group.rollouts)
        fits = settings.get("loss_type") == "dr_grpo" and length > 0 and abs(length - round(length)) <= tolerance
        is_length = fits and round(length) >= max(rollout.num_tokens or 0 for rollout in rollouts)
        why = ": the loss or the advantages have another scale"
        why = f", as max_completion_length = {length:.0f} makes them" if is_length else why
        yield f"The logged norms are {factor}{why}."
    elif np.ptp(logged) <= _SAME * logged.mean() and np.all(recomputed > logged):
        to_limit = " to max_grad_norm" * bool(abs(logged.mean() - limit) <= _SAME * limit)
        at_all = f"at all {len(steps)} steps, below every recomputed norm"
        yield f"The log has {logged[0]:.6g} {at_all}, as after clipping{to_limit}."


_MIN_SPREADS = 10.0  # spreads that a common factor is from 1 at least: closer ones may be alike by chance
_NEAR_WHOLE = 0.05  # tokens: a tenth of all factors give a length that is so near a whole number
_SAME = 1e-5  # relative spread of numbers in float32 that count as one: clip_grad_norm_ adds 1e-6 to the norm
