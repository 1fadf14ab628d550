from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradscope.diagnostics.report.index import report_index, report_runs
from gradscope.errors import InputError


def write_run(folder: Path, name: str, rewards_by_step: list[list[int]]) -> Path:
    """A prompt a step: a log in a folder of its own."""
    path = folder / name / "log.jsonl"
    path.parent.mkdir(parents=True)
    rows = [
        {"prompt_id": f"p{step}", "step": step, "reward": reward}
        for step, rewards in enumerate(rewards_by_step, start=1)
        for reward in rewards
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


RISING = [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]
FLAT = [[1, 1, 1, 1]] * 4


def test_each_run_has_its_numbers_and_curves(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, "rising", RISING), write_run(tmp_path, "flat", FLAT)]
    index = report_index(tmp_path, runs)
    rising, flat = index.runs
    assert (rising.name, rising.steps, rising.num_rollouts) == ("rising/log.jsonl", (1, 2, 3, 4), 16)
    assert rising.reward_by_step == (0.0, 0.25, 0.5, 0.75)
    assert rising.degenerate_by_step == (1.0, 0.0, 0.0, 0.0)
    assert rising.grad_norm_by_step == (None,) * 4
    assert (rising.reward.value, rising.reward.interval) == (0.375, None)
    assert rising.reward_change.value == pytest.approx(0.75)
    assert rising.frac_reward_zero_std.value == 0.25
    assert flat.frac_reward_zero_std.value == 1.0
    assert index.source.num_rows == 32
    assert index.source.recognized == "2 runs"


def test_most_and_fewest_dead_groups_are_named(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, "rising", RISING), write_run(tmp_path, "flat", FLAT)]
    *_, rise, share = report_index(tmp_path, runs).findings
    assert rise.startswith("The reward rises beyond chance in 1 of 2 runs and falls in 0,")
    assert share.startswith("Groups without a gradient: most in flat/log.jsonl (100.0 % [")
    assert "fewest in rising/log.jsonl (25.0 % [" in share
    assert len(report_index(tmp_path, runs[:1]).findings) == 1


def test_progress_tells_each_run_before_it_is_read(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    runs = [write_run(tmp_path, "a", RISING)]
    report_index(tmp_path, runs, progress=lambda done, total, name: told.append((done, total, name)))
    assert (told[0], told[-1]) == ((0, 1, "a/log.jsonl"), (1, 1, "runs"))
    assert all(name.startswith("a/log.jsonl: ") for _, _, name in told[1:-1])


def test_what_cannot_be_read_is_left_out_unless_nothing_is_left(tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{}\n")
    run = write_run(tmp_path, "a", RISING)
    index = report_index(tmp_path, [run, broken])
    assert [name for name, _ in index.left_out] == ["broken.jsonl"]
    with pytest.raises(InputError, match=r"broken\.jsonl cannot be summarized: "):
        report_index(tmp_path, [broken])
    with pytest.raises(InputError, match=r"broken\.jsonl cannot be summarized: "):
        report_index(tmp_path, [run, broken], strict=True)


def test_runs_that_are_named_are_set_beside_the_first(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, "rising", RISING), write_run(tmp_path, "flat", FLAT)]
    index = report_runs(runs)
    assert [run.name for run in index.runs] == ["rising/log.jsonl", "flat/log.jsonl"]
    assert index.name == "rising/log.jsonl and flat/log.jsonl"
    assert index.findings[0].startswith("flat/log.jsonl beside rising/log.jsonl: ")
    assert [section.name for section in index.sections] == ["differences", "courses", "settings"]
    with pytest.raises(InputError, match="nowhere cannot be summarized: There is no file or folder"):
        report_runs([*runs, tmp_path / "nowhere"])


def test_many_runs_are_an_index_without_common_charts(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, name, RISING) for name in "abcdefghijklm"]
    assert report_runs(runs).sections == ()
    assert len(report_runs(runs[:-1]).sections) == 3
    assert len(report_runs(runs).runs) == 13
    assert len(report_index(tmp_path, runs[:4]).sections) == 3
