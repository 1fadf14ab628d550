"""The part of a replay that is arithmetic on the log: rewards, advantages, the share of degenerate groups."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gradscope.advantages.formulation import is_in_file
from gradscope.advantages.group import TRL_EPSILON, TRL_SCALES, gdpo, optimal_advantages
from gradscope.advantages.registry import compute_step_advantages, formulation, is_formulation
from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS, all_equal
from gradscope.reason import Reason
from gradscope.results.norms import Quantity
from gradscope.rollouts.function_rewards import function_rewards
from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.rollouts.run import FLOAT32_DIGITS, VERSION_HINT, Run, TrainerSettings, TrlVersion, written_digits
from gradscope.rollouts.run_folder import CUSTOM_ADVANTAGE
from gradscope.say import counted, non_finite_word

Array = NDArray[np.float64]

_KL_IN_REWARDS = "the rewards that advantages are made of hold a KL penalty"
_CLOSE = 1e-8  # a spread up to which TRL takes it for zero: PyTorch's isclose


class StepBatch(Struct, frozen=True):
    """A trainer's numbers from the rewards of a step."""

    reward: float  # the mean that it logs
    advantages: Array  # in the order of the groups, [N]
    frac_zero_std: float  # the share of rollouts without a spread that it logs
    name: str  # how the advantages are called, for a sentence
    unknown: Reason | None = None  # why they are unknown, where they are


def _trl_batch(
    groups: Sequence[RolloutGroup], settings: TrainerSettings, rewards: Array | None = None
) -> StepBatch | Reason:
    """TRL's numbers of a step; ``rewards``, [N], stand for those of the log."""
    scale = TRL_SCALES.get(str(settings.get("scale_rewards", "group")))
    aggregation = str(settings.get("multi_objective_aggregation", "sum_then_normalize"))
    if scale is None:
        return Reason(
            "loss_unknown", f"scale_rewards = {settings.get('scale_rewards')} is not a formulation that gradscope knows"
        )
    if aggregation not in ("sum_then_normalize", "normalize_then_sum"):
        return Reason("loss_unknown", f"multi_objective_aggregation = {aggregation} is not known here")
    if rewards is None:
        rewards = np.array([np.nan if r is None else r for group in groups for r in group.rewards], dtype=np.float64)
    unscored = np.isnan(rewards)
    version = TrlVersion.parse(settings.get("trl_version"))
    if unscored.any() and not version.is_known:
        return Reason(
            "settings_unknown",
            "a rollout has no reward, and what that does depends on TRL's version, which is not known",
            hint=VERSION_HINT,
        )
    if version.is_before(1, 6):
        rewards = np.nan_to_num(rewards, nan=0.0)
    sizes = [group.size for group in groups]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # groups of which nothing is known
        if settings.are_of_rloo:
            return _left_one_out(rewards, sizes, settings)
        if aggregation == "normalize_then_sum":
            return _normalized_first(groups, rewards, settings)
        return _summed_first(rewards, sizes, scale)


def _summed_first(rewards: Array, sizes: Sequence[int], scale: str) -> StepBatch:
    mean = np.nanmean if np.isnan(rewards).any() else np.mean  # in a fifth of the time
    means, spreads = np.empty_like(rewards), np.empty_like(rewards)
    sizes_of_rows = np.repeat(sizes, sizes)
    for size in set(sizes):
        rows = np.flatnonzero(sizes_of_rows == size)
        groups = rewards[rows].reshape(-1, size)
        means[rows], spreads[rows] = np.repeat(mean(groups, axis=1), size), np.repeat(_spread(groups), size)
    if scale == "batch":
        spreads = np.full(len(rewards), _spread(rewards[None])[0])
    advantages = rewards - means
    if scale != "none":
        advantages = advantages / (spreads + TRL_EPSILON)
    name = {"group": "grpo of its group", "none": "dr_grpo of its group", "batch": "the batch-scaled form of its group"}
    dead = float(np.mean(np.abs(spreads) <= _CLOSE))
    return StepBatch(float(mean(rewards)), np.nan_to_num(advantages), dead, name[scale])


