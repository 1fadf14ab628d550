"""Declared options as flags: one for each parameter with an ``Option``, and one for each field of a record of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import Field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from gradscope.cli.arguments.options import parse_choices
from gradscope.cli.blas import late_modules, one_blas_thread
from gradscope.option import Option, options_of
from gradscope.rollouts.read_options import ReadOptions

Command = Callable[..., None]
_RUNS = ("run", "runs", "files")  # names of the argument that commands read from


def with_records(*, leave_out: tuple[str, ...] = (), needs_torch: bool = True) -> Callable[[Command], Command]:
    """Let a command declare its flags by :class:`~gradscope.option.Option`, and take records of them.

    Each parameter whose type is a dataclass is replaced, in its position, by one flag for every field that declares an
    option, records inside records included; the command is then called with the record.

    Args:
        leave_out: Fields, or records inside, that this command has no use for; they keep their defaults.
        needs_torch: Whether it may load PyTorch, which may share NumPy's setting of threads.
    """

    def decorate(command: Command) -> Command:
        hints, options = get_type_hints(command, include_extras=True), options_of(command)
        records: dict[str, type] = {}
        shown: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(command).parameters.items():
            if is_dataclass(hints[name]) and isinstance(hints[name], type):
                records[name] = hints[name]
                shown += _flags(hints[name], leave_out, command.__name__)
            else:
                flag = _flag(hints[name], options.get(name))
                shown.append(parameter.replace(annotation=flag, kind=inspect.Parameter.KEYWORD_ONLY))

        @functools.wraps(command)
        def called_with_flags(**values: Any) -> None:
            made = {name: _make(record, values, leave_out, command.__name__) for name, record in records.items()}
            read = next((name for name, record in records.items() if record is ReadOptions), None)
            if read is None:
                command(**values, **made)
                return
            from gradscope.cli.remembered import remembering  # `--help` need not wait for it

            one_blas_thread(with_torch=needs_torch)
            late_modules()
            named = next(values[name] for name in _RUNS if name in values)
            runs = [named] if isinstance(named, str) else named
            quiet = any(getattr(record, "quiet", False) for record in made.values())
            with remembering(runs, made[read], offered, quiet=quiet) as made[read]:
                command(**values, **made)

        offered = [one.name.replace("_", "-") for one in shown]
        return _with_signature(called_with_flags, shown)

    return decorate


def with_parameters(more: Iterable[inspect.Parameter], *, panels: tuple[str, ...]) -> Callable[[Command], Command]:
    """Give a command that takes ``**settings`` a parameter for each of them; the help's panels have this order."""

    def decorate(command: Command) -> Command:
        own = [one for one in inspect.signature(command).parameters.values() if one.kind is not one.VAR_KEYWORD]
        shown = [*more, *own]
        _with_signature(command, shown)
        hints, options = get_type_hints(command, include_extras=True), options_of(command)
        shown.sort(key=lambda one: panels.index(options[one.name].panel))
        return _with_signature(
            command, [one.replace(annotation=_flag(hints[one.name], options[one.name])) for one in shown]
        )

    return decorate


def _with_signature(command: Command, shown: list[inspect.Parameter]) -> Command:
    command.__annotations__ = {one.name: one.annotation for one in shown}
    command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return command


def _flags(record: type, leave_out: tuple[str, ...], command: str) -> Iterator[inspect.Parameter]:
    """The flags of a record's fields as parameters; those of all records of a command share one name space."""
    for field, hint, option in _asked(record, leave_out):
        if option is None:
            yield from _flags(hint, leave_out, command)
        else:
            if option.names_of is not None:
                option = replace(option, help=f"{option.help} Any of {', '.join(option.names_of(command))}.")
            yield inspect.Parameter(
                option.parameter, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=_flag(hint, option)
            )


def _asked(record: type, leave_out: tuple[str, ...]) -> Iterator[tuple[Field[Any], Any, Option | None]]:
    """The fields that are asked for, each with its type and its option; a record inside has none."""
    hints, options = get_type_hints(record), options_of(record)
    for field in fields(record):
        if field.name not in leave_out and (is_dataclass(hints[field.name]) or field.name in options):
            yield field, hints[field.name], options.get(field.name)


def _flag(hint: Any, option: Option | None) -> Any:
    """A type with typer's settings of its option, which has no unions: a typed value is text, never a path."""
    if option is None:
        return hint
    bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    flag = typer.Option(
        *option.flags,
        metavar=option.metavar,
        help=option.help,
        rich_help_panel=option.panel,
        parser=option.parse,
        show_default=option.shows_default,
        min=option.at_least,
        autocompletion=option.complete,
    )
    return Annotated[str | None if {str, Path} <= set(get_args(bare)) else bare, flag]


def _make(record: type, values: dict[str, Any], leave_out: tuple[str, ...], command: str) -> Any:
    """The record from the values of its flags, which are removed from ``values``."""
    chosen = {}
    for field, hint, option in _asked(record, leave_out):
        if option is None:
            chosen[field.name] = _make(hint, values, leave_out, command)
        else:
            value = values.pop(option.parameter)
            names = None if option.names_of is None else option.names_of(command)
            chosen[field.name] = value if names is None else parse_choices(option.flags[0], value, names)
    return record(**chosen)
