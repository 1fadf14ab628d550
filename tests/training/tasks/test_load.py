from __future__ import annotations

from pathlib import Path

from gradscope.training.setup.config import TrainConfig
from gradscope.training.tasks.load import max_completion_length


def test_completion_length_by_task(gsm8k_file: Path) -> None:
    assert max_completion_length(TrainConfig()) == 27
    assert max_completion_length(TrainConfig(task="gsm8k", data=str(gsm8k_file))) == 256
    assert max_completion_length(TrainConfig(max_completion_length=9)) == 9
