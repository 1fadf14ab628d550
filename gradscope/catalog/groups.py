"""Catalogue: groups without a gradient, and the prediction beside them. Letters: G rollouts a group, p pass rate."""

from __future__ import annotations

from functools import partial

from gradscope.catalog.entry import Metric
from gradscope.catalog.signal import SIGNAL_METRICS

_degeneracy_metric = partial(Metric, command="degeneracy")
_sample_metric = partial(Metric, command="passk")
_DIFFICULTY = "Prompts that are too hard or too easy for the policy, small groups, rewards with few levels."

GROUP_METRICS: tuple[Metric, ...] = (
    _degeneracy_metric(
        name="frac_reward_zero_std",
        title="degenerate groups",
        formula="(number of groups with max(r) - min(r) <= 1e-8) / (number of groups)",
        meaning="Share of groups whose rollouts all have the same reward. A group-mean baseline gives each of them "
        "zero advantage, so the group contributes nothing to the policy gradient. Such groups are also called dead.",
        range="[0, 1]",
        better="lower",
        moved_by=_DIFFICULTY,
        source="TRL logs it under this name; arXiv 2605.07689 studies it.",
        path="frac_reward_zero_std",
    ),
    _degeneracy_metric(
        name="frac_set_aside",
        title="rollouts set aside",
        formula="(rollouts of rows that cannot be used) / (all rollouts)",
        meaning="Share of the log's rollouts that no number is made of: lines that are no JSON, rewards that are "
        "missing or not finite, rows that contradict each other. A row is a rollout; where a line holds many, one that "
        "cannot be read counts as many as the others hold. A gate fails beyond 0.1 unless it names another limit.",
        range="[0, 1]",
        better="lower",
        moved_by="Logs that were cut off, copied badly or written by two programs, and reward functions that fail.",
        source="gradscope's own reading of the log.",
        path="frac_set_aside",
    ),
    _degeneracy_metric(
        name="frac_zero_std_sampled",
        title="dead of all sampled",
        formula="(dead groups in the log + groups dropped for equal rewards) / (all groups that were sampled)",
        meaning="Share of dead groups before the trainer's filter hid some of them: the policy's own share, where "
        "frac_reward_zero_std is that of the groups that were kept, a lower bound.",
        range="[0, 1]",
        better="lower",
        moved_by=_DIFFICULTY,
        source="Counters of verl, slime, open-instruct and gradscope's own sampling, named in docs/degeneracy.md.",
        path="behind_filter.frac_zero_std_sampled",
    ),
    _degeneracy_metric(
        name="frac_all_pass",
        title="all pass",
        formula="(number of degenerate groups whose rollouts all pass) / (number of groups)",
        meaning="Share of groups that are solved: nothing is left to learn from them at this group size.",
        range="[0, 1]",
        better="lower",
        moved_by="Prompts that are too easy for the policy; it rises as training succeeds.",
        source="A kind of frac_reward_zero_std.",
        path="frac_all_pass",
    ),
    _degeneracy_metric(
        name="frac_all_fail",
        title="all fail",
        formula="(number of degenerate groups whose rollouts all fail) / (number of groups)",
        meaning="Share of groups without one success: the policy cannot find what it should reinforce.",
        range="[0, 1]",
        better="lower",
        moved_by="Prompts that are too hard for the policy, small groups, a verifier that refuses right answers.",
        source="A kind of frac_reward_zero_std.",
        path="frac_all_fail",
    ),
    _degeneracy_metric(
        name="frac_tied",
        title="tied",
        formula="(number of degenerate groups that are neither all pass nor all fail) / (number of groups)",
        meaning="Share of groups with equal rewards where no success threshold says whether that is a pass or a fail.",
        range="[0, 1]",
        better="lower",
        moved_by="Rewards with few levels, a reward function that ignores what differs between completions.",
        source="A kind of frac_reward_zero_std.",
        path="frac_tied",
    ),
    _degeneracy_metric(
        name="pass_rate",
        title="pass rate",
        formula="p = mean over groups of (passing rollouts) / (rollouts)",
        meaning="How often a rollout passes; a rollout passes when its reward reaches the success threshold.",
        range="[0, 1]",
        better="higher",
        moved_by="The policy, the difficulty of the prompts, the verifier.",
        source="Pass rate; pass@1 where each prompt has one group.",
        path="pass_rate",
    ),
    _degeneracy_metric(
        name="iid_prediction",
        title="i.i.d. prediction",
        formula="mean over groups of p^G + (1-p)^G",
        meaning="Share of degenerate groups if every rollout of every prompt were a coin flip with the same p.",
        range="[0, 1]",
        better="neither",
        moved_by="p near 0 or 1, small G.",
        source="The binomial distribution.",
        path="iid_prediction",
    ),
    _degeneracy_metric(
        name="jensen_gap",
        title="Jensen gap",
        formula="frac_reward_zero_std - iid_prediction",
        meaning="Degenerate groups beyond the prediction. p^G + (1-p)^G is convex, so a spread of pass rates between "
        "prompts or over time makes more dead groups than their mean does, and never fewer: a difference below 0 is 0, "
        "unless the p of the prediction is given.",
        range="[-1, 1]",
        better="lower",
        moved_by="Prompts of very different difficulty; a pass rate that moves during the run.",
        source="Jensen's inequality; 2 Var(p_x) in the population at G = 2, 3 Var(p_x) at G = 3.",
        path="jensen_gap",
    ),
    _degeneracy_metric(
        name="relative_gap",
        title="gap over prediction",
        formula="jensen_gap / iid_prediction",
        meaning="How many times the prediction the gap is: 1 where twice as many groups are dead as coin flips make.",
        range="[-1, inf)",
        better="lower",
        moved_by="As the Jensen gap; p near 1/2 and large groups, where the prediction is next to nothing.",
        source="A ratio of the two; interval as of a difference of logarithms (Zou & Donner 2008).",
        path="relative_gap",
    ),
    _degeneracy_metric(
        name="gap_between_prompts",
        title="gap between prompts",
        formula="jensen_gap - gap_over_time",
        meaning="The part of the Jensen gap within steps: groups of one step differ, by their prompts or by what their "
        "rollouts share.",
        range="[-1, 1]",
        better="lower",
        moved_by="The mix of prompts in a step.",
        source="Exact decomposition: adds up to jensen_gap with gap_over_time.",
        path="gap_decomposition.between_prompts",
    ),
    _degeneracy_metric(
        name="gap_over_time",
        title="gap over time",
        formula="(J-1)/J (sum over steps s of w_s u_s - u), u the mean over choices of G different prompts of prod x + "
        "prod (1 - x), w_s a step's share of the J groups",
        meaning="The part of the Jensen gap that pooling makes: the pass rate moves between steps. Steps with too few "
        "prompts for G different ones are taken together.",
        range="[-1, 1]",
        better="neither",
        moved_by="Learning, a curriculum.",
        source="U-statistic (Hoeffding 1948): p^G at the mean of few groups is biased upward, this is not.",
        path="gap_decomposition.over_time",
    ),
    _degeneracy_metric(
        name="degeneracy",
        title="degenerate groups at G",
        formula="mean over groups of sum over reward levels l of C(c_l, G) / C(n, G)",
        meaning="Share of degenerate groups at a group size G up to the n rollouts that were logged, without bias. "
        "For binary rewards: [C(c, G) + C(n-c, G)] / C(n, G). Beyond n it is forecast from the distribution of pass "
        "rates.",
        range="[0, 1]",
        better="lower",
        moved_by=_DIFFICULTY,
        source="U-statistic (Hoeffding 1948); the plug-in p^G + (1-p)^G is biased upward.",
    ),
    *SIGNAL_METRICS,
)


