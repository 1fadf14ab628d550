"""Catalogue: norms, directions and sparsity of gradient rows. Letters: g a row, R rows, G = X X' their Gram matrix."""

from __future__ import annotations

from functools import partial

from gradscope.catalog.entry import Metric, rank_metric

_step_metric = partial(rank_metric, path="steps.{0}")
_UNEVEN = "Dead groups, advantages of very different size, completions of very different length."

GRADIENT_METRICS: dict[str, Metric] = {
    "grad_norm": _step_metric(
        title="gradient norm",
        formula="|sum of g_i| = sqrt(1' G 1)",
        meaning="Norm of the step's gradient before clipping, from the Gram matrix of all its rows, KL part included.",
        range="[0, inf)",
        moved_by="The number of live groups, the advantages' scale, how far the rows agree.",
        source="TRL logs the optimizer's own under this name.",
    ),
    "cancellation": _step_metric(
        title="cancellation",
        formula="|sum of g_i| / sum of |g_i|",
        meaning="1 when all rows pull one way, 0 when they cancel; 1/sqrt(R) for R orthogonal rows of equal norm.",
        moved_by="Zero-sum advantages on similar completions lower it; few rows that dominate raise it.",
        source="Triangle inequality; known as gradient diversity in other forms (Yin et al. 2018).",
    ),
    "class_subspace_energy": _step_metric(
        title="energy in the class means",
        formula="|X P|_F^2 / |X|_F^2, P the projector on span(mean passing row, mean failing row)",
        meaning="Share of a group's gradient in the plane of its two class means; near 1 the group says little more "
        "than how its passing rollouts differ from its failing ones.",
        moved_by="Few rollouts a group (R = 2 gives 1 always), completions of a class that resemble each other.",
        source="Between-class part of a scatter matrix (Fisher 1936), on uncentered rows.",
    ),
    "sparsity.zero_groups": _step_metric(
        title="zero groups",
        formula="(number of groups with |g_i| = 0 for all i) / J",
        meaning="Share of groups that give exactly no gradient.",
        better="lower",
        moved_by="Groups whose rewards are all equal, where the advantage is relative to the group.",
    ),
    "sparsity.zero_rows": _step_metric(
        title="zero rows",
        formula="(number of rows with |g_i| = 0) / R",
        meaning="Share of rollouts that give exactly no gradient.",
        better="lower",
        moved_by="Zero advantages (dead groups), completions that are masked out of the loss.",
    ),
    "sparsity.small_rows": _step_metric(
        title="small rows",
        formula="(number of rows with |g_i| < 0.01 max_j |g_j|) / R",
        meaning="Share of rollouts whose gradient is below 1 % of the largest; zero rows among them.",
        range="[0, 1)",
        better="lower",
        moved_by=_UNEVEN,
    ),
    "sparsity.hoyer": _step_metric(
        title="Hoyer sparsity",
        formula="(sqrt(R) - sum |g_i| / sqrt(sum |g_i|^2)) / (sqrt(R) - 1)",
        meaning="How unequal the row norms are: 0 for equal norms, 1 where a single row is the whole gradient.",
        moved_by=_UNEVEN,
        source="Hoyer 2004, Non-negative matrix factorization with sparseness constraints, JMLR 5.",
    ),
    "sparsity.gini": _step_metric(
        title="Gini of row norms",
        formula="sum over i, j of ||g_i| - |g_j|| / (2 R sum |g_i|)",
        meaning="How unequal the row norms are: 0 for equal norms, (R-1)/R where a single row is the whole gradient.",
        range="[0, (R-1)/R]",
        moved_by=_UNEVEN,
        source="Gini 1912; compared with other measures in Hurley & Rickard 2009.",
    ),
    "replay_grad_norm_error": Metric(
        title="replay error of the gradient norm",
        formula="|recomputed grad_norm - logged grad_norm| / |logged grad_norm|",
        meaning="How far the gradient norm recomputed from the log is from the trainer's. Above 1e-4, or beyond the "
        "spread of a run in reduced precision, log, weights or loss settings are not what the trainer used. Undefined "
        "without a gradient.",
        range="[0, inf)",
        better="lower",
        moved_by="Re-tokenized ids, weights of another step, unknown loss settings, low precision.",
        command="replay",
        path="steps.relative_error.grad_norm",
    ),
    "frac_replay_mismatch": Metric(
        title="steps that do not replay",
        formula="steps with a mismatch / steps that match or mismatch",
        meaning="Share of the steps that could be judged at which a recomputed reward, advantage, share of degenerate "
        "groups or gradient norm is not what the trainer logged. Undefined where no step could be judged.",
        better="lower",
        moved_by="Wrong trainer's arguments, weights of another step, re-tokenized ids, edited logs.",
        command="replay",
        path="frac_replay_mismatch",
    ),
    "replay_advantage_error": Metric(
        title="replay error of the advantages",
        formula="max over rollouts of |recomputed advantage - logged advantage|",
        meaning="How far the advantages recomputed from the logged rewards are from the logged ones.",
        range="[0, inf)",
        better="lower",
        moved_by="Another formulation or epsilon than the settings say, missing rewards, wrong groups.",
        command="replay",
        path="steps.relative_error.advantage",
    ),
}

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

