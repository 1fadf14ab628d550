"""Sentences about the log: courses of metrics, and logged against recomputed log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from gradscope.results.logged import MetricCourse
from gradscope.say import non_finite_word, percent

if TYPE_CHECKING:  # what only names a type is not loaded with every log
    from gradscope.results.norms import StepReplay
    from gradscope.results.rank import StepGeometry

LOGPROB_BOUND = 0.1
"""Difference of a token's log-probability beyond which it is counted: its probability is off by 10 %. Samplers in
bfloat16 and kernels in another order stay below it for nearly all tokens; other weights do not."""


def logprob_findings(steps: Sequence[StepReplay] | Sequence[StepGeometry]) -> tuple[str, ...]:
    """What the differences say, in at most one sentence; none where nothing was logged."""
    logged = [(step.step, step.logprob_difference) for step in steps if step.logprob_difference is not None]
    if not logged:
        return ()
    step, worst = max(logged, key=lambda pair: pair[1].frac_beyond or pair[1].max)
    if worst.frac_beyond == 0:
        return (
            f"The sampler's logged log-probabilities are those of these weights: the largest difference of a token is "
            f"{max(difference.max for _, difference in logged):.2g} at {len(logged)} step{'s' * (len(logged) != 1)}.",
        )
    return (
        f"At step {step} the sampler's logged log-probabilities differ from these weights' by more than "
        f"{worst.bound:g} at {percent(worst.frac_beyond)} of {worst.num_tokens:,} tokens (mean {worst.mean:.2g}, "
        f"largest {worst.max:.2g}): other weights, another temperature or other kernels sampled them.",
    )


_HIGH = 0.1  # share of completions cut off from which on the limit decides much of the reward
_STANDS_OUT = 3.0  # times its median that the largest norm is before a sentence says so


def course_named(courses: Sequence[MetricCourse], name: str) -> MetricCourse | None:
    """The course with a common name; None where there is none."""
    return next((course for course in courses if course.name == name), None)


def dead_sentence(courses: Sequence[MetricCourse]) -> str:
    """The verdict: how many groups gave no gradient, as far as the metrics show."""
    course = course_named(courses, "frac_reward_zero_std")
    if course is None:
        return "These metrics do not tell how many groups gave no gradient: none of them is known as that share."
    if course.mean.value is None:
        return f"How many groups gave no gradient is not known: {course.mean.undefined}."
    all_dead = sum(value >= 1.0 for value in course.values)
    steps = f"{len(course.steps):,} logged steps" if len(course.steps) > 1 else "the one logged step"
    more = f"; at {all_dead:,} of them every group" if all_dead else ""
    return f"{percent(course.mean.value)} of a step's groups gave no gradient, by the trainer's log of {steps}{more}."


def clipped_sentence(courses: Sequence[MetricCourse]) -> str:
    """How many completions were cut off; empty where that was not logged, or is few."""
    course = course_named(courses, "completions/clipped_ratio")
    if course is None or course.mean.value is None or course.mean.value <= _HIGH:
        return ""
    if min(course.values) >= 1.0:
        return f"Every completion was cut off at the length limit, at each of {len(course.steps):,} logged steps."
    largest = course.at(course.largest_step)
    most = f" (at most {percent(largest)}, at step {course.largest_step})" if largest > min(course.values) else ""
    return f"{percent(course.mean.value)} of completions were cut off at the length limit{most}."


def norm_sentence(courses: Sequence[MetricCourse]) -> str:
    """Where the gradient norm was largest, if it stands out; empty where it does not."""
    course = course_named(courses, "grad_norm")
    finite = [value for value in course.values if math.isfinite(value)] if course is not None else []
    if course is None or not finite or not (usual := median(finite)) > 0:
        return ""
    largest = course.at(course.largest_step)
    times = largest / usual
    if times < _STANDS_OUT:
        return ""
    return f"The gradient norm was largest at step {course.largest_step}: {largest:.3g}, {times:,.0f} times its median."


def reward_sentence(courses: Sequence[MetricCourse]) -> str:
    """The mean reward at both ends; empty where it was not logged."""
    course = course_named(courses, "reward")
    if course is None or len(course.steps) < 2 or course.mean.value is None:
        return ""
    first, last = course.values[0], course.values[-1]
    return f"The mean reward was {first:.3g} at step {course.steps[0]} and {last:.3g} at step {course.steps[-1]}."


def broken_sentences(courses: Sequence[MetricCourse]) -> Iterator[str]:
    """What was logged as no finite number, and where first."""
    for course in courses:
        broken = [step for step, value in zip(course.steps, course.values, strict=True) if not math.isfinite(value)]
        if broken:
            more = f", and at {len(broken) - 1:,} steps more" if len(broken) > 1 else ""
            word = non_finite_word(course.at(broken[0]))
            yield f"{course.name} was logged as {word} at step {broken[0]}{more}."


def metric_findings(courses: Sequence[MetricCourse]) -> tuple[str, ...]:
    """All sentences, the verdict first, then what is wrong."""
    sentences = (
        dead_sentence(courses),
        *broken_sentences(courses),
        clipped_sentence(courses),
        norm_sentence(courses),
        reward_sentence(courses),
    )
    return tuple(sentence for sentence in sentences if sentence)
