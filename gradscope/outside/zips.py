"""Zip archives from anybody."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import IO


def is_zip(file: Path | IO[bytes]) -> bool:
    """Whether a file ends as a zip does; one that is damaged there is one, too, so that opening it says what is wrong.

    Returns:
        True where there is an end record, whatever it says; False, too, where the file cannot be read.
    """
    try:
        return zipfile.is_zipfile(file)
    except zipfile.BadZipFile:  # Python looks at more than its documentation says, and raises over what it finds
        return True
