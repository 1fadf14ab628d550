"""Degeneracy of a log of metrics alone: the share as it was logged, and nothing that needs rollouts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from gradscope.diagnostics.degeneracy.course import NUM_WINDOWS, By
from gradscope.diagnostics.degeneracy.group_rewards import TRAINER_REWARD
from gradscope.diagnostics.logged.as_logged import NO_ROLLOUTS, logged_estimate, metric_courses
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.findings.logged import course_named, metric_findings
from gradscope.results.degeneracy import (
    BehindFilter,
    DegeneracyReport,
    GapDecomposition,
    GroupSizeDegeneracy,
    Overdispersion,
    PromptCounts,
    StepDegeneracy,
)
from gradscope.results.envelope import LazyRows
from gradscope.results.logged import MetricCourse
from gradscope.results.signal import PassRateDistribution, SignalCost, TargetDegeneracy
from gradscope.rollouts.run import Run

_NONE = Estimate.undefined_because(NO_ROLLOUTS)
_NOT_LOGGED = Estimate.undefined_because(f"{NO_ROLLOUTS}, and none of these is that share")


def degeneracy_as_logged(
    run: Run,
    *,
    group_sizes: Sequence[int],
    target_degeneracy: float | None,
    by: By,
    reward: str | None,
    frac_set_aside: Estimate,
) -> DegeneracyReport:
    """The report of a run without rollouts.

    Args:
        run: Its ``source.kind`` is ``metrics``.
        group_sizes: Group sizes that were asked for, each undefined.
        target_degeneracy: A target that was asked for, to which there is no plan.
        by: Rows of the course: each ``step``, or windows of steps.
        reward: One reward function, of which metrics know nothing.
        frac_set_aside: Share of the rows that cannot be used.

    Returns:
        The shares as logged; all else undefined, with that reason.

    Raises:
        InputError: One reward function is asked for.
    """
    if reward is not None:
        raise InputError(
            f"{run.source.path} holds metrics and no rollouts, and no share of groups by reward function.",
            hint=next(iter(run.source.missing), None),
        )
    courses = metric_courses(run)
    dead, passed, failed = (
        course_named(courses, name) for name in ("frac_reward_zero_std", "frac_all_pass", "frac_all_fail")
    )
    return DegeneracyReport(
        source=run.source,
        reward=TRAINER_REWARD,
        success_threshold=None,
        num_groups=0,
        num_rollouts=0,
        group_size=None,
        pass_rate_origin=NO_ROLLOUTS,
        course_pass_rate_origin=NO_ROLLOUTS,
        frac_reward_zero_std=_NOT_LOGGED if dead is None else dead.mean,
        behind_filter=BehindFilter(frac_zero_std_sampled=_NONE, num_sampled=None, num_dead=None, by_step=()),
        frac_all_pass=_NONE if passed is None else passed.mean,
        frac_all_fail=_NONE if failed is None else failed.mean,
        frac_tied=_NONE,
        pass_rate=_NONE,
        iid_prediction=_NONE,
        jensen_gap=_NONE,
        relative_gap=_NONE,
        predictions=(),
        overdispersion=Overdispersion(
            rate_variance=_NONE, z=_NONE, p_value=_NONE, test="none", between_prompts=_NONE, between_visits=_NONE
        ),
        by_group_size=tuple(
            GroupSizeDegeneracy(
                group_size=size, degeneracy=_NONE, iid_prediction=_NONE, jensen_gap=_NONE, method="forecast"
            )
            for size in group_sizes
        ),
        gap_decomposition=GapDecomposition(between_prompts=_NONE, over_time=_NONE),
        by_policy=(),
        policy_gap=None,
        by_step=tuple(_rows(dead, passed, failed, by)),
        pass_rates=PassRateDistribution(
            beta_a=_NONE,
            beta_b=_NONE,
            at_zero=_NONE,
            at_one=_NONE,
            goodness_of_fit=_NONE,
            frac_hopeless=_NONE,
            frac_solved=_NONE,
            histogram=(),
        ),
        starvation=SignalCost(
            frac_rollouts=_NONE,
            frac_tokens=_NONE,
            frac_generation_time=_NONE,
            tokens_per_rollout=_NONE,
            batch_size=_NONE,
            effective_batch_size=_NONE,
            dilution=_NONE,
            resampling_factor=_NONE,
        ),
        advantages=(),
        advantages_of="",
        by_environment=(),
        by_reward=(),
        frac_reward_conflict=_NONE,
        reward_conflict=None,
        prompts=PromptCounts(never=None, always=None, live=0, frac_rollouts=0.0, reward=TRAINER_REWARD),
        by_prompt=LazyRows({}),
        target=None if target_degeneracy is None else TargetDegeneracy(target=target_degeneracy, plans=()),
        frac_set_aside=frac_set_aside,
        quarantined=run.source.quarantined,
        findings=metric_findings(courses),
        metrics=courses,
    )


def _rows(
    dead: MetricCourse | None, passed: MetricCourse | None, failed: MetricCourse | None, by: By
) -> list[StepDegeneracy]:
    steps = () if dead is None else dead.steps
    number = min(NUM_WINDOWS, len(steps)) if by == "window" else len(steps)
    parts = [part.tolist() for part in np.array_split(np.array(steps), number)] if steps else []
    shares, passing, failing = (
        {} if one is None else dict(zip(one.steps, one.values, strict=True)) for one in (dead, passed, failed)
    )
    return [
        StepDegeneracy(
            step=part[0],
            last_step=part[-1],
            num_groups=0,
            frac_reward_zero_std=_mean_at(shares, part),
            frac_all_pass=_mean_at(passing, part),
            frac_all_fail=_mean_at(failing, part),
            frac_tied=_NONE,
            pass_rate=_NONE,
            iid_prediction=_NONE,
            jensen_gap=_NONE,
            logged=None,
        )
        for part in parts
    ]


def _mean_at(course: Mapping[int, float], steps: Sequence[int]) -> Estimate:
    values = [course[step] for step in steps if step in course]
    return logged_estimate(math.fsum(values) / len(values)) if values else _NONE
