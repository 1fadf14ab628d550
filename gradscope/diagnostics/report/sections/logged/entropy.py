"""Is the policy's entropy falling?"""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.report.sections.inputs import ReportInputs, missing_part
from gradscope.estimate import Estimate
from gradscope.findings.rank.token_parts import entropy_findings
from gradscope.results.logged.course import EntropyNumbers, PolicyEntropy
from gradscope.results.ranks.token_parts import EntropyChange
from gradscope.results.report import Cell, Chart, Column, ReportSection, ReportTable, Series, Severity
from gradscope.say import interval, number, with_interval

NAME = "entropy"
QUESTION = "Is the policy losing its entropy?"


def entropy_section(inputs: ReportInputs) -> ReportSection:
    """Mean entropy of a token and where it is going."""
    entropy = inputs.logged.entropy
    if entropy.overall is None:
        return missing_part(NAME, QUESTION, entropy)
    trend = entropy.trend or Estimate.undefined_because("it was not computed")
    return ReportSection(
        name=NAME,
        question=QUESTION,
        findings=(
            *(text for text in (_level(entropy, entropy.overall), _change(entropy, trend)) if text),
            *entropy_findings(inputs.parts.entropy),
        ),
        severity=_severity(entropy.overall, trend),
        meaning=metric("entropy.mean").meaning,
        next_step=_next_step(trend),
        charts=_charts(entropy),
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


def _severity(overall: EntropyNumbers, trend: Estimate) -> Severity:
    if overall.mean.value is None:
        return "problem"
    return "look" if trend.side_of_zero else "fine"


def _next_step(trend: Estimate) -> str:
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


def _charts(entropy: PolicyEntropy) -> tuple[Chart, ...]:
    if len(entropy.by_step) < 2:
        return ()
    return (
        Chart(
            title="Entropy of the policy",
            kind="lines",
            places=tuple(row.step or 0 for row in entropy.by_step),
            series=(Series(name="entropy", values=tuple(row.mean.value for row in entropy.by_step)),),
            y_label="nats a token",
        ),
    )


def _predicted(changes: Sequence[EntropyChange]) -> tuple[ReportTable, ...]:
    """What each recomputed step does to the entropy of its own tokens, beside what was logged; none without any."""
    if not changes:
        return ()
    rows: list[tuple[Cell, ...]] = [
        (one.step, one.cosine, one.covariance, one.measured, one.last, one.logged, one.logged_next) for one in changes
    ]
    return (
        ReportTable(
            caption="The entropy at the own tokens of each recomputed step. predicted = "
            f"{metric('entropy_change.cosine').formula}; measured = {metric('entropy_change.measured').formula}",
            folded_as="Predicted and measured changes as a table",
            columns=(
                Column(title="step", style="count"),
                Column(title="predicted, cosine", style="gap"),
                Column(title="covariance of log p and advantage", style="gap"),
                Column(title="measured, nats", style="gap"),
                Column(title="up to update", style="count"),
                Column(title="logged", style="rank"),
                Column(title="logged at the next step", style="rank"),
            ),
            rows=tuple(rows),
        ),
    )
