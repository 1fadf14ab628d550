"""Finished steps of work that may be interrupted or divided, used again only where nothing beneath has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from gradscope.progress import NoticeCallback
from gradscope.results.envelope import sha256_of
from gradscope.rollouts.places.fetch import bring_weights
from gradscope.rollouts.run import Run, WeightsRef
from gradscope.version import __version__

if TYPE_CHECKING:
    from gradscope.gradients.plan.objective import Objective
    from gradscope.gradients.step.step_gram import StepGram, StepNorm

_SUFFIXES = {".safetensors", ".json", ".jinja", ".model", ".txt"}
"""What a model folder holds that shapes a gradient: weights, configurations, the tokenizer's files."""
_PACKAGES = ("torch", "transformers", "peft")


class KeptStep:
    """Where one step is kept, and under which key.

    Args:
        folder: A folder for kept steps; made when the first is written.
        choices: Everything else that the numbers depend on.
        notice: Told when a kept step is used, or is of no use.
        also: Other weights that the step looks at.
    """

    def __init__(
        self,
        folder: Path,
        run: Run,
        step: int,
        objective: Objective,
        choices: object,
        notice: NoticeCallback,
        also: Sequence[WeightsRef] = (),
    ) -> None:
        self._path = folder / f"step_{step:05d}.safetensors"
        self._step, self._notice = step, notice
        code = (__version__, *map(version, _PACKAGES))
        inputs = (step, run.groups_at(step), objective, tuple(_digests(run, step, also)))
        self._key = hashlib.sha256(repr((code, inputs, choices)).encode()).hexdigest()

    def read(self) -> StepGram | StepNorm | None:
        """The step as it was kept; None where it must be computed."""
        from gradscope.gradients.step.step_gram import read_step

        gram = read_step(self._path, self._key)
        if gram is not None:
            self._notice(f"step {self._step} was finished before and is used again")
        elif self._path.exists():
            self._notice(f"step {self._step} is computed again: what was kept is of other inputs or options")
        return gram

    def write(self, gram: StepGram | StepNorm) -> None:
        """Keep the step for the next call."""
        from gradscope.gradients.step.step_gram import write_step

        write_step(self._path, gram, self._key)


def _digests(run: Run, step: int, also: Sequence[WeightsRef]) -> Iterator[tuple[str, str]]:
    """Each file and its digest of the model folders that a step's gradients depend on; a hub id by name alone."""
    weights = [of for of in (run.weights_before(step), run.weights_before(1), *also) if of is not None]
    folders = [str(folder) for of in weights for folder in (of.path, of.base) if folder]
    for folder in dict.fromkeys([*folders, *([str(run.tokenizer)] if run.tokenizer else [])]):
        bring_weights(Path(folder))
        yield folder, ""
        for file in sorted(Path(folder).glob("*")) if Path(folder).is_dir() else ():
            if file.suffix in _SUFFIXES and file.is_file():
                status = file.stat()
                yield str(file), _digest(file, status.st_size, status.st_mtime_ns)


@lru_cache
def _digest(file: Path, size: int, changed: int) -> str:
    """A file's digest; the first weights are asked for at every step."""
    return sha256_of(file)
