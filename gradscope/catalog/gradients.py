"""Catalogue: norms, directions and sparsity of gradient rows. Letters: g a row, R rows, G = X X' their Gram matrix."""

from __future__ import annotations

from gradscope.catalog.entry import Metric, rank_metric

_UNEVEN = "Dead groups, advantages of very different size, completions of very different length."

GRADIENT_METRICS: tuple[Metric, ...] = (
    rank_metric(
        name="grad_norm",
        title="gradient norm",
        formula="|sum of g_i| = sqrt(1' G 1)",
        meaning="Norm of the step's gradient before clipping, from the Gram matrix of all its rows, KL part included.",
        range="[0, inf)",
        better="neither",
        moved_by="The number of live groups, the advantages' scale, how far the rows agree.",
        source="TRL logs the optimizer's own under this name.",
        path="steps.grad_norm",
    ),
    rank_metric(
        name="cancellation",
        title="cancellation",
        formula="|sum of g_i| / sum of |g_i|",
        meaning="1 when all rows pull one way, 0 when they cancel; 1/sqrt(R) for R orthogonal rows of equal norm.",
        range="[0, 1]",
        better="neither",
        moved_by="Zero-sum advantages on similar completions lower it; few rows that dominate raise it.",
        source="Triangle inequality; known as gradient diversity in other forms (Yin et al. 2018).",
        path="steps.cancellation",
    ),
    rank_metric(
        name="class_subspace_energy",
        title="energy in the class means",
        formula="|X P|_F^2 / |X|_F^2, P the projector on span(mean passing row, mean failing row)",
        meaning="Share of a group's gradient in the plane of its two class means; near 1 the group says little more "
        "than how its passing rollouts differ from its failing ones.",
        range="[0, 1]",
        better="neither",
        moved_by="Few rollouts a group (R = 2 gives 1 always), completions of a class that resemble each other.",
        source="Between-class part of a scatter matrix (Fisher 1936), on uncentered rows.",
        path="steps.class_subspace_energy",
    ),
    rank_metric(
        name="sparsity.zero_groups",
        title="zero groups",
        formula="(number of groups with |g_i| = 0 for all i) / J",
        meaning="Share of groups that give exactly no gradient.",
        range="[0, 1]",
        better="lower",
        moved_by="Groups whose rewards are all equal, where the advantage is relative to the group.",
        source="Definition.",
        path="steps.sparsity.zero_groups",
    ),
    rank_metric(
        name="sparsity.zero_rows",
        title="zero rows",
        formula="(number of rows with |g_i| = 0) / R",
        meaning="Share of rollouts that give exactly no gradient.",
        range="[0, 1]",
        better="lower",
        moved_by="Zero advantages (dead groups), completions that are masked out of the loss.",
        source="Definition.",
        path="steps.sparsity.zero_rows",
    ),
    rank_metric(
        name="sparsity.small_rows",
        title="small rows",
        formula="(number of rows with |g_i| < 0.01 max_j |g_j|) / R",
        meaning="Share of rollouts whose gradient is below 1 % of the largest; zero rows among them.",
        range="[0, 1)",
        better="lower",
        moved_by=_UNEVEN,
        source="Definition.",
        path="steps.sparsity.small_rows",
    ),
    rank_metric(
        name="sparsity.hoyer",
        title="Hoyer sparsity",
        formula="(sqrt(R) - sum |g_i| / sqrt(sum |g_i|^2)) / (sqrt(R) - 1)",
        meaning="How unequal the row norms are: 0 for equal norms, 1 where a single row is the whole gradient.",
        range="[0, 1]",
        better="neither",
        moved_by=_UNEVEN,
        source="Hoyer 2004, Non-negative matrix factorization with sparseness constraints, JMLR 5.",
        path="steps.sparsity.hoyer",
    ),
    rank_metric(
        name="sparsity.gini",
        title="Gini of row norms",
        formula="sum over i, j of ||g_i| - |g_j|| / (2 R sum |g_i|)",
        meaning="How unequal the row norms are: 0 for equal norms, (R-1)/R where a single row is the whole gradient.",
        range="[0, (R-1)/R]",
        better="neither",
        moved_by=_UNEVEN,
        source="Gini 1912; compared with other measures in Hurley & Rickard 2009.",
        path="steps.sparsity.gini",
    ),
    Metric(
        name="replay_grad_norm_error",
        title="replay error of the gradient norm",
        formula="|recomputed grad_norm - logged grad_norm| / |logged grad_norm|",
        meaning="How far the gradient norm recomputed from the log is from the trainer's. Above 1e-4, or beyond the "
        "spread of a run in reduced precision, log, weights or loss settings are not what the trainer used.",
        range="[0, inf)",
        better="lower",
        moved_by="Re-tokenized ids, weights of another step, unknown loss settings, low precision.",
        source="Definition.",
        command="replay",
        path="steps.relative_error.grad_norm",
    ),
    Metric(
        name="frac_replay_mismatch",
        title="steps that do not replay",
        formula="steps with a mismatch / steps that match or mismatch",
        meaning="Share of the steps that could be judged at which a recomputed reward, advantage, share of degenerate "
        "groups or gradient norm is not what the trainer logged. Undefined where no step could be judged.",
        range="[0, 1]",
        better="lower",
        moved_by="Wrong trainer's arguments, weights of another step, re-tokenized ids, edited logs.",
        source="Definition.",
        command="replay",
        path="frac_replay_mismatch",
    ),
    Metric(
        name="replay_advantage_error",
        title="replay error of the advantages",
        formula="max over rollouts of |recomputed advantage - logged advantage|",
        meaning="How far the advantages recomputed from the logged rewards are from the logged ones.",
        range="[0, inf)",
        better="lower",
        moved_by="Another formulation or epsilon than the settings say, missing rewards, wrong groups.",
        source="Definition.",
        command="replay",
        path="steps.relative_error.advantage",
    ),
)