def _left_one_out(rewards: Array, sizes: Sequence[int], settings: TrainerSettings) -> StepBatch:
    """RLOOTrainer's advantages: a rollout's reward less the mean of the others of its group."""
    unknown = Reason("loss_not_on_disk", _KL_IN_REWARDS) if settings.get("beta", 0.05) else None
    limits = settings.get("reward_clip_range", (None, None))
    groups = np.split(np.clip(rewards, *limits), np.cumsum(sizes)[:-1])
    baselines = [(np.nansum(group) - group) / (np.sum(~np.isnan(group)) - 1) for group in groups]
    advantages = np.concatenate(groups) - np.concatenate(baselines)
    if settings.get("normalize_advantages", False):
        advantages = (advantages - np.nanmean(advantages)) / (np.nanstd(advantages, ddof=1) + TRL_EPSILON)
    name = "the leave-one-out form of its group"
    return StepBatch(float(np.nanmean(rewards)), np.nan_to_num(advantages), math.nan, name, unknown)


def _normalized_first(groups: Sequence[RolloutGroup], rewards: Array, settings: TrainerSettings) -> StepBatch | Reason:
    """Each function's rewards are scaled within the group, then weighed and added, then scaled over the batch."""
    functions = function_rewards(groups, settings)
    if functions is None:
        return Reason("rewards_missing", "normalize_then_sum needs the rewards of each function, which were not logged")
    tables = np.split(functions.table, np.cumsum([group.size for group in groups])[:-1])
    scaled = [(table - np.nanmean(table, axis=0)) / (_spread(table.T) + TRL_EPSILON) for table in tables]
    total = np.nansum(np.concatenate(scaled) * functions.weights, axis=1)
    total[np.isnan(rewards)] = np.nan
    spread_of_all = _spread(total[None])[0]
    advantages = (total - np.nanmean(total)) / (spread_of_all + TRL_EPSILON)
    name, dead = "the functions scaled one by one and summed", float(np.isclose(spread_of_all, 0.0))
    return StepBatch(float(np.nanmean(rewards)), np.nan_to_num(advantages), dead, name)


def _spread(groups: Array) -> Array:
    """Standard deviations of rows as TRL computes them: over G - 1 known values, zero for a group of one, else NaN."""
    if groups.shape[1] == 1:
        return np.zeros(len(groups))
    deviations = (np.nanstd if np.isnan(groups).any() else np.std)(groups, axis=1, ddof=1)
    is_dead = np.fmax.reduce(groups, axis=1) - np.fmin.reduce(groups, axis=1) <= EQUAL_REWARDS
    return np.asarray(np.where(is_dead, 0.0 * deviations, deviations))


_VERL_EPSILON = 1e-6
_NEMO_EPSILON = 1e-6

Formula = Callable[[Array], Array]  # from the rewards of a group, [G], to its advantages, [G]


def _trainer_batch(groups: Sequence[RolloutGroup], settings: TrainerSettings) -> StepBatch:
    rewards = [np.array(group.rewards, dtype=np.float64) for group in groups]
    name, formula = _FORMULAS[str(settings.get("trainer"))](settings)
    sizes, all_rewards = [group.size for group in groups], np.concatenate(rewards)
    frac_zero_std = float(np.average([all_equal(part.tolist()) for part in rewards], weights=sizes))
    unknown = formula if isinstance(formula, Reason) else None
    advantages = (
        np.full(len(all_rewards), np.nan) if isinstance(formula, Reason) else np.concatenate([*map(formula, rewards)])
    )
    return StepBatch(float(np.mean(all_rewards)), advantages, frac_zero_std, name, unknown)


