from __future__ import annotations

import math

import pytest

from gradscope.diagnostics.spike.logged_course import courses_of, metric_at, outstanding_step
from gradscope.errors import InputError
from tests.diagnostics.made_up_runs import group_of, run_of


def course(*, jump: int = 7, by: float = 9.0, steps: int = 20) -> dict[int, float]:
    return {step: (1.0 + 0.1 * (step % 4)) * (by if step == jump else 1.0) for step in range(1, steps + 1)}


def test_courses_are_found_by_the_last_part_of_their_trainers_names() -> None:
    metrics = {
        1: {"actor/kl_loss": 0.1, "grad_norm": 1.0, "critic/kl": 9.0},
        2: {"actor/pg_loss": -0.5, "entropy": 1.0},
    }
    found = courses_of(run_of(group_of([0.0, 1.0], step=1), metrics=metrics))
    assert found == {"grad_norm": {1: 1.0}, "critic/kl": {1: 9.0}, "actor/pg_loss": {2: -0.5}}
    assert courses_of(run_of(group_of([0.0], step=1))) == {}


def test_the_gradient_norm_decides_and_what_stands_in_for_it() -> None:
    assert outstanding_step({"grad_norm": course(jump=7), "kl": course(jump=3, by=99.0)}) == 7
    assert outstanding_step({"grad_norm": {1: 1.0}, "kl": course(jump=3)}) == 3


def test_the_first_step_with_a_number_that_is_none_comes_before_all() -> None:
    courses = {"grad_norm": course() | {12: math.inf}, "loss": course() | {11: math.nan, 13: math.nan}}
    assert outstanding_step(courses) == 11


def test_a_log_in_which_nothing_can_stand_out_is_refused() -> None:
    for courses in ({}, {"grad_norm": course(steps=8)}, {"kl": dict.fromkeys(range(20), 0.0)}):
        with pytest.raises(InputError, match="No step can stand out"):
            outstanding_step(courses)


def test_a_number_stands_beside_those_around_it() -> None:
    found = metric_at("grad_norm", course(), 7, was_named=False)
    assert (found.value.value, found.is_unusual) == (pytest.approx(9 * 1.3), True)
    assert found.typical.value == pytest.approx(1.1)
    quiet = metric_at("grad_norm", course(), 8, was_named=True)
    assert not quiet.is_unusual
    assert (quiet.by_chance.value or 0) < (found.by_chance.value or 0)


def test_a_number_that_is_none_or_alone_has_its_reason() -> None:
    broken = metric_at("loss", {1: math.nan}, 1, was_named=False)
    assert (broken.is_unusual, broken.value.undefined) == (True, "it was logged as no finite number")
    alone = metric_at("loss", {1: 2.0}, 1, was_named=False)
    assert (alone.is_unusual, alone.value.value) == (False, 2.0)
    assert alone.deviation.undefined == "0 other steps have the number, and a spread needs 8"
