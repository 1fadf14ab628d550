"""Catalogue: counts of singular values. Letters: s the singular values of the gradient matrix, N its rows."""

from __future__ import annotations

from gradscope.metrics.catalog_entry import Metric

_RANK = "rank"
_COUNT = "[1, N]"
_MOVED = "Rollouts that pull in different directions raise it; a few dominating or near-equal rows lower it."

SPECTRUM_METRICS: tuple[Metric, ...] = (
    Metric(
        name="effective_rank",
        title="effective rank",
        formula="exp H(q), q_i = s_i / sum(s), H(q) = -sum(q log q)",
        meaning="How many directions the gradient rows use, small ones counted generously.",
        range=_COUNT,
        better="neither",
        moved_by=_MOVED,
        source="Roy & Vetterli 2007, The effective rank, EUSIPCO.",
        command=_RANK,
    ),
    Metric(
        name="spectral_entropy_rank",
        title="spectral entropy rank",
        formula="exp H(q), q_i = s_i^2 / sum(s^2), H(q) = -sum(q log q)",
        meaning="How many directions the gradient's energy is spread over; other code calls this effective rank too.",
        range=_COUNT,
        better="neither",
        moved_by=_MOVED,
        source="Exponential of the Shannon entropy (Hill number of order 1) of the energy shares.",
        command=_RANK,
    ),
    Metric(
        name="stable_rank",
        title="stable rank",
        formula="sum(s^2) / s_1^2",
        meaning="How many directions as strong as the strongest would make up the energy; the most cautious count.",
        range=_COUNT,
        better="neither",
        moved_by=_MOVED,
        source="Rudelson & Vershynin 2007, Sampling from large matrices, J. ACM 54.",
        command=_RANK,
    ),
    Metric(
        name="participation_ratio",
        title="participation ratio",
        formula="sum(s^2)^2 / sum(s^4)",
        meaning="How many directions of equal energy would spread the energy as far.",
        range=_COUNT,
        better="neither",
        moved_by=_MOVED,
        source="Inverse participation ratio of the energy shares (Hill number of order 2).",
        command=_RANK,
    ),
    Metric(
        name="numerical_rank",
        title="numerical rank",
        formula="number of s_i > noise_floor",
        meaning="How many singular values arithmetic can tell from zero; it counts the tiny ones in full.",
        range="0 .. N, whole",
        better="neither",
        moved_by="The precision of the model's arithmetic; rows that depend on each other.",
        source="Golub & Van Loan, Matrix Computations, section 5.4.",
        command=_RANK,
    ),
    Metric(
        name="energy_rank_90",
        title="rank of 90 % energy",
        formula="smallest m with sum(s_1^2 .. s_m^2) >= 0.90 sum(s^2)",
        meaning="Fewest directions that hold 90 % of the energy.",
        range="1 .. N, whole",
        better="neither",
        moved_by=_MOVED,
        source="Share of explained variance, as in principal components.",
        command=_RANK,
    ),
    Metric(
        name="energy_rank_99",
        title="rank of 99 % energy",
        formula="smallest m with sum(s_1^2 .. s_m^2) >= 0.99 sum(s^2)",
        meaning="Fewest directions that hold 99 % of the energy.",
        range="1 .. N, whole",
        better="neither",
        moved_by=_MOVED,
        source="Share of explained variance, as in principal components.",
        command=_RANK,
    ),
    Metric(
        name="noise_floor",
        title="noise floor",
        formula="sqrt(N e max_i G_ii), e the relative error of an entry of the Gram matrix G",
        meaning="Singular values below this are arithmetic, not signal.",
        range="[0, inf)",
        better="lower",
        moved_by="The precision of the model's arithmetic, the largest row.",
        source="Weyl's inequality for the eigenvalues of G.",
        command=_RANK,
    ),
)
