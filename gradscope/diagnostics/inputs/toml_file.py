"""Files that people write by hand: TOML, read with errors that name the file and the next step."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.outside.limits import read_whole


def read_toml(path: str | Path) -> dict[str, Any]:
    """The document in a TOML file.

    Args:
        path: The file.

    Returns:
        Its tables.

    Raises:
        InputError: The file cannot be read or is not TOML.
    """
    file = Path(path)
    try:
        return tomllib.loads(read_whole(file).decode("utf-8"))
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.", hint="Check the path.") from error
    except ValueError as error:
        raise InputError(f"{file} is not TOML: {error}.", hint="Repair the line that it names.") from error
