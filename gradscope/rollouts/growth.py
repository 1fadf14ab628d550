"""Whether a log that somebody still writes has changed since it was last looked at."""

from __future__ import annotations

import glob
from pathlib import Path

Extent = dict[str, tuple[int, int]]
"""File -> its size in bytes and when it was last written, in nanoseconds."""


def log_extent(path: Path) -> Extent:
    """How far a log has been written: a file, a folder with all that is below it, or a glob.

    Returns:
        Its files; equal extents mean that nothing was written in between.
    """
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file()]
    else:
        files = [path] if path.is_file() else [Path(name) for name in glob.glob(str(path))]
    extent: Extent = {}
    for file in files:
        try:
            stat = file.stat()
        except FileNotFoundError:  # a writer's file aside, renamed since it was listed
            continue
        extent[str(file)] = (stat.st_size, stat.st_mtime_ns)
    return extent
