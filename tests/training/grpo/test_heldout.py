from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gradscope.rollouts.run_folder import (
    heldout_path,
    step_path,
)
from gradscope.rollouts.store import read_steps
from gradscope.training.tasks.running_sums import grade_answer

MakeRun = Callable[..., Path]


def test_heldout_samples_before_and_after(short_run: MakeRun) -> None:
    run = short_run()
    for when in ("before", "after"):
        rows = [json.loads(line) for line in heldout_path(run, when).read_text().splitlines()]  # type: ignore[arg-type]
        assert len(rows) == 16
        assert [rows[i]["prompt_id"] for i in range(0, 16, 4)] == list(dict.fromkeys(row["prompt_id"] for row in rows))
        assert {row["prompt_id"] for row in rows}.isdisjoint(group.prompt_id for group in read_steps(run))
        assert all(row["reward"] == grade_answer(row["completion"], row["answer"]) for row in rows)
        assert all(row["correct"] is (row["reward"] == 1.0) for row in rows)


@pytest.mark.slow
def test_heldout_sampling_does_not_touch_the_training(short_run: MakeRun) -> None:
    run = short_run(heldout_prompts=0)
    assert not heldout_path(run, "before").exists()
    assert step_path(run, 3).read_bytes() == step_path(short_run(), 3).read_bytes()