def _verl(settings: TrainerSettings) -> tuple[str, Formula | Reason]:
    """``algorithm.adv_estimator=grpo``; the only rollout of a group keeps its reward."""
    named = settings.lookup("algorithm.adv_estimator")
    estimator = str(named or "gae")
    scaled = bool(settings.lookup("algorithm.norm_adv_by_std_in_grpo", True))
    if settings.lookup("algorithm.use_kl_in_reward", False):
        return estimator, Reason("loss_not_on_disk", _KL_IN_REWARDS)
    if named is None:
        text = "the arguments do not name algorithm.adv_estimator, and verl's default, gae, has no rule here"
        return estimator, Reason("settings_unknown", text, hint="Give algorithm.adv_estimator with --run-config.")
    if estimator != "grpo":
        return estimator, Reason("loss_unknown", f"adv_estimator {estimator!r} has no rule here")

    def formula(rewards: Array) -> Array:
        if len(rewards) == 1:
            return rewards / (1 + _VERL_EPSILON) if scaled else rewards
        centered = rewards - rewards.mean()
        return np.asarray(centered / (rewards.std(ddof=1) + _VERL_EPSILON) if scaled else centered)

    return "verl's grpo of its group", formula


def _prime_rl(settings: TrainerSettings) -> tuple[str, Formula | Reason]:
    penalties = [name for name, value in settings.values.items() if ".length_penalty" in name and value is not None]
    if penalties:
        return "grpo", Reason("loss_unknown", "rewards were shaped by length_penalty, which has no rule here")
    return "prime-rl's centred reward of its group", lambda rewards: rewards - rewards.mean()


def _nemo_rl(settings: TrainerSettings) -> tuple[str, Formula | Reason]:
    """``grpo.adv_estimator``: baseline and spread of the others of the group, or of all."""
    name = str(settings.lookup("grpo.adv_estimator.name", "grpo"))
    # arguments of the estimator, or of ``grpo`` in older releases; both are true by default
    leave_one_out, scaled = (
        bool(settings.get(f"grpo.adv_estimator.{key}", settings.get(f"grpo.{key}", True)))
        for key in ("use_leave_one_out_baseline", "normalize_rewards")
    )
    if name != "grpo":
        return name, Reason("loss_unknown", f"adv_estimator {name!r} has no rule here")
    for section in ("reward_shaping", "reward_scaling"):
        if settings.get(f"grpo.{section}.enabled", False):
            return name, Reason("loss_unknown", f"rewards went through grpo.{section}, which has no rule here")

    def formula(rewards: Array) -> Array:
        size = len(rewards) - int(leave_one_out)
        if len(rewards) <= 1:
            return np.zeros_like(rewards)
        seen = np.ones((len(rewards), len(rewards))) - (np.eye(len(rewards)) if leave_one_out else 0.0)
        mean, square = seen @ rewards / size, seen @ rewards**2 / size
        centered = rewards - mean
        if not scaled or size < 2:
            return centered
        spread = np.sqrt(np.clip((square - mean**2) * size / (size - 1), 0.0, None))
        return np.where(spread > 0, centered / (spread + _NEMO_EPSILON), centered)

    return "NeMo-RL's grpo of its group", formula


_FORMULAS: Mapping[str, Callable[[TrainerSettings], tuple[str, Formula | Reason]]] = {
    "verl": _verl,
    "prime-rl": _prime_rl,
    "nemo-rl": _nemo_rl,
}
"""Trainer -> its formula by its arguments, with a name for a sentence."""


LOG_TOLERANCE = 1e-5
"""Trainers compute rewards and advantages in float32: 1e-7 relative, a little more after a division by a small std."""

_BEYOND_THE_LOG = ("run", "token", "gram")  # scopes of formulations that need more than a log holds of a step

_UNITS = 4.0  # units in the last place by which a float32 mean of a few equal numbers is off at most
_ROUNDED = "TRL's float32 mean of equal rewards is off in its last digit, and their deviation is not zero"

COARSE = 1e-3  # relative rounding of a logged number up to which one within it is met
LOG_DIGITS = "Log numbers with all their digits in the next run."

