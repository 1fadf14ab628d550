"""Catalogue: what training did to the weights. Letters: D_t = W_t - W_0, s its singular values."""

from __future__ import annotations

from gradscope.metrics.catalog_entry import Metric

_RANK = "rank"
_SHARE = "[0, 1]"

WEIGHT_UPDATE_METRICS: tuple[Metric, ...] = (
    Metric(
        name="update_size",
        title="update size",
        formula="|W_t - W_0|_F / |W_0|_F",
        meaning="How far training moved a matrix, relative to its size.",
        range="[0, inf)",
        better="neither",
        moved_by="Learning rate, number of steps.",
        source="Definition.",
        command=_RANK,
    ),
    Metric(
        name="top_energy",
        title="energy in one direction",
        formula="s_1^2 / sum(s^2)",
        meaning="Share of a rank-one part: of one matrix's update, or of all checkpoints' updates as rows. Read the "
        "latter against a random walk, whose largest component dominates too.",
        range="(0, 1]",
        better="neither",
        moved_by="Steps that point the same way.",
        source="Definition; rank-one dominance of RL updates is reported in arXiv 2510.00553.",
        command=_RANK,
    ),
    Metric(
        name="linear_growth",
        title="energy on a straight line",
        formula="|sum t D_t|^2 / (sum t^2 sum |D_t|^2)",
        meaning="Share of the trajectory that is one direction at one speed, D_t = t V.",
        range=_SHARE,
        better="neither",
        moved_by="Learning-rate schedules; steps that point different ways.",
        source="Least squares; near-linear growth is reported in arXiv 2605.21468.",
        command=_RANK,
    ),
    Metric(
        name="principal_overlap",
        title="energy in principal directions",
        formula="|U_k' D V_k|_F^2 / |D|_F^2, k singular vectors of W_0 with half of its energy; k^2 / (O I) at random",
        meaning="Whether an update keeps to the principal directions of the weights it started from.",
        range=_SHARE,
        better="neither",
        moved_by="Training that adds to what the weights already do most.",
        source="Definition; off-principal updates are reported in arXiv 2511.08567.",
        command=_RANK,
    ),
    Metric(
        name="bfloat16_changed",
        title="changed in bfloat16",
        formula="share of entries with bfloat16(W_t) != bfloat16(W_0)",
        meaning="How much of an update is left where weights are stored or served in bfloat16.",
        range=_SHARE,
        better="neither",
        moved_by="The size of the update against that of the weights (bfloat16 keeps 8 bits).",
        source="Definition.",
        command=_RANK,
    ),
)
