"""The typer app: which commands there are, in which order, with which examples."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from gradscope.cli.help_pages import HELP_NAMES, PlainSwitches, examples_in, page_of
from gradscope.cli.output.streams import rendered, write_data
from gradscope.render.words import STYLES
from gradscope.version import __version__

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


def _help(paragraphs: list[str], examples: tuple[str, ...]) -> str:
    """A command's question, its examples, and its options."""
    first, *more = (" ".join(paragraph.split()) for paragraph in paragraphs)
    shown = examples_in(examples).replace("[", r"\[")
    return "\n\n".join([first, f"[bold]Examples[/bold]\n{shown}", *more])


@cache
def _made(name: str) -> Any:
    """The command of a name, from the module of that name."""
    module = import_module(f"gradscope.cli.commands.{name}")
    function: Callable[..., None] = getattr(module, name)
    words = getattr(module, "SUMMARY", inspect.getdoc(function) or "").split("\n\n")
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    alone.command(
        name,
        cls=page_of(function, module.EXAMPLES, module.COMMON),
        help=_help(words, module.EXAMPLES),
        context_settings={"help_option_names": HELP_NAMES},
    )(function)
    return typer.main.get_command(alone)


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
            word for one in inner.params for word in (*one.opts, *one.secondary_opts) if word.startswith("-")
        )
        for name, inner in command().commands.items()
    }
