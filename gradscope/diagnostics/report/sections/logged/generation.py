"""How many completions are cut off, and how long does generation take?"""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.report.sections.inputs import ReportInputs, missing_part
from gradscope.results.logged.course import Generation, GenerationNumbers
from gradscope.results.report import Chart, ReportSection, Series, Severity
from gradscope.say import percent, with_interval

NAME = "generation"
QUESTION = "How many completions are cut off, and how long does generation take?"

_MANY = 0.1
"""Truncated completions from which on the limit decides much of the reward."""
_SLOW = 3.0
"""Times the mean that the slowest rollout of a step takes before waiting for it is most of the step."""


def generation_section(inputs: ReportInputs) -> ReportSection:
    """Truncation and generation time by step."""
    generation = inputs.logged.generation
    if generation.overall is None:
        return missing_part(NAME, QUESTION, generation)
    return ReportSection(
        name=NAME,
        question=QUESTION,
        findings=tuple(_findings(generation.overall)),
        severity=_severity(generation.overall),
        meaning=metric("generation.frac_truncated").meaning,
        next_step=_next_step(generation.overall),
        charts=tuple(_charts(generation)),
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


def _severity(overall: GenerationNumbers) -> Severity:
    if not overall.frac_truncated.is_defined and not overall.seconds.is_defined:
        return "unknown"
    many = (overall.frac_truncated.value or 0.0) > _MANY
    return "look" if many or (overall.slowest_over_mean.value or 0.0) > _SLOW else "fine"


def _next_step(overall: GenerationNumbers) -> str:
    if (overall.frac_truncated.value or 0.0) > _MANY:
        return "Raise the length limit, or mask truncated completions, and see whether the reward follows."
    if (overall.slowest_over_mean.value or 0.0) > _SLOW:
        return "Let generation run ahead of training, or cut the longest completions: steps wait for a few of them."
    return "Nothing to do."


def _charts(generation: Generation) -> Iterator[Chart]:
    for title, field, y_label, y_range in (
        ("Completions that were cut off", "frac_truncated", "share of completions", (0.0, 1.0)),
        ("Time to generate a completion", "seconds", "seconds", None),
    ):
        values = tuple(getattr(row, field).value for row in generation.by_step)
        if len(values) > 1 and any(value is not None for value in values):
            places = tuple(row.step or 0 for row in generation.by_step)
            yield Chart(
                title=title,
                kind="lines",
                places=places,
                series=(Series(name=y_label, values=values),),
                y_label=y_label,
                y_range=y_range,
            )
