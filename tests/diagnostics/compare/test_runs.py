"""Runs as they are read for a comparison: of other readers, trained on other rewards, and told apart."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gradscope.diagnostics.compare import measure
from gradscope.diagnostics.compare.measure import _cell_name, compare_runs
from gradscope.diagnostics.compare.runs import ComparedRun, _told_apart, read_runs
from gradscope.render.terminal.compare import compare_table
from gradscope.results.compare import Comparison
from tests.conftest import REPOSITORY
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


def write_log(path: Path, rewards: list[list[float]], **cells: object) -> Path:
    """A group a step: a log of no trainer of ours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"prompt_id": f"p{step}", "step": step, "reward": reward, **cells}
        for step, group in enumerate(rewards, start=1)
        for reward in group
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def differences(comparison: Comparison) -> dict[str, float | None]:
    return {pair.metric: pair.difference.value for pair in comparison.pairs}


def test_two_logs_of_another_reader_are_compared(tmp_path: Path) -> None:
    low = write_log(tmp_path / "low" / "log.jsonl", [[0, 0, 0, 0], [1, 0, 0, 0]])
    high = write_log(tmp_path / "high" / "log.jsonl", [[1, 0, 0, 1], [1, 1, 1, 1]])
    found = compare_runs(low, high)
    assert [(cell.name, cell.advantage) for cell in found.cells] == [
        ("low/log.jsonl", "unknown"),
        ("high/log.jsonl", "unknown"),
    ]
    assert {pair.changed for pair in found.pairs} == {"run"}
    assert differences(found) == {
        "train_reward": pytest.approx(0.75 - 0.125),
        "reward_drawdown": 0.0,
        "mean_frac_reward_zero_std": 0.0,
    }
    assert found.source.recognized == "2 runs (generic)"
    assert found.source.files == (str(low), str(high))
    assert found.findings[0] == "No difference between low/log.jsonl and high/log.jsonl is beyond chance (2 looked at)."
    assert "what another seed would change is in none of them" in found.findings[1]
    assert found.findings[2:] == ("2 of 2 prompts are in both.",)


def test_trl_runs_are_compared_alone_and_in_a_folder(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(REPOSITORY / "fixtures" / "logs" / "trl", tmp_path / "runs" / name)
    alone, together = compare_runs(tmp_path / "runs" / "a", tmp_path / "runs" / "b"), compare_runs(tmp_path / "runs")
    assert set(differences(alone).values()) == {0.0}
    assert [cell.name for cell in alone.cells] == ["a", "b"]
    assert together.cells == alone.cells


def test_a_log_beside_a_run_of_ours_is_not_told_to_differ_in_what_it_does_not_state(tmp_path: Path) -> None:
    ours, log = write_run(tmp_path / "ours", heldout_prompts=0), write_log(tmp_path / "log.jsonl", [[0, 1]] * 4)
    found = compare_runs(ours, log)
    assert differences(found)["train_reward"] == pytest.approx(0.0)
    assert found.source.recognized == "2 runs (gradscope, generic)"
    assert {pair.changed for pair in found.pairs} == {"run"}
    assert any("Unknown whether they differ in what one of them does not state: " in one for one in found.findings)
    assert compare_table(found)


@pytest.mark.parametrize("scale", [10.0, -3.0])
def test_rewards_of_other_tasks_need_not_lie_between_0_and_1(tmp_path: Path, scale: float) -> None:
    logs = [
        write_log(tmp_path / f"{name}.jsonl", [[scale * value, 0.0] for value in values])
        for name, values in (("falls", (1.0, 0.5, 0.0)), ("rises", (0.0, 0.5, 1.0)))
    ]
    drawdowns = [cell.metrics["reward_drawdown"].value for cell in compare_runs(*logs).cells]
    assert sorted(drawdowns) == [0.0, pytest.approx(abs(scale) / 2)]  # type: ignore[type-var]


def test_logs_without_whole_rewards_and_unreadable_ones_are_left_out(tmp_path: Path) -> None:
    good = [write_log(tmp_path / f"{name}.jsonl", [[0, 1]]) for name in "ab"]
    bare = tmp_path / "bare.jsonl"
    bare.write_text('{"prompt_id": "p", "step": 1, "reward": null}\n{"prompt_id": "p", "step": 1, "reward": 1}\n')
    found = compare_runs(*good, bare, tmp_path / "nowhere")
    assert found.left_out[str(bare)] == "no group has all its rewards"
    assert "There is no file or folder" in found.left_out[str(tmp_path / "nowhere")]
    assert len(found.cells) == 2


def test_logs_that_tell_settings_and_seed_are_cells_and_pairs(tmp_path: Path) -> None:
    """verl keeps its configuration beside the log: two rates, two seeds."""
    for rate in (1e-6, 2e-6):
        for seed in (1, 2):
            path = tmp_path / f"{rate}-{seed}"
            write_log(path / "log.jsonl", [[0, 1], [1, 1]] if rate > 1e-6 else [[0, 1], [0, seed % 2]])
    runs = [
        replace_log(run, rate=rate, seed=seed)
        for rate in (1e-6, 2e-6)
        for seed in (1, 2)
        for run in read_runs([tmp_path / f"{rate}-{seed}" / "log.jsonl"])[0]
    ]
    cells = measure._cells(_told_apart(runs))
    assert [_cell_name(cell) for cell in cells] == ["lr 1e-06", "lr 2e-06"]
    assert [sorted(of_seed) for of_seed in cells.values()] == [[1, 2], [1, 2]]


def replace_log(run: ComparedRun, *, rate: float, seed: int) -> ComparedRun:
    return replace(run, settings={"lr": rate}, seed=seed)


def test_runs_of_one_cell_are_seeds_and_no_pair(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / f"{seed}", seed=seed)
    found = compare_runs(tmp_path)
    assert [cell.runs for cell in found.cells] == [("0", "1")]
    assert not found.pairs