Outcome = tuple[Quantity, float | None, float | None]
"""The verdict, the recomputed value, the error; None where there is none."""


def refused(name: str, reason: Reason, value: float | None = None, error: float | None = None) -> Outcome:
    """A quantity that does not match, with its cause and advice."""
    quantity = Quantity(name=name, verdict=reason.verdict, cause=reason.text, reason=reason.cause, advice=reason.advice)
    return quantity, value, error


def _compare(name: str, value: float, logged: float, half_unit: float = 0.0) -> Outcome:
    """A recomputed number against the logged one, rounded as it may be; no error where that is NaN or infinity."""
    if not math.isfinite(logged):
        cause = f"the log says {non_finite_word(logged)}, its rollouts say {value:.6g}"
        return refused(name, Reason("not_finite", cause), value)
    error = abs(value - logged) / abs(logged) if logged else abs(value)
    if error <= LOG_TOLERANCE or abs(value - logged) <= half_unit * (1 + LOG_TOLERANCE):
        if error > LOG_TOLERANCE and half_unit > COARSE * abs(logged):
            rounded = f"the log has {logged:.6g} to {2 * half_unit:g}, as it was rounded"
            return refused(name, Reason("precision", rounded, hint=LOG_DIGITS), value, error)
        return Quantity(name=name, verdict="match", cause=None), value, error
    return refused(
        name, Reason("log_differs", f"the log says {logged:.6g}, its rollouts say {value:.6g}"), value, error
    )


def batch_of_step(run: Run, measured: MeasuredStep) -> StepBatch | Reason:
    """The rewards that the trainer derived from the step's, or why they are unknown."""
    if not measured.groups:
        return run.notes[measured.step]
    unscored = any(reward is None for group in measured.groups for reward in group.rewards)
    rollouts = [rollout for group in measured.groups for rollout in group.rollouts]
    if any(rollout.reward is None and {*rollout.rewards.values()} - {None} for rollout in rollouts):
        text = "reward functions share a name, and the table has one column for them"
        return Reason("rewards_missing", text, hint="Give each function a __name__ of its own in the next run.")
    if unscored and (not run.trained_by_trl or run.settings.get("advantage")):
        return Reason("rewards_missing", "a rollout has no reward")
    if run.settings.get("trainer"):
        return _trainer_batch(measured.groups, run.settings)
    return _trl_batch(measured.groups, run.settings)


def _logged_at(run: Run, step: int, name: str, words: str) -> float | Reason:
    if step in run.windows:
        return Reason("window", f"the trainer logged the mean of {run.windows[step]} steps")
    logged = run.metrics.get(step, {}).get(name)
    if step in run.notes and (logged is None or run.notes[step].cause != "batch_split"):  # logged of the whole batch
        return run.notes[step]
    return not_logged(run, step, words) if logged is None else logged


def not_logged(run: Run, step: int, words: str) -> Reason:
    """Why there is no number that the trainer logged at a step."""
    if not run.metrics and run.unread_metrics:
        return Reason("not_logged", run.unread_metrics.rstrip("."), hint="Keep one of them beside the rollouts.")
    if not run.metrics:
        hint = "Keep the trainer's log with the run: trainer_state.json (TRL: trainer.save_state()) or metrics.jsonl."
        return Reason("not_logged", f"the trainer's log is not in the folder: its {words} is not known", hint=hint)
    sampled = f": its batch was sampled for step {run.repeats[step]}" if step in run.repeats else ""
    hint = "" if run.trained_by_trl else "Log it beside the other numbers of the step."
    return Reason("not_logged", f"the trainer logged no {words} at this step{sampled}", hint=hint)