SPARSITY_METRICS: dict[str, Metric] = {
    f"{family}.{name}": rank_metric(
        title=f"{title} of {word}",
        formula=f"{formula}, x {unit}",
        meaning=meaning,
        moved_by=_UNEVEN_PARTS,
        source=source,
    )
    for family, word, unit in (("token_sparsity", "tokens", _TOKENS), ("weight_sparsity", "entries", _ENTRIES))
    for name, title, formula, meaning, source in _DEFINITIONS
}


_report_metric = partial(Metric, command="report")
_signed_metric = partial(_report_metric, range="[-1, 1]")

CONTRIBUTION_METRICS: dict[str, Metric] = {
    "projection_share": _report_metric(
        title="share of the gradient",
        formula="(G 1)_i / (1' G 1)",
        meaning="Each rollout's part of the step's gradient along the gradient's own direction. The parts add up to 1; "
        "a negative part pulls against the rest.",
        range="(-inf, inf)",
        moved_by="The size of the advantage, the length of the completion, how unlikely its tokens were.",
    ),
    "cosine_to_sum": _signed_metric(
        title="cosine with the gradient",
        formula="(G 1)_i / (|g_i| sqrt(1' G 1))",
        meaning="Whether a rollout pulls the way the whole step goes (1), across it (0) or against it (-1).",
        moved_by="How much the rollouts of a step have in common.",
    ),
    "top_share": _report_metric(
        title="share of the top tenth",
        formula="(sum of the largest tenth of |g_i|) / (sum of all |g_i|)",
        meaning="How few rollouts hold most of the gradient norms; 0.1 where all are alike, 1 where a tenth is all.",
        range="[0.1, 1]",
        moved_by="Dead groups, groups with a single success or failure, completions of very different length.",
        source="Definition; a point of the Lorenz curve.",
    ),
    "token_norm": _report_metric(
        title="norm of a token's gradient",
        formula="|v_t| |grad log pi(token t)|, v_t the token's weight in the loss",
        meaning="How hard one token pulls. The tokens' gradients add up to their rollout's.",
        range="[0, inf)",
        moved_by="The advantage, how unlikely the token was, and how the loss averages over tokens.",
        source="Definition; exact rows by gradscope rank --rows token.",
    ),
    "token_entropy_correlation": _signed_metric(
        title="entropy and token gradient",
        formula="sum of d_norm d_entropy / sqrt(sum of d_norm^2 sum of d_entropy^2), d a rank minus the rollout's mean",
        meaning="Positive where tokens at which the policy was undecided pull harder than those it was sure of.",
        moved_by="Temperature, an entropy bonus, a mask on tokens of low entropy.",
        source="Spearman's correlation, pooled within rollouts.",
    ),
    "update_cosine": _signed_metric(
        title="cosine with the logged update",
        formula="a' K b / sqrt(a' K a b' K b)",
        meaning="How far another formulation would have moved the policy the same way from the same rollouts.",
        moved_by="How a formulation weighs groups of different pass rates, and whether it has a baseline.",
        source="Definition; a the logged advantages, b the formulation's.",
    ),
    "length_correlation": _signed_metric(
        title="length and advantage",
        formula="sum of d_length d_reward / sqrt(sum of d_length^2 sum of d_reward^2), d minus the group's mean",
        meaning="Whether longer completions of the same prompt are rewarded more (positive) or less (negative).",
        moved_by="Truncation, a length penalty, a reward that a longer answer can game.",
        source="Pearson's correlation, pooled within groups.",
    ),
    "live_share": _report_metric(
        title="share of the loss that is live",
        formula="(weight of live groups in the loss) / (weight of all groups in the loss)",
        meaning="What a live group's gradient is multiplied by because dead groups are averaged in.",
        better="higher",
        moved_by="Dead groups; where the loss is a mean over tokens, their length too.",
        source="Definition; the weights are those of the trainer's loss_type.",
    ),
    "logprob_gap": _report_metric(
        title="sampler and trainer",
        formula="mean over tokens of |log p_trainer - log p_sampler|",
        meaning="How far the log-probabilities of the sampler are from those of the weights that were updated; where "
        "they differ, the update is off-policy from the first token on.",
        range="[0, inf)",
        better="lower",
        moved_by="Stale weights, another precision or kernel in the sampler, a temperature that only one side applies.",
        source="Definition; TRL logs it as sampling/sampling_logp_difference/mean.",
        path="logged.sampler.overall.logprob_gap",
    ),
}


