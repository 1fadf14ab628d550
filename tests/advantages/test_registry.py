from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.hooks.reference import formulations_page
from gradscope.advantages.registry import (
    ALL_FORMULATIONS,
    ENTRIES,
    FORMULATIONS,
    _tasa,
    compute_advantages,
    compute_step_advantages,
    formulation,
    is_formulation,
)
from gradscope.errors import UsageError

binary_groups = st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=16)


NAMES = sorted(FORMULATIONS)


@pytest.mark.parametrize(
    ("name", "success", "fail", "all_pass", "all_fail"),
    [
        ("dr_grpo", 0.75, -0.25, 0.0, 0.0),
        # mean 1/4, variance with ddof 1: (9/16 + 3/16) / 3 = 1/4, std 1/2
        ("grpo", 0.75 / 0.5001, -0.25 / 0.5001, 0.0, 0.0),
        ("rloo", 1.0, -1 / 3, 0.0, 0.0),
        ("reinforce", 1.0, 0.0, 1.0, 0.0),
        ("sign", 1.0, -1.0, 1.0, -1.0),
        ("positive_only", 1.0, 0.0, 1.0, 0.0),
        ("negative_only", 0.0, -1.0, 0.0, -1.0),
        ("tasa", 4.0, -4 / 3, 1.0, -1.0),
        ("max_rl", 3.0, -1.0, 0.0, 0.0),
        ("grpo_negative", 0.75 / 0.5001, -0.25 / 0.5001, 0.0, -1.0),
        # k = 2 of G = 4: all pairs of the pass have one; a fail is saved in the one of its three pairs with the pass
        ("pass_at_2", 2.0, 2 / 3, 2.0, 0.0),
        # the only set of four holds the pass
        ("pass_at_4", 4.0, 4.0, 4.0, 0.0),
        # the pass is alone in each of its three pairs, and the other fails are no better than a fail
        ("pass_at_2_loo", 2.0, 0.0, 0.0, 0.0),
        ("pass_at_4_loo", 4.0, 0.0, 0.0, 0.0),
        ("w_reinforce", 0.1, -1.0, 0.1, -1.0),
        # of 1, 0, 0, 0 and 1: mean 2/5, variance with ddof 1: (2 * 9/25 + 3 * 4/25) / 4 = 3/10;
        # of four fails and a pass: mean 1/5, variance with ddof 1: 1/5
        ("ngrpo", 0.6 / (0.3**0.5 + 1e-6), -0.4 / (0.3**0.5 + 1e-6), 0.0, -0.2 / (0.2**0.5 + 1e-6)),
    ],
)
def test_groups_worked_by_hand(name: str, success: float, fail: float, all_pass: float, all_fail: float) -> None:
    """One success of four, and the degenerate groups."""
    groups = {(1.0, 0.0, 0.0, 0.0): [success, *[fail] * 3], (1.0,) * 4: [all_pass] * 4, (0.0,) * 4: [all_fail] * 4}
    for rewards, advantages in groups.items():
        np.testing.assert_allclose(compute_advantages(name, rewards), advantages, rtol=1e-12)


@given(st.sampled_from(NAMES), binary_groups)
def test_a_pass_is_worth_more_than_a_fail(name: str, rewards: list[float]) -> None:
    rewards = (rewards * 4)[: max(len(rewards), formulation(name).min_group_size)]
    advantages = compute_advantages(name, rewards)
    assert advantages.shape == (len(rewards),)
    mixed = 0 < sum(rewards) < len(rewards)
    if mixed:
        passes, fails = advantages[np.equal(rewards, 1.0)], advantages[np.equal(rewards, 0.0)]
        # where every set of k holds a success, pass@k has nothing to prefer
        assert passes.min() >= fails.max() if name.startswith("pass_at") else passes.min() > fails.max()


@given(st.sampled_from(NAMES), st.lists(binary_groups.map(lambda group: (group * 4)[:4]), min_size=1, max_size=5))
def test_groups_at_once_equal_one_by_one(name: str, groups: list[list[float]]) -> None:
    separate = [compute_advantages(name, group) for group in groups]
    np.testing.assert_array_equal(compute_advantages(name, groups), separate)
    longer = [1.0, 0.0, 0.0, 1.0, 0.0]  # groups of a step may differ in size
    for result, expected in zip(
        compute_step_advantages(name, [*groups, longer]), [*separate, compute_advantages(name, longer)], strict=True
    ):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", [name for name, entry in ALL_FORMULATIONS.items() if entry.function is not None])
@pytest.mark.parametrize("size", [4, 9, 33])
def test_groups_of_one_size_are_an_array_and_sum_to_zero_as_claimed(name: str, size: int) -> None:
    draw = np.random.default_rng(size)
    binary = formulation(name).needs_binary
    rewards = draw.integers(0, 2, (6, size)).astype(np.float64) if binary else draw.normal(size=(6, size))
    rewards = np.vstack([rewards, np.zeros(size), np.ones(size)])
    advantages = compute_advantages(name, rewards)
    np.testing.assert_array_equal(compute_step_advantages(name, list(rewards)), advantages)
    assert formulation(name).zero_sum == (np.abs(advantages.sum(axis=1)).max() < 1e-9)


