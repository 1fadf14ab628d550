"""A trainer's own configuration, from where it writes it and from ``--run-config``, which wins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gradscope.rollouts.config_file import flattened, read_document
from gradscope.rollouts.readers.parsing.request import ReadRequest, read_trainer_settings
from gradscope.rollouts.run import TrainerSettings


def trainer_settings(request: ReadRequest, trainer: str, files: Iterable[Path]) -> TrainerSettings:
    """The arguments of a run.

    Args:
        trainer: The trainer's name.
        files: Where it may have written its configuration; the first that can be read counts.

    Returns:
        Values by their paths in the configuration, and the trainer's name.
    """
    given = read_trainer_settings(request.run_config)
    found = next(filter(None, map(readable, files)), None)
    origins = [*(() if found is None else (str(found[0]),)), *(() if given.origin is None else (given.origin,))]
    values = {} if found is None else flattened(found[1])
    return TrainerSettings(
        values={**values, **flattened(given.values), "trainer": trainer}, origin=" and ".join(origins) or None
    )


def readable(file: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """A file with the configuration in it; None where it is not there or holds none."""
    if not file.is_file():
        return None
    try:
        document = read_document(file)
    except (OSError, ValueError):
        return None
    return (file, document) if isinstance(document, Mapping) else None
