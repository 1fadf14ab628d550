"""Catalogue: what `gradscope compare` says of runs and of pairs of them. Letters: n pairs of runs of one seed."""

from __future__ import annotations

from functools import partial

from gradscope.catalog.entry import Metric

_compare_metric = partial(Metric, command="compare")

COMPARE_METRICS: tuple[Metric, ...] = (
    _compare_metric(
        name="train_reward",
        title="mean train reward",
        formula="mean over steps of the mean reward of the step's rollouts",
        meaning="How much a run earned while it was trained: the area under its learning curve, so it counts speed.",
        range="[0, 1], as the rewards of the tasks",
        better="higher",
        moved_by="The formulation, the learning rate, the prompts, the length of the run.",
        source="The trainer's log, averaged.",
    ),
    _compare_metric(
        name="reward_drawdown",
        title="largest fall of reward",
        formula="max over s < t of (R_s - R_t), R the mean train reward of each tenth of the run",
        meaning="How much of what a run had reached it lost again: near zero for a stable run.",
        range="[0, 1]",
        better="lower",
        moved_by="A learning rate that is too high, advantages that push without bound.",
        source="The largest drawdown of finance, on tenths so that the noise of single steps does not count.",
    ),
    _compare_metric(
        name="mean_frac_reward_zero_std",
        title="degenerate over the run",
        formula="mean over steps of (degenerate groups of the step) / (groups of the step)",
        meaning="The share of groups that gave a group-relative formulation nothing to learn from.",
        range="[0, 1]",
        better="neither",
        moved_by="Prompts that are solved or hopeless: it rises as training succeeds.",
        source="frac_reward_zero_std, averaged over the run.",
    ),
    _compare_metric(
        name="frac_incoherent",
        title="rewarded, but incoherent",
        formula="(rollouts with a reward of at least 0.5 and a wrong or missing step) / (rollouts with such a reward)",
        meaning="How often a run rewarded reasoning that does not hold: an answer that was right by luck, or likely "
        "whatever stood before it.",
        range="[0, 1]",
        better="lower",
        moved_by="A reward that the answer's probability makes, and tasks whose errors cancel.",
        source="Ours; over all steps of the run, on tasks whose steps before the answer can be checked.",
    ),
    _compare_metric(
        name="kilotokens_per_step",
        title="1000 tokens a step",
        formula="tokens of all sampled prompts and completions, thrown away ones included, over 1000 x steps",
        meaning="What a step cost to sample: more under dynamic sampling, which throws dead groups away.",
        range="[0, inf)",
        better="lower",
        moved_by="Dead groups that are resampled, and the length of completions.",
        source="TRL's num_tokens, over the run.",
    ),
    _compare_metric(
        name="paired_difference",
        title="paired difference",
        formula="mean over seeds of (second - first), 95 % interval +- t(n-1) sd / sqrt(n)",
        meaning="What changing the one thing did, with all that the seed decides held equal.",
        range="that of the metric",
        better="neither",
        moved_by="The one thing that differs, and chance in sampling.",
        source="Student's paired t.",
    ),
    _compare_metric(
        name="p_value",
        title="p, paired t test",
        formula="2 P(T > |mean| / (sd / sqrt(n))), T of Student's t with n - 1 degrees of freedom",
        meaning="How often chance alone would give a difference as large, were differences normal around zero.",
        range="[0, 1]",
        better="neither",
        moved_by="The size of the difference against its spread, and the number of seeds.",
        source="Student 1908.",
    ),
    _compare_metric(
        name="sign_flip_p_value",
        title="p, sign flips",
        formula="share of the 2^n sign flips of the differences (100,000 beyond n = 20) whose mean is as far from zero",
        meaning="The same question without the assumption that differences are normal; never below 2 / 2^n.",
        range="(0, 1]",
        better="neither",
        moved_by="Whether all seeds agree in sign, and their number.",
        source="Fisher 1935, the permutation test of paired differences.",
    ),
    _compare_metric(
        name="sign_flip_p_holm",
        title="p corrected, sign flips",
        formula="p_holm of the sign_flip_p_value of all pairs of 8 seeds or more",
        meaning="At most 0.05 decides: what chance would do in no more than 5 of 100 comparisons of equal arms.",
        range="(0, 1]",
        better="neither",
        moved_by="The number of seeds, above all; the number of metrics and pairs that are looked at.",
        source="Fisher 1935 and Holm 1979.",
    ),
    _compare_metric(
        name="least_detectable",
        title="least detectable difference",
        formula="sd d, with 80 % power at the level 0.05 / m of the smallest of m p-values: P(|T| > t) = 0.8 at "
        "d sqrt(n), or Phi(d)^n = 0.8 where all n must agree in sign",
        meaning="A difference this large would be decided in four of five such comparisons; smaller ones may be there.",
        range="[0, inf)",
        better="lower",
        moved_by="More seeds, fewer tests, metrics that vary less between seeds.",
        source="Power of the t test (Student 1908; Cohen 1988), and of unanimous signs.",
    ),
    _compare_metric(
        name="p_holm",
        title="p corrected",
        formula="the i-th smallest of m p-values times m - i + 1, never less than a smaller one's",
        meaning="The p-value of the t test with the number of tests taken into account; up to 0.05 it suggests.",
        range="[0, 1]",
        better="neither",
        moved_by="The number of metrics and pairs that are looked at.",
        source="Holm 1979, A simple sequentially rejective multiple test procedure.",
    ),
)
