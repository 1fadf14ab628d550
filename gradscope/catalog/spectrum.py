"""Catalogue: counts of singular values. Letters: s the singular values of the gradient matrix, N its rows."""

from __future__ import annotations

from functools import partial

from gradscope.catalog.entry import Metric, rank_metric

_curve_metric = partial(rank_metric, path="curve.{0}")
_COUNT = "[1, N]"
_count_metric = partial(rank_metric, range=_COUNT)
_MOVED = "Rollouts that pull in different directions raise it; a few dominating or near-equal rows lower it."
_CHANNELS = (
    "Ours, after the question of SALT, arXiv 2606.05800: a shared and a residual channel; its own formula is not "
    "known to us."
)
_channel_metric = partial(_curve_metric, source=_CHANNELS)

SPECTRUM_METRICS: dict[str, Metric] = {
    "effective_rank": _curve_metric(
        title="effective rank",
        formula="exp H(q), q_i = s_i / sum(s), H(q) = -sum(q log q)",
        meaning="How many directions the gradient rows use, small ones counted generously.",
        range=_COUNT,
        moved_by=_MOVED,
        source="Roy & Vetterli 2007, The effective rank, EUSIPCO.",
    ),
    "spectral_entropy_rank": _count_metric(
        title="spectral entropy rank",
        formula="exp H(q), q_i = s_i^2 / sum(s^2), H(q) = -sum(q log q)",
        meaning="How many directions the gradient's energy is spread over; other code calls this effective rank too.",
        moved_by=_MOVED,
        source="Exponential of the Shannon entropy (Hill number of order 1) of the energy shares.",
    ),
    "stable_rank": _curve_metric(
        title="stable rank",
        formula="sum(s^2) / s_1^2",
        meaning="How many directions as strong as the strongest would make up the energy; the most cautious count.",
        range=_COUNT,
        moved_by=_MOVED,
        source="Rudelson & Vershynin 2007, Sampling from large matrices, J. ACM 54.",
    ),
    "participation_ratio": _curve_metric(
        title="participation ratio",
        formula="sum(s^2)^2 / sum(s^4)",
        meaning="How many directions of equal energy would spread the energy as far.",
        range=_COUNT,
        moved_by=_MOVED,
        source="Inverse participation ratio of the energy shares (Hill number of order 2).",
    ),
    "two_direction_energy": _curve_metric(
        title="energy of two directions",
        formula="(s_1^2 + s_2^2) / sum(s^2)",
        meaning="How much of the gradient's energy two directions hold. Unequal norms alone make it large: compare it "
        "with that of unrelated rows of the same norms (nulls.gaussian.two_direction_energy).",
        range="[0, 1], at least 2/N",
        moved_by="A few dominating rollouts, or rollouts that pull along two lines, raise it.",
        source="Share of explained variance, as in principal components.",
    ),
    "summed_energy": _curve_metric(
        title="energy of the sum",
        formula="|sum g_i|^2 / sum |g_i|^2, mean over groups with a gradient",
        meaning="What adding up the rows of a group makes of their energy: 1 for unrelated rows, R for R rows that are "
        "alike, less than 1 where they cancel. Where it does not grow with R, more rollouts add no common direction.",
        range="[0, R]",
        moved_by="What the rollouts of a prompt have in common; a baseline that makes their advantages add up to zero "
        "lowers it.",
        source="Definition; cancellation of the gradients of a group: SALT, arXiv 2606.05800.",
    ),
    "shared_directions": _curve_metric(
        title="shared directions",
        formula="r = number of eigenvalues of the cosine matrix of a group's rows above 1, mean over groups with a "
        "gradient",
        meaning="On how many directions the unit rows of a group have more energy than one row could have alone, so "
        "that several rollouts make them. Neither the sizes nor the signs of advantages change it.",
        range="[0, R]",
        moved_by="Rollouts of a prompt that pull along a few lines lower it to 1; 0 where no two have anything in "
        "common.",
        source="Ours, after the question of SALT, arXiv 2606.05800, whose own rule is not known to us; eigenvalues "
        "above 1: Kaiser 1960, Educational and Psychological Measurement 20.",
    ),
    "shared_energy": _channel_metric(
        title="energy of shared directions",
        formula="sum |P g_i|^2 / sum |g_i|^2, P the projection on the shared directions of a group, mean over groups "
        "with a gradient",
        meaning="Which part of the energy of a group's rows lies where several rollouts pull.",
        moved_by="Rollouts that are alike raise it; a few rollouts with most of the norm and directions of their own "
        "lower it.",
    ),
    "shared_sum": _channel_metric(
        title="sum on shared directions",
        formula="|P s|^2 / |s|^2, s = sum g_i, P the projection on the shared directions of a group, mean over groups "
        "with a sum",
        meaning="Which part of the energy of a group's sum lies where several rollouts pull: with shared_energy it "
        "says whether adding up favors what is shared.",
        moved_by="Cancellation of what is shared lowers it.",
    ),
    "shared_kept": _channel_metric(
        title="kept of what is shared",
        formula="|P s|^2 / sum |P g_i|^2, s = sum g_i, P the projection on the shared directions of a group, mean over "
        "groups that have some",
        meaning="What adding up makes of the energy that rollouts share: 1 on average under random signs, R where all "
        "rows are alike, less than 1 where rollouts that are alike have advantages of opposite signs.",
        range="[0, R]",
        moved_by="Advantages that add up to zero lower it; advantages of one sign raise it.",
    ),
    "residual_kept": _channel_metric(
        title="kept of the rest",
        formula="|(1 - P) s|^2 / sum |(1 - P) g_i|^2, s = sum g_i, P the projection on the shared directions of a "
        "group, mean over groups with a rest",
        meaning="What adding up makes of the energy that is each rollout's own: 1 on average under random signs.",
        range="[0, R]",
        moved_by="Rollouts that are alike in more than the shared directions move it away from 1.",
    ),
    "numerical_rank": rank_metric(
        title="numerical rank",
        formula="number of s_i > noise_floor",
        meaning="How many singular values arithmetic can tell from zero; it counts the tiny ones in full.",
        range="0 .. N, whole",
        moved_by="The precision of the model's arithmetic; rows that depend on each other.",
        source="Golub & Van Loan, Matrix Computations, section 5.4.",
    ),
    "energy_rank_90": rank_metric(
        title="rank of 90 % energy",
        formula="smallest m with sum(s_1^2 .. s_m^2) >= 0.90 sum(s^2)",
        meaning="Fewest directions that hold 90 % of the energy.",
        range="1 .. N, whole",
        moved_by=_MOVED,
        source="Share of explained variance, as in principal components.",
    ),
    "energy_rank_99": rank_metric(
        title="rank of 99 % energy",
        formula="smallest m with sum(s_1^2 .. s_m^2) >= 0.99 sum(s^2)",
        meaning="Fewest directions that hold 99 % of the energy.",
        range="1 .. N, whole",
        moved_by=_MOVED,
        source="Share of explained variance, as in principal components.",
    ),
    "noise_floor": rank_metric(
        title="noise floor",
        formula="max(e |X|_F, sqrt(N u max_i G_ii)), e the relative error of a row of X, u of float64, G = X X'",
        meaning="Singular values below this are arithmetic, not signal.",
        range="[0, inf)",
        better="lower",
        moved_by="The precision of the model's arithmetic, the largest row.",
        source="Weyl's inequality for the singular values of X and for the eigenvalues of G.",
    ),
    "frac_energy_below_floor": rank_metric(
        title="energy below the noise floor",
        formula="sum(s_i^2 <= noise_floor^2) / sum(s^2)",
        meaning="How much of the energy could be arithmetic; a rank says nothing about directions that lie there.",
        better="lower",
        moved_by="The precision of the model's arithmetic: --precision high lowers the floor.",
        source="Share of explained variance, as in principal components.",
    ),
}

