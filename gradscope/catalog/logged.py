"""Catalogue: what a log alone says of its policy, and what `gradscope compare` says of runs and pairs of runs.

Letters: w = p_trainer / p_sampler of N tokens, W its product over a sequence; n pairs of runs of one seed.
"""

from __future__ import annotations

from functools import partial

from gradscope.catalog.entry import Metric

_report_metric = partial(Metric, command="report", path="logged.{1}.overall.{2}")
_lower_is_better = partial(_report_metric, better="lower")
_MISMATCH = "Stale weights, another precision or kernel in the sampler, a temperature or top-p that one side applies."
_LONG = f"{_MISMATCH} Long completions: the differences of their tokens add up."
_mismatch_metric = partial(_report_metric, better="lower", moved_by=_MISMATCH)

LOGGED_METRICS: dict[str, Metric] = {
    "sampler.token_ess": _report_metric(
        title="effective share of tokens",
        formula="(sum of w)^2 / (N sum of w^2)",
        meaning="Share of the tokens that a gradient with each token's ratio as weight is worth; 1 where sampler and "
        "trainer agree.",
        better="higher",
        moved_by=_MISMATCH,
        source="Kish 1965; verl logs rollout_corr/rollout_is_eff_sample_size, of ratios that it has cut. Such a "
        "mismatch as a cause of collapse: arXiv 2605.14220.",
    ),
    "sampler.sequence_ess": _report_metric(
        title="effective share of sequences",
        formula="(sum of W)^2 / (S sum of W^2), W the product of w over a sequence, S sequences",
        meaning="Share of the sequences that a gradient with each sequence's ratio as weight is worth. Near 1/S one "
        "sequence is all there is.",
        better="higher",
        moved_by=_LONG,
        source="Kish 1965, of the ratios of sequences.",
    ),
    "sampler.chi2_token": _mismatch_metric(
        title="chi-square of tokens",
        formula="mean over tokens of w^2 - 1",
        meaning="Chi-square divergence of the trainer's policy from the sampler's, the variance of the ratio; negative "
        "by chance, or where the sampler's log-probabilities are not those that it sampled from.",
        range="[-1, inf)",
        source="E w^2 - 1 under the sampler; verl logs it as rollout_corr/chi2_token. arXiv 2605.14220.",
    ),
    "sampler.chi2_sequence": _lower_is_better(
        title="chi-square of sequences",
        formula="mean over sequences of W^2 - 1, W the product of w over a sequence",
        meaning="Variance of the ratio of whole sequences. A few decide it: read it together with the effective share.",
        range="[-1, inf)",
        moved_by=_LONG,
        source="E W^2 - 1 under the sampler; verl logs it as rollout_corr/chi2_seq, its log-ratios clamped at 20.",
    ),
    "sampler.kl_k1": _report_metric(
        title="KL of sampler and trainer, k1",
        formula="mean over tokens of -log w",
        meaning="KL(sampler, trainer) a token. Unbiased, and noisy: it can be negative.",
        range="(-inf, inf)",
        moved_by=_MISMATCH,
        source="Schulman 2020, Approximating KL divergence; verl logs it as rollout_corr/kl.",
    ),
    "sampler.kl_k3": _mismatch_metric(
        title="KL of sampler and trainer, k3",
        formula="mean over tokens of w - 1 - log w",
        meaning="KL(sampler, trainer) a token with less noise than k1, and never negative. Where k1 and k3 are far "
        "apart, the log-probabilities are not those of the distribution that was sampled from.",
        range="[0, inf)",
        source="Schulman 2020, Approximating KL divergence; verl logs it as rollout_corr/k3_kl.",
    ),
    "sampler.frac_beyond_2": _mismatch_metric(
        title="ratio beyond 2",
        formula="(tokens with w < 1/2 or w > 2) / N",
        meaning="Share of tokens on which sampler and trainer differ by more than a factor of two, the usual bound of "
        "truncated importance sampling.",
        source="Definition; 2 is verl's default rollout_is_threshold.",
    ),
    "sampler.frac_beyond_clip": _mismatch_metric(
        title="ratio beyond the clip",
        formula="(tokens with w < 0.8 or w > 1.2) / N",
        meaning="Share of tokens whose ratio is outside PPO's usual bounds before the first update.",
        source="Definition; 0.2 is the usual clip of Schulman et al. 2017, arXiv 1707.06347.",
    ),
    "sampler.frac_clipped": _mismatch_metric(
        title="clipped by the mismatch",
        formula="(tokens with A > 0 and w > 1.2, or A < 0 and w < 0.8) / N",
        meaning="Share of tokens whose gradient PPO's clip would take before the first update, were the ratio that to "
        "the sampler.",
        source="The clipped objective of Schulman et al. 2017, arXiv 1707.06347, at 0.2.",
    ),
    "entropy.mean": _report_metric(
        title="entropy",
        formula="mean over tokens of -sum over the vocabulary of p log p, in nats",
        meaning="How undecided the policy is. A fall towards 0 means that it stops exploring, a steep rise that it "
        "falls apart.",
        range="[0, inf)",
        moved_by="Temperature, an entropy bonus, KL to a reference, prompts that are solved.",
        source="Shannon 1948; of each token where the log has it, else the trainer's own metric of it.",
    ),
    "staleness.mean_lag": _lower_is_better(
        title="mean lag",
        formula="mean over rollouts of N - 1 - v, v the updates behind the weights of the first token, at update N",
        meaning="How many updates the weights that sampled are behind those that are updated; 0 is on-policy.",
        range="[0, inf)",
        moved_by="Asynchronous generation: queue length, long completions, a bound on staleness.",
        source="Definition; prime-rl counts its off-policy steps so.",
    ),
    "staleness.max_lag": _lower_is_better(
        title="largest lag",
        formula="max over rollouts of N - 1 - v",
        meaning="The stalest rollout.",
        range="[0, inf)",
        moved_by="As the mean lag; the longest completion.",
    ),
    "staleness.frac_above_1": _lower_is_better(
        title="lag above one",
        formula="(rollouts with N - 1 - v > 1) / (rollouts)",
        meaning="Share of rollouts that are staler than one update, which pipelined training has anyway.",
        moved_by="As the mean lag.",
    ),
    "staleness.frac_mixed": _report_metric(
        title="sampled by several weights",
        formula="(rollouts whose last token was sampled by later weights than the first) / (rollouts)",
        meaning="Share of rollouts during which the weights were changed.",
        moved_by="Weight updates that do not wait for generation; long completions.",
    ),
    "generation.frac_truncated": _lower_is_better(
        title="truncated",
        formula="(completions cut off at the length limit) / (completions whose end is known)",
        meaning="Share of completions without an end, which a verifier mostly fails.",
        moved_by="The length limit; a policy that grows longer.",
        source="A ratio of counts; where only the trainer logged it, its completions/clipped_ratio.",
    ),
    "generation.seconds": _lower_is_better(
        title="seconds a completion",
        formula="mean over rollouts of the seconds of generating it",
        meaning="What a completion costs in time.",
        range="[0, inf)",
        moved_by="Length, load of the sampler, turns.",
        source="Definition; needs logged times of single rollouts.",
    ),
    "generation.slowest_over_mean": _lower_is_better(
        title="slowest over mean",
        formula="mean over steps of (seconds of the slowest rollout) / (mean seconds of the step's rollouts)",
        meaning="How much longer a step that waits for all of its rollouts takes than its mean one.",
        range="[1, inf)",
        moved_by="A few very long completions; asynchronous generation makes it harmless.",
    ),
}


