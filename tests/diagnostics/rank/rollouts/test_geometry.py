"""The geometry of one step's gradient, of rows whose norms and angles are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gradscope.diagnostics.rank.rollouts.geometry import class_energy, measure_geometry
from gradscope.rollouts.run import WeightsRef
from tests.diagnostics.rank.rollouts.test_step_spectra import make_rows

WEIGHTS = WeightsRef(num_updates=2, path=Path("run/checkpoint-2"), kind="full")
GRAM = SimpleNamespace(num_inferred_ids=1, verification=SimpleNamespace(describe=lambda: {"passed": True}))


def rows_of(policy_gram, rewards=(0.0, 1.0), groups=("a", "a")):
    rows, _ = make_rows(list(rewards), list(groups))
    return replace(rows, policy_gram=policy_gram, full_gram=policy_gram)


def test_norm_and_cancellation_of_two_orthogonal_rows() -> None:
    found = measure_geometry(rows_of(np.diag([9.0, 16.0])), WEIGHTS, GRAM, {"grad_norm": 4.9})
    assert found.grad_norm.value == pytest.approx(5.0)
    assert found.logged_grad_norm == 4.9
    assert found.cancellation.value == pytest.approx(5 / 7)
    assert found.class_subspace_energy.value == pytest.approx(1.0)
    assert found.sparsity["zero_groups"].value == 0
    assert (found.weights, found.num_rollouts, found.num_inferred_ids) == ("checkpoint-2", 2, 1)
    assert found.verification == {"passed": True}


def test_without_logged_advantages_nothing_is_stated() -> None:
    rows, _ = make_rows([0.0, 1.0], ["a", "a"])
    found = measure_geometry(rows, WEIGHTS, GRAM, {})
    for estimate in (found.grad_norm, found.cancellation, found.class_subspace_energy):
        assert estimate.undefined == "no advantages were logged"
    assert found.sparsity == {}
    assert found.logged_grad_norm is None


def test_class_energy_looks_at_groups_whose_rewards_differ() -> None:
    # two orthogonal passing rows of one norm and a failing one: the passing mean holds half of their energy
    rows = rows_of(None, (1.0, 1.0, 0.0, 1.0, 1.0), ("a", "a", "a", "b", "b"))
    assert class_energy(rows, np.eye(5)).value == pytest.approx(2 / 3)
    equal = rows_of(None, (1.0, 1.0), ("a", "a"))
    assert "rewards that differ" in str(class_energy(equal, np.eye(2)).undefined)
    unknown = rows_of(None, (1.0, float("nan")), ("a", "a"))
    assert class_energy(unknown, np.eye(2)).value is None
