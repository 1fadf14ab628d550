"""Option records as flags: a command that takes a record gets one flag for each of its fields."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from gradscope.cli.blas import late_modules, one_blas_thread
from gradscope.option import Option, options_of
from gradscope.rollouts.read_options import ReadOptions

Command = Callable[..., None]
_RUNS = ("run", "runs", "files")  # what commands call the argument that names what is read


def with_records(*, leave_out: tuple[str, ...] = (), needs_torch: bool = True) -> Callable[[Command], Command]:
    """Let a command take option records, and its user their fields as flags.

    Each parameter whose type is a dataclass is replaced, where it stands, by one flag for every field that declares an
    :class:`~gradscope.option.Option`, records inside records included; the command is then called with the record.

    Args:
        leave_out: Fields, or whole records inside, that this command has no use for; they keep their defaults.
        needs_torch: Whether it may load PyTorch, which may share NumPy's setting of threads.
    """

    def decorate(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        records: dict[str, type] = {}
        shown: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(command).parameters.items():
            if is_dataclass(hints[name]) and isinstance(hints[name], type):
                records[name] = hints[name]
                shown += _flags(hints[name], leave_out)
            else:
                shown.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))

        @functools.wraps(command)
        def called_with_flags(**values: Any) -> None:
            made = {name: _make(record, values, leave_out) for name, record in records.items()}
            read = next((name for name, record in records.items() if record is ReadOptions), None)
            if read is None:
                command(**values, **made)
                return
            from gradscope.cli.remembered import remembering  # `--help` need not wait for it

            one_blas_thread(beside_torch=needs_torch)
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
    """Give a command that takes ``**settings`` a parameter for each of them; the help's panels stand in this order."""

    def decorate(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        own = [one for one in inspect.signature(command).parameters.values() if one.kind is not one.VAR_KEYWORD]
        shown = [*more, *(one.replace(annotation=hints[one.name]) for one in own)]
        shown.sort(key=lambda one: panels.index(get_args(one.annotation)[1].rich_help_panel))
        return _with_signature(command, shown)

    return decorate


def _with_signature(command: Command, shown: list[inspect.Parameter]) -> Command:
    command.__annotations__ = {one.name: one.annotation for one in shown}
    command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return command


def _flags(record: type, leave_out: tuple[str, ...]) -> Iterator[inspect.Parameter]:
    """The flags of a record's fields as parameters; those of all records of a command share one name space."""
    hints, options = get_type_hints(record), options_of(record)
    for field in fields(record):
        if field.name in leave_out:
            continue
        if is_dataclass(hints[field.name]):
            yield from _flags(hints[field.name], leave_out)
        elif option := options.get(field.name):
            annotation = Annotated[_typed(hints[field.name]), _typer_option(option)]  # type: ignore[valid-type]
            yield inspect.Parameter(
                option.parameter, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=annotation
            )


def _typed(hint: Any) -> Any:
    """What a person types is text, where a caller may also give a path: typer knows no unions."""
    return str | None if {str, Path} <= set(get_args(hint)) else hint


def _typer_option(option: Option) -> Any:
    return typer.Option(
        *option.flags,
        metavar=option.metavar,
        help=option.help,
        rich_help_panel=option.panel,
        parser=option.parse,
        show_default=option.shows_default,
        autocompletion=option.complete,
    )


def _make(record: type, values: dict[str, Any], leave_out: tuple[str, ...]) -> Any:
    """The record from the values of its flags, which are taken out."""
    chosen: dict[str, Any] = {}
    hints, options = get_type_hints(record), options_of(record)
    for field in fields(record):
        if field.name in leave_out:
            continue
        if is_dataclass(hints[field.name]):
            chosen[field.name] = _make(hints[field.name], values, leave_out)
        elif option := options.get(field.name):
            chosen[field.name] = values.pop(option.parameter)
    return record(**chosen)
