"""Why the rollouts of a step do not stand for what TRL logged there."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.rollouts.readers.trl_files import StepFile
from gradscope.rollouts.readers.trl_state import TrlState
from gradscope.rollouts.run import TrainerSettings


def step_notes(files: Sequence[StepFile], state: TrlState, settings: TrainerSettings) -> dict[int, str]:
    """The notes of a run.

    Args:
        files: Its files of training rollouts.
        state: The trainer's log.
        settings: The trainer's arguments.

    Returns:
        Step -> sentences; a step without reservations has none.
    """
    said = {file.step: [*_window_note(file, state), *_reuse_note(file, settings)] for file in files}
    return {step: " ".join(notes) for step, notes in said.items() if notes}


def _window_note(file: StepFile, state: TrlState) -> list[str]:
    width = state.window(file.step)
    if width <= 1:
        return []
    return [f"The trainer logged the mean of {width} steps; the file holds the rollouts of the last only."]


def _reuse_note(file: StepFile, settings: TrainerSettings) -> list[str]:
    """A batch serves several updates by being split, by being repeated, or both; only a repeat shows all of it at once.

    Args:
        file: The step's file.
        settings: The trainer's arguments.

    Returns:
        A note, unless the arguments say that the first update saw the whole batch.
    """
    per_generation, accumulation = settings.get("steps_per_generation"), settings.get("gradient_accumulation_steps")
    known = per_generation is not None and accumulation is not None
    if known and per_generation == accumulation:
        return []
    if known:
        return [
            f"One generation serves {per_generation} micro-batches and an update takes {accumulation}: the update "
            "of this step saw a part of these rollouts, and the log does not say which."
        ]
    if not file.repeated_at:
        return []
    steps = ", ".join(map(str, file.repeated_at))
    return [
        f"The batch also served step {steps}; without steps_per_generation it is not known whether each update saw "
        "all of it or a part."
    ]
