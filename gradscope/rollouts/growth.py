"""Whether a log that somebody still writes has changed since it was last looked at."""

from __future__ import annotations

import glob
from pathlib import Path

from gradscope.rollouts.places.fetch import fetched, place_extent
from gradscope.rollouts.places.urls import scheme_of

Extent = dict[str, tuple[object, object]]
"""File -> its size in bytes and when it was last written, in nanoseconds; of a URL what the server tells instead."""


def log_extent(name: str | Path) -> Extent:
    """How far a log has been written: a file, a folder with all that is below it, a glob, or the URL of one.

    Returns:
        Its files; equal extents mean that nothing was written in between.
    """
    if scheme_of(name) not in (None, "file"):
        return place_extent(str(name))
    path = fetched(name)
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
