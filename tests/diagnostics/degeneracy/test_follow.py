"""A run that is followed is told as it would be read whole, whatever its writer does in between."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gradscope.diagnostics.degeneracy.follow import Pace, follow_degeneracy
from gradscope.diagnostics.degeneracy.measure import measure_degeneracy
from gradscope.errors import InputError, UsageError

MIXED, DEAD = (1, 0, 1, 0), (0, 0, 0, 0)


def rows(step: int, *groups: tuple[int, ...]) -> str:
    found = [
        {"step": step, "group_id": f"g{at}", "reward": reward} for at, group in enumerate(groups) for reward in group
    ]
    return "".join(json.dumps(row) + "\n" for row in found)


def append(path: Path, text: str) -> Callable[[], None]:
    def write() -> None:
        with path.open("a") as stream:
            stream.write(text)

    return write


class Writer:
    """Writes one part of a log in every pause between two looks; then nothing, until the follower has enough."""

    def __init__(self, *parts: Callable[[], None]) -> None:
        self.parts = list(parts)
        self.seconds = 0.0

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        if self.parts:
            self.parts.pop(0)()

    def pace(self, idle: float | None = 3.0) -> Pace:
        return Pace(every=1.0, idle=idle, sleep=self.sleep, clock=lambda: self.seconds)


def nothing() -> None:
    """The trainer thinks."""


def told(path: Path, *parts: Callable[[], None], notices: list[str] | None = None) -> list[tuple[int, int, float]]:
    notice = (notices if notices is not None else []).append
    steps = follow_degeneracy(path, pace=Writer(*parts).pace(), notice=notice)
    return [(row.step, row.num_groups, row.frac_reward_zero_std.value or 0.0) for row in steps]


def test_a_log_that_grows_is_told_step_by_step_and_counts_nothing_twice(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(rows(1, MIXED, DEAD))
    second, third = rows(2, DEAD, DEAD), rows(3, MIXED, MIXED)
    found = told(log, append(log, second[:-70]), append(log, second[-70:] + third[:60]), append(log, third[60:]))
    assert found == [(1, 2, 0.5), (2, 2, 1.0), (3, 2, 0.0)]
    whole = measure_degeneracy(log).by_step
    assert found == [(row.step, row.num_groups, row.frac_reward_zero_std.value) for row in whole]


def test_the_last_step_is_told_once_the_writer_pauses(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(rows(1, DEAD))
    steps = follow_degeneracy(log, pace=Writer(nothing, append(log, rows(2, MIXED))).pace(idle=None))
    assert [next(steps).step, next(steps).step] == [1, 2]


def test_files_that_appear_are_found_and_a_step_that_changes_is_told_again(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text(rows(1, DEAD))

    def new_file() -> None:
        (tmp_path / "2.jsonl").write_text(rows(2, MIXED))

    def late_rows() -> None:
        (tmp_path / "1b.jsonl").write_text(rows(1, DEAD, MIXED).replace('"g0"', '"g9"'))

    assert told(tmp_path, new_file, nothing, late_rows) == [(1, 1, 1.0), (2, 1, 0.0), (1, 3, 2 / 3)]


def test_a_log_that_starts_anew_is_read_anew(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(rows(1, DEAD) + rows(2, DEAD))
    assert told(log, nothing, lambda: log.write_text(rows(1, MIXED)) and None) == [
        (1, 1, 1.0),
        (2, 1, 1.0),
        (1, 1, 0.0),
    ]


def test_a_look_that_fails_is_said_and_the_next_growth_is_another_chance(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(rows(1, DEAD))
    notices: list[str] = []
    found = told(
        log, lambda: log.write_text("{\n") and None, lambda: log.write_text(rows(1, MIXED)) and None, notices=notices
    )
    assert found == [(1, 1, 0.0)]
    assert len(notices) == 1
    assert notices[0].startswith(f"{log} could not be read (")
    assert notices[0].endswith("; waiting for more.")


def test_a_first_look_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no file or folder"):
        told(tmp_path / "none.jsonl")


def test_reading_takes_at_most_half_of_the_time_once_the_log_was_read(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(rows(1, DEAD))
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        if len(slept) < 2:
            append(log, rows(2 + len(slept), MIXED))()
        slept.append(seconds)

    # the first two looks take 30 seconds, the third 1
    times = iter([0.0, 30.0, 32.0, 32.0, 62.0, 64.0, 92.0, 93.0, 95.0, 155.0])
    pace = Pace(every=2.0, idle=60.0, sleep=sleep, clock=lambda: next(times))
    assert [row.step for row in follow_degeneracy(log, pace=pace)] == [1, 2, 3]
    assert slept == [2.0, 2.0, 28.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("pace", "message"),
    [
        (Pace(every=0.0), "Looks are some seconds apart, got 0"),
        (Pace(every=5.0, idle=2.0), "It cannot end after 2 seconds without growth and look every 5 seconds"),
    ],
)
def test_a_pace_that_cannot_be_kept_is_refused(tmp_path: Path, pace: Pace, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list(follow_degeneracy(tmp_path, pace=pace))
