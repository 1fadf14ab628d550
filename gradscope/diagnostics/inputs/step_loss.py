"""The loss as it was at one step: what changes from update to update, and which other weights it looks at.

A reused batch has ratio 1 at its first update; later ones need the weights that sampled it. The reference of the KL
term is the start of training until the trainer moves it. An adaptive entropy bonus has the coefficient that the update
before left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from gradscope.errors import InputError
from gradscope.outside.plain_json import read_json
from gradscope.reason import Reason
from gradscope.rollouts.readers.parsing.cells import logged_number
from gradscope.rollouts.run import Run, WeightsRef
from gradscope.rollouts.run_folder import REFERENCE_ADAPTER

if TYPE_CHECKING:
    from gradscope.gradients.plan.objective import Objective

_COPY_AGAIN = "Copy the checkpoint again."
_LOG_KL = "Log kl from the first step on in the next run."
SAME_POLICY_KL = 1e-6  # largest mean KL that float32 makes of a policy and itself


class StepLoss(Struct, frozen=True, kw_only=True):
    """The loss of one step."""

    objective: Objective  # the trainer's loss at this step
    sampled_with: WeightsRef | None = None
    """The weights that sampled the batch, where they are others than the update's and are on disk."""
    reference: tuple[tuple[WeightsRef, float], ...] = ()
    """The weights that the reference of the KL term is mixed from, in order, each with its share of what is mixed so
    far; empty without one, and where it is the base under an adapter."""
    reason: Reason | None = None  # why it is not known
    resumed: bool = False  # whether it is the step's only where training was resumed before it, which no file says
    by_logged: bool = False  # whether it is the step's only where the ratio is to what a script logged of its sampler

    @property
    def weights(self) -> tuple[WeightsRef, ...]:
        """The sets of weights that it needs in addition to the policy's own."""
        sampled_with = () if self.sampled_with is None else (self.sampled_with,)
        return (*sampled_with, *(weights for weights, _ in self.reference))


def losses_at(run: Run, objective: Objective, step: int) -> Iterator[StepLoss]:
    """The loss that a step's update minimized, or the reason why the run does not determine it."""
    # Others follow where training may have been resumed: TRL then samples at once and copies its reference anew. Of a
    # script the ratio may be to the log-probabilities that it logged, for which TRL's arguments have no name.
    objective = _in_one_micro_batch(run, objective, step)
    histories = [(start, synced) for start in _batch_starts(run, step) for synced in _syncs(run, objective, start)]
    for number, (sampled_at, synced_after) in enumerate(histories):
        yield replace(_loss(run, objective, step, sampled_at, synced_after), resumed=number > 0)
    if run.source.format == "generic" and not (objective.needs_sampler or objective.ratio_to_logged):
        objective = replace(objective, importance_ratio=True, ratio_to_logged=True)
        yield replace(_loss(run, objective, step, step, histories[0][1]), by_logged=True)


def _in_one_micro_batch(run: Run, objective: Objective, step: int) -> Objective:
    """The objective of a step whose rollouts are one micro-batch, where the arguments alone do not tell."""
    settings, num_rows = run.settings, sum(group.size for group in run.groups_at(step))
    sizes = [settings.get(name) for name in ("per_device_train_batch_size", "generation_batch_size")]
    accumulates = settings.get("gradient_accumulation_steps", 1) > 1
    if objective.cannot is None or objective.declared is not None or accumulates or sizes != [num_rows, None]:
        return objective
    return type(objective).from_settings(settings.with_values({"generation_batch_size": num_rows}))


def _loss(run: Run, objective: Objective, step: int, sampled_at: int, synced_after: range) -> StepLoss:
    if objective.importance_ratio and not objective.ratio_to_logged and sampled_at == step:
        objective = replace(objective, importance_ratio=False)
    sampled_with = run.weights_before(sampled_at) if objective.importance_ratio and sampled_at < step else None
    loss = StepLoss(objective=objective, sampled_with=sampled_with)
    return _with_reference(run, _with_entropy(run, loss, step), synced_after)


def _batch_starts(run: Run, step: int) -> list[int]:
    """When the batch of a step was sampled, by the log or, where each update uses a whole batch, by the arguments."""
    settings, logged = run.settings, run.repeats.get(step, step)
    if run.source.format == "trl" and logged not in run.windows and "reward" in run.metrics.get(logged, {}):
        return [logged]  # a resumed run samples at once, whatever the arguments say
    accumulation = int(settings.get("gradient_accumulation_steps", 1))
    if int(settings.get("steps_per_generation", accumulation)) != accumulation:
        return [step]
    start = step - (step - 1) % settings.updates_per_batch
    may_be = range(step, max(0, step - settings.updates_per_batch), -1) if logged in run.windows else ()
    return [start, *(other for other in may_be if other != start)]


def _syncs(run: Run, objective: Objective, sampled_at: int) -> list[range]:
    """After which updates the reference had taken in the policy: all that were due, or those since training resumed."""
    # its log-probabilities are computed when a batch is sampled, and kept for the batch's later updates
    interval = int(run.settings.get("ref_model_sync_steps", 512))
    is_synced = objective.has_reference and run.settings.get("sync_ref_model", False)
    due = range(interval, sampled_at if is_synced else 0, interval)
    return [due[start:] for start in range(len(due) + 1)]


