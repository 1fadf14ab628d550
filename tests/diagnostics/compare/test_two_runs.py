"""Two single runs: the difference of the table with an interval over prompts, and none where nothing is resampled."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gradscope.diagnostics.compare.measure import compare_runs
from gradscope.estimate import Estimate
from gradscope.results.compare import ComparedPair
from tests.diagnostics.compared_runs import write_run

CHANCES = {"low": 0.3, "high": 0.6}


def write_log(path: Path, chance: float, *, sizes: tuple[int, ...] = (8,), seed: int = 0, scale: float = 1.0) -> Path:
    """Ten prompts a step for eight steps, groups of the sizes in turn."""
    rng = np.random.default_rng(seed)
    rows = [
        {"prompt_id": f"{path.stem}-{prompt}", "step": step, "reward": scale * float(rng.random() < chance)}
        for step in range(1, 9)
        for prompt in range(10)
        for _ in range(sizes[(step + prompt) % len(sizes)])
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def within(*paths: Path) -> dict[str, tuple[ComparedPair, Estimate | None]]:
    return {pair.metric: (pair, pair.within_runs) for pair in compare_runs(*paths).pairs}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("sizes", "scale"), [((8,), 1.0), ((4, 8), 1.0), ((2, 3, 16), 1.0), ((4, 8), 5.0)])
def test_the_interval_is_around_the_difference_of_the_table(
    tmp_path: Path, sizes: tuple[int, ...], scale: float, seed: int
) -> None:
    logs = [
        write_log(tmp_path / f"{name}.jsonl", chance, sizes=sizes, seed=seed + place, scale=scale)
        for place, (name, chance) in enumerate(CHANCES.items())
    ]
    found = within(*logs)
    for metric in ("train_reward", "mean_frac_reward_zero_std"):
        pair, estimate = found[metric]
        assert estimate is not None
        assert estimate.value == pytest.approx(pair.difference.value, abs=1e-12)
        assert estimate.num_units == 10
        assert pair.difference.interval is None
        assert pair.verdict == "open"
    _, reward = found["train_reward"]
    assert reward is not None
    assert reward.side_of_zero == -1  # low minus high
    assert reward.ends[1] - reward.ends[0] < scale * 0.25
    assert found["reward_drawdown"][1] is None


def test_the_interval_covers_as_often_as_it_says(tmp_path: Path) -> None:
    """Prompts of the same chance: of 20 pairs of runs one leaves zero out."""
    missed = 0
    for seed in range(20):
        logs = [write_log(tmp_path / f"{name}.jsonl", 0.5, seed=2 * seed + place) for place, name in enumerate("ab")]
        _, estimate = within(*logs)["train_reward"]
        assert estimate is not None
        missed += estimate.side_of_zero != 0
    assert missed <= 4  # more have a chance of 3 in 1,000


def test_three_runs_or_rollouts_that_are_not_there_have_no_such_interval(tmp_path: Path) -> None:
    logs = [write_log(tmp_path / f"{name}.jsonl", 0.5) for name in "abc"]
    assert all(estimate is None for _, estimate in within(*logs).values())
    bare = write_run(tmp_path / "run", heldout_prompts=0)
    assert all(estimate is None for _, estimate in within(bare, logs[0]).values())


def test_runs_of_one_cell_are_seeds_and_no_pair(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / f"{seed}", seed=seed)
    found = compare_runs(tmp_path)
    assert [cell.runs for cell in found.cells] == [("0", "1")]
    assert not found.pairs