_spike_metric = partial(Metric, command="spike")

SPIKE_METRICS: dict[str, Metric] = {
    "deviation": _spike_metric(
        title="standard deviations from the steps around",
        formula="(log x - log m) / (1.4826 median |log x_j - log m|), j the 50 nearest steps; no logs where some x < 0",
        meaning="How far a step's gradient norm, KL or loss stands out. A step is named where it lies above what the "
        "furthest of as many steps exceeds in one run of twenty (Student's quantile, for the spread is estimated). "
        "`check` takes that of the step that stands out most.",
        range="(-inf, inf)",
        better="lower",
        moved_by="One update that went wrong; a course that bends within 50 steps widens the spread and hides it.",
        source="Median absolute deviation (Hampel 1974); the bound by simulation in gradscope's docs.",
        path="metrics.deviation",
    ),
    "norm_without": _spike_metric(
        title="norm without it",
        formula="sqrt(1' G 1 - 2 (G 1)_i + G_ii)",
        meaning="What the step's gradient norm would have been without a rollout, the others weighed as they were.",
        range="[0, inf)",
        moved_by="As projection_share; more where a rollout is long, surprising and of large advantage at once.",
    ),
    "repeated_ngrams": _spike_metric(
        title="repeated 4-grams",
        formula="1 - distinct runs of 4 tokens / all runs of 4 tokens, within a completion",
        meaning="How much of a completion repeats itself: a model that loops comes near to 1.",
        range="[0, 1)",
        better="lower",
        moved_by="Degeneration, truncation late; lists and code repeat by nature.",
        source="seq-rep-4 of Welleck et al., Neural text generation with unlikelihood training (arXiv 1908.04319).",
    ),
    "tensor_share": _spike_metric(
        title="share of the squared norm",
        formula="|dL/dW|_F^2 / sum over parameters of the same",
        meaning="Which layers a large gradient is in, compared with their share of the parameters.",
        moved_by="A head or an embedding that a rare token reaches; an adapter at its start.",
    ),
}