def test_groups_of_a_step_are_refused_as_groups_are() -> None:
    with pytest.raises(UsageError, match="rloo needs groups of at least 2, this one has 1"):
        compute_step_advantages("rloo", [[1.0, 0.0], [1.0]])
    with pytest.raises(UsageError, match="shrinkage needs groups of at least 2, this one has 1"):
        compute_step_advantages("shrinkage", [[1.0, 0.0], [1.0]])
    with pytest.raises(ValueError, match="advantages need at least one reward"):
        compute_step_advantages("grpo", [[1.0, 0.0], []])


@pytest.mark.parametrize("name", [name for name in NAMES if FORMULATIONS[name].needs_binary])
def test_rewards_that_are_not_binary_are_refused(name: str) -> None:
    why = "it is defined for rewards of 0 and 1, and there is a reward of 0.5"
    with pytest.raises(UsageError, match=f"no '{name}' advantage: {why}"):
        compute_advantages(name, [0.5, 1.0, 1.0, 1.0])
    assert formulation(name).why_not([0.0, 1.0, 0.0, 0.0]) is None


@pytest.mark.parametrize("rewards", [[np.nan, 1.0], [np.inf, 1.0], [], 1.0])
def test_missing_rewards_are_a_callers_bug(rewards: object) -> None:
    with pytest.raises(ValueError, match="advantages need at least one reward, and all of them finite"):
        compute_advantages("grpo", rewards)


def test_unknown_formulation_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match="There is no advantage formulation 'drgrpo'") as caught:
        formulation("drgrpo")
    assert "'dr_grpo'" in caught.value.hint
    with pytest.raises(UsageError, match="There is no advantage formulation 'xyz'") as caught:
        formulation("xyz")
    assert caught.value.hint.startswith("There are: grpo, dr_grpo")


@pytest.mark.parametrize("base", ["sign", "grpo_negative"])
def test_a_constant_is_what_a_group_without_a_success_loses(base: str) -> None:
    groups = np.array([[1.0, 0, 0, 0], [0.0] * 4, [1.0] * 4])
    default, half = (compute_advantages(name, groups) for name in (base, f"{base}:c=0.25"))
    np.testing.assert_array_equal(half[[0, 2]], default[[0, 2]])
    assert half[1].tolist() == [-0.25] * 4
    np.testing.assert_array_equal(compute_advantages(f"{base}:c=1", groups), default)
    assert not compute_advantages(f"{base}:c=0", groups)[1].any()
    assert formulation(f"{base}:c=0.25").formula.endswith("and -0.25 for every rollout of a group without a success")


@pytest.mark.parametrize("name", ["sign:c=", "sign:c=-1", "sign:c=inf", "sign:c=nan", "sign:k=1", "rloo:c=1", "no:c=1"])
def test_a_constant_that_is_none_is_no_formulation(name: str) -> None:
    assert not is_formulation(name)
    with pytest.raises(UsageError, match=f"There is no advantage formulation '{name}'") as caught:
        formulation(name)
    assert "sign:c=X and grpo_negative:c=X, X 0 or more" in caught.value.hint


@pytest.mark.parametrize("name", [name for name, entry in ALL_FORMULATIONS.items() if entry.function is None])
def test_what_rewards_alone_do_not_decide_is_refused_with_the_reason(name: str) -> None:
    why = "(depends on|has one|weighs rewards by|scales the rewards)"
    with pytest.raises(UsageError, match=f"These rewards have no '{name}' advantage: it {why}"):
        compute_advantages(name, [1.0, 0.0])


@pytest.mark.parametrize("name", [name for name, entry in ALL_FORMULATIONS.items() if entry.scope == "step"])
def test_one_group_is_no_step(name: str) -> None:
    with pytest.raises(UsageError, match="it is relative to all groups of a step, and this is one group"):
        compute_advantages(name, [1.0, 0.0])
    assert compute_advantages(name, [[1.0, 0.0]]).shape == (1, 2)


def test_every_formulation_has_a_name_of_its_own_and_says_where_it_is_from() -> None:
    assert len(ALL_FORMULATIONS) == len(ENTRIES)
    assert all(entry.name == name and entry.formula and entry.source for name, entry in ALL_FORMULATIONS.items())
    assert not any("2606.29238" in entry.source for entry in ALL_FORMULATIONS.values())


@pytest.mark.parametrize("name", ALL_FORMULATIONS)
def test_the_page_says_what_the_registry_says(name: str) -> None:
    entry = ALL_FORMULATIONS[name]
    (row,) = [line for line in formulations_page().splitlines() if line.startswith(f"| `{name}` |")]
    assert entry.formula in row
    assert entry.source in row
    assert ("0 and 1 only" in row) == entry.needs_binary


GROUPS = np.array(list(product((0.0, 1.0), repeat=4)))


def test_each_class_of_tasa_weighs_one() -> None:
    for rewards, advantages in zip(GROUPS, _tasa(GROUPS), strict=True):
        in_the_mean = advantages / len(advantages)
        assert in_the_mean[rewards == 1.0].sum() == pytest.approx(float((rewards == 1.0).any()))
        assert in_the_mean[rewards == 0.0].sum() == pytest.approx(-float((rewards == 0.0).any()))
        assert len(set(advantages[rewards == 1.0])) <= 1
