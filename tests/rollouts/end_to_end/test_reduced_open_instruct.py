"""Reduced traces of open-instruct have the answers of the row reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.groups import holds_rewards_alone
from tests.rollouts.readers.reduced import assert_same, in_small_blocks, mutated, write_lines


@pytest.fixture(autouse=True)
def reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_blocks(monkeypatch)


def row(step: int = 1, index: int = 0, sample: int = 0, **cells: Any) -> dict[str, Any]:
    usual = {
        "step": step,
        "prompt_idx": index,
        "prompt_tokens": [1, 20 + index],
        "response_tokens": [5] * (1 + sample),
        "reward": float(sample),
        "finish_reason": "stop",
        "logprobs": [-0.5] * (1 + sample),
    }
    return usual | cells


ROWS = [row(step, index, sample) for step in (1, 2) for index in (0, 1, 10) for sample in (0, 1)]
WITHOUT_LOGPROBS = [{name: cell for name, cell in cells.items() if name != "logprobs"} for cells in ROWS]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [ROWS, WITHOUT_LOGPROBS], ids=["logprobs", "none"])
def test_damaged_traces_have_the_answers_of_the_row_reader(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    num_reduced = 0
    for seed in range(20):
        folder = tmp_path / str(seed)
        write_lines(folder / "a_rollouts_000000.jsonl", [json.dumps(rows[0])])
        for number in range(1, 2 + seed % 3):
            lines = mutated(rows, 10 * seed + number)
            write_lines(folder / f"a_rollouts_00000{number}.jsonl", lines, ended=seed % 2 == 0)
        run = assert_same(folder)
        num_reduced += run is not None and holds_rewards_alone(run.groups)
    assert num_reduced > 10  # else the property holds of nothing


def test_proper_traces_are_reduced_with_their_lengths(tmp_path: Path) -> None:
    write_lines(tmp_path / "a_rollouts_000000.jsonl", [json.dumps(cells) for cells in (*ROWS, *WITHOUT_LOGPROBS)])
    run = assert_same(tmp_path, is_reduced=True)
    assert run is not None
    assert [group.group_id for group in run.groups] == ["1:0", "1:1", "1:10", "2:0", "2:1", "2:10"]


@pytest.mark.parametrize(
    "cells",
    [
        {"prompt_tokens": [1, 99]},
        {"prompt_tokens": [1, 99], "reward": None},
        {"prompt_tokens": [1, 99], "response_tokens": None},
        {"prompt_tokens": [1, 99], "logprobs": []},
        {"prompt_tokens": [1, 99], "step": 3.0},
        {"prompt_tokens": [1, 99], "prompt_idx": None},
        {"prompt_tokens": [1, 20.0]},
        {"prompt_tokens": [1, True]},
        {"prompt_tokens": []},
        {"prompt_tokens": [1, -20]},
        {"reward": None},
        {"logprobs": None},
        {"logprobs": "ab", "response_tokens": []},
        {"logprobs": [], "response_tokens": []},
        {"logprobs": {"a": 1}},
        {"logprobs": [None]},
        {"response_tokens": [[5]]},
        {"response_tokens": [5, "a"], "logprobs": [0, 0]},
        {"response_tokens": [1 << 70]},
    ],
)
def test_a_row_that_is_unlike_the_others(tmp_path: Path, cells: dict[str, Any]) -> None:
    lines = [json.dumps(cells) for cells in (*ROWS, row() | cells)]
    write_lines(tmp_path / "a_rollouts_000000.jsonl", lines)
    assert_same(tmp_path, is_reduced=True)


def test_no_usable_row_at_all_is_the_same_error(tmp_path: Path) -> None:
    write_lines(tmp_path / "a_rollouts_000000.jsonl", [json.dumps(row(step="x"))])  # type: ignore[arg-type]
    assert assert_same(tmp_path) is None
