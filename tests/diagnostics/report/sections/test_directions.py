"""Ranks that are known: orthogonal rows span as many directions as they are, equal ones span one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradscope.diagnostics.report.sections.directions import directions_answer, directions_section, rank_points
from gradscope.estimate import Estimate
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.report.sections.made_up_inputs import NOT_READ, gram_of, inputs_of

RUN = run_of(group_of([1, 0, 1, 0], step=1))
SIZE, GROUPS = 4, 4


def gram(rows: np.ndarray, *, step: int = 1, dead: int = 0, **parts: object) -> object:
    """Four groups of four, each with these rows; the last ones may be dead."""
    advantages = ([1.0, -1.0, 1.0, -1.0] * (GROUPS - dead)) + [0.0] * SIZE * dead
    names = [f"{step}/{name}" for name in "abcd" for _ in range(SIZE)]
    rewards = [1, 0, 1, 0] * GROUPS
    return gram_of(np.tile(rows, (GROUPS, 1)), names, step=step, rewards=rewards, advantages=advantages, **parts)


def section_of(*grams: object):
    return directions_section(inputs_of(RUN, grams=grams, curve=rank_points(grams)))  # type: ignore[arg-type]


ORTHOGONAL, EQUAL = np.eye(SIZE, 512), np.tile(np.eye(1, 512), (SIZE, 1))


@pytest.mark.parametrize(
    ("rows", "rank", "severity", "advice"),
    [(ORTHOGONAL, 4.0, "fine", "Nothing to do"), (EQUAL, 1.0, "look", "pull nearly the same way")],
)
def test_the_rank_of_known_rows(rows: np.ndarray, rank: float, severity: str, advice: str) -> None:
    section = section_of(gram(rows), gram(rows, step=2))
    (table,), (chart,) = section.tables, section.charts
    assert [row[2].value for row in table.rows] == pytest.approx([rank, rank], abs=1e-6)
    assert [row[3] for row in table.rows] == [SIZE, SIZE]
    assert table.rows[0][4].value == pytest.approx(SIZE, abs=0.2)  # unrelated rows in many dimensions
    assert section.severity == severity
    assert advice in section.next_step
    assert f"spans {rank:.2f}" in section.headline
    assert [series.name for series in chart.series] == ["as trained", "unrelated rows", "scores alone", "ceiling"]
    assert chart.series[-1].values == (4.0, 4.0)
    assert section.command.endswith("--step 1,2")


@pytest.mark.parametrize(("low", "high", "words"), [(1.2, 2.0, "adds up"), (0.1, 0.6, "cancels"), (0.6, 1.4, "")])
def test_what_becomes_of_what_rollouts_share(low: float, high: float, words: str) -> None:
    (point,) = rank_points([gram(ORTHOGONAL)])
    kept = Estimate(value=(low + high) / 2, low=low, high=high, num_units=4)
    section = directions_answer([replace(point, shared_kept=kept)])
    said = [finding for finding in section.findings if "rollouts of a live group share" in finding]
    assert [words in finding for finding in said] == ([True] if words else [])


def test_dead_groups_are_no_part_of_the_mean() -> None:
    (row,) = section_of(gram(ORTHOGONAL, dead=3)).tables[0].rows
    assert (row[1], row[2].value) == (1, pytest.approx(4.0, abs=1e-6))


def test_one_step_is_no_course() -> None:
    assert section_of(gram(ORTHOGONAL)).charts == ()


@pytest.mark.parametrize("grams", [(), (gram(ORTHOGONAL, dead=4),), (gram(ORTHOGONAL, policy_gram=None),)])
def test_without_a_gradient_there_is_no_rank(grams: tuple[object, ...]) -> None:
    section = section_of(*grams)
    assert (section.missing, section.severity) == (f"{NOT_READ.reason} {NOT_READ.hint}", "unknown")


def test_advantages_that_take_directions_away_are_named() -> None:
    """Each group's rows are orthogonal, and one of its advantages is a hundred times the others."""
    grams = [
        gram_of(
            np.tile(ORTHOGONAL, (12, 1)),
            [f"1/{group}" for group in range(12) for _ in range(SIZE)],
            step=1,
            rewards=[1, 0, 0, 0] * 12,
            advantages=[value for group in range(12) for value in (100.0 + group, -1.0, -1.0, -1.0)],
        )
    ]
    assert "take directions away" in section_of(*grams).next_step
