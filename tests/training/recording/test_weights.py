from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradscope import read_run, replay_run
from gradscope.errors import InputError
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.run_folder import checkpoint_path, find_weights, read_manifest
from gradscope.training import RolloutRecorder
from gradscope.training.grpo.policy import EMBEDDED_FOLDER
from gradscope.training.setup.config import read_config
from tests.training.conftest import save_model
from tests.training.recording.recorded import assert_reproduced, record
from tests.training.stock import stock_trainer, train


def _spread(completions: list[Any], **_: Any) -> list[float]:
    return [float(row % 2) for row, _ in enumerate(completions)]


@pytest.mark.slow
def test_the_trainers_own_checkpoints_serve_where_none_are_kept(tmp_path: Path) -> None:
    _, run = record(tmp_path, weights_every=None, save_strategy="steps", save_steps=1)
    assert [weights.num_updates for weights in find_weights(run)] == [1, 2, 3]
    report = replay_run(run, read=ReadOptions(initial_weights=EMBEDDED_FOLDER))
    assert_reproduced(report)


@pytest.mark.slow
def test_no_weights_are_kept_unasked(tmp_path: Path) -> None:
    _, run = record(tmp_path, weights_every=None, max_steps=1)
    assert read_run(run).weights == ()
    assert not checkpoint_path(run, 0).exists()
    with pytest.raises(InputError, match="recorded from a script"):
        read_config(run)


@pytest.mark.slow
def test_recording_may_begin_at_a_checkpoint(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"max_steps": 3, "save_strategy": "steps", "save_steps": 2}
    train(stock_trainer(tmp_path / "trl", **arguments))
    trainer = stock_trainer(tmp_path / "trl", **arguments)
    RolloutRecorder(trainer, tmp_path / "run", weights_every=1)
    train(trainer, resume_from_checkpoint=str(tmp_path / "trl" / "checkpoint-2"))
    assert [path.name for path in (tmp_path / "run" / "rollouts").glob("*.parquet")] == ["step_00003.parquet"]
    assert "Recording began after 2 updates." in read_manifest(tmp_path / "run").notes
    assert_reproduced(replay_run(tmp_path / "run"), steps=(3,))


@pytest.mark.slow
def test_a_model_whose_tokenizer_pads_with_a_token_of_its_own(tmp_path: Path) -> None:
    """TRL names that token in the model's configuration; its embedding was made to learn it all the same."""
    model = save_model(tmp_path / "model", chat=False)
    rows = [{"prompt": f"{n}<pad> and {n}?", "answer": "0"} for n in range(4)]
    _, run = record(tmp_path, model=model, rows=rows, rewards=_spread, max_completion_length=8)
    assert_reproduced(replay_run(run))