def replay_rewards(run: Run, measured: MeasuredStep, batch: StepBatch | Reason) -> Outcome:
    """The mean reward of the step: verdict, recomputed value, relative error."""
    logged = _logged_at(run, measured.step, "reward", "mean reward")
    if isinstance(batch, Reason):
        return refused("reward", batch)
    if isinstance(logged, Reason):
        return refused("reward", logged)
    compared = _compare("reward", batch.reward, logged, run.half_unit(measured.step, "reward"))
    functions = {name for group in measured.groups for rollout in group.rollouts for name in rollout.rewards}
    return _or_unknown(run, compared, "reward_weights") if len(functions) > 1 else compared


def replay_zero_std(run: Run, measured: MeasuredStep, batch: StepBatch | Reason) -> Outcome:
    """The share of rollouts in groups of equal reward, as TRL counts it, or of groups, as others may."""
    name = "frac_reward_zero_std"
    logged = _logged_at(run, measured.step, name, name)
    if isinstance(batch, Reason):
        return refused(name, batch)
    if isinstance(logged, Reason):
        return refused(name, logged)
    if not run.trained_by_trl or run.settings.get("sampling") == "reallocated":
        dead = [all_equal([reward for reward in group.rewards if reward is not None]) for group in measured.groups]
        by_group = _compare(name, float(np.mean(dead)), logged, run.half_unit(measured.step, name))
        if by_group[0].verdict == "match":
            return by_group
    sizes = np.cumsum([group.size for group in _rounded_alive(run, measured)])
    num_alive = (batch.frac_zero_std - logged) * sum(group.size for group in measured.groups)
    if np.any(np.abs(sizes - num_alive) <= LOG_TOLERANCE * sizes):
        text = (
            f"{batch.frac_zero_std:.6g} of the rollouts are in groups of equal rewards, and the trainer counted "
            f"{logged:.6g}: {_ROUNDED}"
        )
        return Quantity(name=name, verdict="match", cause=text), batch.frac_zero_std, abs(batch.frac_zero_std - logged)
    compared = _compare(name, batch.frac_zero_std, logged, run.half_unit(measured.step, name))
    return _or_unknown(run, compared, "scale_rewards = 'batch'") if logged in (0, 1) else compared


def _or_unknown(run: Run, outcome: Outcome, argument: str) -> Outcome:
    """The outcome; unknown arguments excuse a mismatch that one of TRL's may make."""
    quantity, *numbers = outcome
    if quantity.verdict != "mismatch" or run.settings.origin is not None or not run.trained_by_trl:
        return outcome
    text = f"{quantity.cause}, as {argument} may make it: the arguments are not in the folder"
    return refused(quantity.name, Reason("settings_unknown", text), *numbers)


def _rounded_alive(run: Run, measured: MeasuredStep) -> list[RolloutGroup]:
    """Groups of equal rewards whose advantages are what TRL's float32 leaves of a mean, and not zero."""
    scales = str(run.settings.get("scale_rewards", "group")) not in ("none", "False")
    alive = []
    for group in measured.groups if run.trained_by_trl else ():
        rewards = [reward for reward in group.rewards if reward is not None]
        if len(rewards) == group.size and all_equal(rewards):
            bound = _UNITS * 2.0**-23 * max(map(abs, rewards)) / (TRL_EPSILON if scales else 1.0)
            if 0.0 < max(abs(rollout.advantage or 0.0) for rollout in group.rollouts) <= bound:
                alive.append(group)
    return alive


def without_advantages(groups: Sequence[RolloutGroup], or_else: str = "") -> Reason:
    """That rollouts of a step have no advantage, all or some."""
    advantages = [rollout.advantage for group in groups for rollout in group.rollouts]
    if any(advantage is not None for advantage in advantages):
        text = f"{advantages.count(None)} of {len(advantages)} rollouts have no advantage that is a number"
        return Reason("advantages_missing", text, hint="Look at their rewards: one that is no number has no advantage.")
    return Reason("advantages_missing", f"no advantages were logged{or_else}")