def _with_reference(run: Run, loss: StepLoss, synced_after: range) -> StepLoss:
    if not loss.objective.has_reference:
        return loss
    first = (run.weights_before(0) if 0 in run.steps else None) or run.weights_before(1)  # by whichever count of steps
    if synced_after:
        return _with_moved_reference(run, loss, first, synced_after)
    adapters = [weights for weights in run.weights if weights.kind == "adapter"]
    if adapters:
        return _with_adapters_reference(run, loss, first, adapters)
    return loss if first is None else _with_whole_reference(loss, first)


def _with_whole_reference(loss: StepLoss, reference: WeightsRef) -> StepLoss:
    return replace(loss, reference=((reference, 1.0),))


def _with_moved_reference(run: Run, loss: StepLoss, first: WeightsRef | None, synced_after: range) -> StepLoss:
    """TRL mixes the policy into its reference after every so many updates; a whole copy needs no weights before it."""
    share = float(run.settings.get("ref_model_mixup_alpha", 0.6))
    on_disk = {weights.num_updates: weights for weights in run.weights}
    needed = synced_after[-1:] if share == 1.0 else synced_after
    missing = [num_updates for num_updates in needed if num_updates not in on_disk]
    start = on_disk.get(needed[0]) if share == 1.0 else first
    if missing or start is None:
        absent = f"the weights after {missing[0]} updates" if missing else "the weights before the first update"
        text = f"the KL reference moved (sync_ref_model), and {absent}, which are in it, are not on disk"
        return replace(loss, reason=loss.reason or Reason("reference_missing", text))
    mixed = () if share == 1.0 else tuple((on_disk[num_updates], share) for num_updates in needed)
    return replace(loss, reference=((start, 1.0), *mixed))


def _with_adapters_reference(
    run: Run, loss: StepLoss, first: WeightsRef | None, adapters: Sequence[WeightsRef]
) -> StepLoss:
    """The copy of the starting adapter in a checkpoint, else the starting adapter or the base alone."""
    from gradscope.gradients.model.checkpoint import is_fresh

    for adapter in adapters:
        copy = adapter.path / REFERENCE_ADAPTER
        if (copy / "adapter_config.json").is_file():
            return _with_whole_reference(loss, replace(adapter, path=copy, num_updates=0))
    always_base = run.settings.get("trainer") == "verl"  # which switches the adapter off
    if always_base or first is None or first.kind == "full" or is_fresh(first.path):
        return loss
    if run.source.format == "trl" and any(weights.num_updates for weights in adapters):
        return loss  # checkpoints would hold a copy
    kl = None if 1 in run.windows else run.metrics.get(1, {}).get("kl")
    if kl is None or not math.isfinite(kl):
        text = (
            "the adapter did not start at zero, and whether the KL reference is its base alone or the adapter that it "
            "started from shows in the kl of step 1, which was not logged"
        )
        return replace(loss, reason=loss.reason or Reason("reference_missing", text, hint=_LOG_KL))
    return _with_whole_reference(loss, first) if abs(kl) <= SAME_POLICY_KL else loss


def _with_entropy(run: Run, loss: StepLoss, step: int) -> StepLoss:
    """An adaptive bonus has the coefficient that the update before left; none where entropy was above its target."""
    if not run.settings.get("use_adaptive_entropy", False):
        return loss
    target = float(run.settings.get("entropy_target", 0.2))
    controller = next(_controllers(run, step), None)
    if controller is None:
        text = "the coefficient of the adaptive entropy bonus at this step was neither saved nor logged"
        return replace(loss, reason=loss.reason or Reason("loss_not_on_disk", text))
    coefficient, entropy = controller
    applied = coefficient if entropy <= target else 0.0
    return replace(loss, objective=replace(loss.objective, entropy_coef=applied))


def _controllers(run: Run, step: int) -> Iterator[tuple[float, float]]:
    """Coefficient and entropy that the update before left: at the start, in the checkpoint, in the log."""
    if step == 1:
        yield float(run.settings.get("entropy_coef", 0.0)), math.inf
    weights = run.weights_before(step)
    state = weights.path / "entropy_ctrl_state.json" if weights is not None else None
    if state is not None and state.is_file():
        try:
            saved = read_json(state)
            coefficient, entropy = (logged_number(saved[name]) for name in ("entropy_coef", "last_world_entropy"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{state} holds no state of the entropy controller: {error}.", hint=_COPY_AGAIN) from error
        if coefficient is None or entropy is None:
            raise InputError(f"{state} holds no numbers of the entropy controller.", hint=_COPY_AGAIN)
        yield (coefficient, entropy)
    logged = run.metrics.get(step - 1, {})
    by_all_tokens = float(run.settings.get("top_entropy_quantile", 1.0)) >= 1.0
    if by_all_tokens and step - 1 not in run.windows and {"entropy_coef", "entropy"} <= logged.keys():
        yield logged["entropy_coef"], logged["entropy"]
