"""The course of degeneracy while the run is still being written.

Of a large log each look reads what was appended, and the whole from its start where the writer did anything else, so
that no row counts twice; a step whose groups are the same as at the last look is not estimated again. Reading takes at
most half of the time after the first look.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradscope.diagnostics.degeneracy.group_rewards import KnownEstimates, course_of_run
from gradscope.errors import InputError, UsageError
from gradscope.results.degeneracy import StepDegeneracy
from gradscope.rollouts.places.fetch import log_extent
from gradscope.rollouts.places.urls import shown
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.reduction.log import ReadSoFar

Notice = Callable[[str], None]
"""Told in a sentence why a look at the log gave nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often to look, and when to stop."""

    every: float = 2.0  # seconds between two looks at the log's size
    idle: float | None = None  # seconds without growth after which it ends; None: never
    sleep: Callable[[float], None] = time.sleep  # waits; a test writes to the log instead
    clock: Callable[[], float] = time.monotonic  # seconds since any time


def follow_degeneracy(
    path: str | Path,
    *,
    success_threshold: float | None = None,
    reward: str | None = None,
    pace: Pace | None = None,
    notice: Notice = lambda _: None,
    read: ReadOptions | None = None,
) -> Iterator[StepDegeneracy]:
    """Steps as they are written, one row a step, by step within a look."""
    # A step is told once a later one has begun, or nothing was written between two looks: a group of which half is on
    # disk has no verdict yet. A step that changes afterwards is told again. ``notice`` is told when a later look
    # fails, as at a file of which half is written; the next growth is another chance.
    pace = pace or Pace()
    _check_pace(pace)

    so_far, known = ReadSoFar(), KnownEstimates()

    def look() -> tuple[StepDegeneracy, ...]:
        run = read_run(path, read, rewards_only=True, so_far=so_far)
        return course_of_run(run, success_threshold=success_threshold, reward=reward, known=known)

    told: dict[int, StepDegeneracy] = {}
    last = log_extent(path)
    grown = pace.clock()
    course = look()
    started = ended = pace.clock()  # what follows a first look reads less
    yield from _news(course[:-1], told)
    while True:
        pace.sleep(pace.every)
        now = pace.clock()
        if log_extent(path) == last:
            yield from _news(course, told)
            if pace.idle is not None and now - grown >= pace.idle:
                return
            continue
        if (rest := ended + (ended - started) - now) > 0:
            pace.sleep(rest)
        last = log_extent(path)
        started = grown = pace.clock()
        try:
            course = look()
        except (InputError, OSError) as error:
            course = ()
            notice(f"{shown(path)} could not be read ({error}); waiting for more.")
        ended = pace.clock()
        yield from _news(course[:-1], told)


def _news(course: Sequence[StepDegeneracy], told: dict[int, StepDegeneracy]) -> Iterator[StepDegeneracy]:
    for row in course:
        if told.get(row.step) != row:
            told[row.step] = row
            yield row


def _check_pace(pace: Pace) -> None:
    if pace.every <= 0:
        raise UsageError(f"Looks are some seconds apart, got {pace.every:g}.", hint="Write --every 2")
    if pace.idle is not None and pace.idle < pace.every:
        raise UsageError(
            f"It cannot end after {pace.idle:g} seconds without growth and look every {pace.every:g} seconds.",
            hint="Give --idle more seconds than --every.",
        )
