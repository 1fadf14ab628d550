from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from gradscope.training.setup.config import TrainConfig
from gradscope.training.train import train
from tests.training.conftest import SHORT


def short(output: Path, **settings: Any) -> TrainConfig:
    return TrainConfig.from_json(SHORT | settings | {"output": str(output)})


@pytest.mark.slow
def test_nothing_is_printed_and_the_process_is_left_as_it_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import random

    import torch
    from transformers.utils import logging

    before = (torch.get_num_threads(), logging.get_verbosity(), random.getstate(), torch.get_rng_state().tolist())
    filters = list(warnings.filters)
    seen: list[tuple[int, int, str]] = []
    train(short(tmp_path / "run", steps=2), progress=lambda *report: seen.append(report))
    after = (torch.get_num_threads(), logging.get_verbosity(), random.getstate(), torch.get_rng_state().tolist())
    assert before == after
    assert warnings.filters == filters
    assert seen == [
        (4, 4, "held-out prompts before"),
        (1, 2, "steps"),
        (2, 2, "steps"),
        (4, 4, "held-out prompts after"),
    ]
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
