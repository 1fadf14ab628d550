"""Reduced training data of NeMo-RL has the answers of the row reader."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.rollouts.readers.reduced import STRANGE, assert_same, in_small_blocks, mutated, write_lines


@pytest.fixture(autouse=True)
def reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_blocks(monkeypatch)


def row(prompt: int = 5, reward: float = 1.0, **cells: Any) -> dict[str, Any]:
    usual = {
        "content": [[f"{prompt}?", "4"]],
        "rewards": [reward],
        "input_lengths": [5],
        "token_ids": [[1, prompt, 7, 9, 2, 0, 0]],
        "token_loss_mask": [[0, 0, 0, 1, 1, 0, 0]],
        "sample_loss_mask": [1.0],
        "advantages": [[0.5] * 7],
        "generation_logprobs": [[-0.5] * 7],
    }
    return usual | cells


TOKENS = [row(prompt, reward) for prompt in (5, 6, 10) for reward in (0.0, 1.0)]
FILTERED = [row(reward=0.0, filtered_rewards=[0.5]), row(), row(6, token_loss_mask=[[0.0, 1.0, 0.0, 1.0, 1.0, 0, 0]])]
TEXT = [{name: row(prompt, reward)[name] for name in ("content", "rewards")} for prompt in (5, 6) for reward in (0, 1)]
LISTS = ("token_ids", "token_loss_mask", "generation_logprobs", "advantages", "content")


def damaged(rows: list[dict[str, Any]], seed: int) -> list[str]:
    """Rows with damage inside of their lists as well."""
    chance = random.Random(seed)
    found = json.loads(json.dumps(rows))
    for cells in found:
        name = chance.choice(sorted(cells))
        if chance.random() < 0.3 and isinstance(cells[name], list) and isinstance(cells[name][0], list):
            cells[name][0][chance.randrange(len(cells[name][0]))] = chance.choice(STRANGE)
        elif chance.random() < 0.2:
            cells[name] = chance.choice((cells[name] * 2, cells[name][0], [cells[name]], [chance.choice(STRANGE)]))
    return mutated(found, seed)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [TOKENS, FILTERED, TEXT, [*TOKENS, *TEXT]], ids=["tokens", "filtered", "text", "both"])
def test_damaged_data_has_the_answers_of_the_row_reader(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    for seed in range(6):
        folder = tmp_path / str(seed) / "exp_001"
        for step in range(1 + seed % 2):
            lines = [json.dumps(rows[0])] * (seed % 4 > 0) + damaged(rows, 10 * seed + step)
            write_lines(folder / f"train_data_step{step}.jsonl", lines, ended=seed % 2 == 0)
        assert_same(folder.parent)


@pytest.mark.parametrize("rows", [TOKENS, FILTERED, TEXT], ids=["tokens", "filtered", "text"])
def test_proper_data_is_reduced(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    for step in (1, 2):
        write_lines(tmp_path / f"train_data_step{step}.jsonl", [json.dumps(cells) for cells in rows])
    run = assert_same(tmp_path, is_reduced=True)
    assert run is not None
    assert any("filtered" in sentence for sentence in run.source.missing) == (rows is FILTERED)


@pytest.mark.parametrize(
    "cells",
    [
        {"token_loss_mask": [[False, False, False, True, True, True, True]]},
        {"token_loss_mask": [[1] * 7]},
        {"token_loss_mask": [[0] * 5 + [1, 1]]},
        {"token_loss_mask": [[0, None, 0, 1, 1]]},
        {"token_loss_mask": [[0, "", 2, 1, 1]]},
        {"token_ids": [[1, 5, 7, 9, 2]], "input_lengths": [5.0]},
        {"token_ids": [[1, 5, 7, 9, 2, 0.5]]},
        {"token_ids": [[1, 5, 7]]},
        {"token_ids": [None]},
        {"token_ids": None},
        {"input_lengths": 5},
        {"input_lengths": [0]},
        {"input_lengths": [-2]},
        {"advantages": [0.5]},
        {"advantages": []},
        {"advantages": None},
        {"generation_logprobs": [None]},
        {"sample_loss_mask": [0]},
        {"filtered_rewards": None},
        {"filtered_rewards": [True]},
        {"filtered_rewards": [0.25, 0.5]},
        {"rewards": 0.5},
        {"rewards": [[0.5]]},
    ],
)
def test_a_row_that_is_unlike_the_others(tmp_path: Path, cells: dict[str, Any]) -> None:
    write_lines(tmp_path / "train_data_step3.jsonl", [json.dumps(cells) for cells in (*TOKENS, row() | cells)])
    assert_same(tmp_path, is_reduced=True)


@pytest.mark.parametrize(
    "content", [None, [], "a", ["a"], [["a"]], [[]], [[{"role": "user", "content": "5?"}, "4"]], [["5?", 1, "x"]], {}]
)
def test_content_of_any_kind(tmp_path: Path, content: Any) -> None:
    rows = [*TEXT, {"content": content, "rewards": [1.0]}, {"content": [["5?", "other"]], "rewards": [1.0]}]
    write_lines(tmp_path / "train_data_step3.jsonl", [json.dumps(cells) for cells in rows])
    assert_same(tmp_path, is_reduced=True)


def test_a_file_without_a_step_in_its_name_is_for_the_row_reader(tmp_path: Path) -> None:
    path = tmp_path / "train_data_stepX.jsonl"
    write_lines(path, [json.dumps(cells) for cells in TOKENS])
    write_lines(tmp_path / "train_data_step1.jsonl", [json.dumps(cells) for cells in TOKENS])
    assert_same(tmp_path, is_reduced=True)