_compare_metric = partial(Metric, command="compare")
_lower_compared = partial(_compare_metric, better="lower")

COMPARE_METRICS: dict[str, Metric] = {
    "train_reward": _compare_metric(
        title="mean train reward",
        formula="mean over steps of the mean reward of the step's rollouts",
        meaning="How much a run earned while it was trained: the area under its learning curve, so it counts speed.",
        range="[0, 1], as the rewards of the tasks",
        better="higher",
        moved_by="The formulation, the learning rate, the prompts, the length of the run.",
        source="The trainer's log, averaged.",
    ),
    "reward_trend": _compare_metric(
        title="trend of reward",
        formula="b (s_last - s_first), b the slope of the least-squares line through the mean reward of each step",
        meaning="Whether a run learned or lost: one that rises and one that falls may have one mean train reward.",
        range="(-inf, inf)",
        better="higher",
        moved_by="As train_reward; a curve that bends rises by more or less than its line.",
        source="The trainer's log; of two runs with the same steps, the line of their difference.",
    ),
    "reward_drawdown": _lower_compared(
        title="largest fall of reward",
        formula="max over s < t of (R_s - R_t), R the mean train reward of each tenth of the run",
        meaning="How much of what a run had reached it lost again: near zero for a stable run.",
        moved_by="A learning rate that is too high, advantages that push without bound.",
        source="The largest drawdown of finance, on tenths so that the noise of single steps does not count.",
    ),
    "mean_frac_reward_zero_std": _compare_metric(
        title="degenerate over the run",
        formula="mean over steps of (degenerate groups of the step) / (groups of the step)",
        meaning="The share of groups that gave a group-relative formulation nothing to learn from.",
        moved_by="Prompts that are solved or hopeless: it rises as training succeeds.",
        source="frac_reward_zero_std, averaged over the run.",
    ),
    **{
        f"completion_{unit}{trend}": _compare_metric(
            title=f"{title}{unit} a completion",
            formula=formula.format(unit),
            meaning="Whether one run answers at greater length than another, or comes to.",
            range="(-inf, inf)" if trend else "[0, inf)",
            moved_by="How the loss is normalized, the length limit, a reward that longer answers earn.",
            source=f"The rollouts' {'token ids' if unit == 'tokens' else 'texts, where a run has no token ids'}.",
        )
        for unit in ("tokens", "characters")
        for trend, title, formula in (
            ("", "", "mean over steps of the mean {} of the step's completions"),
            ("_trend", "trend of ", "as reward_trend, of the mean {} of each step's completions"),
        )
    },
    **{
        f"mean_{name}": _compare_metric(
            title=f"{title} over the run",
            formula=f"mean over steps of {name} as the trainer logged it",
            meaning="Whether one run differs from another in it, where both logged it at every step.",
            range=ends,
            moved_by="What the trainer's own number moves by.",
            source="The trainer's log, averaged.",
        )
        for name, title, ends in (
            ("clipped_ratio", "completions cut off", "[0, 1]"),
            ("entropy", "entropy", "[0, inf)"),
            ("kl", "KL", "(-inf, inf)"),
            ("grad_norm", "gradient norm", "[0, inf)"),
        )
    },
    "frac_incoherent": _lower_compared(
        title="rewarded, but incoherent",
        formula="(rollouts with a reward of at least 0.5 and a wrong or missing step) / (rollouts with such a reward)",
        meaning="How often a run rewarded reasoning that does not hold: an answer that was right by luck, or likely "
        "whatever stood before it.",
        moved_by="A reward that the answer's probability makes, and tasks whose errors cancel.",
        source="Ours; over all steps of the run, on tasks whose steps before the answer can be checked.",
    ),
    "kilotokens_per_step": _lower_compared(
        title="1000 tokens a step",
        formula="tokens of all sampled prompts and completions, thrown away ones included, over 1000 x steps",
        meaning="What a step cost to sample: more under dynamic sampling, which throws dead groups away.",
        range="[0, inf)",
        moved_by="Dead groups that are resampled, and the length of completions.",
        source="TRL's num_tokens, over the run.",
    ),
    "paired_difference": _compare_metric(
        title="paired difference",
        formula="mean over seeds of (second - first), 95 % interval +- t(n-1) sd / sqrt(n)",
        meaning="What changing the one thing did, with all that the seed decides held equal.",
        range="that of the metric",
        moved_by="The one thing that differs, and chance in sampling.",
        source="Student's paired t.",
    ),
    "p_value": _compare_metric(
        title="p, paired t test",
        formula="2 P(T > |mean| / (sd / sqrt(n))), T of Student's t with n - 1 degrees of freedom",
        meaning="How often chance alone would give a difference as large, were differences normal around zero.",
        moved_by="The size of the difference against its spread, and the number of seeds.",
        source="Student 1908.",
    ),
    "sign_flip_p_value": _compare_metric(
        title="p, sign flips",
        formula="share of the 2^n sign flips of the differences (20,000 beyond n = 20) whose mean is as far from zero",
        meaning="The same question without the assumption that differences are normal; never below 2 / 2^n.",
        range="(0, 1]",
        moved_by="Whether all seeds agree in sign, and their number.",
        source="Fisher 1935, the permutation test of paired differences.",
    ),
    "sign_flip_p_holm": _compare_metric(
        title="p corrected, sign flips",
        formula="p_holm of the sign_flip_p_value of all pairs of 8 seeds or more",
        meaning="At most 0.05 decides: what chance would do in no more than 5 of 100 comparisons of equal arms.",
        range="(0, 1]",
        moved_by="The number of seeds, above all; the number of metrics and pairs that are looked at.",
        source="Fisher 1935 and Holm 1979.",
    ),
    "least_detectable": _lower_compared(
        title="least detectable difference",
        formula="sd d, with 80 % power at the level 0.05 / m of the smallest of m p-values: P(|T| > t) = 0.8 at "
        "d sqrt(n), or Phi(d)^n = 0.8 where all n must agree in sign",
        meaning="A difference this large would be decided in four of five such comparisons; smaller ones may be there.",
        range="[0, inf)",
        moved_by="More seeds, fewer tests, metrics that vary less between seeds.",
        source="Power of the t test (Student 1908; Cohen 1988), and of unanimous signs.",
    ),
    "p_holm": _compare_metric(
        title="p corrected",
        formula="the i-th smallest of m p-values times m - i + 1, never less than a smaller one's",
        meaning="The p-value of the t test with the number of tests taken into account; up to 0.05 it suggests.",
        moved_by="The number of metrics and pairs that are looked at.",
        source="Holm 1979, A simple sequentially rejective multiple test procedure.",
    ),
}