SAMPLE_METRICS: tuple[Metric, ...] = (
    _sample_metric(
        name="pass_at_k",
        title="pass@k",
        formula="mean over prompts of 1 - C(n-c, k) / C(n, k)",
        meaning="Chance that at least one of k samples is correct, without bias; undefined where k > n.",
        range="[0, 1]",
        better="higher",
        moved_by="The policy and the temperature: a policy that searches less gains at k = 1 and loses at large k.",
        source="Chen et al. 2021 (HumanEval), arXiv 2107.03374, equation 1.",
    ),
    _sample_metric(
        name="pass_hat_k",
        title="pass^k",
        formula="mean over prompts of C(c, k) / C(n, k)",
        meaning="Chance that all k samples are correct, without bias: how far a success can be relied on.",
        range="[0, 1]",
        better="higher",
        moved_by="The policy and the temperature.",
        source="Yao et al. 2024 (tau-bench), arXiv 2406.12045.",
    ),
    _sample_metric(
        name="compression_factor",
        title="compression factor m",
        formula="least m with pass@(m k) of the first policy >= pass@k of the second, straight between budgets",
        meaning="How many times the samples of the second policy the first needs to solve as many prompts. The best of "
        "8 samples of the first has m = 8 at every k; it rises with k where the second solves prompts that the first "
        "cannot. Undefined where m k is beyond the first's samples: a lower bound then stands beside it.",
        range="[0, inf)",
        better="neither",
        moved_by="Training that finds the same answers with fewer samples; prompts solved anew; a lower temperature.",
        source="Defined here.",
    ),
    _sample_metric(
        name="frac_won",
        title="won at the largest k",
        formula="mean over prompts of max(pass@k of the second - pass@k of the first, 0)",
        meaning="What the second policy gains at the largest k on the prompts that it is ahead on.",
        range="[0, 1]",
        better="neither",
        moved_by="Prompts solved anew; chance, where a prompt is solved by few of n samples.",
        source="Defined here.",
    ),
    _sample_metric(
        name="frac_lost",
        title="lost at the largest k",
        formula="mean over prompts of max(pass@k of the first - pass@k of the second, 0)",
        meaning="What the second policy loses at the largest k on the prompts that it is behind on.",
        range="[0, 1]",
        better="neither",
        moved_by="Prompts no longer solved; chance, where a prompt is solved by few of n samples.",
        source="Defined here.",
    ),
)
