"""Catalogue: groups without a gradient, what they cost, and how pass rates spread.

Letters: J groups of G rollouts, p pass rate, n rollouts of a prompt, c of them passing.
"""

from __future__ import annotations

from functools import partial

from gradscope.catalog.entry import Metric

_degeneracy_metric = partial(Metric, command="degeneracy", path="{0}")
_lower_is_better = partial(_degeneracy_metric, better="lower")
_row_metric = partial(_degeneracy_metric, path="")
_signed_metric = partial(_degeneracy_metric, range="[-1, 1]")
_sample_metric = partial(Metric, command="passk")
_DIFFICULTY = "Prompts that are too hard or too easy for the policy, small groups, rewards with few levels."

GROUP_METRICS: dict[str, Metric] = {
    "frac_reward_zero_std": _lower_is_better(
        title="degenerate groups",
        formula="(number of groups with max(r) - min(r) <= 1e-8) / (number of groups)",
        meaning="Share of groups whose rollouts all have the same reward. A group-mean baseline gives each of them "
        "zero advantage, so the group contributes nothing to the policy gradient. Such groups are also called dead.",
        moved_by=_DIFFICULTY,
        source="TRL logs it under this name; arXiv 2605.07689 studies it.",
    ),
    "frac_set_aside": _lower_is_better(
        title="rollouts set aside",
        formula="(rollouts of rows that cannot be used as they are) / (all rollouts)",
        meaning="Share of the log's rollouts that no number is made of: lines that are no JSON, rewards that are "
        "missing or not finite, rows that contradict each other; and of those whose logged advantage is not finite. A "
        "row is a rollout; where a line holds many, one that cannot be read counts as many as the others hold. A gate "
        "fails beyond 0.1 unless it names another limit.",
        moved_by="Logs that were cut off, copied badly or written by two programs, and reward functions that fail.",
        source="gradscope's own reading of the log.",
    ),
    "frac_zero_std_sampled": _lower_is_better(
        title="dead of all sampled",
        formula="(dead groups in the log + groups dropped for equal rewards) / (all groups that were sampled)",
        meaning="Share of dead groups before the trainer's filter hid some of them: the policy's own share, where "
        "frac_reward_zero_std is that of the groups that were kept, a lower bound.",
        moved_by=_DIFFICULTY,
        source="Counters of verl, slime, open-instruct and gradscope's own sampling, named in docs/degeneracy.md.",
        path="behind_filter.frac_zero_std_sampled",
    ),
    "frac_all_pass": _lower_is_better(
        title="all pass",
        formula="(number of degenerate groups whose rollouts all pass) / (number of groups)",
        meaning="Share of groups that are solved: nothing is left to learn from them at this group size.",
        moved_by="Prompts that are too easy for the policy; it rises as training succeeds.",
        source="A kind of frac_reward_zero_std.",
    ),
    "frac_all_fail": _lower_is_better(
        title="all fail",
        formula="(number of degenerate groups whose rollouts all fail) / (number of groups)",
        meaning="Share of groups without one success: the policy cannot find what it should reinforce.",
        moved_by="Prompts that are too hard for the policy, small groups, a verifier that refuses right answers.",
        source="A kind of frac_reward_zero_std.",
    ),
    "frac_tied": _lower_is_better(
        title="tied",
        formula="(number of degenerate groups that are neither all pass nor all fail) / (number of groups)",
        meaning="Share of groups with equal rewards where no success threshold says whether that is a pass or a fail.",
        moved_by="Rewards with few levels, a reward function that ignores what differs between completions.",
        source="A kind of frac_reward_zero_std.",
    ),
    "pass_rate": _degeneracy_metric(
        title="pass rate",
        formula="p = mean over groups of (passing rollouts) / (rollouts)",
        meaning="How often a rollout passes; a rollout passes when its reward reaches the success threshold.",
        better="higher",
        moved_by="The policy, the difficulty of the prompts, the verifier.",
        source="Pass rate; pass@1 where each prompt has one group.",
    ),
    "iid_prediction": _degeneracy_metric(
        title="i.i.d. prediction",
        formula="mean over groups of p^G + (1-p)^G",
        meaning="Share of degenerate groups if every rollout of every prompt were a coin flip with the same p.",
        moved_by="p near 0 or 1, small G.",
        source="The binomial distribution.",
    ),
    "jensen_gap": _lower_is_better(
        title="Jensen gap",
        formula="frac_reward_zero_std - iid_prediction",
        meaning="Degenerate groups beyond the prediction. p^G + (1-p)^G is convex, so a spread of pass rates between "
        "prompts or over time makes more dead groups than their mean does, and never fewer: a difference below 0 is 0, "
        "unless the p of the prediction is given.",
        range="[-1, 1]",
        moved_by="Prompts of very different difficulty; a pass rate that moves during the run.",
        source="Jensen's inequality; 2 Var(p_x) in the population at G = 2, 3 Var(p_x) at G = 3.",
    ),
    "relative_gap": _lower_is_better(
        title="gap over prediction",
        formula="jensen_gap / iid_prediction",
        meaning="How many times the prediction the gap is: 1 where twice as many groups are dead as coin flips make.",
        range="[-1, inf)",
        moved_by="As the Jensen gap; p near 1/2 and large groups, where the prediction is next to nothing.",
        source="A ratio of the two; interval as of a difference of logarithms (Zou & Donner 2008).",
    ),
    "gap_between_prompts": _lower_is_better(
        title="gap between prompts",
        formula="jensen_gap - gap_over_time",
        meaning="The part of the Jensen gap within steps: groups of one step differ, by their prompts or by what their "
        "rollouts share.",
        range="[-1, 1]",
        moved_by="The mix of prompts in a step.",
        source="Exact decomposition: adds up to jensen_gap with gap_over_time.",
        path="gap_decomposition.between_prompts",
    ),
    "gap_over_time": _signed_metric(
        title="gap over time",
        formula="(J-1)/J (sum over steps s of w_s u_s - u), u the mean over choices of G different prompts of prod x + "
        "prod (1 - x), w_s a step's share of the J groups",
        meaning="The part of the Jensen gap that pooling makes: the pass rate moves between steps. Steps with too few "
        "prompts for G different ones are taken together.",
        moved_by="Learning, a curriculum.",
        source="U-statistic (Hoeffding 1948): p^G at the mean of few groups is biased upward, this is not.",
        path="gap_decomposition.over_time",
    ),
    "degeneracy": _lower_is_better(
        title="degenerate groups at G",
        formula="mean over groups of sum over reward levels l of C(c_l, G) / C(n, G)",
        meaning="Share of degenerate groups at a group size G up to the n rollouts that were logged, without bias. "
        "For binary rewards: [C(c, G) + C(n-c, G)] / C(n, G). Beyond n it is forecast from the distribution of pass "
        "rates.",
        moved_by=_DIFFICULTY,
        source="U-statistic (Hoeffding 1948); the plug-in p^G + (1-p)^G is biased upward.",
        path="",
    ),
    "starvation.frac_rollouts": _lower_is_better(
        title="rollouts without a gradient",
        formula="(rollouts in degenerate groups) / (rollouts)",
        meaning="Share of the sampled rollouts that a group-mean baseline throws away.",
        moved_by="As frac_reward_zero_std; differs from it where groups differ in size.",
        source="A ratio of counts.",
    ),
    "starvation.frac_tokens": _lower_is_better(
        title="tokens without a gradient",
        formula="(completion tokens in degenerate groups) / (completion tokens)",
        meaning="Share of the generated tokens that gave no gradient: what the dead groups cost to sample.",
        moved_by="Dead groups with long completions, such as failures that run to the length limit.",
        source="A ratio of counts; needs logged token ids.",
    ),
    "starvation.frac_generation_time": _lower_is_better(
        title="generation time without a gradient",
        formula="(seconds of generating rollouts of degenerate groups) / (seconds of generating all rollouts)",
        meaning="Share of the sampler's time that gave no gradient, as if rollouts had been generated one by one.",
        moved_by="Dead groups whose rollouts take long: failures that run to the length limit, or take many turns.",
        source="A ratio of sums; needs logged times of single rollouts.",
    ),
    "starvation.tokens_per_rollout": _degeneracy_metric(
        title="tokens a rollout",
        formula="(completion tokens) / (rollouts)",
        meaning="Mean length of a completion, which turns rollouts into cost.",
        range="[0, inf)",
        moved_by="The policy, the length limit.",
        source="A ratio of counts; needs logged token ids.",
    ),
    "starvation.batch_size": _degeneracy_metric(
        title="rollouts a step",
        formula="(rollouts) / (steps)",
        meaning="Mean number of rollouts that an update had.",
        range="[2, inf)",
        moved_by="The configuration.",
        source="A ratio of counts.",
    ),
    "starvation.effective_batch_size": _degeneracy_metric(
        title="effective batch size",
        formula="(rollouts in groups that are not degenerate) / (steps)",
        meaning="Mean number of rollouts that could move the policy.",
        range="[0, batch size]",
        better="higher",
        moved_by="Degenerate groups.",
        source="A ratio of counts.",
    ),
    "starvation.dilution": _degeneracy_metric(
        title="loss scale",
        formula="1 - (rollouts in degenerate groups) / (rollouts)",
        meaning="Factor by which dead rollouts in the denominator shrink a loss averaged over all rollouts.",
        better="higher",
        moved_by="Degenerate groups; token-averaged losses shrink by the share of tokens instead.",
        source="Arithmetic of a mean over rollouts.",
    ),
    "starvation.resampling_factor": _lower_is_better(
        title="resampling factor",
        formula="1 / (1 - frac_reward_zero_std)",
        meaning="Groups to sample for each live one when dead groups are drawn anew until the batch is full.",
        range="[1, inf)",
        moved_by="Degenerate groups.",
        source="Mean of the geometric distribution; dynamic sampling: DAPO, arXiv 2503.14476.",
    ),
    "overdispersion.rate_variance": _degeneracy_metric(
        title="variance of pass rates",
        formula="Var(c/n) with J - 1 - mean of (c/n)(1 - c/n) / (n - 1)",
        meaning="Var(p_x): how much groups differ in pass rate, without the noise of few rollouts.",
        range="[-1/4, 1/2]",
        moved_by="The mix of prompts; learning, where steps are pooled.",
        source="Method of moments, unbiased; the Jensen gap of the population is twice it at G = 2.",
    ),
    "overdispersion.between_prompts": _signed_metric(
        title="variance that stays with the prompt",
        formula="mean over pairs of visits of a prompt of the product of c/n minus the rest of its step",
        meaning="Of the variance of pass rates within steps, what is still there when a prompt returns.",
        moved_by="The mix of prompts.",
        source="Method of moments; prompts are resampled.",
    ),
    "overdispersion.between_visits": _signed_metric(
        title="variance of the visit",
        formula="mean of c (c - 1) / n (n - 1) - c/n times the rest of the step, minus overdispersion.between_prompts",
        meaning="Of the variance of pass rates within steps, what is gone when a prompt returns: what rollouts of a "
        "group share, such as a judge, a cache or a failure, and what training did to single prompts.",
        moved_by="Rollouts of a group that are graded or sampled together; learning.",
        source="Method of moments; prompts are resampled.",
    ),
    "overdispersion.z": _degeneracy_metric(
        title="over-dispersion z",
        formula="(mean over deals - sum of c (n-c)) / (standard deviation over deals), outcomes dealt within steps",
        meaning="Standard deviations by which fewer pairs of a group disagree than if one pass rate held for all "
        "prompts of a step.",
        range="(-inf, inf)",
        moved_by="Prompts that differ; a filter that drops dead groups makes it negative.",
        source="Factorial moments of the multivariate hypergeometric distribution.",
    ),
    "overdispersion.p_value": _degeneracy_metric(
        title="over-dispersion p",
        formula="share of deals with no more disagreeing pairs than observed",
        meaning="Chance of so few disagreeing pairs under the i.i.d. hypothesis.",
        range="(0, 1]",
        moved_by="As over-dispersion z, and the number of groups.",
        source="Permutation test within steps: 1,999 deals, 199 where these are dear, none beyond z = 44.7 (Cantelli).",
    ),
    "pass_rates.beta_a": _degeneracy_metric(
        title="beta shape a",
        formula="argmax over a, b of sum log C(n, c) B(c + a, n - c + b) / B(a, b): its a",
        meaning="First shape of the beta distribution of pass rates: below 1 it has a peak at 0.",
        range="(0, inf)",
        moved_by="The mix of prompts.",
        source="Beta-binomial distribution, Skellam 1948.",
    ),
    "pass_rates.beta_b": _degeneracy_metric(
        title="beta shape b",
        formula="argmax over a, b of sum log C(n, c) B(c + a, n - c + b) / B(a, b): its b",
        meaning="Second shape of the beta distribution of pass rates: below 1 it has a peak at 1.",
        range="(0, inf)",
        moved_by="The mix of prompts.",
        source="Beta-binomial distribution, Skellam 1948.",
    ),
    "pass_rates.at_zero": _degeneracy_metric(
        title="inflation at 0",
        formula="argmax over a, b, z, o of the likelihood of z [c = 0] + o [c = n] + (1 - z - o) beta-binomial: its z",
        meaning="Share of prompts that never pass, on top of the beta distribution; 0 unless it earns its parameter.",
        moved_by="Prompts out of reach.",
        source="Zero-and-one-inflated beta-binomial; inflations chosen by the criterion of Schwarz 1978.",
    ),
    "pass_rates.at_one": _degeneracy_metric(
        title="inflation at 1",
        formula="argmax over a, b, z, o of the likelihood of z [c = 0] + o [c = n] + (1 - z - o) beta-binomial: its o",
        meaning="Share of prompts that always pass, on top of the beta distribution; 0 unless it earns its parameter.",
        moved_by="Prompts that are too easy.",
        source="Zero-and-one-inflated beta-binomial; inflations chosen by the criterion of Schwarz 1978.",
    ),
    "pass_rates.goodness_of_fit": _degeneracy_metric(
        title="goodness of fit",
        formula="P(chi2 >= sum (observed - expected)^2 / expected) over cells of c joined to at least 5 expected",
        meaning="p-value of the inflated beta-binomial: forecasts are refused below 0.05.",
        moved_by="Pass rates with several peaks, many groups.",
        source="Pearson 1900.",
    ),
    "pass_rates.frac_hopeless": _lower_is_better(
        title="hopeless prompts",
        formula="mass of the NPMLE at p <= 0.01",
        meaning="Share of groups whose prompt hardly ever passes, however many rollouts are drawn.",
        moved_by="Prompts that are too hard; few rollouts a group leave it uncertain.",
        source="Non-parametric maximum likelihood, Laird 1978, on a grid.",
    ),
    "pass_rates.frac_solved": _degeneracy_metric(
        title="solved prompts",
        formula="mass of the NPMLE at p >= 0.99",
        meaning="Share of groups whose prompt hardly ever fails.",
        moved_by="Prompts that are too easy; training.",
        source="Non-parametric maximum likelihood, Laird 1978, on a grid.",
    ),
    "frac_reward_conflict": _lower_is_better(
        title="decided by side rewards",
        formula="(groups whose rewards differ while the main function's are equal) / (number of groups)",
        meaning="Share of groups in which the main reward function, named by --reward or the one of 0 and 1, is tied, "
        "so that others make all of the gradient.",
        moved_by="A small reward next to the main one, such as a length penalty: divided by the standard deviation of "
        "a group that only it tells apart, it counts as much as the main one does elsewhere.",
        source="Defined here; needs a reward that is a weighted sum of functions in the log.",
    ),
    "by_reward.frac_tied": _lower_is_better(
        title="ties of a reward function",
        formula="(groups with max(r_k) - min(r_k) <= 1e-8) / (number of groups)",
        meaning="Share of groups whose rollouts one reward function does not tell apart.",
        moved_by="Functions with few levels, a format that all completions have, prompts too hard or too easy.",
        source="A ratio of counts, for each function.",
        path="",
    ),
    "by_reward.advantage_share": _row_metric(
        title="share of the squared advantage",
        formula="sum of A A_k / sum of A^2, A_k = s w_k (r_k - its group's mean), s the A of a unit of the reward's "
        "deviation from its group's mean",
        meaning="How much of the squared advantage a reward function makes. The parts A_k add up to A and the shares "
        "to 1; a negative one pulls against the others. A and s are the logged ones, else those of the trainer's "
        "arguments (scale_rewards); undefined without either.",
        range="(-inf, inf)",
        moved_by="The function's weight and spread within groups, and what advantages are divided by: a small reward "
        "that alone differs in a group has all of an advantage that is divided by that group's standard deviation.",
        source="Covariance decomposition, exact for advantages that are a multiple of the deviations in each group.",
    ),
    "by_reward.difference_share": _row_metric(
        title="share of the squared reward differences",
        formula="sum of d w_k d_k / sum of d^2, d the reward and d_k the function minus its group's mean",
        meaning="How much of the squared deviations of the reward it makes: its share of the squared advantage "
        "if no advantage were divided by a standard deviation.",
        range="(-inf, inf)",
        moved_by="The function's weight and spread within groups.",
        source="Covariance decomposition of the variance within groups.",
    ),
    "by_reward.correlation": _row_metric(
        title="correlation of reward functions",
        formula="sum of d_k d_l / sqrt(sum of d_k^2 sum of d_l^2), d minus the group's mean",
        meaning="Whether two reward functions prefer the same rollouts of a prompt.",
        range="[-1, 1]",
        moved_by="A side reward that conflicts with the main one, or repeats it.",
        source="Pearson's correlation, pooled within groups.",
    ),
    "advantages.positive_mass": _row_metric(
        title="positive advantage mass",
        formula="mean over rollouts of max(A, 0)",
        meaning="How much a formulation pushes up on these rewards.",
        range="[0, inf)",
        moved_by="The formulation and the rewards.",
        source="Defined here.",
    ),
    "advantages.negative_mass": _row_metric(
        title="negative advantage mass",
        formula="mean over rollouts of max(-A, 0)",
        meaning="How much a formulation pushes down on these rewards.",
        range="[0, inf)",
        moved_by="The formulation and the rewards.",
        source="Defined here.",
    ),
    "advantages.frac_zero": _lower_is_better(
        title="zero advantages",
        formula="(rollouts with A = 0) / (rollouts)",
        meaning="Share of rollouts that a formulation gives no weight.",
        moved_by="Degenerate groups, for formulations relative to the group.",
        source="Defined here.",
        path="",
    ),
}


