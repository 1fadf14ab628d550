"""Claims about what training did to the weights, and about steps of optimizers. Shapes: U weight matrices."""

from __future__ import annotations

from collections.abc import Callable

from gradscope.diagnostics.claims.claim import Judgement, cannot_tell, in_range
from gradscope.diagnostics.claims.evidence import Evidence
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.paired import student_mean
from gradscope.results.update import WeightUpdate
from gradscope.say import percent

FEW_CHANGE = 0.3
"""The largest share of changed parameters that arXiv 2505.11711 reports."""


def avoids_principal_directions(evidence: Evidence) -> Judgement:
    """Share of a change in the principal directions of the initial weights, minus that of a random change."""
    return _over_weights(evidence, lambda one: _minus(one.principal_overlap, one.principal_null), (-1.0, 0.0), 0.0)


def inherits_singular_values(evidence: Evidence) -> Judgement:
    """Part of a change that is in the singular values, minus that of an unrelated change of its size."""
    return _over_weights(evidence, lambda one: _minus(one.spectrum_drift, one.spectrum_drift_null), (-1.0, 0.0), 0.0)


def few_parameters_change(evidence: Evidence) -> Judgement:
    """Share of the entries of a weight that change in bfloat16."""
    return _over_weights(evidence, lambda one: one.bfloat16_changed.value, (0.0, FEW_CHANGE), 1.0)


def sgd_changes_fewer(evidence: Evidence) -> Judgement:
    """Share of the entries of a weight that bfloat16 sees a first step of SGD move, minus that of Adam as long."""
    rows = evidence.gradients("weight").optimizers
    if not rows:
        return cannot_tell("No step has a gradient and a logged advantage of every rollout")
    step = rows[-1].step
    last = {(row.tensor, row.optimizer): row.bfloat16_moved for row in rows if row.step == step}
    whole = [last[None, name] for name in ("sgd", "adam")]
    if whole[0].undefined is not None:
        return cannot_tell(whole[0].undefined, steps=(step,))
    tensors = dict.fromkeys(tensor for tensor, _ in last if tensor is not None)
    fewer = [gap for tensor in tensors if (gap := _minus(last[tensor, "sgd"], last[tensor, "adam"])) is not None]
    if len(fewer) < 2:
        return cannot_tell("Fewer than two matrices have a gradient", steps=(step,))
    mean = student_mean(fewer, within=(-1.0, 1.0))
    return Judgement(
        estimate=mean,
        null=Estimate.exact(0.0),
        verdict=in_range(mean, -1.0, 0.0),
        why=f"First steps of one length, that of Adam at the logged learning rate, from the gradient of step {step}: "
        f"SGD moves {percent(whole[0].value or 0.0)} of all entries, Adam {percent(whole[1].value or 0.0)}. The "
        f"interval is over {len(fewer)} weights, and a run under SGD has a learning rate of its own.",
        steps=(step,),
    )


def _over_weights(
    evidence: Evidence, measure: Callable[[WeightUpdate], float | None], within: tuple[float, float], null: float
) -> Judgement:
    """Of a number from the least value of ``within`` to 1."""
    updates = evidence.updates()
    first, last = min(one.first for one in updates), max(one.last for one in updates)
    since = [one for one in updates if (one.first, one.last) == (first, last)]
    values = [value for one in since if (value := measure(one)) is not None]
    if len(values) < 2:
        return cannot_tell("The initial weights of fewer than two matrices are on disk")
    mean = student_mean(values, within=(within[0], 1.0))
    return Judgement(
        estimate=mean,
        null=Estimate.exact(null),
        verdict=in_range(mean, *within),
        why=f"The change from {first} to {last} updates, with an interval over {len(values)} weights: other weights, "
        "not other runs.",
    )


def _minus(value: Estimate, null: Estimate) -> float | None:
    return None if value.value is None or null.value is None else value.value - null.value
