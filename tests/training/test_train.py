"""The front door of training: a configuration is a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gradscope.rollouts.run_folder import (
    step_path,
)

MakeRun = Callable[..., Path]


def test_another_seed_is_another_run(short_run: MakeRun) -> None:
    assert step_path(short_run(), 1).read_bytes() != step_path(short_run(seed=1), 1).read_bytes()
