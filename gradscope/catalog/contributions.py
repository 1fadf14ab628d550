"""Catalogue: what a report says beyond the other commands. Letters: R rollouts, G Gram of rows, K Gram of scores."""

from __future__ import annotations

from functools import partial

from gradscope.catalog.entry import Metric

_report_metric = partial(Metric, command="report")

CONTRIBUTION_METRICS: tuple[Metric, ...] = (
    _report_metric(
        name="projection_share",
        title="share of the gradient",
        formula="(G 1)_i / (1' G 1)",
        meaning="Each rollout's part of the step's gradient along the gradient's own direction. The parts add up to 1; "
        "a negative part pulls against the rest.",
        range="(-inf, inf)",
        better="neither",
        moved_by="The size of the advantage, the length of the completion, how unlikely its tokens were.",
        source="Definition.",
    ),
    _report_metric(
        name="cosine_to_sum",
        title="cosine with the gradient",
        formula="(G 1)_i / (|g_i| sqrt(1' G 1))",
        meaning="Whether a rollout pulls the way the whole step goes (1), across it (0) or against it (-1).",
        range="[-1, 1]",
        better="neither",
        moved_by="How much the rollouts of a step have in common.",
        source="Definition.",
    ),
    _report_metric(
        name="top_share",
        title="share of the top tenth",
        formula="(sum of the largest tenth of |g_i|) / (sum of all |g_i|)",
        meaning="How few rollouts hold most of the gradient norms; 0.1 where all are alike, 1 where a tenth is all.",
        range="[0.1, 1]",
        better="neither",
        moved_by="Dead groups, groups with a single success or failure, completions of very different length.",
        source="Definition; a point of the Lorenz curve.",
    ),
    _report_metric(
        name="token_norm",
        title="norm of a token's gradient",
        formula="|v_t| |grad log pi(token t)|, v_t the token's weight in the loss",
        meaning="How hard one token pulls. The tokens' gradients add up to their rollout's.",
        range="[0, inf)",
        better="neither",
        moved_by="The advantage, how unlikely the token was, and how the loss averages over tokens.",
        source="Definition; exact rows by gradscope rank --rows token.",
    ),
    _report_metric(
        name="token_entropy_correlation",
        title="entropy and token gradient",
        formula="sum of d_norm d_entropy / sqrt(sum of d_norm^2 sum of d_entropy^2), d a rank minus the rollout's mean",
        meaning="Positive where tokens at which the policy was undecided pull harder than those it was sure of.",
        range="[-1, 1]",
        better="neither",
        moved_by="Temperature, an entropy bonus, a mask on tokens of low entropy.",
        source="Spearman's correlation, pooled within rollouts.",
    ),
    _report_metric(
        name="update_cosine",
        title="cosine with the logged update",
        formula="a' K b / sqrt(a' K a b' K b)",
        meaning="How far another formulation would have moved the policy the same way from the same rollouts.",
        range="[-1, 1]",
        better="neither",
        moved_by="How a formulation weighs groups of different pass rates, and whether it has a baseline.",
        source="Definition; a the logged advantages, b the formulation's.",
    ),
    _report_metric(
        name="length_correlation",
        title="length and advantage",
        formula="sum of d_length d_reward / sqrt(sum of d_length^2 sum of d_reward^2), d minus the group's mean",
        meaning="Whether longer completions of the same prompt are rewarded more (positive) or less (negative).",
        range="[-1, 1]",
        better="neither",
        moved_by="Truncation, a length penalty, a reward that a longer answer can game.",
        source="Pearson's correlation, pooled within groups.",
    ),
    _report_metric(
        name="live_share",
        title="share of the loss that is live",
        formula="(weight of live groups in the loss) / (weight of all groups in the loss)",
        meaning="What a live group's gradient is multiplied by because dead groups are averaged in.",
        range="[0, 1]",
        better="higher",
        moved_by="Dead groups; where the loss is a mean over tokens, their length too.",
        source="Definition; the weights are those of the trainer's loss_type.",
    ),
    _report_metric(
        name="logprob_gap",
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
)
