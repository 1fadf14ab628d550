"""Claims about what training did to the weights. Shapes: U weight matrices."""

from __future__ import annotations

from collections.abc import Callable

from gradscope.diagnostics.claims.claim import Judgement, cannot_tell, in_range
from gradscope.diagnostics.claims.evidence import Evidence
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.paired import student_mean
from gradscope.results.update import WeightUpdate

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
