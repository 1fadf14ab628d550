"""A part of a log, read here, for a whole that no machine has to read alone."""

from __future__ import annotations

from pathlib import Path

from gradscope.progress import Progress
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.reduced import write_part


def reduce_run(
    path: str | Path, output: str | Path, *, read: ReadOptions | None = None, progress: Progress = False
) -> Path:
    """Write the rewards of a log, or of some of its files, as a part that is read in its place.

    Args:
        path: A log, a file of it or a glob of files.
        output: The folder of the parts; read as the log once all are there.
        read: How to read it; None: recognize everything.
        progress: True for a line on stderr, or a callback, told how far the reading of a large log is.

    Returns:
        The part: one file, there whole or not at all.

    Raises:
        InputError: No row can be used, or it is a log of metrics alone, which are small as they are.
        OutputExistsError: The same files were reduced into the folder before.
    """
    return write_part(read_run(path, read, rewards_only=True, progress=progress), Path(output))
