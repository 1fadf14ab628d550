"""The options that several commands share, each with its one wording, and how several values of one are written.

Values are separated by commas, in repeated options and in ranges of integers. Every option that takes several is parsed
by this module, so `grpo,sign`, `1e-4,2e-4`, `0-4` and `2:8` mean the same in all of them. A flag is made for each
parameter with an ``Option``, and for each field of a record of them.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from msgspec import Struct
from msgspec.structs import FieldInfo, fields, replace

from gradscope.errors import UsageError
from gradscope.machine import defer_imports, one_blas_thread
from gradscope.option import Option, options_of
from gradscope.outside.numerals import number_from
from gradscope.rollouts.read_options import ReadOptions

MAX_NUMBERS = 1_000_000  # of one range: a typing error, not a wish, is beyond it

_RANGE = re.compile(r"([0-9]{1,18})(?:\s*[:-]\s*([0-9]{1,18}))?")
_COMMA = re.compile(",")
_COMMA_OF_METRICS = re.compile(r",(?!\s*[0-9])")
"""A comma before a digit is one of the metric's own steps, as in ``reward@1,6,11-20``."""

Words = Sequence[str] | str | None
"""The typed values: a text for each occurrence of the option; None where it does not occur."""


def parse_names(option: str, words: Words, comma: re.Pattern[str] = _COMMA) -> tuple[str, ...]:
    """Names between commas; ``option`` is as it is typed, for the message."""
    parts = tuple(part.strip() for word in _typed(words) for part in comma.split(word))
    if all(parts):
        return parts
    named = ",".join(filter(None, parts))
    raise UsageError(
        f"{option} {_shown(words)} names nothing between two commas.",
        hint=f"Write {option} {named}" if named else f"Name something, or leave {option} out.",
    )


def parse_choices(option: str, words: Words, choices: Sequence[str]) -> tuple[str, ...]:
    """Names between commas, each one of a few; UsageError where one is none of them."""
    names = parse_names(option, words)
    unknown = [name for name in names if name not in choices]
    if unknown:
        raise UsageError(
            f"{option} does not take {unknown[0]!r}.", hint=f"Write {option} with any of {', '.join(choices)}"
        )
    return names


def parse_metrics(option: str, words: Words) -> tuple[str, ...]:
    """Metrics between commas, each with its steps: ``reward@1,6-8,pass@8`` are two."""
    return parse_names(option, words, _COMMA_OF_METRICS)


def parse_files(option: str, words: Words) -> tuple[str, ...]:
    """Files or their URLs between commas; an existing file with commas in its name is one file."""
    return tuple(
        name
        for word in _typed(words)
        for name in ([word] if word and Path(word).exists() else parse_names(option, word))
    )


def parse_numbers(option: str, words: Words) -> tuple[float, ...]:
    """Numbers between commas; UsageError where one is none."""
    try:
        return tuple(number_from(part) for word in _typed(words) for part in word.split(","))
    except ValueError as error:
        raise UsageError(
            f"{option} is {_shown(words)}, which is no number or list of numbers.", hint=f"Write {option} 1e-4,2e-4"
        ) from error


def parse_counts(option: str, words: Words) -> tuple[int, ...]:
    """Integers between commas, and ranges with both ends, ``2:5`` or ``2-5``; UsageError for all else."""
    numbers: list[int] = []
    for part in (part.strip() for word in _typed(words) for part in word.split(",")):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise UsageError(
                f"{option} {part!r} is not a whole number or a range of them.",
                hint=f"Write {option} 4, {option} 2,8 or {option} 2:8",
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UsageError(f"{option} {part} is a range that runs backwards.", hint=f"Write {option} {last}:{first}")
        if last - first > MAX_NUMBERS:
            raise UsageError(
                f"{option} {part} is a range of more than {MAX_NUMBERS:,} numbers.",
                hint=f"Write a shorter one, such as {option} {first}:{first + 100}",
            )
        numbers += range(first, last + 1)
    return tuple(numbers)


def parse_steps(words: Sequence[str] | None) -> tuple[int, ...] | None:
    """The steps of ``--step``, ascending, each once; None for ``all``, as where the option was not given."""
    named = [part.strip() for word in words or () for part in word.split(",")]
    if not named or "all" in named:
        return None
    return tuple(sorted(set(parse_counts("--step", named))))


def _typed(words: Words) -> Sequence[str]:
    return (words,) if isinstance(words, str) else words or ()


def _shown(words: Words) -> str:
    return repr(",".join(_typed(words)))


RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A gradscope run, a trainer's folder, a JSONL, Parquet or CSV file; or its URL (s3, gs, hf, https).",
        show_default=False,
    ),
]

