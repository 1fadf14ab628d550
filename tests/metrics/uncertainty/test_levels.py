import math

import numpy as np
import pytest

from gradscope.metrics.uncertainty.levels import drop, jump, late_change, level_change
from tests.metrics.uncertainty.test_steps import persistent


@pytest.mark.parametrize(
    ("values", "factor", "side"),
    [
        (np.exp(-0.06 * np.arange(60)), 2.0, -1),
        (np.exp(0.05 * np.arange(60)), 3.0, 1),
        (np.where(np.arange(60) < 44, 1.0, 4.0), 3.0, 1),
        (1.0 + np.arange(60), 3.0, None),  # an even growth from nothing
        (np.where(np.arange(60) == 55, 50.0, 1.0), 2.0, None),  # a spike
        (np.where(np.arange(60) % 3 == 0, 1.0, 2.5) * np.where(np.arange(60) < 44, 1.0, 2.2), 2.0, None),  # not apart
        (np.exp(0.5 * np.arange(19)), 2.0, None),  # too few
        (np.linspace(-5.0, 5.0, 60), 2.0, None),  # no ratio of levels
        (np.where(np.arange(60) < 44, 1.0, 0.0), 2.0, -1),
    ],
)
def test_where_a_series_ends_on_another_level(values: np.ndarray, factor: float, side: int | None) -> None:
    change = late_change(dict(enumerate(values.tolist(), start=1)), factor=factor)
    assert (None if change is None else change.side) == side
    assert change is None or (change.since, change.until) == (49, 60)


@pytest.mark.parametrize(("num_late", "level", "since"), [(6, 0.3, 96), (6, 0.4, None), (3, 0.3, None)])
def test_a_collapse_just_before_the_end(num_late: int, level: float, since: int | None) -> None:
    change = late_change(dict(enumerate([1.0] * (100 - num_late) + [level] * num_late, start=1)), factor=2.0)
    assert (change and change.since) == since


@pytest.mark.parametrize(("end", "is_told"), [(0.45, True), (0.6, False), (2.2, True)])
def test_a_level_that_halves_or_doubles_early_and_stays(end: float, is_told: bool) -> None:
    """An entropy that fell from 1.2 to 0.5 within the first 40 of 100 steps was "fine"."""
    series = 1.0 + (end - 1.0) * np.clip((np.arange(100) - 15) / 25, 0, 1)
    change = level_change(dict(enumerate(series.tolist(), start=1)))
    assert (change is not None and (change.before_until, change.since) == (10, 81)) == is_told


@pytest.mark.slow
def test_the_level_of_correlated_steps_seldom_doubles_by_chance() -> None:
    rng = np.random.default_rng(0)
    many_series = [dict(enumerate(np.exp(0.3 * 0.6 * persistent(rng, 60, 0.8)).tolist())) for _ in range(200)]
    assert sum(late_change(series, factor=2.0) is not None for series in many_series) <= 4
    assert sum(level_change(series) is not None for series in many_series) <= 10


JUMPS = np.where(np.arange(60) < 15, 1.0, 12.0)


@pytest.mark.parametrize(
    ("values", "step"),
    [
        (JUMPS, 16),
        (JUMPS[:20], 16),
        (JUMPS[:19], None),  # four steps of the new level
        (JUMPS[10:], 6),
        (JUMPS[11:], None),  # four steps of the old one
        (np.where(np.arange(60) < 40, JUMPS, 1.0), 16),  # that comes back
        (JUMPS[::-1], None),  # a fall
        (np.where(np.arange(60) == 30, 50.0, 1.0), None),  # a spike
        (np.minimum(1.0 + np.arange(60), 20.0) ** 4, None),  # a KL in a warm-up of the rate
        (np.exp(0.3 * np.arange(60)), None),
        (np.where(np.arange(60) < 15, 0.0, 0.001), None),  # the first number that is not rounded to zero
        (np.where(np.arange(60) < 15, -1.0, 12.0), None),  # no ratio of levels
        (np.zeros(60), None),
        (np.where(np.arange(60) == 3, np.nan, JUMPS), 16),
    ],
)
def test_where_a_series_jumps(values: np.ndarray, step: int | None) -> None:
    rise = jump(dict(enumerate(values.tolist(), start=1)), factor=10.0)
    assert (rise and rise.step) == step


@pytest.mark.parametrize(("factor", "spread"), [(3.0, 0.3), (10.0, 0.8)])
def test_steps_that_resemble_their_neighbors_seldom_jump(factor: float, spread: float) -> None:
    rng = np.random.default_rng(0)
    many_series = [np.exp(spread * 0.6 * persistent(rng, 100, 0.8)) for _ in range(200)]
    assert sum(jump(dict(enumerate(series.tolist())), factor=factor) is not None for series in many_series) <= 8


@pytest.mark.parametrize("num_steps", [20, 60, 200])
def test_a_jump_by_three_is_seen_in_noise(num_steps: int) -> None:
    """By the range of five steps on either side half of them were not."""
    rng = np.random.default_rng(num_steps)
    jumps = [np.exp(0.15 * rng.normal(size=num_steps)) * (1 + 2 * (np.arange(num_steps) >= 8)) for _ in range(60)]
    assert sum(jump(dict(enumerate(series.tolist())), factor=3.0) is not None for series in jumps) >= 50


@pytest.mark.parametrize(("share_low", "low"), [(0.2, 0.05), (0.3, 0.1), (0.45, 0.02)])
def test_medians_of_a_series_with_two_levels_in_turns_are_no_jump(share_low: float, low: float) -> None:
    """As of norms where every third step has no live group, of which half the series were said to jump."""
    rng = np.random.default_rng(0)
    many_series = np.exp(0.6 * rng.normal(size=(60, 200))) * np.where(rng.random((60, 200)) < share_low, low, 1.0)
    assert sum(jump(dict(enumerate(series.tolist())), factor=3.0) is not None for series in many_series) <= 3


def test_a_drop_needs_finite_numbers_and_lasts() -> None:
    assert drop(dict.fromkeys(range(30), math.nan), share=0.3) is None
    falls = dict(enumerate([*[1.0, 1.1] * 10, math.nan, *[-1.0, -1.1] * 5]))
    fall = drop(falls, share=0.3)
    assert fall is not None
    assert (fall.step, fall.num_median) == (21, 5)
    assert drop(falls | dict.fromkeys(range(31, 37), 1.0), share=0.3) is None
