"""Two pages of help for each command: `--help` with examples and the usual options, `--help-all` with all."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any, ClassVar, get_args, get_type_hints

import typer
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from gradscope.cli.output.streams import rendered
from gradscope.outside.numerals import number_from
from gradscope.render.words import QUIET, STYLES

HELP_NAMES = ("-h", "--help", "--help-all")
"""All three are one option of the parser; which one was typed decides the page."""

_WIDTH = 78
_FIRST_EXAMPLES = 3  # on the first page, which is to fit a terminal of 24 lines
_WIDEST_VALUE = 18  # characters; choices that take more follow the sentence
_LISTS = "Lists: 2,4 or the option again. Ranges: 2:4 or 2-4."
_EVERY_PAGE = "--help: the options most people need; --help-all: every option."


def examples_in(examples: Sequence[str]) -> str:
    """Examples as indented lines that can be pasted: one that is too long continues after a backslash."""
    return "\n".join(line for example in examples for line in _lines(example))


def page_of(function: Callable[..., None], examples: Sequence[str], common: Sequence[str]) -> type[TyperCommand]:
    """The class of a command with these examples and these options on its first page."""
    hints = get_type_hints(function, include_extras=True)
    numbers = frozenset(name for name, hint in hints.items() if _is_a_number(hint))
    return type("Command", (_Command,), {"examples": tuple(examples), "common": tuple(common), "numbers": numbers})


def _is_a_number(hint: Any) -> bool:
    """Whether typer itself converts the parameter to a number: not where an option has a parser."""
    metadata = getattr(hint, "__metadata__", ())
    kind = get_args(hint)[0] if metadata else hint
    return bool({int, float} & {kind, *get_args(kind)}) and not any(getattr(one, "parser", None) for one in metadata)


class PlainSwitches:
    """A switch has no value, so its help names no type of one."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, the help option last."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in params:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
            if parameter.param_type_name == "argument":
                parameter.get_usage_pieces = partial(_metavar_alone, parameter)
            if set(HELP_NAMES) & set(parameter.opts):
                parameter.help, parameter.opts = _EVERY_PAGE, [*HELP_NAMES[1:], HELP_NAMES[0]]  # typer's order changes
        return params


def _metavar_alone(parameter: Any, ctx: Any) -> list[str]:
    """An argument in the line of usage by its own metavar, whose brackets and dots typer would repeat."""
    return [str(parameter.metavar)]


def _in_one_grammar(parameter: Any) -> Callable[[Any, Any], Any]:
    """Typer's processing of a number, with our grammar: its own takes ``1_0`` and NaN."""
    process = parameter.process_value

    def processed(ctx: Any, value: Any) -> Any:
        try:
            if isinstance(value, str) and not isfinite(number_from(value)):
                raise ValueError(f"{value!r} is not a finite number")
        except ValueError as error:
            raise typer.BadParameter(f"{error}.", ctx=ctx, param=parameter) from error
        return process(ctx, value)

    return processed


