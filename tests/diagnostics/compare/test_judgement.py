from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gradscope.diagnostics.compare.judgement import LEVEL, judged
from gradscope.metrics.uncertainty.paired import paired_t_p_value, sign_flip_p_value, student_mean
from gradscope.results.compare import ComparedPair


def pair_of(differences: Sequence[float]) -> ComparedPair:
    values = np.array(differences)
    p_value = paired_t_p_value(values)
    return ComparedPair(
        first="a",
        second="b",
        changed="advantage",
        metric="pass@1",
        difference=student_mean(values),
        p_value=p_value,
        p_holm=None,
        sign_flip_p_value=sign_flip_p_value(values),
        num_pairs=len(values),
        test="paired t",
        undefined="all pairs differ by the same amount" if p_value is None else None,
        spread=None if p_value is None else float(values.std(ddof=1)),
    )


RISING = [0.1, 0.11, 0.12, 0.13, 0.14, 0.15, 0.16, 0.17]


def test_eight_seeds_that_agree_decide_and_seven_suggest() -> None:
    (eight,), (seven,) = judged([pair_of(RISING)]), judged([pair_of(RISING[:7])])
    assert (eight.verdict, eight.sign_flip_p_holm) == ("decides", 2 / 256)
    assert (seven.verdict, seven.sign_flip_p_holm) == ("suggests", None)
    assert seven.p_holm < 1e-4
    assert seven.least_detectable.undefined == "a decision needs 8 pairs, there are 7"


def test_a_decision_counts_all_tests_that_could_decide() -> None:
    noise = np.random.default_rng(0).normal(size=(6, 8)).tolist()
    few, many = judged([pair_of(RISING), *map(pair_of, noise[:5])]), judged([pair_of(RISING), *map(pair_of, noise)])
    assert (few[0].sign_flip_p_holm, few[0].verdict) == (pytest.approx(6 * 2 / 256), "decides")
    assert (many[0].sign_flip_p_holm, many[0].verdict) == (pytest.approx(7 * 2 / 256), "suggests")
    assert many[1].least_detectable.undefined == (
        "sign flips of 8 pairs give no p-value below 0.0078, and the first of 7 tests needs 0.0071"
    )
    with_few_seeds = judged([pair_of(RISING), *(pair_of(values[:5]) for values in noise)])
    assert with_few_seeds[0].sign_flip_p_holm == 2 / 256


def test_seeds_that_disagree_stay_open() -> None:
    (pair,) = judged([pair_of([0.1, -0.1, 0.2, -0.2, 0.1, -0.1, 0.2, -0.1])])
    assert pair.verdict == "open"
    assert pair.least_detectable.value == pytest.approx(pair.spread * 1.16, rel=0.01)


def test_equal_differences_are_decided_by_their_signs_alone() -> None:
    (pair,) = judged([pair_of([0.25] * 8)])
    assert (pair.p_holm, pair.verdict) == (None, "decides")
    assert pair.least_detectable.undefined == "all pairs differ by the same amount"


def test_equal_arms_that_bifurcate_are_seldom_decided() -> None:
    """Half of the seeds of either arm collapse: of families of three tests at most one in twenty decides anything."""
    rng = np.random.default_rng(1)
    decided = 0
    for _ in range(200):
        runs = np.where(rng.random((2, 3, 8)) < 0.5, 0.2, 0.8) + rng.normal(0, 0.01, (2, 3, 8))
        decided += any(pair.verdict == "decides" for pair in judged([pair_of(row) for row in runs[1] - runs[0]]))
    assert decided / 200 <= LEVEL + 0.03


def test_the_least_detectable_difference_is_found_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    (pair,) = judged([pair_of(rng.normal(size=10))])
    least = pair.least_detectable.value / pair.spread
    found = [judged([pair_of(rng.normal(least, 1.0, 10))])[0].verdict == "decides" for _ in range(200)]
    assert np.mean(found) == pytest.approx(0.8, abs=0.1)
