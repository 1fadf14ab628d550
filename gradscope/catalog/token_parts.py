"""Catalogue: a step's gradient by its tokens. Letters: v_t g_t row of token t, g their sum, w = p_policy/p_sampler."""

from __future__ import annotations

from functools import partial

from gradscope.catalog.entry import Metric, rank_metric

_ANY = "(-inf, inf)"
_COSINE = "[-1, 1]"
_MISMATCH = "How far the sampler is from the trainer, the bound, and the length of completions where ratios are theirs."
_MOVED = "Definition; the signed change of log p between two policies, token by token: arXiv 2603.22117."
_change_metric = partial(rank_metric, range=_ANY, source=_MOVED)
_unbounded_metric = partial(rank_metric, range=_ANY)
_mismatch_metric = partial(rank_metric, moved_by=_MISMATCH)
_cosine_metric = partial(rank_metric, range=_COSINE)

TOKEN_PART_METRICS: dict[str, Metric] = {
    "token_kinds.frac_tokens": rank_metric(
        title="share of the tokens",
        formula="(tokens of a kind) / (tokens whose advantage is not 0)",
        meaning="How many tokens are of one sign of the advantage, bucket of probability and bucket of entropy.",
        moved_by="The policy's certainty. Tokens of dead groups count for none.",
        source="A ratio of counts; top fifth of the entropies: Wang et al. 2025, arXiv 2506.01939.",
    ),
    "token_kinds.energy_share": rank_metric(
        title="share of the energy",
        formula="sum over the kind of |v_t g_t|^2, over that of all tokens",
        meaning="Which tokens have the large gradients, whether or not they agree. Where tokens were drawn, each "
        "stands for those left out. `check` takes that of the top fifth by entropy.",
        moved_by="Unlikely tokens have large gradients: grad log pi of the logits is one minus the probability.",
        source="Definition; dominance of unlikely tokens: arXiv 2505.12929, of undecided ones: arXiv 2506.01939.",
        path="token_kinds.energy_share",
    ),
    "token_kinds.gradient_share": _unbounded_metric(
        title="share along the gradient",
        formula="(sum over the kind of v_t g_t) . g / |g|^2",
        meaning="What a kind of token gives to the step; the kinds' parts add up to 1, and one that pulls against the "
        "rest is negative.",
        moved_by="The size of the tokens' gradients, and whether they agree.",
        source="Projection on the sum; kinds as in arXiv 2505.12929 and 2506.01939.",
    ),
    "token_kinds.cosine": _cosine_metric(
        title="cosine of a kind of token",
        formula="cosine of (sum over the kind of v_t g_t) with g",
        meaning="Whether a gradient of these tokens alone would go where the whole goes: for the top fifth by entropy, "
        "what masking the rest changes. `check` takes that one.",
        moved_by="Which tokens carry the gradient.",
        source="Definition; training on the top fifth alone: Wang et al. 2025, arXiv 2506.01939.",
        path="token_kinds.cosine",
    ),
    "corrections.kept": _mismatch_metric(
        title="kept by the correction",
        formula="(units with f > 0) / (units), f what a correction multiplies the gradient of a token or sequence by",
        meaning="Share of the tokens, or sequences where ratios are of sequences, that are not masked.",
        better="higher",
    ),
    "corrections.ess": _mismatch_metric(
        title="effective share under the correction",
        formula="(sum of f)^2 / (M sum of f^2), M units",
        meaning="Share of the units that the corrected gradient is worth. `check` takes that of tis.",
        better="higher",
        source="Kish 1965.",
        path="corrections.ess",
    ),
    "corrections.chi2": _mismatch_metric(
        title="second moment of the correction",
        formula="mean over units of f^2 - 1",
        meaning="For token_ratio and sequence_ratio the chi-square divergence of policy and sampler; what cutting or "
        "masking leaves of it elsewhere.",
        range="[-1, inf)",
        better="lower",
        source="Of plain ratios E w^2 - 1 under the sampler; such a mismatch as a cause of collapse: arXiv 2605.14220.",
    ),
    "corrections.norm_ratio": _mismatch_metric(
        title="norm under the correction",
        formula="|sum of f_t u_t g_t| / |sum of u_t g_t|, u_t the weight of a token at ratio 1",
        meaning="How much shorter or longer the corrected gradient is than one that takes the policy for the sampler. "
        "`check` takes that of tis.",
        range="[0, inf)",
        path="corrections.norm_ratio",
    ),
    "corrections.cosine": _mismatch_metric(
        title="cosine with the uncorrected gradient",
        formula="cosine of sum of f_t u_t g_t with sum of u_t g_t",
        meaning="Whether a correction turns the step. Near 1 it does not matter which one is used. `check` takes "
        "that of tis.",
        range=_COSINE,
        source="tis: Yao et al. 2025, truncated importance sampling, bound 2; icepop: Ling Team 2025, arXiv "
        "2510.18855, band [0.5, 5]; mis: slime, band [0.5, 2]; geometric_mask: the geometric mean of a "
        "sequence's ratios, verl's band [1/1.001, 1.001]; token_mask, sequence_truncate, sequence_mask: TRL's modes at "
        "its bound 3.",
        path="corrections.cosine",
    ),
    "corrections.unbiased_cosine": _mismatch_metric(
        title="cosine with the unbiased gradient",
        formula="cosine of sum of f_t u_t g_t with sum of W u_t g_t, W the product of w over the sequence",
        meaning="How near a correction is to the estimate whose expectation is the gradient on policy. Where the "
        "effective share of sequence_ratio is small, that estimate is a few sequences.",
        range=_COSINE,
        source="Importance sampling of whole sequences.",
    ),
    "entropy_change.rate": _unbounded_metric(
        title="predicted change of entropy",
        formula="-(gradient of the mean entropy of the step's tokens) . g",
        meaning="First-order change of that mean by plain SGD, for each unit of learning rate, at the same states. "
        "An adaptive optimizer scales entries, and the KL term is left out. The cosine has an interval; this product, "
        "which a few groups hold, has none that would keep its word.",
        moved_by="Advantages of likely tokens; an entropy bonus.",
        source="First-order Taylor expansion; of a softmax policy the covariance of arXiv 2505.22617.",
        path="entropy_changes.rate",
    ),
    "entropy_change.cosine": _cosine_metric(
        title="entropy and update",
        formula="cosine of (gradient of the mean entropy of the step's tokens) with -g",
        meaning="Below 0 the step lowers the entropy of its own tokens, above 0 it raises it.",
        moved_by="Rewarding what the policy is sure of lowers it, rewarding unlikely tokens raises it.",
        source="Definition; Cui et al. 2025, arXiv 2505.22617 on what drives the entropy.",
        path="entropy_changes.cosine",
    ),
    "entropy_change.covariance": _unbounded_metric(
        title="covariance of log-probability and advantage",
        formula="mean over tokens of (log pi - its mean) (A - its mean)",
        meaning="Positive where likely tokens have the higher advantages, which lowers a softmax policy's entropy.",
        moved_by="Confident completions that are rewarded, unlikely ones that are not.",
        source="Cui et al. 2025, The entropy mechanism of reinforcement learning, arXiv 2505.22617.",
    ),
    "entropy_change.measured": _unbounded_metric(
        title="measured change of entropy",
        formula="mean over tokens of H_later - H, H before the step's update, H_later of the next checkpoint",
        meaning="What became of the entropy where the step's own tokens were sampled, in nats. The prediction "
        "is of one update, this of all updates up to the next checkpoint.",
        moved_by="The learning rate, the updates between the checkpoints, and what other prompts teach.",
        source="Definition; predicted and measured changes of entropy: Cui et al. 2025, arXiv 2505.22617.",
        path="entropy_changes.measured",
    ),
    "token_kl.k1": _unbounded_metric(
        title="KL to the reference, k1",
        formula="mean over tokens of log(p / p_ref)",
        meaning="KL of the policy from the reference a token, unbiased and noisy: it can be negative.",
        moved_by="Training; a small coefficient of the KL term.",
        source="Schulman 2020, Approximating KL divergence.",
    ),
    "token_kl.k3": rank_metric(
        title="KL to the reference, k3",
        formula="mean over tokens of p_ref / p - 1 - log(p_ref / p)",
        meaning="The same with less noise, and never negative. A token that the reference finds far more likely makes "
        "it explode where k1 stays small.",
        range="[0, inf)",
        moved_by="Training; tokens that the policy has become unlikely to say.",
        source="Schulman 2020, Approximating KL divergence; the KL term of GRPO.",
    ),
    "token_kl.top_share": rank_metric(
        title="KL in the top hundredth",
        formula="(sum of the largest hundredth of k3) / (sum of k3)",
        meaning="Whether the distance from the reference is that of a few tokens.",
        range="(0, 1]",
        moved_by="A few tokens far from the reference.",
        source="Definition; a point of the Lorenz curve.",
        path="token_kl.top_share",
    ),
    "turns.frac_tokens": rank_metric(
        title="share of the tokens by turn",
        formula="(sampled tokens of a turn) / (tokens that count in the loss)",
        meaning="How long a turn is; what tools and environments write counts for none.",
        moved_by="How many turns rollouts take.",
        source="A ratio of counts; a turn is a stretch of sampled tokens.",
    ),
    "turns.gradient_share": _unbounded_metric(
        title="share along the gradient by turn",
        formula="(sum over the turn of v_t g_t) . g / |g|^2",
        meaning="What a turn gives to the step; the turns' parts add up to 1.",
        moved_by="How long turns are, how certain the policy is in them, and advantages of their own.",
        source="Projection on the sum, turn by turn.",
    ),
    "turns.cosine": _cosine_metric(
        title="cosine of a turn",
        formula="cosine of (sum over the turn of v_t g_t) with g",
        meaning="Whether a turn pulls the way of the whole step, or against it.",
        moved_by="Turns of different kinds, such as calls of tools and answers.",
    ),
    "logprob_changes.positive": _change_metric(
        title="change of log p, advantage above 0",
        formula="mean over tokens with A > 0 of log p_later - log p, p before the step's update, p_later of the next "
        "checkpoint",
        meaning="How far training moved the tokens of a step that it was to make likelier, in nats. A policy's own "
        "tokens fall by its KL to the later one on average, whatever their advantage, so it is read with the other "
        "two.",
        better="higher",
        moved_by="The learning rate, the updates between the checkpoints, and what other prompts teach.",
    ),
    "logprob_changes.negative": _change_metric(
        title="change of log p, advantage below 0",
        formula="mean over tokens with A < 0 of log p_later - log p, p before the step's update, p_later of the next "
        "checkpoint",
        meaning="How far training moved the tokens of a step that it was to make less likely, in nats.",
        better="lower",
        moved_by="The same; where it rises, what positive tokens teach passes to tokens like them.",
    ),
    "logprob_changes.neither": _change_metric(
        title="change of log p, advantage 0",
        formula="mean over tokens with A = 0 of log p_later - log p, p before the step's update, p_later of the next "
        "checkpoint",
        meaning="How far training moved the tokens of a step that its gradient does not see, in nats.",
        moved_by="What other prompts teach.",
    ),
    "logprob_changes.difference": _change_metric(
        title="change of log p, above 0 less below 0",
        formula="logprob_changes.positive - logprob_changes.negative",
        meaning="How far training moved the tokens of a step apart by the sign of their advantage. A policy that "
        "sharpens lowers unlikely tokens most, and failing rollouts have more of them: see logprob_changes.matched.",
        better="higher",
        moved_by="What sharpens the policy; updates that undo it, on these prompts or on others.",
    ),
    "logprob_changes.matched": _unbounded_metric(
        title="change of log p as the advantages ask",
        formula="sum over tenths b of the tokens by log p of w_b (mean change with A > 0 - with A < 0) / sum w_b, "
        "w_b = n+ n- / (n+ + n-)",
        meaning="Whether training moved tokens of like probability apart the way their advantages ask: 0 where the "
        "change depends on how likely they were and not on the advantage.",
        better="higher",
        moved_by="Updates that undo it, on these prompts or on others.",
        source="Definition; stratification by a confounder (Cochran 1968, Biometrics 24), least-squares weights.",
        path="logprob_changes.matched",
    ),
}
