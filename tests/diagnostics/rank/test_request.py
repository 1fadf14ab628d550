"""What is asked of a step, held against what a run has."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gradscope.diagnostics.rank.request import RankRequest, known_advantages, possible_sizes
from gradscope.errors import UsageError
from tests.diagnostics.rank.test_rollout_spectra import make_rows


def request(**fields: object) -> RankRequest:
    given = {
        "rows": "rollout",
        "advantages": ("logged", "dr_grpo", "rloo"),
        "group_sizes": (2, 4),
        "paired": False,
        "centered": False,
        "seed": 0,
        "output": None,
    }
    return RankRequest(**{**given, **fields})


def test_logged_advantages_belong_to_the_logged_groups() -> None:
    rows, _ = make_rows([0, 1, 1, 0], ["a"] * 4)
    asked = request()
    assert [(advantage, size) for advantage in asked.advantages for size in asked.sizes(rows, advantage)] == [
        ("logged", None),
        ("dr_grpo", None),
        ("dr_grpo", 2),
        ("rloo", None),
        ("rloo", 2),
    ]


def test_paired_groups_live_at_every_size() -> None:
    rows, _ = make_rows([0, 1, 0, 1, 0, 0, 1, 1], ["a"] * 4 + ["b"] * 4)
    assert request().groups(rows, "dr_grpo") is None
    assert request(paired=True, group_sizes=(2,)).groups(rows, "dr_grpo") == {"a"}  # pairs of b are alike
    assert request(paired=True, group_sizes=(2,)).groups(rows, "sign") == {"a", "b"}


def test_names_are_checked_and_all_is_every_one() -> None:
    assert known_advantages(["logged", "sign", "sign"]) == ("logged", "sign")
    assert known_advantages(["all"]) == known_advantages(None)
    with pytest.raises(UsageError, match="no advantage formulation"):
        known_advantages(["signs"])


def test_sizes_are_those_that_some_group_can_give() -> None:
    run = SimpleNamespace(groups=[SimpleNamespace(size=4), SimpleNamespace(size=8)])
    assert possible_sizes(run, ()) == (2, 4)
    assert possible_sizes(run, (8, 3, 3)) == (8, 3)
    with pytest.raises(UsageError, match="Groups of 9 cannot be taken"):
        possible_sizes(run, (9,))
