"""Option records as flags: a command that takes a record gets one flag for each of its fields."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from gradscope.option import Option

Command = Callable[..., None]


def with_records(*, leave_out: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """Let a command take option records, and its user their fields as flags.

    Each parameter whose type is a dataclass is replaced, where it stands, by one flag for every field that declares an
    :class:`~gradscope.option.Option`, records inside records included; the command is then called with the record.

    Args:
        leave_out: Fields that this command has no use for; they keep their defaults.

    Returns:
        The decorator.
    """

    def decorate(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        records: dict[str, type] = {}
        shown: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(command).parameters.items():
            if is_dataclass(hints[name]) and isinstance(hints[name], type):
                records[name] = hints[name]
                shown += [flag.parameter for flag in _flags(hints[name]) if flag.name not in leave_out]
            else:
                shown.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))

        @functools.wraps(command)
        def called_with_flags(**values: Any) -> None:
            made = {name: _make(record, values, leave_out) for name, record in records.items()}
            command(**values, **made)

        called_with_flags.__annotations__ = {one.name: one.annotation for one in shown}
        called_with_flags.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        return called_with_flags

    return decorate


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flag:
    """One field of a record as a parameter of a command."""

    name: str
    parameter: inspect.Parameter


def _flags(record: type) -> Iterator[_Flag]:
    hints = get_type_hints(record, include_extras=True)
    for field in fields(record):
        hint = hints[field.name]
        if is_dataclass(hint) and isinstance(hint, type):
            yield from _flags(hint)
        elif get_origin(hint) is Annotated:
            option = next(one for one in hint.__metadata__ if isinstance(one, Option))
            # the flags of all records of a command share one name space, in which `step` may be taken already
            name = option.flags[0].removeprefix("--").replace("-", "_")
            annotation = Annotated[_typed(hint.__origin__), _typer_option(option)]  # type: ignore[valid-type]
            yield _Flag(
                name=field.name,
                parameter=inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=annotation
                ),
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
    )


def _make(record: type, values: dict[str, Any], leave_out: tuple[str, ...]) -> Any:
    """The record from the values of its flags, which are taken out."""
    chosen: dict[str, Any] = {}
    hints = get_type_hints(record, include_extras=True)
    for field in fields(record):
        hint = hints[field.name]
        if is_dataclass(hint) and isinstance(hint, type):
            chosen[field.name] = _make(hint, values, leave_out)
        elif get_origin(hint) is Annotated and field.name not in leave_out:
            option = next(one for one in hint.__metadata__ if isinstance(one, Option))
            chosen[field.name] = values.pop(option.flags[0].removeprefix("--").replace("-", "_"))
    return record(**chosen)