SAMPLE_METRICS: dict[str, Metric] = {
    "pass_at_k": _sample_metric(
        title="pass@k",
        formula="mean over prompts of 1 - C(n-c, k) / C(n, k)",
        meaning="Chance that at least one of k samples is correct, without bias; undefined where k > n.",
        better="higher",
        moved_by="The policy and the temperature: a policy that searches less gains at k = 1 and loses at large k.",
        source="Chen et al. 2021 (HumanEval), arXiv 2107.03374, equation 1.",
    ),
    "pass_hat_k": _sample_metric(
        title="pass^k",
        formula="mean over prompts of C(c, k) / C(n, k)",
        meaning="Chance that all k samples are correct, without bias: how far a success can be relied on.",
        better="higher",
        moved_by="The policy and the temperature.",
        source="Yao et al. 2024 (tau-bench), arXiv 2406.12045.",
    ),
    "compression_factor": _sample_metric(
        title="compression factor m",
        formula="least m with pass@(m k) of the first policy >= pass@k of the second, straight between budgets",
        meaning="How many times the samples of the second policy the first needs to solve as many prompts. The best of "
        "8 samples of the first has m = 8 at every k; it rises with k where the second solves prompts that the first "
        "cannot. Undefined where m k is beyond the first's samples: a lower bound is then shown with it.",
        range="[0, inf)",
        moved_by="Training that finds the same answers with fewer samples; prompts solved anew; a lower temperature.",
        source="Defined here.",
    ),
    "frac_won": _sample_metric(
        title="won at the largest k",
        formula="mean over prompts of max(pass@k of the second - pass@k of the first, 0)",
        meaning="What the second policy gains at the largest k on the prompts that it is ahead on.",
        moved_by="Prompts solved anew; chance, where a prompt is solved by few of n samples.",
        source="Defined here.",
    ),
    "frac_lost": _sample_metric(
        title="lost at the largest k",
        formula="mean over prompts of max(pass@k of the first - pass@k of the second, 0)",
        meaning="What the second policy loses at the largest k on the prompts that it is behind on.",
        moved_by="Prompts no longer solved; chance, where a prompt is solved by few of n samples.",
        source="Defined here.",
    ),
}
