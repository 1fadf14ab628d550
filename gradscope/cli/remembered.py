"""A run remembers how it was read: options of reading that were given once are used by the next commands on it.

They are written to ``gradscope.toml`` next to the run, or in one that gradscope wrote farther up in the same project
(the folder with ``.git`` or ``pyproject.toml``), as a table a run::

    [runs."my-run"]
    initial = "./base"
    reward-column = "score"

Use of them is reported. Only options of :class:`ReadOptions` are remembered: names, columns and paths of
data, never a formulation, which is code. A file that gradscope did not write is read and left as it is. Of a URL
nothing is remembered: there is no folder next to it, and it may hold a password.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from msgspec import Struct
from msgspec.structs import replace

from gradscope.cli.output.streams import say
from gradscope.errors import GradscopeError, InputError, OutputExistsError
from gradscope.machine import process_index
from gradscope.option import options_of
from gradscope.outside.limits import read_limited
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.writing import atomic_write, one_writer

FILE = "gradscope.toml"
VARIABLE = "GRADSCOPE_REMEMBER"  # the environment variable that, as ``0``, switches remembering off
HEADER = "# Options that runs were read with, kept by gradscope. Delete a line to forget it.\n"
"""The first line of a file that gradscope may change."""
_PROJECT = (".git", "pyproject.toml")
_FLAGS = {
    option.flags[0].removeprefix("--"): (record, name)
    for record in (ReadOptions, ColumnNames)
    for name, option in options_of(record).items()
    if option.metavar is not None
}
"""Name in the file -> the record and its field; a switch, such as ``--strict``, is of one command."""
_PATHS = ("initial", "run-config", "completion-ids", "model")
_INITIAL = "initial"  # known to commands on the log alone, too, so that they do not ask for it
_LISTS = ("metric-column",)
_LONGEST = 4096  # characters of a value: the longest path that Linux opens

_Value = str | list[str]


class RememberedOptions(Struct, frozen=True, kw_only=True):
    """The options in one file for one run."""

    file: Path  # the ``gradscope.toml``
    run: Path  # the run, links followed
    options: Mapping[str, _Value]  # option without its dashes -> value; paths as they open from the current folder
    owner: int | None
    """The user whose file or folder it is, where that is another one than who runs this; None: one's own."""

    def spelled(self, names: Iterable[str] | None = None) -> str:
        """The options as they are typed, or those of some names."""
        values = {name: self.options[name] for name in names or self.options}
        return ", ".join(f"--{name} {v if isinstance(v, str) else ','.join(v)}" for name, v in values.items())


def remembered_for(run: str) -> tuple[RememberedOptions, ...]:
    """The remembered options of a run, the nearest file first; see :func:`remembered_in`."""
    real = Path(os.path.realpath(run))
    return tuple(entry for file in _files_of(real) for entry in remembered_in(file) if entry.run == real)


def remembered_in(file: Path) -> tuple[RememberedOptions, ...]:
    """The options in a file, a record a run; none where there is no file, InputError where its content is invalid."""
    if not file.exists():
        return ()
    owner, folder = _other_owner(file) or _other_owner(file.parent), file.parent.absolute()

    def opened(name: str, value: _Value) -> _Value:
        is_path = name in _PATHS and isinstance(value, str)
        if not is_path or (name == "model" and not str(value).startswith((".", "/"))):  # an id of the hub's
            return value
        return str(relative_to_cwd(Path(os.path.normpath(folder / str(value)))))

    return tuple(
        RememberedOptions(
            file=file,
            run=Path(os.path.realpath(file.parent / run)),
            options={name: opened(name, value) for name, value in table.items()},
            owner=owner,
        )
        for run, table in _tables_of(_parsed(_text_of(file), file), file).items()
    )


@contextmanager
def remembering(
    runs: Sequence[str], read: ReadOptions, offered: Sequence[str], *, quiet: bool = False
) -> Iterator[ReadOptions]:
    """How to read runs while a command works; typed options are remembered once the command has an answer.

    Args:
        offered: The options without their dashes that the command has: no other remembered one is used, except
            for the initial weights.
        quiet: Report only options of another user's file.

    Raises:
        InputError: The remembered options cannot be read.
        Exit: The command's own.
    """
    num_named = len(runs)
    runs = () if os.environ.get(VARIABLE) == "0" else [run for run in runs if "://" not in run]
    typed = {name: value for name in _FLAGS if (value := _value_of(read, name)) is not None}
    chosen = {run: _with_remembered(run, read, offered, quiet) for run in runs}
    try:
        yield next(iter(chosen.values())) if len(chosen) == 1 == num_named else replace(read, of_run=chosen)
    except typer.Exit as ended:
        if ended.exit_code == 1:  # a verdict, to which the run was read
            _keep_all(runs, typed, quiet)
        raise
    _keep_all(runs, typed, quiet)


def _with_remembered(run: str, read: ReadOptions, offered: Sequence[str], quiet: bool) -> ReadOptions:
    for entry in remembered_for(run):
        new = [name for name in entry.options if _value_of(read, name) is None]
        if _INITIAL in new and _INITIAL not in offered and entry.owner is None:
            read = read.with_initial_if_complete(str(entry.options[_INITIAL]))
        used = [name for name in new if name in offered]
        if not used:
            continue
        for name in used:
            record, field = _FLAGS[name]
            option = {field: entry.options[name]}
            read = replace(read, **(option if record is ReadOptions else {"columns": replace(read.columns, **option)}))
        if entry.owner is not None:
            say(f"warning: {entry.file} is of user {entry.owner}, and is used for {run}: {entry.spelled(used)}")
        elif not quiet:
            say(f"note: {entry.file} is used for {run}: {entry.spelled(used)}")
    return read


