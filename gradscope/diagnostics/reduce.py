"""Reduce a part of a log to its rewards, so that no machine has to read all of it."""

from __future__ import annotations

import shlex
from pathlib import Path

from gradscope.errors import InputError
from gradscope.progress import Progress
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.evaluations.folders import are_of_one, evaluations_in
from gradscope.rollouts.readers.generic import step_is_in_name
from gradscope.rollouts.readers.own import write_part


def reduce_run(
    path: str | Path, output: str | Path, *, read: ReadOptions | None = None, progress: Progress = False
) -> Path:
    """Write the rewards of a log, or of some of its files, as a part, one file, that is read in its place.

    Args:
        path: A log, a file of it or a glob of files.
        output: The folder of the parts; read as the log once all are there.
        progress: True for a line on stderr, or a callback, called while a large log is read.

    Raises:
        InputError: No row can be used; it is a log of metrics alone, which are small as they are; or it is several
            evaluations, or one that did not end.
        OutputExistsError: The same files were reduced into the folder before.
    """
    options = read or ReadOptions()
    run = read_run(path, options, rewards_only=True, measured="samples", progress=progress)
    if not are_of_one(run.source.format, [Path(file) for file in run.source.files]):
        evaluations = evaluations_in(run.path, options)
        if len(evaluations) > 1:
            raise InputError(
                f"{run.source.path} holds {len(evaluations)} evaluations, which are never pooled.",
                hint=f"Reduce each into a folder of its own, the first: {evaluations[0].path}",
            )
    if run.source.format in ("generic", "samples") and step_is_in_name(run.path, options.columns):
        together = shlex.join(["gradscope", "reduce", str(run.path.parent), "-o", str(output)])
        raise InputError(
            f"The step of {run.source.path} is in its name alone, which a part does not have.",
            hint=f"Reduce such files together: {together}",
        )
    if run.source.unfinished:
        raise InputError(
            f"The evaluation {run.source.path} {run.source.unfinished}.",
            hint="Name the log itself; a part would not say so.",
        )
    return write_part(run, Path(output))
