"""The geometry of one step's gradient as the optimizer saw it: norm, cancellation, class subspace, sparsity.

Shapes: R rollouts of a step, G rollouts of a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from gradscope.diagnostics.inputs.steps import describe_weights
from gradscope.diagnostics.rank.rollouts.step_rows import StepRows
from gradscope.estimate import Estimate
from gradscope.metrics.gram.geometry import batch_norm, cancellation, class_subspace_energy, row_norms
from gradscope.metrics.gram.sparsity import row_sparsity, zero_groups
from gradscope.metrics.gram.spectrum import Array
from gradscope.metrics.uncertainty.bounded import bounded_means
from gradscope.results.rank import StepGeometry
from gradscope.rollouts.run import WeightsRef

if TYPE_CHECKING:
    from gradscope.gradients.step.step_gram import StepGram


def measure_geometry(rows: StepRows, weights: WeightsRef, gram: StepGram, logged: Mapping[str, float]) -> StepGeometry:
    """One step's gradient under the logged advantage.

    Returns:
        Norm, cancellation, class subspace and sparsity; undefined where no advantage was logged.
    """
    full, policy = rows.full_gram, rows.policy_gram
    none = Estimate.undefined_because("no advantages were logged")
    return StepGeometry(
        step=rows.step,
        weights=describe_weights(weights),
        num_rollouts=len(rows.group_ids),
        num_inferred_ids=gram.num_inferred_ids,
        grad_norm=none if full is None else Estimate.exact(batch_norm(full), num_units=len(full)),
        logged_grad_norm=logged.get("grad_norm"),
        cancellation=none if policy is None else cancellation(policy),
        class_subspace_energy=none if policy is None else class_energy(rows, policy),
        sparsity={} if policy is None else _sparsity(rows, row_norms(policy)),
        verification=gram.verification.describe(),
    )


def _sparsity(rows: StepRows, norms: Array) -> Mapping[str, Estimate]:
    return {"zero_groups": zero_groups(norms, rows.group_ids), **row_sparsity(norms)}


def class_energy(rows: StepRows, gradients: Array) -> Estimate:
    """Energy in the class means, mean over the groups whose rewards differ; its interval resamples groups.

    Args:
        gradients: Gram matrix of its gradient rows, [R, R].

    Returns:
        The mean; undefined where no group has two classes and a gradient.
    """
    group_ids = np.array(rows.group_ids)
    energies = []
    for group_id in dict.fromkeys(rows.group_ids):
        index = np.flatnonzero(group_ids == group_id)
        rewards = rows.rewards[index]
        if np.isnan(rewards).any() or rewards.max() == rewards.min():
            continue
        energy = class_subspace_energy(gradients[np.ix_(index, index)], rewards > rewards.mean())
        if energy.value is not None:
            energies.append(energy.value)
    if not energies:
        return Estimate.undefined_because(
            "no group of this step has rewards that differ and a gradient that is not zero"
        )
    (mean,) = bounded_means([[energy] for energy in energies], low=0.0, high=1.0)
    return mean
