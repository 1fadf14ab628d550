"""The claims, one record each: the statement, its source, how it is measured, and what would settle it.

The first source does not define its "effective rank", so it is measured on every matrix that it could mean; none of
these formulas is the paper's.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from gradscope.diagnostics.claims import gradients, outcomes
from gradscope.diagnostics.claims.evidence import Claim, in_range, on_side
from gradscope.metrics.sampler import UNDECIDED, UNLIKELY
from gradscope.results.rank import GroupKind
from gradscope.results.source import RowKind

_FOUNDATIONS = "arXiv 2606.29238 (On the policy gradient foundations of GRPO)"
_STARVATION = "arXiv 2605.07689 (Gradient starvation in binary-reward GRPO)"
_SUMMARY = "A research summary of five GRPO experiments"
_our_claim = partial(Claim, ours=True)
_MORE_ROLLOUTS = (
    "32 or 64 rollouts of the same prompts at one step: gradscope train --group-size 32, or the trainer's own."
)
_SAME_RUN = (
    "The same run with only the advantage exchanged (gradscope train with two advantages and --seeds), as "
    "docs/research/study_starvation.md did on the embedded model."
)
_MORE_GROUPS = "More groups with a gradient at the recomputed steps: --step with more of them, or a larger batch."
_ENTROPY = "arXiv 2505.22617 (The entropy mechanism of reinforcement learning)"
_NEAR_CHECKPOINTS = (
    "Weights before and after single updates, with more groups that have a gradient: --checkpoint-every 1."
)
_CHECKPOINTS = "Ten or more checkpoints at steps of the same prompts, each named: --checkpoint-every, claims --step."

_ONE_STEP = "what one step does: docs/research/study_intervention.md"
_SIGN_PARTS: tuple[tuple[GroupKind, str, str], ...] = (
    ("all_fail", "all-fail", f", with G small enough that lone successes occur; {_ONE_STEP}"),
    ("mixed", "mixed", ""),
    ("all_pass", "all-pass", ""),
)

_same_direction = partial(in_range, low=gradients.SAME_DIRECTION, high=1.0)
_about_two = partial(
    _our_claim,
    source=_FOUNDATIONS,
    claim="The gradient of a group has effective rank about 2, whatever the group size.",
    settle=_MORE_ROLLOUTS,
)
_MATRICES: tuple[tuple[str, str, Any, RowKind], ...] = (
    ("rollouts", ", a row a rollout's gradient by all parameters", gradients.rollout_ranks, "rollout"),
    ("tokens", ", a row a token's gradient by all parameters", gradients.token_ranks, "token"),
    ("weights", " of dL/dW of one group, mean over weights", gradients.weight_ranks, "weight"),
    ("output_head", " of dL/dW of one group, output head", gradients.head_ranks, "weight"),
    ("hidden_rollouts", ", a row a rollout's gradient by the last hidden state", gradients.rollout_ranks, "hidden"),
    ("hidden_tokens", ", a row a token's gradient by the last hidden state", gradients.token_ranks, "hidden"),
    ("logits", ", a row a token's gradient by the logits", gradients.token_ranks, "logit"),
    ("advantages", " of the advantages, rollouts by tokens", gradients.advantage_ranks, "advantage"),
)
_sparser = partial(
    _our_claim, source=_FOUNDATIONS, claim="The gradient grows sparser over training.", settle=_CHECKPOINTS
)


CLAIMS: tuple[Claim, ...] = (
    *(
        _about_two(
            name=f"rank_two.{name}",
            metric=f"effective rank{matrix}",
            needs=None if kind == "advantage" else kind,
            judge=partial(gradients.rank_two_at_every_size, partial(ranks, kind)),
        )
        for name, matrix, ranks, kind in _MATRICES
    ),
    _our_claim(
        name="rank_two.cause",
        source=_FOUNDATIONS,
        claim="The rank is low because the advantages of a group sum to zero: its gradient is that of two class means.",
        metric="share of the rows' summed squared norms in the mean row of the passes and that of the fails",
        settle=_MORE_ROLLOUTS,
        needs="rollout",
        judge=gradients.two_class_means,
    ),
    _our_claim(
        name="rank_rises.token_credit",
        source=_FOUNDATIONS,
        claim="Advantages of single tokens raise the rank of the gradient.",
        metric="effective rank of dL/dW of a group, with credit for tokens over with the outcome's",
        settle="More live groups, with rewards of single tokens in the log: gradscope train --task steps.",
        needs="weight",
        judge=gradients.higher_with_token_credit,
    ),
    _sparser(
        name="sparser.groups",
        metric="share of groups without a gradient, change over the log within prompts that return",
        settle="A longer log in which prompts return.",
        judge=gradients.groups_grow_sparser,
    ),
    _sparser(
        name="sparser.rollouts",
        metric="Gini of rollouts' row norms, change over the checkpoints",
        needs="rollout",
        judge=gradients.rows_grow_sparser,
    ),
    _sparser(
        name="sparser.tokens",
        metric="Gini of tokens' row norms, change over the checkpoints",
        needs="token",
        judge=gradients.tokens_grow_sparser,
    ),
    _sparser(
        name="sparser.entries",
        metric="Gini of the entries of dL/dW, mean over weights, change over the checkpoints",
        needs="weight",
        judge=gradients.entries_grow_sparser,
    ),
    _our_claim(
        name="optimal_baseline.group_mean",
        source=_FOUNDATIONS,
        claim="Under conditions the group mean is the optimal baseline.",
        metric="least noisy constant baseline of a group minus its mean reward: 0 where reward and squared norm of the "
        "gradient are uncorrelated, a textbook condition and ours",
        settle="More groups with unequal rewards at the recomputed steps.",
        needs="rollout",
        judge=gradients.group_mean_is_optimal,
    ),
    Claim(
        name="dead_groups.excess",
        source=_STARVATION,
        claim="More groups are dead than one pass rate for all prompts predicts.",
        metric="Jensen gap",
        settle="More groups.",
        judge=outcomes.dead_beyond_prediction,
    ),
    Claim(
        name="dead_groups.origin",
        source=_STARVATION,
        claim="The excess comes from prompts of unequal difficulty.",
        metric="part of the Jensen gap between prompts, compared with the part over time",
        settle="More groups a step, of prompts that return at later steps.",
        judge=outcomes.excess_from_prompts,
    ),
    _our_claim(
        name="dead_groups.failures",
        source=_SUMMARY,
        claim="On hard tasks dead groups are mostly all-fail groups.",
        metric="share of groups that all fail, compared with the share that all pass",
        settle="A task of which fewer than a quarter of the rollouts pass, and more groups.",
        judge=outcomes.dead_groups_are_failures,
    ),
    _our_claim(
        name="dead_groups.barrier",
        source=_SUMMARY,
        claim="The share of all-fail groups falls exponentially with the number of rollouts, not linearly.",
        metric="share at the middle N minus the geometric mean of those at the ends: 0 for a power of one rate",
        settle="More groups, and larger ones.",
        judge=outcomes.all_fail_is_exponential,
    ),
    Claim(
        name="dead_groups.persist",
        source=_SUMMARY,
        claim="A prompt whose group is dead is likelier dead again: the premise of re-allocating its budget, whose "
        "effect it calls negligible.",
        metric="dead groups at a prompt's next visit, share after a dead group minus after a live one",
        settle="More visits of the same prompts: several epochs in the log.",
        judge=outcomes.dead_groups_return,
    ),
    *(
        Claim(
            name=f"sign.{part}",
            source=_STARVATION,
            claim=f"Sign climbs pass@G, by its {words} part.",
            metric=f"cosine of expected updates, Sign on {words} groups with pass@G",
            settle=f"More groups at one step{advice}.",
            needs="rollout",
            judge=partial(gradients.sign_part, part, "pass@G", on_side),
        )
        for part, words, advice in _SIGN_PARTS
    ),
    _our_claim(
        name="sign.same_direction",
        source=_STARVATION,
        claim="Sign's all-fail part points where pass@G rises, and nowhere else.",
        metric="cosine of expected updates, Sign on all-fail groups with pass@G, near 1",
        settle="More groups at one step, with G small enough that lone successes occur.",
        needs="rollout",
        judge=partial(gradients.sign_part, "all_fail", "pass@G", _same_direction),
    ),
    Claim(
        name="negative.all_fail",
        source=_SUMMARY,
        claim="A negative advantage for all-fail groups climbs the pass rate.",
        metric="cosine of expected updates, -1 on all-fail groups with pass@1",
        settle=f"{_SAME_RUN[:-1]}; {_ONE_STEP}.",
        needs="rollout",
        judge=partial(gradients.sign_part, "all_fail", "pass@1", on_side),
    ),
    _our_claim(
        name="reach.compression",
        source=_STARVATION,
        claim="Training compresses the search and does not expand what can be solved.",
        metric="difference of held-out pass@k at the largest budget",
        settle="64 or more samples of each held-out prompt, before and after: gradscope train --heldout-samples 64.",
        judge=outcomes.search_not_capacity,
    ),
    _our_claim(
        name="tokens.high_entropy",
        source="arXiv 2506.01939 (Beyond the 80/20 rule: high-entropy minority tokens)",
        claim="The fifth of the tokens with the highest entropy carries most of the gradient.",
        metric="share of the tokens' summed squared gradient norms in the top fifth by entropy",
        settle=_MORE_GROUPS,
        needs="token",
        judge=partial(outcomes.has_most_energy, UNDECIDED),
    ),
    _our_claim(
        name="tokens.low_probability",
        source="arXiv 2505.12929 (Do not let low-probability tokens over-dominate)",
        claim="Tokens of low probability dominate the gradient, by the size of theirs.",
        metric="share of the tokens' summed squared gradient norms at probabilities below 0.25",
        settle=_MORE_GROUPS,
        needs="token",
        judge=partial(outcomes.has_most_energy, UNLIKELY),
    ),
    Claim(
        name="tokens.as_asked",
        source="The policy gradient to first order; signed changes of log p: arXiv 2603.22117",
        claim="Tokens move the way their advantages ask.",
        metric="change of log p by the next checkpoint, advantage above 0 minus below 0, tokens of like probability",
        settle=_NEAR_CHECKPOINTS,
        needs="token",
        judge=outcomes.moves_with_advantage,
    ),
    Claim(
        name="entropy.covariance",
        source=_ENTROPY,
        claim="Likely tokens have the higher advantages.",
        metric="covariance of log p and advantage over tokens",
        settle=_MORE_GROUPS,
        needs="weighed",
        judge=outcomes.likely_are_rewarded,
    ),
    Claim(
        name="entropy.predicted",
        source=_ENTROPY,
        claim="Entropy falls where likely tokens have the higher advantages, and rises where unlikely ones have.",
        metric="change of the entropy at the steps' own tokens by the next checkpoint, in nats",
        settle=_NEAR_CHECKPOINTS,
        needs="token",
        judge=outcomes.changes_as_predicted,
    ),
    _our_claim(
        name="weights.off_principal",
        source="arXiv 2511.08567",
        claim="Updates avoid the principal directions of the weights.",
        metric="principal overlap beyond that of a random change, mean over weights",
        settle="The weights before the first update: --initial.",
        needs="update",
        judge=gradients.avoids_principal_directions,
    ),
    _our_claim(
        name="weights.singular_values",
        source="arXiv 2607.19331",
        claim="The singular values of the weights are inherited; training turns their directions.",
        metric="part of a change in the singular values beyond that of an unrelated change, mean over weights",
        settle="The weights before the first update: --initial.",
        needs="update",
        judge=gradients.inherits_singular_values,
    ),
    Claim(
        name="weights.few_change",
        source="arXiv 2505.11711 (Reinforcement learning finetunes small subnetworks)",
        claim="At most 30 % of the parameters change.",
        metric="share of entries that change in bfloat16, mean over weights",
        settle="The weights before the first update: --initial.",
        needs="update",
        judge=gradients.few_parameters_change,
    ),
)
"""In the order of tables: the first source, the second, and what others say."""
