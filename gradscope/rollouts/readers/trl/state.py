"""``trainer_state.json``: what TRL's trainer logged, and which steps its entries stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.outside.plain_json import read_json
from gradscope.rollouts.readers.parsing.nested_cells import whole_number
from gradscope.rollouts.readers.parsing.scalars import logged_numbers

_EVAL_PREFIX = "eval_"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrlState:
    """The trainer's log."""

    path: Path | None = None
    """The file; None where the run has none."""
    last_step: int = 0
    """The log ends at this step."""
    metrics: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Step -> what was logged about training."""
    eval_steps: frozenset[int] = frozenset()
    """Steps at which an evaluation was logged: it overwrites the step's file of completions."""
    damaged: tuple[Path, ...] = ()
    """State files that could not be read, of which no other one is known to reach as far."""

    @property
    def reward_names(self) -> tuple[str, ...]:
        """Names of the reward functions, as the trainer logged their means."""
        keys = {key: None for metrics in self.metrics.values() for key in metrics}
        return tuple(
            key.removeprefix("rewards/").removesuffix("/mean")
            for key in keys
            if key.startswith("rewards/") and key.endswith("/mean")
        )

    def window(self, step: int) -> int:
        """Over how many steps the trainer averaged what it logged at a step; 0 where nothing was logged at it."""
        if step not in self.metrics:
            return 0
        return step - max((logged for logged in self.metrics if logged < step), default=0)


def has_state(run: Path) -> bool:
    """Whether a trainer left its state in a folder, or in a checkpoint of it."""
    return bool(_state_files(run))


def _state_files(run: Path) -> list[Path]:
    return sorted([*run.glob("trainer_state.json"), *run.glob("checkpoint-*/trainer_state.json")])


def read_state(run: Path) -> TrlState:
    """The state that reaches furthest, of the root and the checkpoints of TRL's ``output_dir``."""
    states: list[tuple[int, Path, dict[str, Any]]] = []
    damaged: list[Path] = []
    for path in _state_files(run):
        try:
            document = read_json(path)
            _metrics_of(document)
            states.append((_step_of(document, "global_step"), path, document))
        except (InputError, OSError, ValueError, KeyError, TypeError, AttributeError):
            damaged.append(path)
    if not states:
        return TrlState(damaged=tuple(damaged))
    last_step, path, document = max(states, key=lambda entry: entry[0])
    damaged = [path for path in damaged if not 0 <= _step_of_checkpoint(path) <= last_step]
    return TrlState(
        path=path,
        last_step=last_step,
        metrics=_metrics_of(document),
        eval_steps=frozenset(_step_of(entry, "step") for entry in document["log_history"] if _is_eval(entry)),
        damaged=tuple(damaged),
    )


def _metrics_of(document: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    metrics: dict[int, dict[str, float]] = {}
    for entry in document["log_history"]:
        if _is_eval(entry):
            continue
        step, logged = _step_of(entry, "step"), logged_numbers(entry)
        logged.pop("step", None)
        metrics[step] = {**logged, **metrics.get(step, {})}
    return metrics


def _step_of_checkpoint(path: Path) -> int:
    """The step that the state of a checkpoint reaches to; -1 where the folder does not tell."""
    step = whole_number(path.parent.name.removeprefix("checkpoint-"))
    return -1 if step is None else step


def _step_of(entry: Mapping[str, Any], key: str) -> int:
    step = entry[key]
    if type(step) is not int or whole_number(step) is None:
        raise ValueError(f"{key} is {str(step)[:40]!r}, which is no step")
    return step


def _is_eval(entry: Mapping[str, Any]) -> bool:
    return any(name.startswith(_EVAL_PREFIX) for name in entry)