NULL_METRICS: dict[str, Metric] = {
    "given_prompts": _count_metric(
        title="effective rank given the prompts",
        formula="mean effective rank +- t sqrt(sum over groups of (G-1)/G sum_i (v_i - mean v)^2), v_i without rollout "
        "i",
        meaning="The mean effective rank with the interval of other rollouts of the same prompts: each rollout is left "
        "out once, and the others' advantages are computed anew. Rollouts are not drawn with repetition, because one "
        "that is drawn twice is one direction.",
        moved_by="As the effective rank; where the mean hangs on a single rollout there is none.",
        source="Efron & Stein 1981, The jackknife estimate of variance, Annals of Statistics 9.",
    ),
    "nulls.unweighted": _count_metric(
        title="null 'scores'",
        formula="effective rank of the score vectors s_i",
        meaning="The rank without any advantage. What is low here too is the policy's geometry, not the advantage's.",
        moved_by="How alike the completions of a group are, and how sure the policy is of their tokens.",
        source="Null model; definition.",
    ),
    "nulls.shuffled": _count_metric(
        title="null 'shuffled'",
        formula="mean effective rank of A_p(i) s_i, p random within the group",
        meaning="The rank where the same advantages go to other rollouts of the group, averaged over seeded shuffles.",
        moved_by="The spread of the advantages; not which rollout got which.",
        source="Permutation null (Fisher 1935).",
    ),
    "nulls.signs": _count_metric(
        title="null 'signs'",
        formula="effective rank of sign(A_i) s_i",
        meaning="The rank without the advantages' sizes. Signs rotate the matrix: without a zero advantage and without "
        "centering it is that of the scores exactly. So no rank of rows can see who was rewarded and who punished, "
        "only how unequal the sizes are; a sum of rows, such as dL/dW, can.",
        moved_by="Rollouts with zero advantage, which drop out.",
        source="Null model; diag(sign A) is orthogonal.",
    ),
    "nulls.gaussian": _count_metric(
        title="null 'unrelated rows'",
        formula="mean effective rank of |g_i| z_i, z_i random unit rows",
        meaning="The rank of rows of the same norms that have nothing in common: the ceiling that unequal norms leave. "
        "For dL/dW of a group the rows are those of its smaller side; for that of a whole step the entries are "
        "independent, by the law of Marchenko and Pastur.",
        moved_by="Unequal row norms lower it.",
        source="Wishart matrices by Bartlett's decomposition (1933); Marchenko & Pastur 1967.",
    ),
    "nulls.ratio": rank_metric(
        title="ratio",
        formula="mean effective rank / mean effective rank of null 'unrelated rows'",
        meaning="The rank as a share of what unrelated rows of the same norms would have: what is left when the number "
        "of rows and their unequal norms are taken out. It is shown with every null (nulls.<name>.ratio).",
        range="[0, N]",
        moved_by="Rows that share directions lower it; 1 where they have nothing in common.",
        source="Ratio of means; the interval resamples groups.",
    ),
}
