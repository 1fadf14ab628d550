"""Catalogue: effective rank under null models. Letters: A advantages, s score vectors, g = A s gradient rows."""

from __future__ import annotations

from gradscope.metrics.catalog_entry import Metric

_RANK = "rank"
_COUNT = "[1, N]"

NULL_METRICS: tuple[Metric, ...] = (
    Metric(
        name="given_prompts",
        title="effective rank given the prompts",
        formula="mean effective rank +- t sqrt(sum over groups of (G-1)/G sum_i (v_i - mean v)^2), v_i without rollout "
        "i",
        meaning="The mean effective rank with the interval of other rollouts of the same prompts: each rollout is left "
        "out once, and the others' advantages are computed anew. Rollouts are not drawn with repetition, because one "
        "that is drawn twice is one direction.",
        range=_COUNT,
        better="neither",
        moved_by="As the effective rank; where the mean hangs on a single rollout there is none.",
        source="Efron & Stein 1981, The jackknife estimate of variance, Annals of Statistics 9.",
        command=_RANK,
    ),
    Metric(
        name="nulls.unweighted",
        title="null 'scores'",
        formula="effective rank of the score vectors s_i",
        meaning="The rank without any advantage. What is low here too is the policy's geometry, not the advantage's.",
        range=_COUNT,
        better="neither",
        moved_by="How alike the completions of a group are, and how sure the policy is of their tokens.",
        source="Null model; definition.",
        command=_RANK,
    ),
    Metric(
        name="nulls.shuffled",
        title="null 'shuffle'",
        formula="mean effective rank of A_p(i) s_i, p random within the group",
        meaning="The rank where the same advantages go to other rollouts of the group, averaged over seeded shuffles.",
        range=_COUNT,
        better="neither",
        moved_by="The spread of the advantages; not which rollout got which.",
        source="Permutation null (Fisher 1935).",
        command=_RANK,
    ),
    Metric(
        name="nulls.signs",
        title="null 'signs'",
        formula="effective rank of sign(A_i) s_i",
        meaning="The rank without the advantages' sizes. Signs rotate the matrix: without a zero advantage and without "
        "centering it is that of the scores exactly.",
        range=_COUNT,
        better="neither",
        moved_by="Rollouts with zero advantage, which drop out.",
        source="Null model; diag(sign A) is orthogonal.",
        command=_RANK,
    ),
    Metric(
        name="nulls.gaussian",
        title="null 'Gauss'",
        formula="mean effective rank of |g_i| z_i, z_i random unit rows",
        meaning="The rank of rows of the same norms that have nothing in common: the ceiling that unequal norms leave. "
        "For the gradient of a weight matrix: independent entries, by the law of Marchenko and Pastur.",
        range=_COUNT,
        better="neither",
        moved_by="Unequal row norms lower it.",
        source="Wishart matrices by Bartlett's decomposition (1933); Marchenko & Pastur 1967.",
        command=_RANK,
    ),
)
