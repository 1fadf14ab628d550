"""Catalogue: what a step does to held-out prompts.

Letters: S_j summed gradient of group j, C_k the mean gradient of the log-probability of held-out prompt k's correct
answers.
"""

from __future__ import annotations

from gradscope.catalog.entry import Metric, rank_metric

HELDOUT_METRICS: tuple[Metric, ...] = (
    rank_metric(
        name="heldout.frac_hurt",
        title="held-out pairs that hurt",
        formula="share of pairs (j, k) with S_j . C_k < 0, S_j = sum of A_i s_i of group j, C_k the mean gradient of "
        "the log-probability of held-out prompt k's correct answers",
        meaning="How often a step along one training prompt's gradient lowers the log-probability of a held-out "
        "prompt's correct answers, to first order. 0.5 for unrelated prompts.",
        range="[0, 1]",
        better="lower",
        moved_by="What training and held-out prompts have in common; shared text such as formats moves it down.",
        source="Negative interference by products of scores: arXiv 2510.02230; share of pairs: definition.",
    ),
    rank_metric(
        name="heldout.cosine",
        title="cosine with held-out answers",
        formula="mean over j and k of S_j . C_k / (|S_j| |C_k|)",
        meaning="Whether training prompts climb held-out correct answers (above 0) or descend them (below 0).",
        range="[-1, 1]",
        better="higher",
        moved_by="As heldout.frac_hurt.",
        source="Definition; alignment with gradients of held-out prompts: arXiv 2602.21492.",
    ),
    rank_metric(
        name="heldout.transfer",
        title="transfer to held-out prompts",
        formula="mean over k of U . C_k / mean over j of U . D_j, U the sum of all S_j, D_j as C_k of group j's own "
        "correct answers",
        meaning="What the step does to held-out correct answers, in units of what it does to those that it was trained "
        "on: 1 where both gain as much, 0 where nothing carries over, below 0 where held-out answers are undone.",
        range="(-inf, inf)",
        better="higher",
        moved_by="The number of prompts of a step: its own are one of them each; what all prompts have in common.",
        source="Definition.",
    ),
    rank_metric(
        name="heldout.influence",
        title="influence on held-out prompts",
        formula="mean over k of S_j . C_k / (mean |S_j| mean |C_k|)",
        meaning="Whether a training prompt helps (above 0) or hurts the held-out correct answers: a cosine that counts "
        "the size of its gradient, 1 for one of average norm along all of them.",
        range="(-inf, inf)",
        better="higher",
        moved_by="The size of its gradient, and what it has in common with the held-out prompts.",
        source="Definition; ranking training prompts by held-out gradients: arXiv 2602.21492.",
    ),
)
