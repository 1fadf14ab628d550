"""A stock trainer under the recorder, and what a recorded run must give."""

from pathlib import Path
from typing import Any

from gradscope.results.norms import ReplayReport
from gradscope.training import RolloutRecorder
from tests.training.stock import stock_trainer, train


def record(tmp_path: Path, *, weights_every: int | None = 1, **arguments: Any) -> tuple[Any, Path]:
    """A stock trainer that was trained under the recorder, and the run."""
    remaining = {name: arguments.pop(name) for name in ("gradients_every", "success_threshold") if name in arguments}
    trainer = stock_trainer(tmp_path / "trl", **arguments)
    RolloutRecorder(trainer, tmp_path / "run", weights_every=weights_every, **remaining)
    train(trainer)
    return trainer, tmp_path / "run"


def assert_reproduced(report: ReplayReport, steps: tuple[int, ...] = (1, 2, 3)) -> None:
    assert tuple(step.step for step in report.steps) == steps
    assert report.verdict == "match"
    assert all(step.logged["grad_norm"] > 0.001 for step in report.steps)
    assert all(step.relative_error["grad_norm"] < 1e-5 for step in report.steps)
