"""Returns of prompts: by hand, by somebody else's formula, and where prompts are all alike."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gradscope.metrics.outcomes.persistence import Persistence, dead_persistence
from gradscope.metrics.uncertainty.resampling import Resampling

FEW = Resampling(num_resamples=400)


def of(*groups: tuple[int, str, bool]) -> Persistence:
    step, prompt, dead = zip(*groups, strict=True)
    return dead_persistence(step, prompt, dead, resampling=FEW)


def visits(
    rate: Callable[[float, int, np.random.Generator], float],
    seed: int,
    *,
    num_prompts: int = 40,
    epochs: int = 4,
    a_step: int = 8,
    size: int = 4,
) -> Persistence:
    """Epochs over prompts in random order; the pass rate is a function of how far the run is, and of the prompt."""
    rng, step, groups = np.random.default_rng(seed), 0, []
    num_steps = epochs * num_prompts // a_step
    for _ in range(epochs):
        for block in np.array_split(rng.permutation(num_prompts), num_prompts // a_step):
            step += 1
            for prompt in block:
                passed = rng.binomial(size, rate(step / num_steps, int(prompt), rng))
                groups.append((step, f"p{prompt}", passed in (0, size)))
    return of(*rng.permutation(np.array(groups, dtype=object)).tolist())


def test_shares_of_next_visits_by_hand() -> None:
    """a: dead, dead, live; b: live, live; c: live, dead; the order of the log does not matter."""
    found = of(
        *((3, "a", False), (1, "a", True), (2, "a", True)),
        *((1, "b", False), (2, "b", False)),
        *((2, "c", True), (1, "c", False)),
    )
    assert found.num_returns == 4
    assert found.after_dead.value == 1 / 2
    assert found.after_live.value == 1 / 2
    # step 2: dead after dead 1 of 1, after live 1 of 2, so 1/2; step 3 has no return after a live group
    assert found.excess.value == pytest.approx(1 / 2)


def test_the_excess_is_that_of_mantel_and_haenszel() -> None:
    rng = np.random.default_rng(1)
    groups = [(step, f"p{prompt}", bool(rng.random() < 0.5)) for step in (1, 2, 3) for prompt in range(30)]
    dead = {(step, prompt): is_dead for step, prompt, is_dead in groups}
    above = below = 0.0
    for step in (2, 3):
        after = {
            kind: [dead[step, f"p{p}"] for p in range(30) if dead[step - 1, f"p{p}"] is kind] for kind in (True, False)
        }
        weight = len(after[True]) * len(after[False]) / 30
        above += weight * (np.mean(after[True]) - np.mean(after[False]))
        below += weight
    assert of(*groups).excess.value == pytest.approx(above / below)


def test_two_groups_of_a_step_are_one_visit() -> None:
    found = of((1, "a", True), (1, "a", False), (2, "a", True), (2, "b", False), (1, "b", True))
    assert found.num_returns == 2
    assert (found.after_live.value, found.after_dead.value) == (1.0, 0.0)
    assert of((1, "a", True), (1, "a", True)).excess.undefined == "no prompt comes back"


def test_what_cannot_be_told_says_why() -> None:
    alone = of((1, "a", True), (2, "b", False))
    assert {one.undefined for one in (alone.after_dead, alone.after_live, alone.excess)} == {"no prompt comes back"}
    assert (alone.num_returns, alone.excess.num_units) == (0, 2)
    dead = of((1, "a", True), (2, "a", False), (1, "b", True), (2, "b", True))
    assert dead.after_dead.value == 1 / 2
    assert dead.after_live.undefined == "every group before a return is dead"
    alive = of((1, "a", False), (2, "a", False), (1, "b", False), (2, "b", True))
    assert alive.after_dead.undefined == "every group before a return is alive"
    apart = of((1, "a", True), (2, "a", True), (1, "b", False), (3, "b", False))
    assert (apart.after_dead.value, apart.after_live.value) == (1.0, 0.0)
    for one in (dead, alive, apart):
        assert one.excess.undefined == "no step has returns after a dead group and after a live one"


def test_few_prompts_have_no_interval() -> None:
    found = of(*((step, name, name == "a") for step in (1, 2) for name in "abc"))
    assert (found.excess.value, found.excess.interval) == (1.0, None)


ALIKE = {
    "hard": lambda when, prompt, rng: 0.05,
    "middling": lambda when, prompt, rng: 0.4,
    "easier and easier": lambda when, prompt, rng: 0.02 + 0.6 * when,
    "up to one": lambda when, prompt, rng: 0.5 + 0.48 * when,
    "up and down": lambda when, prompt, rng: 0.3 + 0.29 * np.sin(9 * when),
}


@pytest.mark.parametrize("name", ALIKE)
def test_prompts_that_are_all_alike_do_not_persist(name: str) -> None:
    """The whole interval is above zero in 2.5 % of the logs, whatever the pass rate does over time."""
    found = [visits(ALIKE[name], seed).excess for seed in range(120)]
    false = sum(one.side_of_zero > 0 for one in found)
    assert false <= 12, false  # 5 % of 120 is 6, with three standard errors 13
    assert abs(np.mean([one.value for one in found if one.value is not None])) < 0.03


@pytest.mark.parametrize("shape", [{"num_prompts": 12, "epochs": 10, "a_step": 4}, {"num_prompts": 100, "size": 8}])
def test_prompts_of_unequal_difficulty_persist(shape: dict[str, int]) -> None:
    rates = np.random.default_rng(5).beta(0.3, 0.3, 200)
    found = [visits(lambda when, prompt, rng: rates[prompt], seed, **shape).excess for seed in range(20)]
    assert sum(one.low > 0 for one in found) >= 12
    assert all(one.high > 0.05 for one in found)
