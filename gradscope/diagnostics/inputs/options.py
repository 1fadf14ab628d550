"""The options that every command of a run's gradients takes: how to read the run, how to compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gradscope.errors import UsageError
from gradscope.progress import NoticeCallback, no_notice
from gradscope.rollouts.run import Run

if TYPE_CHECKING:
    from gradscope.gradients.step.measure import Engine, Verify
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypedDict

from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing.request import ColumnNames

if TYPE_CHECKING:
    from gradscope.gradients.step.measure import Engine, Verify


Precision = Literal["auto", "high"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How the gradients are computed."""

    engine: Engine = "auto"
    """``auto``, ``loop``, ``stream`` or ``prompt``."""
    verify: Verify = "first"
    """On which batches the engine checks itself: ``first`` or ``all``."""
    device: str = "auto"
    """``auto``, ``cpu`` or ``cuda``."""
    dtype: str = "auto"
    """``auto`` (float32 on the CPU, on CUDA that of the checkpoint), ``float32`` or ``bfloat16``."""
    precision: Precision = "auto"
    """``high``: float32 without TF32, whatever the checkpoint holds."""
    batch_tokens: int | None = None
    """Tokens of one batch, padding included; None: what fits, by trying."""
    notice: NoticeCallback = no_notice
    """Told what a person should know at once, such as that a batch did not fit."""
    unfinished: Path | None = None
    """Folder in which finished steps are kept for a second call, and looked for; None: nowhere."""

    def __post_init__(self) -> None:
        if self.precision not in ("auto", "high"):
            raise UsageError(f"There is no precision {self.precision!r}.", hint="Use auto or high.")
        if self.precision == "high" and self.dtype not in ("auto", "float32"):
            raise UsageError(
                f"--precision high computes in float32, and --dtype {self.dtype} asks for another one.",
                hint="Leave one of them out.",
            )


class RunOptions(TypedDict, total=False):
    """Keywords of ``measure_rank``, ``replay_run``, ``check_run`` and ``report_run``; each may be left out."""

    format: str | None
    """Name of the reader, where it is not to be guessed."""
    model: str | None
    """Base model of an adapter, where it moved."""
    initial: str | Path | None
    """Weights before the first update."""
    run_config: str | Path | None
    """JSON file of the trainer's arguments."""
    completion_ids: str | Path | None
    """File of exact completion ids (step, row, completion_ids)."""
    strict: bool
    """Whether a row that cannot be used is an error."""
    engine: Engine
    """``auto``, ``loop``, ``stream`` or ``prompt``."""
    verify: Verify
    """On which batches the engine checks itself: ``first`` or ``all``."""
    device: str
    """``auto``, ``cpu`` or ``cuda``."""
    dtype: str
    """``auto``, ``float32`` or ``bfloat16``."""
    precision: Precision
    """``auto``, or ``high``: float32 without TF32."""
    batch_tokens: int | None
    """Tokens of one batch, padding included; None: what fits, by trying."""
    unfinished: Path | None
    """Folder in which finished steps are kept for a second call; None: nowhere."""
    notice: NoticeCallback
    """Told what a person should know at once."""


def open_run(
    path: str | Path, options: Mapping[str, Any], columns: ColumnNames | None = None
) -> tuple[Run, EngineOptions]:
    """Read a run, and sort out how its gradients are to be computed.

    Args:
        path: A run folder or a log.
        options: Those of :class:`RunOptions` that were given.
        columns: Columns of a generic log, where their names are not usual.

    Returns:
        The run and the engine's options.
    """
    known = {field.name for field in fields(EngineOptions)}
    reading = {name: value for name, value in options.items() if name not in known}
    computing = {name: value for name, value in options.items() if name in known}
    engine = EngineOptions(**computing)
    return read_run(path, columns=columns, **reading), engine