class _Command(PlainSwitches, TyperCommand):
    examples: ClassVar[tuple[str, ...]] = ()
    common: ClassVar[tuple[str, ...]] = ()
    numbers: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for parameter in self.params:
            if parameter.name in self.numbers:
                parameter.process_value = _in_one_grammar(parameter)  # type: ignore[assignment]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Notes which page is asked for, before the help option prints it, and the typed words."""
        ctx.meta["help_all"] = "--help-all" in args
        ctx.meta["typed"] = tuple(args)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Prints the page that was asked for."""
        formatter.write(rendered(self._every_option(ctx) if ctx.meta.get("help_all") else self._first_page(ctx)))

    def _every_option(self, ctx: Any) -> RenderableType:
        panels: dict[str, list[Any]] = {}
        for parameter in self.get_params(ctx):
            own = "Arguments" if parameter.param_type_name == "argument" else "Options"
            panels.setdefault(parameter.rich_help_panel or own, []).append(parameter)
        return Group(
            Text(self.get_usage(ctx), style="bold"),
            Text.from_markup(f"{self.help}\n"),
            *(_panel(_rows(params, _in_full), title) for title, params in panels.items()),
            _names(self.params),
        )

    def _first_page(self, ctx: Any) -> RenderableType:
        arguments = [parameter for parameter in self.params if parameter.param_type_name == "argument"]
        common = [parameter for flag in self.common for parameter in self.params if flag in parameter.opts]
        takes_list = any(parameter.multiple and "," in (parameter.metavar or "") for parameter in common)
        everything = f"all options: {ctx.command_path} --help-all"
        return Group(
            Text(self.get_usage(ctx), style="bold"),
            Text.from_markup((self.help or "").split("\n\n")[0]),
            Text(),
            Text("Examples", style="bold"),
            Text(examples_in(self.examples[:_FIRST_EXAMPLES])),
            _panel(_rows(arguments + common, _in_short), "Common", everything),
            *([Text(_LISTS)] if takes_list else []),
        )


def _panel(rows: Table, title: str, subtitle: str | None = None) -> Panel:
    return Panel(rows, title=title, subtitle=subtitle, title_align="left", subtitle_align="left", border_style=QUIET)


def _rows(params: Sequence[Any], describe: Callable[[Any], str]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(style=STYLES["unknown"], no_wrap=True)
    table.add_column(ratio=1)
    for parameter in params:
        table.add_row(Text(_spelled(parameter)), Text(describe(parameter)))
    return table


def _in_short(parameter: Any) -> str:
    """The first sentence of an option's help, and its choices where they are too many for the left."""
    sentence, _, _ = Text.from_markup(parameter.help or "").plain.partition(". ")
    sentence, _, _ = sentence.partition("; ")
    return f"{sentence.rstrip('.')}: {_choices(parameter)}." if _is_wide(parameter) else f"{sentence.rstrip('.')}."


def _in_full(parameter: Any) -> str:
    """All of an option's help, its choices where they are too many for the left, its other names and its default."""
    details = [f"One of {_choices(parameter)}."] if _is_wide(parameter) else []
    aliases = [flag for flag in parameter.opts[1:] if flag.startswith("--")]
    details += [f"Also {', '.join(aliases)}."] if aliases and not set(HELP_NAMES) & set(aliases) else []
    default = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    if parameter.show_default and not isinstance(default, bool) and default not in (None, (), []):
        details.append(f"[default: {default}]")
    return " ".join([Text.from_markup(parameter.help or "").plain, *details])


def _choices(parameter: Any) -> str:
    return str(parameter.metavar).replace("|", ", ")


def _is_wide(parameter: Any) -> bool:
    return "|" in (parameter.metavar or "") and len(parameter.metavar) > _WIDEST_VALUE


def _spelled(parameter: Any) -> str:
    """The option as it is typed: `--output, -o DIR`, `--gradients/--no-gradients`."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar)
    switch = "/".join([parameter.opts[0], *parameter.secondary_opts])
    short = [flag for flag in parameter.opts if not flag.startswith("--")]
    value = "NAME" if _is_wide(parameter) else parameter.metavar
    return " ".join(filter(None, (", ".join([switch, *short]), "" if parameter.is_flag else value)))


def _names(params: Sequence[Any]) -> RenderableType:
    """The names that options take of which there are too many for their own line."""
    from gradscope.diagnostics.inputs.names import NAMES

    names_of: Mapping[str, Any] = {flag: NAMES[flag] for one in params for flag in one.opts if flag in NAMES}
    return Group(*(Text(f"{flag}: {', '.join(names())}") for flag, names in names_of.items()))


def _lines(example: str) -> list[str]:
    """The lines of one example, broken before an option."""
    if len(example) + 2 <= _WIDTH:
        return [f"  {example}"]
    lines = ["  "]
    for word in re.split(r" (?=-)", example):
        if len(lines[-1]) + len(word) + 3 > _WIDTH:
            lines[-1] += " \\"
            lines.append("     ")
        lines[-1] += word if lines[-1] == "  " else f" {word}"
    return lines
