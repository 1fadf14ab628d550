"""What a person reads first of a run's ranks: the verdict, then at most three findings, problems before the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradscope.findings.rank.formulations import update_findings
from gradscope.findings.rank.heldout import heldout_findings
from gradscope.findings.rank.ranks import dead_findings, norm_findings, preferred_points, time_findings
from gradscope.findings.rank.reliability import reliability_findings
from gradscope.results.rank import RankReport, StepGeometry
from gradscope.results.ranks.curves import RankCurvePoint
from gradscope.say import with_interval

MOST_FINDINGS = 3
"""Beside the verdict; more than three are not read."""
NORM_MATCHES = 1e-5
"""Relative difference of a recomputed norm up to which it is the logged one, as `replay` has it."""


def rank_headline(report: RankReport) -> tuple[str, ...]:
    """The verdict of a report, then its most telling findings.

    Args:
        report: With all its numbers and findings; its own headline is not looked at.

    Returns:
        The verdict of one or two sentences, then at most three findings. Rows other than rollouts by all parameters
        have one subject, and their findings come in its order behind the problems. What held-out samples were given
        for comes before what is always there. Empty where nothing was found.
    """
    if report.rows != "rollout" or not report.curve:
        first, others = report.findings[:1], report.findings[1:]
        ordered = dict.fromkeys((*first, *_problems(report), *others)) if first else {}
        return tuple(ordered)[: 1 + MOST_FINDINGS]
    findings = [
        *_problems(report),
        *heldout_findings(report.heldout),
        *dead_findings(report.curve),
        *time_findings(report.curve),
        *update_findings(report.formulations, ()),
    ]
    return (rank_verdict(report.curve), *findings[:MOST_FINDINGS])


def rank_verdict(curve: Sequence[RankCurvePoint]) -> str:
    """The rank of the last step beside its ceilings, and whose doing it is."""
    points = [point for point in preferred_points(curve) if point.effective_rank.is_defined]
    if not points:
        return "No group of these steps has a gradient under the advantage, so there is no rank."
    last = max(points, key=lambda point: (point.step, point.group_size))
    live = last.num_groups - last.num_dead
    return (
        f"At step {last.step} a group's gradient spans {with_interval(last.effective_rank, '.2f')} of at most "
        f"{last.group_size} directions, {with_interval(last.nulls['gaussian'].ratio, '.2f')} of what unrelated rows of "
        f"the same norms would span (advantage {last.advantage}, {live} live group{'s' * (live != 1)}). "
        f"{_whose_doing(last)}"
    )


def _whose_doing(point: RankCurvePoint) -> str:
    """Whether the advantages change the rank, or the policy alone has it."""
    scores = point.nulls["unweighted"]
    start = f"Without advantages the same rollouts span {scores.effective_rank.value:.2f}"
    if scores.difference.interval is None:
        return f"{start}; the groups are too few to say whether the advantages change that."
    change = with_interval(scores.difference, "+.2f")
    if scores.difference.side_of_zero == 0:
        return f"{start}; what the advantages change ({change}) cannot be told from zero."
    return f"{start}; the advantages change that by {change}."


def _problems(report: RankReport) -> list[str]:
    """What makes the ranks doubtful."""
    off = [step for step in report.steps if (step.logprob_difference and step.logprob_difference.frac_beyond)]
    norms = [] if _all_match(report.steps) else norm_findings(report.steps)
    return [*norms, *reliability_findings(report.spectra, off, report.engine)]


def _all_match(steps: Sequence[StepGeometry]) -> bool:
    pairs = [(step.grad_norm.value, step.logged_grad_norm) for step in steps]
    return all(
        norm is not None
        and logged is not None
        and math.isfinite(logged)
        and abs(norm - logged) <= NORM_MATCHES * abs(logged)
        for norm, logged in pairs
    )
