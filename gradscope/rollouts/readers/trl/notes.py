"""What a file of completions stands for: which update used its rollouts, and over which steps TRL took means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradscope.reason import Reason
from gradscope.rollouts.readers.trl.files import StepFile
from gradscope.rollouts.readers.trl.state import TrlState
from gradscope.rollouts.run import TrainerSettings


@dataclass(frozen=True, slots=True)
class Batches:
    """How a run's generation batches became updates, as its arguments say it.

    Args:
        per_generation: Micro-batches of a generation batch.
        accumulation: Micro-batches of an update.
        num_iterations: How often a generation batch is used.
    """

    per_generation: int
    accumulation: int
    num_iterations: int = 1

    @classmethod
    def from_settings(cls, settings: TrainerSettings) -> Batches | None:
        """What the arguments say; None where they do not."""
        per_generation, accumulation = settings.get("steps_per_generation"), settings.get("gradient_accumulation_steps")
        if not isinstance(per_generation, int) or not isinstance(accumulation, int) or accumulation < 1:
            return None
        return cls(per_generation, accumulation, int(settings.get("num_iterations", 1)))

    @property
    def are_whole(self) -> bool:
        """Whether each update uses one whole generation batch."""
        return self.per_generation == self.accumulation

    def note(self) -> Reason | None:
        """Why a file's rollouts are not those of its update; None where they are."""
        if self.per_generation > self.accumulation:
            return Reason(
                "batch_split",
                f"One generation serves {self.per_generation} micro-batches and an update takes {self.accumulation}: "
                "the update of this step saw a part of these rollouts, and the log does not say which",
            )
        if self.per_generation < self.accumulation:
            return Reason(
                "rollouts_missing",
                f"An update takes {self.accumulation} micro-batches and one generation serves {self.per_generation}: "
                "the file holds the last generation of this step only",
            )
        return None


def step_notes(files: Sequence[StepFile], state: TrlState, settings: TrainerSettings) -> dict[int, Reason]:
    """The notes of a run's training files: step -> why; a step without reservations has none."""
    batches = Batches.from_settings(settings)
    notes = {file.step: _guess(file, state) if batches is None else batches.note() for file in files}
    return {step: note for step, note in notes.items() if note is not None}


def windows(files: Sequence[StepFile], state: TrlState) -> dict[int, int]:
    """Step -> over how many steps its metrics are means, where that is more than one."""
    widths = {step: state.window(step) for file in files for step in (file.step, *file.repeated_at)}
    return {step: width for step, width in widths.items() if width > 1}


def repeats(files: Sequence[StepFile], settings: TrainerSettings) -> dict[int, int]:
    """Step -> the step whose whole batch its update used again, where the arguments say so."""
    batches = Batches.from_settings(settings)
    if batches is None or not batches.are_whole:
        return {}
    return {step: file.step for file in files for step in file.repeated_at}


def _guess(file: StepFile, state: TrlState) -> Reason | None:
    """Without arguments: signs that a batch served several updates, split, repeated, or both."""
    unknown = "without steps_per_generation it is not known whether each update saw all of it or a part"
    if file.step in state.metrics and "reward" not in state.metrics[file.step]:
        sampled = "The trainer logged no reward at this step: the batch was sampled for an earlier update;"
        return Reason("settings_unknown", f"{sampled} {unknown}")
    if file.repeated_at:
        steps = ", ".join(map(str, file.repeated_at))
        return Reason("settings_unknown", f"The batch also served step {steps}; {unknown}")
    return None