_TOKENS = "the norm of each token's row, |v_t| |grad log pi(token t)|"
_ENTRIES = "the absolute value of each entry of a weight's gradient dL/dW"
_UNEVEN_PARTS = "Tokens that the policy is sure of; rows of embeddings that no token of the step looks up."
_DEFINITIONS = (
    ("zero", "exactly zero", "(number of x = 0) / n", "Share of parts that give exactly nothing.", "Definition."),
    (
        "small",
        "below 1 %",
        "(number of x < 0.01 max x) / n",
        "Share of parts below 1 % of the largest; zeros among them.",
        "Definition.",
    ),
    (
        "hoyer",
        "Hoyer",
        "(sqrt(n) - sum(x) / sqrt(sum(x^2))) / (sqrt(n) - 1)",
        "How unequal the parts are: 0 for equal sizes, 1 where one part is everything.",
        "Hoyer 2004, Non-negative matrix factorization with sparseness constraints, JMLR 5.",
    ),
    (
        "gini",
        "Gini",
        "sum over i, j of |x_i - x_j| / (2 n sum(x))",
        "How unequal the parts are: 0 for equal sizes, (n-1)/n where one part is everything.",
        "Gini 1912; compared with other measures in Hurley & Rickard 2009.",
    ),
)

SPARSITY_METRICS: tuple[Metric, ...] = tuple(
    rank_metric(
        name=f"{family}.{name}",
        title=f"{title} of {word}",
        formula=f"{formula}, x {of}",
        meaning=meaning,
        range="[0, 1]",
        better="neither",
        moved_by=_UNEVEN_PARTS,
        source=source,
    )
    for family, word, of in (("token_sparsity", "tokens", _TOKENS), ("weight_sparsity", "entries", _ENTRIES))
    for name, title, formula, meaning, source in _DEFINITIONS
)