RewardOption = Annotated[
    str | None,
    Option("One reward function instead of the scalar reward; the main one of several.", "NAME", panel="Input"),
]
SuccessThresholdOption = Annotated[
    float | None, Option("A rollout passes at this reward or more; for rewards that are not 0/1.", "X", panel="Input")
]
StepsOption = Annotated[list[str] | None, Option("Steps to compute.", "N,A:B|all")]


class RunQuestions(Struct, frozen=True, kw_only=True):
    """Questions to one run by the commands that analyse all of it."""

    step: StepsOption = None
    gradients: Annotated[
        bool, Option("Whether to load the model and recompute gradients.", flags=("--gradients/--no-gradients",))
    ] = True
    samples: Annotated[
        list[str] | None,
        Option(
            "Samples of held-out prompts, before and after; those of the run folder by default.",
            "FILE,...",
            panel="Input",
        ),
    ] = None
    success_threshold: SuccessThresholdOption = None


def complete_metric(incomplete: str) -> list[str]:
    """Metrics of the catalogue, the last of a list by comma."""
    from gradscope.catalog.lookup import CATALOG

    return _last_of_list(incomplete, list(CATALOG))


def complete_formulation(incomplete: str) -> list[str]:
    """Formulations of the registry, the last of a list by comma."""
    from gradscope.advantages.registry import ALL_FORMULATIONS, CONSTANT

    constants = (f"{name}{CONSTANT}" for name, entry in ALL_FORMULATIONS.items() if entry.takes_c)
    return _last_of_list(incomplete, [*ALL_FORMULATIONS, *constants])


def _last_of_list(incomplete: str, names: list[str]) -> list[str]:
    head, comma, last = incomplete.rpartition(",")
    return [f"{head}{comma}{name}" for name in names if name.startswith(last)]


Command = Callable[..., None]
_RUNS = ("run", "runs", "files")  # names of the argument that commands read from


def with_records(*, leave_out: tuple[str, ...] = (), needs_torch: bool = True) -> Callable[[Command], Command]:
    """Let a command declare its flags by :class:`~gradscope.option.Option`, and take records of them.

    Each parameter whose type is a record is replaced, in its position, by one flag for every field that declares an
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
            if _is_record(hints[name]):
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
            defer_imports()
            named = next(values[name] for name in _RUNS if name in values)
            runs = [named] if isinstance(named, str) else named
            quiet = any(getattr(record, "quiet", False) for record in made.values())
            with remembering(runs, made[read], offered, quiet=quiet) as made[read]:
                command(**values, **made)

        offered = [param.name.replace("_", "-") for param in shown]
        return _with_signature(called_with_flags, shown)

    return decorate


def with_parameters(settings: Iterable[inspect.Parameter], *, panels: tuple[str, ...]) -> Callable[[Command], Command]:
    """Give a command that takes ``**settings`` a parameter for each of them; the help's panels have this order."""

    def decorate(command: Command) -> Command:
        parameters = [
            param for param in inspect.signature(command).parameters.values() if param.kind is not param.VAR_KEYWORD
        ]
        shown = [*settings, *parameters]
        _with_signature(command, shown)
        hints, options = get_type_hints(command, include_extras=True), options_of(command)
        shown.sort(key=lambda param: panels.index(options[param.name].panel))
        return _with_signature(
            command, [param.replace(annotation=_flag(hints[param.name], options[param.name])) for param in shown]
        )

    return decorate


def _with_signature(command: Command, shown: list[inspect.Parameter]) -> Command:
    command.__annotations__ = {param.name: param.annotation for param in shown}
    command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return command


def _flags(record: type, leave_out: tuple[str, ...], command: str) -> Iterator[inspect.Parameter]:
    """The flags of a record's fields as parameters; those of all records of a command share one name space."""
    for field, hint, option in _option_fields(record, leave_out):
        if option is None:
            yield from _flags(hint, leave_out, command)
        else:
            if option.names_of is not None:
                option = replace(option, help=f"{option.help} Any of {', '.join(option.names_of(command))}.")
            yield inspect.Parameter(
                option.parameter, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=_flag(hint, option)
            )


def _option_fields(record: type, leave_out: tuple[str, ...]) -> Iterator[tuple[FieldInfo, Any, Option | None]]:
    """The fields that are asked for, each with its type and its option; a record inside has none."""
    hints, options = get_type_hints(record), options_of(record)
    for field in fields(record):
        if field.name not in leave_out and (_is_record(hints[field.name]) or field.name in options):
            yield field, hints[field.name], options.get(field.name)


def _is_record(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Struct)


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
    for field, hint, option in _option_fields(record, leave_out):
        if option is None:
            chosen[field.name] = _make(hint, values, leave_out, command)
        else:
            value = values.pop(option.parameter)
            names = None if option.names_of is None else option.names_of(command)
            chosen[field.name] = value if names is None else parse_choices(option.flags[0], value, names)
    return record(**chosen)
