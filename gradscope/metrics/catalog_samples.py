"""Catalogue: what k samples find. Letters: n samples of a prompt, c of them correct, k the budget."""

from __future__ import annotations

from gradscope.metrics.catalog_entry import Metric

SAMPLE_METRICS: tuple[Metric, ...] = (
    Metric(
        name="pass_at_k",
        title="pass@k",
        formula="mean over prompts of 1 - C(n-c, k) / C(n, k)",
        meaning="Chance that at least one of k samples is correct, without bias; undefined where k > n.",
        range="[0, 1]",
        better="higher",
        moved_by="The policy and the temperature: a policy that searches less gains at k = 1 and loses at large k.",
        source="Chen et al. 2021 (HumanEval), arXiv 2107.03374, equation 1.",
        command="passk",
    ),
    Metric(
        name="pass_hat_k",
        title="pass^k",
        formula="mean over prompts of C(c, k) / C(n, k)",
        meaning="Chance that all k samples are correct, without bias: how far a success can be relied on.",
        range="[0, 1]",
        better="higher",
        moved_by="The policy and the temperature.",
        source="Yao et al. 2024 (tau-bench), arXiv 2406.12045.",
        command="passk",
    ),
)
