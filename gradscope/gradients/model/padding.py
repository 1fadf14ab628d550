"""How TRL pads the rows of a generation batch: prompts on the left, completions on the right, each to the longest.

Shapes: R rollouts of a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gradscope.gradients.model.token_sequence import Frame, TokenSequence
from gradscope.rollouts.run import TrainerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerPadding:
    """What decides the width of a padded row."""

    num_processes: int = 1
    """Each pads its own slice of the batch."""
    multiple: int = 1
    """Widths are rounded up to a multiple of it (``pad_to_multiple_of``)."""

    @classmethod
    def from_settings(cls, settings: TrainerSettings) -> TrainerPadding:
        """The padding of a trainer's arguments; one process where they do not tell."""
        rows, per_device = settings.get("generation_batch_size"), settings.get("per_device_train_batch_size")
        steps = settings.get("steps_per_generation", settings.get("gradient_accumulation_steps"))
        known = all(isinstance(value, int) and value > 0 for value in (rows, per_device, steps))
        return cls(
            num_processes=max(1, rows // (per_device * steps)) if known else 1,
            multiple=int(settings.get("pad_to_multiple_of", 1)),
        )

    def framed(self, sequences: Sequence[TokenSequence], padding_id: int) -> tuple[TokenSequence, ...]:
        """The sequences of a whole step, [R], each in the row that its process padded it into."""
        per_process = -(-len(sequences) // self.num_processes)
        framed: list[TokenSequence] = []
        for start in range(0, len(sequences), per_process):
            part = sequences[start : start + per_process]
            frame = Frame(
                prompt_width=self._width(len(sequence.prompt_ids) for sequence in part),
                completion_width=self._width(len(sequence.completion_ids) for sequence in part),
                padding_id=padding_id,
            )
            framed += [replace(sequence, frame=frame) for sequence in part]
        return tuple(framed)

    def _width(self, lengths: Iterable[int]) -> int:
        return -(-max(lengths) // self.multiple) * self.multiple
