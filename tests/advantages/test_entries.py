from itertools import product

import numpy as np
import pytest

from docs.hooks.reference import formulations_page
from gradscope.advantages.entries import ENTRIES, _tasa
from gradscope.advantages.registry import ALL_FORMULATIONS


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


@pytest.mark.parametrize(
    ("name", "fail", "success"),
    [
        ("reinforce", 0.0, 1.0),
        ("sign", -1.0, 1.0),
        ("positive_only", 0.0, 1.0),
        ("negative_only", -1.0, 0.0),
        ("w_reinforce", -1.0, 0.1),
    ],
)
def test_each_reward_has_one_advantage_whatever_the_others_earn(name: str, fail: float, success: float) -> None:
    assert np.array_equal(ALL_FORMULATIONS[name].function(GROUPS), np.where(GROUPS == 1.0, success, fail))


def test_each_class_of_tasa_weighs_one() -> None:
    for rewards, advantages in zip(GROUPS, _tasa(GROUPS), strict=True):
        in_the_mean = advantages / len(advantages)
        assert in_the_mean[rewards == 1.0].sum() == pytest.approx(float((rewards == 1.0).any()))
        assert in_the_mean[rewards == 0.0].sum() == pytest.approx(-float((rewards == 0.0).any()))
        assert len(set(advantages[rewards == 1.0])) <= 1
