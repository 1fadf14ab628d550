"""Runs trained on the answer's probability beside those trained on the outcome."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradscope import compare_runs
from tests.diagnostics.compared_runs import write_run

DENSE = {"reward": "answer_probability"}


def test_what_was_rewarded_is_compared_and_what_the_reward_is_the_unit_of_is_not(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"plain{seed}", seed=seed, reward="outcome", incoherent=(10, seed))
        write_run(tmp_path / f"dense{seed}", seed=seed, incoherent=(10, 2 + 3 * seed), correct=(2, 3), **DENSE)
    comparison = compare_runs(tmp_path)
    dense, plain = comparison.cells
    assert (dense.metrics["frac_incoherent"].value, plain.metrics["frac_incoherent"].value) == (0.35, 0.05)
    pairs = {pair.metric: pair for pair in comparison.pairs}
    assert set(pairs) == {"pass@1", "pass@4", "frac_incoherent"}
    assert pairs["frac_incoherent"].changed == "reward"
    assert abs(pairs["frac_incoherent"].difference.value or 0.0) == pytest.approx(0.3)
    assert "train_reward" in comparison.metrics


def test_runs_on_the_outcome_alone_are_not_tested_for_it(tmp_path: Path) -> None:
    for name in ("grpo", "sign"):
        write_run(tmp_path / name, advantage=name, reward="outcome", incoherent=(10, 1))
    assert "frac_incoherent" not in compare_runs(tmp_path).metrics


@pytest.mark.parametrize("incoherent", [None, (0, 0)], ids=["not counted", "nothing rewarded"])
def test_a_run_without_the_share_leaves_its_pairs_out(tmp_path: Path, incoherent: tuple[int, int] | None) -> None:
    write_run(tmp_path / "a", incoherent=(10, 1), **DENSE)
    write_run(tmp_path / "b", advantage="rloo", incoherent=incoherent, **DENSE)
    comparison = compare_runs(tmp_path)
    grpo, rloo = comparison.cells
    assert grpo.metrics["frac_incoherent"].value == pytest.approx(0.1)
    assert rloo.metrics["frac_incoherent"].undefined == "not every run of the cell has it"
    assert {pair.metric for pair in comparison.pairs} == set(comparison.metrics) - {"frac_incoherent"}


@pytest.mark.parametrize(("value", "word"), [(float("nan"), "NaN"), (float("inf"), "Infinity")])
def test_a_run_whose_reward_is_not_finite_is_left_out_and_named(tmp_path: Path, value: float, word: str) -> None:
    for seed in range(2):
        write_run(tmp_path / f"grpo{seed}", seed=seed)
        write_run(tmp_path / f"sign{seed}", advantage="sign", seed=seed)
    write_run(tmp_path / "broken", seed=2, rewards=(0.2, 0.4, value, 0.8))
    comparison = compare_runs(tmp_path)
    assert comparison.left_out == {str(tmp_path / "broken"): f"step 3 logged reward as {word}"}
