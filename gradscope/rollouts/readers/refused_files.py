"""Files that hold no rows as any reader takes them are recognized, and refused with what to do instead."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from gradscope.errors import InputError
from gradscope.rollouts.readers.parsing.tables import SUFFIXES, suffix_of
from gradscope.rollouts.readers.refused_folders import LOG_ROLLOUTS

_WEIGHTS = (".safetensors", ".gguf")
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".zip")
_START = 65_536
"""Bytes that are looked at."""
_DECIMAL_COMMA = re.compile(r"(?:^|;)-?[0-9]+,[0-9]+(?:;|$)", re.MULTILINE)


def refuse_files(path: Path) -> None:
    """Refuse a file that no reader knows and that is known to hold something else than rows.

    Raises:
        InputError: It is weights, an archive, a CSV with semicolons, or text.
    """
    if not path.is_file():
        return
    if path.suffix in _WEIGHTS:
        raise InputError(f"{path} is a file of weights, without rollouts.", hint=_name_rollouts())
    if path.name.endswith(_ARCHIVES):
        unpack = "python -m zipfile -e" if path.suffix == ".zip" else "tar -xf"
        raise InputError(
            f"{path} is an archive.",
            hint=f"Unpack it and name what comes out: {unpack} {shlex.quote(str(path))}"
            + (" ." if path.suffix == ".zip" else ""),
        )
    start = _start_of(path)
    if suffix_of(path) == ".csv" and _has_semicolons(start):
        raise InputError(
            f"{path} has semicolons between its columns, and CSV has commas.", hint=_conversion(path, start)
        )
    if suffix_of(path) is None and _is_text(start):
        raise InputError(
            f"{path} is text without rows; rows are read from {', '.join(SUFFIXES)} files.", hint=_name_rollouts()
        )


def _name_rollouts() -> str:
    return f"Name the trainer's file or folder of rollouts, or log them in the next run: {LOG_ROLLOUTS}."


def _start_of(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_START).decode("utf-8-sig", errors="replace")


def _is_text(start: str) -> bool:
    return start.strip() != "" and "\0" not in start and not start.lstrip().startswith(("{", "["))


def _has_semicolons(start: str) -> bool:
    header = start.partition("\n")[0]
    return ";" in header and "," not in header


def _conversion(path: Path, start: str) -> str:
    """The command that writes the same rows as Parquet, decimal commas as points."""
    decimal = ", convert_options=csv.ConvertOptions(decimal_point=',')" if _DECIMAL_COMMA.search(start) else ""
    read = f"csv.read_csv({str(path)!r}, parse_options=csv.ParseOptions(delimiter=';'){decimal})"
    target = path.with_suffix(".parquet")
    code = f"from pyarrow import csv, parquet; parquet.write_table({read}, {str(target)!r})"
    quoted = shlex.quote(code) if set(code) & set('"$`\\!') else f'"{code}"'
    return f"Write it as Parquet and name that: python -c {quoted}"
