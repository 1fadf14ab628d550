"""Which rollouts carry signal in the current batch, measured on the model in training: between sampling and the update.

The same engine as of `gradscope rank`, on the live weights and in their own precision, whatever the trainer's autocast.
Nothing of it shows in the training: modes, random state and gradients that wait for the optimizer are as they were.

Shapes: R rollouts of a step, G rollouts of a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from gradscope.estimate import Estimate
from gradscope.gradients.model.batches import TrainerPadding
from gradscope.gradients.model.budget import names_out_of_memory
from gradscope.gradients.model.calls import exchanged_forward
from gradscope.gradients.model.policy import MeasuredPolicy, coarsest_dtype, load_measured_policy
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.metrics.gram.alignment import expected_updates
from gradscope.metrics.gram.geometry import batch_norm, cancellation
from gradscope.metrics.gram.spectrum import effective_rank, singular_values_from_gram
from gradscope.rollouts.groups import RolloutGroup
from gradscope.rollouts.run import WeightsRef
from gradscope.training.protocols import Trainer


def measure_live(
    trainer: Any, groups: Sequence[RolloutGroup], objective: Objective, saved: WeightsRef | None
) -> dict[str, float]:
    """The gradient of the coming update.

    ``grad_norm`` of the step; of the reward part of the rollouts' gradients ``effective_rank``, a mean over the groups
    that have a gradient, ``cancellation`` and ``signal_to_noise``; each left out where it is undefined. The groups are
    those of all processes. ``saved`` are the weights of a sharded model.
    """
    device, padding = trainer.accelerator.device, TrainerPadding(multiple=trainer.pad_to_multiple_of or 1)
    # an adapter's initial values are drawn before it is loaded
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        if saved is not None:
            # all weights of a sharded model, on top of the trainer's share of them, in the precision of the files
            with names_out_of_memory("the gathered weights"):
                policy = load_measured_policy(saved, device=device.type, padding=padding)
            gram = measure_step(prepare_step(policy, groups, objective))
        else:
            with _evaluation_mode(trainer) as model:
                gram = measure_step(prepare_step(_policy(trainer, model, padding), groups, objective))
    logged_gram, reward_part = gram.logged_gram, gram.policy_gram
    if logged_gram is None or reward_part is None:  # an advantage that is no number
        return {}
    index = np.unique(np.array(gram.group_ids), return_inverse=True)[1]
    members = [np.flatnonzero(index == group) for group in range(int(index.max()) + 1)]
    ranks = [effective_rank(singular_values_from_gram(reward_part[np.ix_(rows, rows)])).value for rows in members]
    defined = [rank for rank in ranks if rank is not None]
    estimates = {
        "grad_norm": Estimate.exact(batch_norm(logged_gram), num_units=len(logged_gram)),
        "effective_rank": Estimate.exact(float(np.mean(defined)))
        if defined
        else Estimate.undefined_because("no group has one"),
        "cancellation": cancellation(reward_part),
        "signal_to_noise": expected_updates(reward_part, np.ones((1, len(reward_part))), index).signal_to_noise(0),
    }
    return {name: estimate.value for name, estimate in estimates.items() if estimate.value is not None}


def _policy(trainer: Any, model: Any, padding: TrainerPadding) -> MeasuredPolicy:
    """The live model as the engine takes it."""
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    return MeasuredPolicy(
        model=model,
        tokenizer=trainer.processing_class,
        trainable=trainable,
        kind="adapter" if hasattr(model, "peft_config") else "full",
        device=next(iter(trainable.values())).device,
        dtype=coarsest_dtype(model),
        reference=trainer.ref_model,
        padding=padding,
    )


@contextmanager
def _evaluation_mode(trainer: Trainer) -> Iterator[Any]:
    """The bare model in evaluation mode, outside of autocast; its modes come back."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    modes = {module: module.training for module in model.modules()}
    # Accelerate enters autocast in a forward of the instance, and keeps the one before; for a while that serves
    mixed, unmixed = model.__dict__.get("forward"), model.__dict__.get("_original_forward")
    with nullcontext() if mixed is None or unmixed is None else exchanged_forward(model, unmixed):
        model.eval()
        try:
            yield model
        finally:
            for module, training in modes.items():
                module.training = training
