"""The typer app: which commands there are, in which order, with which examples.

A command has two pages of help: `--help` with examples and the usual options, `--help-all` with all.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from math import isfinite
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

import typer
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from gradscope.cli.output.streams import rendered, write_data
from gradscope.outside.numerals import number_from
from gradscope.render.words import QUIET, STYLES
from gradscope.version import __version__

HELP_NAMES = ("-h", "--help", "--help-all")
"""All three are one option of the parser; which one was typed decides the page."""

_WIDTH = 78
_FIRST_EXAMPLES = 3  # on the first page, which is to fit a terminal of 24 lines
_WIDEST_VALUE = 18  # characters; choices that take more follow the sentence
_LISTS = "Lists: 2,4 or the option again. Ranges: 2:4 or 2-4."
_EVERY_PAGE = "--help: the options most people need; --help-all: every option."


def examples_in(examples: Sequence[str]) -> str:
    """Examples as indented lines that can be pasted: one that is too long continues after a backslash."""
    lines = []
    for example in examples:
        lines.append("  ")
        for word in re.split(r" (?=-)", example) if len(example) + 2 > _WIDTH else [example]:
            if lines[-1] != "  " and len(lines[-1]) + len(word) + 3 > _WIDTH:
                lines[-1] += " \\"
                lines.append("     ")
            lines[-1] += word if lines[-1] == "  " else f" {word}"
    return "\n".join(lines)


def page_of(function: Callable[..., None], examples: Sequence[str], common: Sequence[str]) -> type[TyperCommand]:
    """The class of a command with these examples and these options on its first page."""
    numbers = set()  # parameters that typer itself converts to a number: not where an option has a parser
    for name, hint in get_type_hints(function, include_extras=True).items():
        metadata = getattr(hint, "__metadata__", ())
        kind = get_args(hint)[0] if metadata else hint
        if {int, float} & {kind, *get_args(kind)} and not any(getattr(item, "parser", None) for item in metadata):
            numbers.add(name)
    shown = {"examples": tuple(examples), "common": tuple(common), "numbers": frozenset(numbers)}
    return type("Command", (_Command,), shown)


class PlainSwitches:
    """A switch has no value, so its help names no type of one."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, the help option last."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in params:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
            if parameter.param_type_name == "argument":
                # its own metavar alone, whose brackets and dots typer would repeat
                parameter.get_usage_pieces = lambda ctx, metavar=parameter.metavar: [str(metavar)]
            if set(HELP_NAMES) & set(parameter.opts):
                parameter.help, parameter.opts = _EVERY_PAGE, [*HELP_NAMES[1:], HELP_NAMES[0]]  # typer's order changes
        return params


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
            panel = "Arguments" if parameter.param_type_name == "argument" else "Options"
            panels.setdefault(parameter.rich_help_panel or panel, []).append(parameter)
        from gradscope.diagnostics.inputs.names import NAMES

        names_of: Mapping[str, Any] = {
            flag: NAMES[flag] for param in self.params for flag in param.opts if flag in NAMES
        }
        return Group(
            Text(self.get_usage(ctx), style="bold"),
            Text.from_markup(f"{self.help}\n"),
            *(_panel(_rows(params, _in_full), title) for title, params in panels.items()),
            Group(*(Text(f"{flag}: {', '.join(names())}") for flag, names in names_of.items())),
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
        spelled = str(parameter.metavar)
        if parameter.param_type_name != "argument":  # as `--output, -o DIR`, `--gradients/--no-gradients`
            switch = "/".join([parameter.opts[0], *parameter.secondary_opts])
            short = [flag for flag in parameter.opts if not flag.startswith("--")]
            value = "NAME" if _is_wide(parameter) else parameter.metavar
            spelled = " ".join(filter(None, (", ".join([switch, *short]), "" if parameter.is_flag else value)))
        table.add_row(Text(spelled), Text(describe(parameter)))
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


_PANELS = {
    "Start": {
        "demo": "The whole tour on a small model, in two minutes",
        "train": "A reference run with TRL, with everything recorded",
        "explain": "What does a number mean?",
        "config": "Which options are remembered for a run?",
    },
    "Diagnose": {
        "degeneracy": "How many groups gave no gradient, why, at what cost?",
        "passk": "pass@k with intervals: wider, or only sharper?",
        "rank": "How many directions do the gradients have?",
        "replay": "Does the log reproduce the trainer's numbers?",
        "spike": "What made the step that stands out?",
        "claims": "Does this run bear out what papers say?",
        "compare": "Did changing one thing matter? Two runs, or seeds",
        "report": "All that a log can answer, on one page",
        "reduce": "The rewards of a log as one small file",
    },
    "Gate": {"check": "Is the recipe still healthy? Exit codes for CI"},
}
"""Panel of the help -> command -> the question that it answers."""
_START_TEXT = """What carries signal in a GRPO run? RUN is a folder, a log or a URL.

  gradscope degeneracy RUN   how many groups gave no gradient, and why
  gradscope report RUN       all that a log can answer, on one page
  gradscope demo             the whole tour on a small model, in two minutes
  gradscope --help           all commands
"""
"""The output of `gradscope` alone."""


@cache
def _made(name: str) -> Any:
    """The command of a name, from the module of that name."""
    module = import_module(f"gradscope.cli.commands.{name}")
    function: Callable[..., None] = getattr(module, name)
    words = getattr(module, "SUMMARY", inspect.getdoc(function) or "").split("\n\n")
    app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    first, *paragraphs = (" ".join(paragraph.split()) for paragraph in words)
    shown = examples_in(module.EXAMPLES).replace("[", r"\[")
    app.command(
        name,
        cls=page_of(function, module.EXAMPLES, module.COMMON),
        help="\n\n".join([first, f"[bold]Examples[/bold]\n{shown}", *paragraphs]),
        context_settings={"help_option_names": HELP_NAMES},
    )(function)
    return typer.main.get_command(app)


class _OnDemand(Mapping[str, Any]):
    """All commands; one is imported when it is asked for, which takes longer than its help."""

    def __getitem__(self, name: str) -> Any:
        if not any(name in questions for questions in _PANELS.values()):
            raise KeyError(name)
        return _made(name)

    def __iter__(self) -> Iterator[str]:
        return (name for questions in _PANELS.values() for name in questions)

    def __len__(self) -> int:
        return sum(map(len, _PANELS.values()))


class _Commands(PlainSwitches, TyperGroup):
    """All commands; typer's own page of them takes twice the time of its imports, and three screens."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.commands = _OnDemand()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, none of them imported."""
        return list(self.commands)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Prints a line a command."""
        table = Table.grid(padding=(0, 2))
        table.add_column(style=STYLES["unknown"])
        for panel, questions in _PANELS.items():
            table.add_row(Text(panel, style="bold default"))
            for name, question in questions.items():
                table.add_row(Text(f"  {name}"), Text(question))
        head, tail = Text(f"Usage: {ctx.command_path} COMMAND ...\n{self.help}"), Text(str(self.epilog))
        formatter.write(rendered(Group(head, table, tail)))


app = typer.Typer(
    name="gradscope",
    cls=_Commands,
    context_settings={"help_option_names": HELP_NAMES},
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog="`gradscope COMMAND --help` has examples; --install-completion completes names.\n"
    "Exit codes: 0 done, 1 a check failed or could not be decided (`replay` is one),\n"
    "2 usage, or input that is unusable or damaged in part, 3 a bug, 130 interrupted.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        write_data(f"gradscope {__version__}\n")
        raise typer.Exit


@app.callback(invoke_without_command=True, help="What carries signal in a GRPO run? RUN is a folder, a log or a URL.")
def gradscope(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """What carries signal in a GRPO run, and what does not."""
    if context.invoked_subcommand is None:
        write_data(_START_TEXT)


@cache
def command() -> Any:
    """The app as one callable, made once; its ``main``, outside standalone mode, raises instead of exiting."""
    return typer.main.get_command(app)


def options_by_command() -> dict[str, frozenset[str]]:
    """Command -> its options as they are typed, aliases included."""
    return {
        name: frozenset(
            word for param in inner.params for word in (*param.opts, *param.secondary_opts) if word.startswith("-")
        )
        for name, inner in command().commands.items()
    }
