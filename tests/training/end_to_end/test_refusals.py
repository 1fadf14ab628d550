"""What a run refuses before it touches anything, and what it replaces only when told to."""

from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError, UsageError
from gradscope.training.config import TrainConfig
from gradscope.training.train import train
from tests.training.conftest import SHORT


def short(output: Path, **settings: Any) -> TrainConfig:
    return TrainConfig.from_json(SHORT | settings | {"output": str(output)})


@pytest.mark.slow
def test_bad_input_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        train(short(tmp_path / "run", model=str(tmp_path / "none")))
    with pytest.raises(UsageError, match="no advantage formulation 'grop'"):
        train(short(tmp_path / "run", advantage="grop"))
    with pytest.raises(InputError, match="does not fit the model's 64 positions"):
        train(short(tmp_path / "run", max_completion_length=60))
    with pytest.raises(UsageError, match="sign is defined for rewards of 0 and 1, and the task steps rewards shares"):
        train(short(tmp_path / "run", task="steps", advantage="sign"))
    assert not (tmp_path / "run").exists()
