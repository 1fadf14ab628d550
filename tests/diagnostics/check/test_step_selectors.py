from __future__ import annotations

import pytest

from gradscope.catalog.lookup import CATALOG
from gradscope.diagnostics.check.step_selectors import (
    Aggregate,
    Needed,
    Selector,
    aggregate_steps,
    silence,
    split_metric,
)


@pytest.mark.parametrize(
    ("steps", "chosen"),
    [
        ("all", (2, 4, 6, 8, 10)),
        ("4-8", (4, 6, 8)),
        ("2,6-8", (2, 6, 8)),
        ("1-4,10", (2, 4, 10)),
        ("first2", (2, 4)),
        ("last3", (6, 8, 10)),
        ("first20%", (2,)),
        ("last30%", (8, 10)),
        ("last0", ()),
        ("4:6", (4, 6)),
        ("2,5:9", (2, 6, 8)),
    ],
)
def test_steps_that_a_selector_means(steps: str, chosen: tuple[int, ...]) -> None:
    assert Selector(steps=steps, aggregate="mean").choose((2, 4, 6, 8, 10)) == chosen


@pytest.mark.parametrize(
    ("known", "asked", "must_have", "reason"),
    [
        ([], range(1, 9), "all", None),
        ([1], [], "all", None),
        ([3], range(1, 9), "last", "is last known at step 3, and the run goes on to step 8"),
        ([3], range(1, 4), "all", "is not known at steps 1 to 2"),
        ([6], range(1, 9), "all", None),  # its window of three steps, and less than another
        ([5, 10, 15], range(1, 20), "all", None),
        ([5, 10, 15], range(1, 21), "all", "is last known at step 15, and the run goes on to step 20"),
        ([0, 5, 10, 20], range(0, 21), "all", "is not known at steps 11 to 19"),
        ([1, 2, 3], range(0, 4), "all", None),  # a validation before the first step
        ([1, 2, 3, 9], [1, 2, 3, 9], "all", None),
        ([1, 2, 3, 9], [2, 3, 5, 9], "all", "is not known at step 5"),
        ([1, 2, 3, 9], [2, 3, 5, 9], "last", None),
        ([9, 10], range(1, 9), "last", None),
        (range(1, 91), range(1, 101), "most", None),
        (range(1, 90), range(1, 101), "most", "is last known at step 89, and the run goes on to step 100"),
        ([1, 2], range(1, 4), "most", None),
    ],
)
def test_a_metric_is_silent_where_it_skips_more_than_its_usual_distance(
    known: list[int], asked: list[int], must_have: Needed, reason: str | None
) -> None:
    assert silence(known, asked, {6: 3}, must_have) == reason


@pytest.mark.parametrize("steps", ["5-20", "1,6", "1,6,11-20", "6-6", "last20%"])
def test_steps_are_read_from_behind_the_at_sign(steps: str) -> None:
    assert split_metric(f"kl@{steps}:max") == ("kl", Selector(steps=steps, aggregate="max"))


@pytest.mark.parametrize(
    "name", [*CATALOG, "pass@8", "val/mean@8", "x@", "@max", "x@last20%:median", "x@5", "x@5,", "x@5:max"]
)
def test_what_is_no_selector_belongs_to_the_name(name: str) -> None:
    assert split_metric(name) == (name, None)


@pytest.mark.parametrize(
    ("aggregate", "value"), [("mean", 7 / 3), ("max", 4.0), ("min", 1.0), ("last", 2.0), ("trend", 1.0)]
)
def test_numbers_of_steps_become_one(aggregate: Aggregate, value: float) -> None:
    """1, 4 and 2 at steps 2, 4 and 6: the least-squares slope is 1/4 a step, over four steps 1."""
    estimate = aggregate_steps({2: 1.0, 4: 4.0, 6: 2.0}, Selector(steps="all", aggregate=aggregate), [1.0, 4.0, 2.0])
    assert estimate.value == pytest.approx(value)
    assert (estimate.interval is None) == (aggregate != "trend")
    assert estimate.num_units == 3


def test_no_steps_have_no_number() -> None:
    nothing = aggregate_steps({}, Selector(steps="last3", aggregate="max"), [])
    assert nothing.undefined == "none of the steps 'last3' has a value"


@pytest.mark.parametrize(
    ("text", "steps", "aggregate"),
    [
        ("kl@max", "all", "max"),
        ("kl@5-20", "5-20", "mean"),
        ("kl@5:20", "5:20", "mean"),
        ("kl@5:20,30:max", "5:20,30", "max"),
        ("pass@8@first10%:min", "first10%", "min"),
        ("a@b@trend", "all", "trend"),
    ],
)
def test_what_follows_the_last_at_sign_selects(text: str, steps: str, aggregate: Aggregate) -> None:
    assert split_metric(text) == (text.rpartition("@")[0], Selector(steps=steps, aggregate=aggregate))