def replay_advantages(run: Run, measured: MeasuredStep, batch: StepBatch | Reason) -> Outcome:
    """The step's advantages: verdict, recomputed mean absolute advantage, largest absolute difference."""
    rollouts = [rollout for group in measured.groups for rollout in group.rollouts]
    logged = np.array([rollout.advantage for rollout in rollouts], dtype=np.float64)
    in_loss = np.array([rollout.mask is None or any(rollout.mask) for rollout in rollouts], dtype=bool)
    if rollouts and (np.any(np.isnan(logged) & in_loss) or np.all(np.isnan(logged))):
        return refused("advantage", without_advantages(measured.groups, ", or one per token"))
    named = run.settings.get("advantage")
    if named == CUSTOM_ADVANTAGE:
        return refused(
            "advantage", Reason("loss_not_on_disk", "a subclass of the trainer made them, and how is not recorded")
        )
    if named and (reason := _not_the_code(str(named), run.settings)) is not None:
        return refused("advantage", reason)
    if named and formulation(str(named)).scope in _BEYOND_THE_LOG:
        return refused("advantage", Reason("loss_not_on_disk", f"{named} needs more than the rewards of the step"))
    if isinstance(batch, Reason):
        return refused("advantage", batch)
    if batch.unknown is not None:
        return refused("advantage", batch.unknown)
    value = batch.advantages if not named else _formulated(str(named), measured.groups, run.settings)
    if isinstance(value, Reason):
        return refused("advantage", value)
    rounded = {group.group_id for group in _rounded_alive(run, measured)}
    exact = np.array([group.group_id not in rounded for group in measured.groups for _ in group.rollouts])
    logged = np.where(np.isnan(logged), value, logged)
    difference = np.abs(value - logged)
    largest = float(np.max(difference[exact], initial=0.0))
    size = float(np.mean(np.abs(value)))
    if largest <= LOG_TOLERANCE:
        noise, highest = float(np.max(difference[~exact], initial=0.0)), float(np.max(np.abs(value), initial=0.0))
        text = None if noise <= LOG_TOLERANCE else _noise(int(np.sum(~exact)), noise, highest)
        return Quantity(name="advantage", verdict="match", cause=text), size, largest
    if (rounded_outcome := _as_rounded(rollouts, logged, largest, size)) is not None:
        return rounded_outcome
    is_named = not {"scale_rewards", "reward_clip_range", "advantage", "trainer"}.isdisjoint(run.settings.values)
    if run.settings.origin is not None and not (run.trained_by_trl or is_named):
        return _script_advantages(run, measured.groups, batch, logged, largest)
    if run.settings.origin is None:
        text = f"the advantage formula is not in the folder, and the trainer's default is {largest:.2g} off"
        return refused("advantage", Reason("settings_unknown", text), size, largest)
    name = f"{named} of its group" if named else batch.name
    if math.isinf(run.metrics.get(measured.step, {}).get("reward", 0.0)):
        text = f"an advantage differs from {name} by {largest:.2g}: a reward was infinite, as the logged mean is"
        hint = "Look at the reward functions: advantages of an infinite reward are no numbers."
        return refused("advantage", Reason("not_finite", text, hint=hint), size, largest)
    text, hint = f"an advantage differs from {name} by {largest:.2g}", ""
    if not (named or run.settings.get("trainer")) and (other := _other_arguments(run, measured, logged)):
        text, hint = f"{text}; they are those of {other}", "Give the arguments that the run had with --run-config."
    return refused("advantage", Reason("log_differs", text, hint=hint), size, largest)


_NAME_FORMULA = "Give scale_rewards with --run-config, or the formula with --advantage, to have them compared."
_OPPOSED = -0.8  # cosine of advantages with those of TRL below which their sign is the other one


