"""Two pages of help for each command: `--help` with examples and what most people need, `--help-all` with all."""

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
_WIDEST_VALUE = 18  # characters; choices that take more stand behind the sentence
_LISTS = "Lists: 2,4 or the option again. Ranges: 2:4 or 2-4."
_EVERY_PAGE = "--help: the options most people need; --help-all: every option."


def examples_in(examples: Sequence[str]) -> str:
    """Examples as indented lines that can be pasted: one that is too long goes on behind a backslash."""
    return "\n".join(line for example in examples for line in _lines(example))


def page_of(function: Callable[..., None], examples: Sequence[str], common: Sequence[str]) -> type[TyperCommand]:
    """The class of a command with these examples and these options on its first page."""
    hints = get_type_hints(function, include_extras=True)
    numbers = frozenset(name for name, hint in hints.items() if _is_a_number(hint))
    return type("Command", (_Command,), {"examples": tuple(examples), "common": tuple(common), "numbers": numbers})


def _is_a_number(hint: Any) -> bool:
    """Whether typer itself makes a number of the parameter; where an option has a parser, that one has the say."""
    told = getattr(hint, "__metadata__", ())
    kind = get_args(hint)[0] if told else hint
    return bool({int, float} & {kind, *get_args(kind)}) and not any(getattr(one, "parser", None) for one in told)


class PlainSwitches:
    """A switch has no value, so its help names no type of one."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, the help option last."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for one in params:
            if getattr(one, "is_flag", False):
                one.metavar = ""
            if one.param_type_name == "argument":
                one.get_usage_pieces = partial(_metavar_alone, one)
            if set(HELP_NAMES) & set(one.opts):
                one.help, one.opts = _EVERY_PAGE, [*HELP_NAMES[1:], HELP_NAMES[0]]  # typer's order changes
        return params


def _metavar_alone(one: Any, ctx: Any) -> list[str]:
    """An argument in the line of usage, whose own brackets and dots say what typer's would say again."""
    return [str(one.metavar)]


def _in_one_grammar(one: Any) -> Callable[[Any, Any], Any]:
    """How typer processes a number, held to the grammar of all others: its own takes ``1_0`` and NaN."""
    process = one.process_value

    def processed(ctx: Any, value: Any) -> Any:
        try:
            if isinstance(value, str) and not isfinite(number_from(value)):
                raise ValueError(f"{value!r} is not a finite number")
        except ValueError as error:
            raise typer.BadParameter(f"{error}.", ctx=ctx, param=one) from error
        return process(ctx, value)

    return processed


class _Command(PlainSwitches, TyperCommand):
    examples: ClassVar[tuple[str, ...]] = ()
    common: ClassVar[tuple[str, ...]] = ()
    numbers: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for one in self.params:
            if one.name in self.numbers:
                one.process_value = _in_one_grammar(one)  # type: ignore[assignment]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Notes which page is asked for, before the help option prints it, and what was typed."""
        ctx.meta["help_all"] = "--help-all" in args
        ctx.meta["typed"] = tuple(args)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Prints the page that was asked for."""
        formatter.write(rendered(self._every_option(ctx) if ctx.meta.get("help_all") else self._first_page(ctx)))

    def _every_option(self, ctx: Any) -> RenderableType:
        panels: dict[str, list[Any]] = {}
        for one in self.get_params(ctx):
            own = "Arguments" if one.param_type_name == "argument" else "Options"
            panels.setdefault(one.rich_help_panel or own, []).append(one)
        return Group(
            Text(self.get_usage(ctx), style="bold"),
            Text.from_markup(f"{self.help}\n"),
            *(_panel(_rows(params, _in_full), title) for title, params in panels.items()),
            _names(self.params),
        )

    def _first_page(self, ctx: Any) -> RenderableType:
        chosen = [one for one in self.params if one.param_type_name == "argument"]
        chosen += [one for flag in self.common for one in self.params if flag in one.opts]
        everything = f"all options: {ctx.command_path} --help-all"
        return Group(
            Text(self.get_usage(ctx), style="bold"),
            Text.from_markup((self.help or "").split("\n\n")[0]),
            Text(),
            Text("Examples", style="bold"),
            Text(examples_in(self.examples[:_FIRST_EXAMPLES])),
            _panel(_rows(chosen, _in_short), "Common", everything),
            *([Text(_LISTS)] if any(_is_list(one) for one in chosen) else []),
        )


def _panel(rows: Table, title: str, subtitle: str | None = None) -> Panel:
    return Panel(rows, title=title, subtitle=subtitle, title_align="left", subtitle_align="left", border_style=QUIET)


def _rows(params: Sequence[Any], told: Callable[[Any], str]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(style=STYLES["unknown"], no_wrap=True)
    table.add_column(ratio=1)
    for one in params:
        table.add_row(Text(_spelled(one)), Text(told(one)))
    return table


def _in_short(one: Any) -> str:
    """The first sentence of an option's help, and its choices where they are too many for the left."""
    sentence, _, _ = Text.from_markup(one.help or "").plain.partition(". ")
    sentence, _, _ = sentence.partition("; ")
    return f"{sentence.rstrip('.')}: {_choices(one)}." if _is_wide(one) else f"{sentence.rstrip('.')}."


def _in_full(one: Any) -> str:
    """All of an option's help, its choices where they are too many for the left, its other names and its default."""
    known = [f"One of {_choices(one)}."] if _is_wide(one) else []
    others = [flag for flag in one.opts[1:] if flag.startswith("--")]
    known += [f"Also {', '.join(others)}."] if others and not set(HELP_NAMES) & set(others) else []
    default = one.show_default if isinstance(one.show_default, str) else one.default
    if one.show_default and not isinstance(default, bool) and default not in (None, (), []):
        known.append(f"[default: {default}]")
    return " ".join([Text.from_markup(one.help or "").plain, *known])


def _choices(one: Any) -> str:
    return str(one.metavar).replace("|", ", ")


def _is_wide(one: Any) -> bool:
    return "|" in (one.metavar or "") and len(one.metavar) > _WIDEST_VALUE


def _is_list(one: Any) -> bool:
    return one.param_type_name == "option" and bool(one.multiple) and "," in one.metavar


def _spelled(one: Any) -> str:
    """The option as it is typed: `--output, -o DIR`, `--gradients/--no-gradients`."""
    if one.param_type_name == "argument":
        return str(one.metavar)
    switch = "/".join([one.opts[0], *one.secondary_opts])
    short = [flag for flag in one.opts if not flag.startswith("--")]
    value = "NAME" if _is_wide(one) else one.metavar
    return " ".join(filter(None, (", ".join([switch, *short]), "" if one.is_flag else value)))


def _names(params: Sequence[Any]) -> RenderableType:
    """The names that options take of which there are too many for their own line."""
    from gradscope.diagnostics.inputs.names import NAMES

    known: Mapping[str, Any] = {flag: NAMES[flag] for one in params for flag in one.opts if flag in NAMES}
    return Group(*(Text(f"{flag}: {', '.join(names())}") for flag, names in known.items()))


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
