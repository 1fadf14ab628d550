"""Is the policy's entropy falling?"""

from __future__ import annotations

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.report.sections.inputs import ReportInputs, missing_part
from gradscope.estimate import Estimate
from gradscope.results.logged.course import EntropyNumbers, PolicyEntropy
from gradscope.results.report import Chart, ReportSection, Series
from gradscope.say import interval, with_interval

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
        findings=tuple(text for text in (_level(entropy, entropy.overall), _change(entropy, trend)) if text),
        meaning=metric("entropy.mean").meaning,
        next_step=_next_step(trend),
        charts=_charts(entropy),
    )


def _level(entropy: PolicyEntropy, overall: EntropyNumbers) -> str:
    if overall.mean.value is None:
        return f"The entropy of the log is not a number: {overall.mean.undefined}."
    steps = len(entropy.by_step)
    where = "each token has its own" if entropy.origin == "tokens" else f"the trainer's own metric {entropy.origin}"
    return (
        f"Entropy is {with_interval(overall.mean, '.3g')} nats a token over {steps} step{'s' * (steps != 1)} ({where})."
    )


def _change(entropy: PolicyEntropy, trend: Estimate) -> str:
    if trend.value is None:
        return ""
    first, last = entropy.by_step[0].step, entropy.by_step[-1].step
    undecided = "" if trend.side_of_zero else ", so its direction is undecided"
    text = f"From step {first} to {last} it changes by {trend.value:+.3g} along its line"
    return f"{text}{interval(trend, '+.3g')}{undecided}."


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
            title="Entropy, nats a token",
            kind="lines",
            places=tuple(row.step or 0 for row in entropy.by_step),
            series=(Series(name="entropy", values=tuple(row.mean.value for row in entropy.by_step)),),
        ),
    )