def _script_advantages(
    run: Run, groups: Sequence[RolloutGroup], batch: StepBatch, logged: Array, difference: float
) -> Outcome:
    """Advantages of a formula that no argument names: that of another scale, or none that is known."""
    size = float(np.mean(np.abs(batch.advantages)))
    for scale in ("none", "batch"):
        other = _trl_batch(groups, run.settings.with_values({"scale_rewards": scale}))
        largest = float(np.max(np.abs(other.advantages - logged))) if isinstance(other, StepBatch) else math.inf
        if largest <= LOG_TOLERANCE:
            text = f"they are those of scale_rewards = {scale}, which the arguments do not name"
            return Quantity(name="advantage", verdict="match", cause=text), float(np.mean(np.abs(logged))), largest
    parts = np.split(logged, np.cumsum([group.size for group in groups])[:-1])
    centred = np.concatenate([part - part.mean() for part in parts])
    if batch.advantages @ centred < _OPPOSED * np.linalg.norm(batch.advantages) * np.linalg.norm(centred):
        text = "advantages fall where rewards rise: they have the sign of a loss, or are not of these rewards"
        return refused("advantage", Reason("log_differs", text), size, difference)
    text = f"the advantage formula is not in the folder, and the trainer's default is {difference:.2g} off"
    return refused("advantage", Reason("settings_unknown", text, hint=_NAME_FORMULA), size, difference)


def _other_arguments(run: Run, measured: MeasuredStep, logged: Array) -> str:
    """Arguments of TRL's that make the logged advantages, [N], of the step's rewards; "" where none of these do."""
    get, sampled_at = run.settings.get, run.repeats.get(measured.step, measured.step)
    stated = {
        "scale_rewards": TRL_SCALES.get(str(get("scale_rewards", "group"))),
        "multi_objective_aggregation": get("multi_objective_aggregation", "sum_then_normalize"),
    }
    alternatives: list[dict[str, Any]] = [{"multi_objective_aggregation": "normalize_then_sum"}]
    for scale in ("group", "none", "batch"):
        alternatives.append({"scale_rewards": scale, "multi_objective_aggregation": "sum_then_normalize"})
    functions, reward = function_rewards(measured.groups, run.settings), run.metrics.get(sampled_at, {}).get("reward")

    def made_by(changes: Mapping[str, Any]) -> StepBatch | Reason:
        weights = changes.get("reward_weights")
        rewards = None if weights is None or functions is None else functions.summed(weights)
        return _trl_batch(measured.groups, run.settings.with_values(changes), rewards)

    def residual(weights: Array) -> Array:
        batch = made_by({"reward_weights": weights.tolist()})
        assert isinstance(batch, StepBatch), "TRL's advantages are known under the stated arguments"
        mean = reward or 0.0
        return np.append(batch.advantages - logged, (batch.reward - mean) / max(1.0, abs(mean)))

    if functions is not None and reward is not None and sampled_at not in run.windows:
        alternatives += [{"reward_weights": weights} for weights in _solutions(residual, functions.weights)]
    for changes in alternatives:
        batch = made_by(changes)
        if isinstance(batch, StepBatch) and np.max(np.abs(batch.advantages - logged)) <= LOG_TOLERANCE:
            return ", ".join(f"{name} = {value}" for name, value in changes.items() if value != stated.get(name))
    return ""


def _solutions(residual: Callable[[Array], Array], start: Array) -> Iterator[list[float]]:
    """The numbers, [F], of few digits with which a residual, [N], is zero, if only these are: damped Gauss-Newton."""
    if len(residual(start)) <= len(start) + 1:
        return
    numbers, norm = start, np.linalg.norm
    for _ in range(_ROUNDS):
        error, shifts = residual(numbers), _SHIFT * np.eye(len(start))
        slopes = np.column_stack([(residual(numbers + shift) - error) / _SHIFT for shift in shifts])
        if not np.isfinite(slopes).all():
            return
        change, _, rank, _ = np.linalg.lstsq(slopes, -error, rcond=_SHIFT)
        tried = (numbers + change / 2.0**halvings for halvings in range(_ROUNDS))
        numbers = next((near for near in tried if norm(residual(near)) <= norm(error)), numbers)
    rounded = [numbers.round(digits) + 0.0 for digits in range(7)] if rank == len(start) else []
    yield from (near.tolist() for near in rounded if np.abs(residual(near)).max() <= LOG_TOLERANCE)