def _keep_all(runs: Iterable[str], typed: Mapping[str, _Value], quiet: bool) -> None:
    """Remember typed options; a failure to write is no reason to fail a command that has answered."""
    typed = {name: value for name, value in typed.items() if "://" not in str(value)}
    for run in runs if typed and process_index() == 0 else ():
        try:
            file = _keep(Path(os.path.realpath(run)), typed)
        except (GradscopeError, OSError, ValueError) as error:
            note = f"note: options are not remembered for {run}: {error}"
        else:
            note = f"wrote {file}: the next command on {run} needs no --{', --'.join(typed)}" if file else ""
        if note and not quiet:
            say(note)


def _keep(run: Path, typed: Mapping[str, _Value]) -> Path | None:
    """Write typed options into the file of a run; None where the file has them already."""
    files = list(_files_of(run))
    file = next((file for file in files if _is_ours(file)), files[0])
    if (owner := _other_owner(file.parent)) is not None:
        raise OutputExistsError(f"the folder {file.parent} is of user {owner}")
    if (file.exists() or file.is_symlink()) and not _is_ours(file):
        raise OutputExistsError(f"{file} was not written by gradscope, and is left as it is")
    with one_writer(file):
        text = _text_of(file) if file.exists() else HEADER
        document, folder = _parsed(text, file), Path(os.path.realpath(file.parent))
        tables = _tables_of(document, file)
        name = next((name for name in tables if os.path.realpath(folder / name) == str(run)), None)
        name = name or str(run.relative_to(folder))
        before = tables.get(name, {})
        table = {**before, **{option: _closed(option, value, folder) for option, value in typed.items()}}
        if table == before:
            return None
        changed = _with_table(text, name, table)
        try:
            is_safe = tomllib.loads(changed) == {**document, "runs": {**tables, name: table}}
        except ValueError:
            is_safe = False
        if not is_safe:
            raise OutputExistsError(f"{file} was written by hand in a way that cannot be changed safely")
        atomic_write(file, changed, force=True)
    return file


def _is_ours(file: Path) -> bool:
    """Whether a file, itself and not a link to one, may be changed."""
    return file.is_file() and not file.is_symlink() and not _other_owner(file) and _text_of(file).startswith(HEADER)


def _other_owner(path: Path) -> int | None:
    """The user whose a file or folder is, where that is another one; None, too, where systems know no such numbers."""
    owner = path.stat().st_uid if hasattr(os, "getuid") else None
    return None if owner is None or owner == os.getuid() else owner


def _files_of(run: Path) -> Iterator[Path]:
    """Files that may hold options of a run: next to it, and in the folders above it up to its project's, if any."""
    above = list(run.parents)
    depth = next((n for n, folder in enumerate(above) if any((folder / name).exists() for name in _PROJECT)), 0)
    yield from (relative_to_cwd(folder / FILE) for folder in above[: depth + 1])


def _text_of(file: Path) -> str:
    try:
        return read_limited(file).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {error}.", hint=_repair(file)) from error


def _parsed(text: str, file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(f"{file} is not TOML: {why}.", hint=_repair(file)) from error


def _tables_of(document: Mapping[str, Any], file: Path) -> dict[str, dict[str, _Value]]:
    """Run -> option -> value, as the file has them, each of which it may have."""
    tables = document.get("runs", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise InputError(
            f"{file} has no tables of runs in `runs`.", hint='Write [runs."my-run"], and below it reader = "trl".'
        )
    for run, name, value in ((run, name, value) for run, table in tables.items() for name, value in table.items()):
        if name not in _FLAGS:
            raise InputError(
                f"{file} keeps {name!r} for {run}, which is no option that can be kept.",
                hint=f"It can keep {', '.join(_FLAGS)}. What is code, as a formulation, is named where it runs.",
            )
        texts = value if isinstance(value, list) and name in _LISTS else [value]
        if not all(isinstance(text, str) and text.isprintable() and 0 < len(text) <= _LONGEST for text in texts):
            raise InputError(f"{file} keeps a {name} for {run} that is no line of text.", hint=_repair(file))
    return tables


def _repair(file: Path) -> str:
    return f"Repair {file} or remove it; {VARIABLE}=0 leaves it alone for one command."


def _closed(name: str, value: _Value, folder: Path) -> _Value:
    """A value as a file has it: paths below its folder relative to it, all others absolute."""
    if name not in _PATHS or isinstance(value, list) or not Path(value).exists():
        return value
    path, folder = Path(value).absolute(), folder.absolute()
    return f"./{path.relative_to(folder)}" if path.is_relative_to(folder) else str(path)


def relative_to_cwd(path: Path) -> Path:
    """A path from the current folder, where it is below that."""
    folder = Path.cwd()
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def _value_of(read: ReadOptions, name: str) -> _Value | None:
    record, field = _FLAGS[name]
    value = getattr(read if record is ReadOptions else read.columns, field)
    return value if value is None or isinstance(value, list) else str(value)


def _with_table(text: str, run: str, table: Mapping[str, _Value]) -> str:
    """A file's text with a run's table replaced, or added at its end."""
    head = f"[runs.{_quoted(run)}]\n"
    lines = text.splitlines(keepends=True)
    start = lines.index(head) if head in lines else len(lines)
    end = next((n for n in range(start + 1, len(lines)) if lines[n].startswith("[")), len(lines))
    rows = [f"{name} = {_quoted(value)}\n" for name, value in table.items()]
    return "".join([*lines[:start], *(["\n"] if start == len(lines) else []), head, *rows, *lines[end:]])


def _quoted(value: _Value) -> str:
    """Text as TOML writes it, which is as JSON does but for one control character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
