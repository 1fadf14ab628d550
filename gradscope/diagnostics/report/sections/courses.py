"""What the log alone says of the policy, by step: its entropy, how stale its weights were, how long it generated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.report.sections.inputs import ReportInputs, missing_part
from gradscope.estimate import Estimate
from gradscope.findings.rank_parts import entropy_findings
from gradscope.render.views.view import Column, lines_over, tabulate
from gradscope.results.logged import (
    EntropyNumbers,
    Generation,
    GenerationNumbers,
    PolicyEntropy,
    Staleness,
    StalenessNumbers,
)
from gradscope.results.report import Chart, ReportSection, ReportTable, Severity
from gradscope.results.tokens import EntropyChange
from gradscope.say import interval, number, percent, with_interval

_ENTROPY = "entropy"
_ENTROPY_QUESTION = "Is the policy losing its entropy?"


def entropy_section(inputs: ReportInputs) -> ReportSection:
    """Mean entropy of a token and where it is going."""
    entropy = inputs.logged.entropy
    if entropy.overall is None:
        return missing_part(_ENTROPY, _ENTROPY_QUESTION, entropy)
    trend = entropy.trend or Estimate.undefined_because("it was not computed")
    return ReportSection(
        name=_ENTROPY,
        question=_ENTROPY_QUESTION,
        findings=(
            *(text for text in (_level(entropy, entropy.overall), _change(entropy, trend)) if text),
            *entropy_findings(inputs.parts.entropy),
        ),
        severity=_entropy_severity(entropy.overall, trend),
        meaning=metric("entropy.mean").meaning,
        next_step=_entropy_advice(trend),
        charts=_entropy_charts(entropy),
        tables=_predicted(inputs.parts.entropy),
    )


def _level(entropy: PolicyEntropy, overall: EntropyNumbers) -> str:
    if overall.mean.value is None:
        return f"The entropy of the log is not a number: {overall.mean.undefined}."
    first, last = entropy.by_step[0], entropy.by_step[-1]
    if entropy.origin == "tokens":
        text, where = with_interval(overall.mean, ".3g"), "each token has its own"
    else:  # the interval of a mean over steps says little where they go somewhere
        text, where = number(overall.mean.value, ".3g"), f"the trainer's own metric {entropy.origin}"
    ends = "" if first is last else f", {_at(first)} and {_at(last)}"
    return f"Entropy is {text} nats a token{ends} ({where})."


def _at(row: EntropyNumbers) -> str:
    return f"{with_interval(row.mean, '.3g')} at step {row.step}"


def _change(entropy: PolicyEntropy, trend: Estimate) -> str:
    if trend.value is None:
        return ""
    first, last = entropy.by_step[0].step, entropy.by_step[-1].step
    undecided = "" if trend.side_of_zero else ", so its direction is undecided"
    text = f"From step {first} to {last} it changes by {trend.value:+.3g} along its line"
    return f"{text}{interval(trend, '+.3g')}{undecided}."


def _entropy_severity(overall: EntropyNumbers, trend: Estimate) -> Severity:
    if overall.mean.value is None:
        return "problem"
    return "look" if trend.side_of_zero else "fine"


def _entropy_advice(trend: Estimate) -> str:
    if trend.side_of_zero < 0:
        return (
            "Watch pass@k beside pass@1: where it falls too, keep exploration up (a higher upper clip, temperature, an "
            "entropy bonus, harder prompts)."
        )
    if trend.side_of_zero > 0:
        return (
            "Read some completions: a policy that falls apart, a growing gap between sampler and trainer, and longer "
            "reasoning all raise it."
        )
    return "Nothing to do while no direction is certain."


def _entropy_charts(entropy: PolicyEntropy) -> tuple[Chart, ...]:
    means = {"entropy": [row.mean.value for row in entropy.by_step]}
    return lines_over(_steps(entropy.by_step), "Entropy of the policy", means, y_label="nats a token")


def _steps(rows: Sequence[EntropyNumbers | StalenessNumbers | GenerationNumbers]) -> list[int]:
    return [row.step or 0 for row in rows]


def _predicted(changes: Sequence[EntropyChange]) -> tuple[ReportTable, ...]:
    """What each recomputed step does to the entropy of its own tokens, beside what was logged; none without any."""
    if not changes:
        return ()
    caption = (
        "The entropy at the own tokens of each recomputed step. predicted = "
        f"{metric('entropy_change.cosine').formula}; measured = {metric('entropy_change.measured').formula}"
    )
    columns = (
        Column("step", "step", "count"),
        Column("predicted, cosine", "cosine", "gap"),
        Column("covariance of log p and advantage", "covariance", "gap"),
        Column("measured, nats", "measured", "gap"),
        Column("up to update", "last", "count"),
        Column("logged", "logged", "rank"),
        Column("logged at the next step", "logged_next", "rank"),
    )
    return (tabulate(caption, columns, changes, folded_as="Predicted and measured changes as a table"),)


_STALENESS = "staleness"
_STALENESS_QUESTION = "How stale are the weights that sampled?"

_FRESH = 1.0
"""Updates behind on average; one is what sampling ahead of training by a batch costs."""


def staleness_section(inputs: ReportInputs) -> ReportSection:
    """The lags of rollouts, and what sampler and trainer differ by at each."""
    staleness = inputs.logged.staleness
    if staleness.overall is None:
        return missing_part(_STALENESS, _STALENESS_QUESTION, staleness)
    overall = staleness.overall
    return ReportSection(
        name=_STALENESS,
        question=_STALENESS_QUESTION,
        findings=(_finding(overall),),
        severity="look" if (overall.mean_lag.value or 0.0) > _FRESH else "fine",
        meaning=metric("staleness.mean_lag").meaning,
        next_step=_staleness_advice(staleness, overall),
        charts=_staleness_charts(staleness),
        tables=(_by_lag(staleness),),
    )


def _finding(overall: StalenessNumbers) -> str:
    return (
        f"The weights that sampled {overall.num_rollouts:,} rollouts were {with_interval(overall.mean_lag, '.2f')} "
        f"updates behind on average and {with_interval(overall.max_lag, '.0f')} at most; "
        f"{with_interval(overall.frac_above_1, percent)} lag by more than one, and during "
        f"{with_interval(overall.frac_mixed, percent)} of them the weights changed."
    )


def _staleness_advice(staleness: Staleness, overall: StalenessNumbers) -> str:
    if overall.max_lag.value == 0:
        return "Nothing to do: rollouts were started with the weights that were updated."
    if sum(row.logprob_gap.is_defined for row in staleness.by_lag) > 1:
        return (
            "Where the gap grows with the lag, bound the staleness (max_off_policy_steps in prime-rl) or correct with "
            "importance sampling; where it does not, the lag is harmless."
        )
    return "Log the log-probabilities of sampler and trainer as well: they tell whether the lag does harm."


def _staleness_charts(staleness: Staleness) -> tuple[Chart, ...]:
    lags = {
        "mean": [row.mean_lag.value for row in staleness.by_step],
        "largest": [row.max_lag.value for row in staleness.by_step],
    }
    return lines_over(_steps(staleness.by_step), "Updates behind", lags, y_label="updates behind")


def _by_lag(staleness: Staleness) -> ReportTable:
    with_gaps = any(row.logprob_gap.is_defined for row in staleness.by_lag)
    columns = [
        Column("updates behind", "lag", "count"),
        Column("rollouts", "num_rollouts", "count"),
        Column("share", "share", "share"),
    ]
    if with_gaps:
        columns.append(Column("mean gap", "logprob_gap", "norm"))
    caption = "Rollouts by lag" + f"; mean gap = {metric('logprob_gap').formula}" * with_gaps
    return tabulate(caption, columns, staleness.by_lag)


_GENERATION = "generation"
_GENERATION_QUESTION = "How many completions are cut off, and how long does generation take?"

_MANY = 0.1
"""Truncated completions from which on the limit decides much of the reward."""
_SLOW = 3.0
"""Times the mean that the slowest rollout of a step takes before waiting for it is most of the step."""


def generation_section(inputs: ReportInputs) -> ReportSection:
    """Truncation and generation time by step."""
    generation = inputs.logged.generation
    if generation.overall is None:
        return missing_part(_GENERATION, _GENERATION_QUESTION, generation)
    return ReportSection(
        name=_GENERATION,
        question=_GENERATION_QUESTION,
        findings=tuple(_findings(generation.overall)),
        severity=_generation_severity(generation.overall),
        meaning=metric("generation.frac_truncated").meaning,
        next_step=_generation_advice(generation.overall),
        charts=tuple(_generation_charts(generation)),
    )


def _findings(overall: GenerationNumbers) -> Iterator[str]:
    if overall.frac_truncated.value == 0:
        yield "No completion was cut off at the length limit."
    elif overall.frac_truncated.is_defined:
        yield f"{with_interval(overall.frac_truncated, percent)} of completions were cut off at the length limit."
    else:
        yield f"Truncation is not known: {overall.frac_truncated.undefined}."
    if overall.seconds.is_defined:
        slowest, waits = overall.slowest_over_mean, ""
        if slowest.is_defined:
            waits = f"; the slowest of a step takes {with_interval(slowest, '.1f')} times its mean"
        yield f"A completion takes {with_interval(overall.seconds, '.3g')} seconds to generate{waits}."


def _generation_severity(overall: GenerationNumbers) -> Severity:
    if not overall.frac_truncated.is_defined and not overall.seconds.is_defined:
        return "unknown"
    many = (overall.frac_truncated.value or 0.0) > _MANY
    return "look" if many or (overall.slowest_over_mean.value or 0.0) > _SLOW else "fine"


def _generation_advice(overall: GenerationNumbers) -> str:
    if (overall.frac_truncated.value or 0.0) > _MANY:
        return "Raise the length limit, or mask truncated completions, and see whether the reward follows."
    if (overall.slowest_over_mean.value or 0.0) > _SLOW:
        return "Let generation run ahead of training, or cut the longest completions: steps wait for a few of them."
    return "Nothing to do."


def _generation_charts(generation: Generation) -> Iterator[Chart]:
    for title, field, y_label, y_range in (
        ("Completions that were cut off", "frac_truncated", "share of completions", (0.0, 1.0)),
        ("Time to generate a completion", "seconds", "seconds", None),
    ):
        values = [getattr(row, field).value for row in generation.by_step]
        if any(value is not None for value in values):
            yield from lines_over(
                _steps(generation.by_step), title, {y_label: values}, y_label=y_label, y_range=y_range
            )
