"""Catalogue: a step that stands out. Letters: R rollouts, G Gram of rows, x a logged number, m its median."""

from __future__ import annotations

from functools import partial

from gradscope.catalog.entry import Metric

_spike_metric = partial(Metric, command="spike")

SPIKE_METRICS: tuple[Metric, ...] = (
    _spike_metric(
        name="deviation",
        title="standard deviations from the steps around",
        formula="(log x - log m) / (1.4826 median |log x_j - log m|), j the 50 nearest steps; no logs where some x < 0",
        meaning="How far a step's gradient norm, KL or loss stands out. A step is named where it lies above what the "
        "furthest of as many steps exceeds in one run of twenty (Student's quantile, for the spread is estimated). "
        "`check` takes that of the step that stands out most.",
        range="(-inf, inf)",
        better="lower",
        moved_by="One update that went wrong; a trend within 50 steps widens the spread and hides it.",
        source="Median absolute deviation (Hampel 1974); the bound by simulation in gradscope's docs.",
        path="metrics.deviation",
    ),
    _spike_metric(
        name="norm_without",
        title="norm without it",
        formula="sqrt(1' G 1 - 2 (G 1)_i + G_ii)",
        meaning="What the step's gradient norm would have been without a rollout, the others weighed as they were.",
        range="[0, inf)",
        better="neither",
        moved_by="As projection_share; more where a rollout is long, surprising and of large advantage at once.",
        source="Definition.",
    ),
    _spike_metric(
        name="repeated_ngrams",
        title="repeated 4-grams",
        formula="1 - distinct runs of 4 tokens / all runs of 4 tokens, within a completion",
        meaning="How much of a completion repeats itself: a model that loops comes near to 1.",
        range="[0, 1)",
        better="lower",
        moved_by="Degeneration, truncation late; lists and code repeat by nature.",
        source="seq-rep-4 of Welleck et al., Neural text generation with unlikelihood training (arXiv 1908.04319).",
    ),
    _spike_metric(
        name="tensor_share",
        title="share of the squared norm",
        formula="|dL/dW|_F^2 / sum over parameters of the same",
        meaning="Which layers a large gradient is in, beside their share of the parameters.",
        range="[0, 1]",
        better="neither",
        moved_by="A head or an embedding that a rare token reaches; an adapter at its start.",
        source="Definition.",
    ),
)