_ROUNDS, _SHIFT = 20, 1e-6


def _as_rounded(rollouts: Sequence[Rollout], logged: Array, difference: float, size: float) -> Outcome | None:
    """Advantages that were logged with few digits, where none is further off than that; None of others."""
    half = half_digit(rollout.advantage or 0.0 for rollout in rollouts)
    if difference > half * (1 + LOG_TOLERANCE) + LOG_TOLERANCE:
        return None
    text = f"the log has advantages to {2 * half:g}, as they were rounded"
    if half > COARSE * float(np.max(np.abs(logged))):
        return refused("advantage", Reason("precision", text, hint=LOG_DIGITS), size, difference)
    return Quantity(name="advantage", verdict="match", cause=text), size, difference


def half_digit(advantages: Iterable[float]) -> float:
    """Half of the last digit that advantages were logged with; 0.0 where they have those of float32, or are exact."""
    number, last = written_digits(advantage for advantage in advantages if not (1024 * advantage).is_integer())
    return 0.5 * 10.0**last if 0 < number < FLOAT32_DIGITS else 0.0


def _noise(num_rollouts: int, noise: float, largest: float) -> str:
    share = "the whole step"
    if largest:
        share = f"{noise / largest:.2g} of what the largest advantage makes of the same rollout"
    return (
        f"{num_rollouts} rollouts of equal rewards have advantages of up to {noise:.2g} where 0 is exact: {_ROUNDED}. "
        f"Their gradient is noise: {share}"
    )


def _not_the_code(name: str, settings: TrainerSettings) -> Reason | None:
    """Why a user's own formulation is not the code that the run used."""
    if is_in_file(name) and not is_formulation(name):
        return Reason("code_not_named", f"{name} is code in a file, and nobody named it here")
    then, now = settings.get("advantage_digest"), formulation(name).digest if is_formulation(name) else None
    if then and now and then != now:
        return Reason("code_changed", f"{name} has changed: SHA-256 {now[:12]}, with which the run began {then[:12]}")
    return None


def _formulated(name: str, groups: Sequence[RolloutGroup], settings: TrainerSettings) -> NDArray[np.float64] | Reason:
    """Advantages of all rollouts of a step, in the order of its groups; or what the log lacks."""
    scope, rewards = formulation(name).scope, [np.array(group.rewards, dtype=float) for group in groups]
    if scope == "functions":
        functions = function_rewards(groups, settings)
        if functions is None or np.isnan(functions.table).any():
            return Reason("rewards_missing", f"{name} needs the rewards of each function, which were not logged")
        sizes = [group.size for group in groups]
        return np.concatenate(gdpo(np.split(functions.table, np.cumsum(sizes)[:-1]), functions.weights))
    if scope == "length":
        ids = [[rollout.completion_ids for rollout in group.rollouts] for group in groups]
        if any(None in group_ids for group_ids in ids):
            text = f"{name} needs the lengths of completions, and their token ids were not logged"
            return Reason("ids_missing", text)
        lengths = [np.array([len(completion or ()) for completion in group_ids], dtype=float) for group_ids in ids]
        return np.concatenate([optimal_advantages(r, length) for r, length in zip(rewards, lengths, strict=True)])
    return np.concatenate(compute_step_advantages(name, rewards))


def num_norms_without_rollouts(run: Run) -> int:
    """How many steps have a norm that no rollouts of the log belong to."""
    return len({*run.step_metrics.series("grad_norm")[0].tolist()} - {*run.updates, *run.notes})


def without_rollouts(run: Run) -> Iterator[str]:
    """That a script logged norms of steps without rollouts."""
    if run.source.format == "generic" and (number := num_norms_without_rollouts(run)):
        reuse = "; if their updates used a batch again, num_iterations says so"
        yield (
            f"The log has a grad_norm at {counted(number, 'further step')} without rollouts"
            f"{reuse * (run.settings.updates_per_batch == 1)}."
        )
