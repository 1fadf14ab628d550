"""Which number of a result a required metric means, where the result has it at several steps or in several rows."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gradscope.catalog.entry import Metric
from gradscope.diagnostics.spike.measure import courses_of, metric_at, outstanding_step
from gradscope.estimate import Estimate
from gradscope.metrics.sampler.token_cells import TokenCell
from gradscope.results.tokens import CorrectionEffect, TokenKind
from gradscope.rollouts.run import Run

if TYPE_CHECKING:
    from gradscope.results.rank import RankReport

_TABLES: Mapping[str, str] = {
    "token_kinds": "energy",
    "corrections": "corrections",
    "entropy_changes": "entropy",
    "token_kl": "kl",
    "logprob_changes": "logprobs",
}
"""Field of a report whose rows are tokens -> its table, as the report names what it lacks."""
_KIND = TokenCell(entropy="top_fifth")
"""The kind of token that a requirement means."""
_CORRECTION = "tis"
"""The correction that it means."""


def is_of_tokens(entry: Metric) -> bool:
    """Whether a gradient metric takes a report whose rows are tokens."""
    return entry.path.partition(".")[0] in _TABLES


def look_closer(entry: Metric, path: str) -> str:
    """The command that has more about a metric of a run."""
    rows = " --rows token" if is_of_tokens(entry) else ""
    return f"Look closer: gradscope {entry.command} {shlex.quote(path)}{rows}"


def rank_number(report: RankReport, entry: Metric) -> tuple[Estimate, str]:
    """A metric of gradients at the last step of a report.

    Args:
        report: Its rows are tokens where :func:`is_of_tokens` says so.
        entry: With a path into it.

    Returns:
        The number, and what it is of in words.
    """
    last, (sequence, _, path) = report.steps[-1], entry.path.partition(".")
    if is_of_tokens(entry):
        return _of_tokens(report, entry, last.step)
    subject = f"{entry.name} at step {last.step}"
    if sequence == "steps":
        return number_at(last, path), subject
    points = [point for point in report.curve if point.step == last.step and point.advantage == "logged"]
    if not points:
        return Estimate.undefined_because("no group has a spectrum"), subject
    largest = max(points, key=lambda point: point.group_size)
    return number_at(largest, path), f"{subject}, G = {largest.group_size}"


def _of_tokens(report: RankReport, entry: Metric, step: int) -> tuple[Estimate, str]:
    table, _, path = entry.path.partition(".")
    of_kind = {"token_kinds": " of the top fifth by entropy", "corrections": f" of {_CORRECTION}"}.get(table, "")
    subject = f"{entry.name}{of_kind} at step {step}"
    rows = [row for row in getattr(report, table) if row.step == step and _is_meant(row)]
    if rows:
        return number_at(rows[0], path), subject
    reason = report.missing_parts.get(_TABLES[table], "no token of the step is of that kind")
    return Estimate.undefined_because(reason), subject


def _is_meant(row: object) -> bool:
    if isinstance(row, TokenKind):
        return (row.sign, row.probability, row.entropy) == (_KIND.sign, _KIND.probability, _KIND.entropy)
    return not isinstance(row, CorrectionEffect) or row.correction == _CORRECTION


def furthest_deviation(run: Run) -> tuple[Estimate, str]:
    """How far the step that stands out most does so, by the number that `gradscope spike` chooses it by.

    Returns:
        The number, and what it is of in words.

    Raises:
        InputError: The log has nothing by which a step could stand out.
    """
    courses = courses_of(run)
    step = outstanding_step(courses)
    told = [metric_at(name, course, step, was_named=False) for name, course in courses.items() if step in course]
    broken = next((one for one in told if not one.value.is_defined), None)
    if broken is not None:
        return broken.deviation, f"deviation of {broken.name} at step {step}"
    first = next(one for one in told if one.deviation.is_defined)
    chance = f"chance reaches {first.by_chance.value or 0.0:.1f} in one run of twenty"
    return first.deviation, f"deviation of {first.name} at step {step} ({chance})"


def number_at(record: Any, path: str) -> Estimate:
    """The number at a path of fields, and of keys where a field is a mapping."""
    for name in path.split("."):
        record = record[name] if isinstance(record, Mapping) else getattr(record, name)
    estimate: Estimate = record
    return estimate
