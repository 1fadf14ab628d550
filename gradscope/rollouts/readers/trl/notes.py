"""Why the rollouts of a step do not stand for what TRL logged there."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.rollouts.readers.trl.files import StepFile
from gradscope.rollouts.readers.trl.state import TrlState
from gradscope.rollouts.run import TrainerSettings


def step_notes(files: Sequence[StepFile], state: TrlState, settings: TrainerSettings) -> dict[int, str]:
    """The notes of a run's training files: step -> sentences; a step without reservations has none."""
    notes_by_step = {file.step: [*_window_note(file, state), *_reuse_note(file, state, settings)] for file in files}
    return {step: " ".join(notes) for step, notes in notes_by_step.items() if notes}


def _window_note(file: StepFile, state: TrlState) -> list[str]:
    width = state.window(file.step)
    if width <= 1:
        return []
    return [f"The trainer logged the mean of {width} steps; the file holds the rollouts of the last only."]


def _reuse_note(file: StepFile, state: TrlState, settings: TrainerSettings) -> list[str]:
    """A batch serves several updates by being split, by being repeated, or both; only a repeat shows all of it at once.

    Returns:
        Notes, unless the arguments say that the batch was sampled for this update and shown to it whole.
    """
    per_generation, accumulation = settings.get("steps_per_generation"), settings.get("gradient_accumulation_steps")
    if not isinstance(per_generation, int) or not isinstance(accumulation, int) or accumulation < 1:
        return _reuse_note_without_settings(file, state)
    notes = []
    num_updates = max(1, settings.get("num_iterations", 1) * per_generation // accumulation)
    first = file.step - (file.step - 1) % num_updates
    if first < file.step:
        notes.append(f"The batch was sampled for update {first} and served again.")
    if per_generation > accumulation:
        notes.append(
            f"One generation serves {per_generation} micro-batches and an update takes {accumulation}: the update of "
            "this step saw a part of these rollouts, and the log does not say which."
        )
    return notes


def _reuse_note_without_settings(file: StepFile, state: TrlState) -> list[str]:
    notes = []
    if file.step in state.metrics and "reward" not in state.metrics[file.step]:
        notes.append("The trainer logged no reward at this step: the batch was sampled for an earlier update.")
    if file.repeated_at:
        steps = ", ".join(map(str, file.repeated_at))
        notes.append(
            f"The batch also served step {steps}; without steps_per_generation it is not known whether each update saw "
            "all of it or a part."
        )
    return notes