HELDOUT_METRICS: dict[str, Metric] = {
    "heldout.frac_hurt": rank_metric(
        title="held-out pairs that hurt",
        formula="share of pairs (j, k) with S_j . C_k < 0, S_j = sum of A_i s_i of group j, C_k the mean gradient of "
        "the log-probability of held-out prompt k's correct answers",
        meaning="How often a step along one training prompt's gradient lowers the log-probability of a held-out "
        "prompt's correct answers, to first order. 0.5 for unrelated prompts.",
        better="lower",
        moved_by="What training and held-out prompts have in common; shared text such as formats moves it down.",
        source="Negative interference by products of scores: arXiv 2510.02230; share of pairs: definition.",
    ),
    "heldout.cosine": rank_metric(
        title="cosine with held-out answers",
        formula="mean over j and k of S_j . C_k / (|S_j| |C_k|)",
        meaning="Whether training prompts climb held-out correct answers (above 0) or descend them (below 0).",
        range="[-1, 1]",
        better="higher",
        moved_by="As heldout.frac_hurt.",
        source="Definition; alignment with gradients of held-out prompts: arXiv 2602.21492.",
    ),
    "heldout.transfer": rank_metric(
        title="transfer to held-out prompts",
        formula="mean over k of U . C_k / mean over j of U . D_j, U the sum of all S_j, D_j as C_k of group j's own "
        "correct answers",
        meaning="What the step does to held-out correct answers, in units of what it does to those that it was trained "
        "on: 1 where both gain as much, 0 where nothing carries over, below 0 where held-out answers are undone.",
        range="(-inf, inf)",
        better="higher",
        moved_by="The number of prompts of a step: its own are one of them each; what all prompts have in common.",
    ),
    "heldout.influence": rank_metric(
        title="influence on held-out prompts",
        formula="mean over k of S_j . C_k / (mean |S_j| mean |C_k|)",
        meaning="Whether a training prompt helps (above 0) or hurts the held-out correct answers: a cosine that counts "
        "the size of its gradient, 1 for one of average norm along all of them.",
        range="(-inf, inf)",
        better="higher",
        moved_by="The size of its gradient, and what it has in common with the held-out prompts.",
        source="Definition; ranking training prompts by held-out gradients: arXiv 2602.21492.",
    ),
}
