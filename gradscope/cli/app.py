"""The typer app: which commands there are, in which order, with which examples."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

import typer

from gradscope.cli.commands import (
    check,
    claims,
    compare,
    config,
    degeneracy,
    demo,
    explain,
    passk,
    rank,
    reduce,
    replay,
    report,
    spike,
    train,
)
from gradscope.cli.help_pages import HELP_NAMES, Commands, examples_in, page_of
from gradscope.cli.output.streams import write_data
from gradscope.version import __version__

_START = "Start"
_DIAGNOSE = "Diagnose"
_GATE = "Gate"
_START_TEXT = """What carries signal in a GRPO run? RUN is a folder, a log or a URL.

  gradscope degeneracy RUN   how many groups gave no gradient, and why
  gradscope report RUN       all that a log can answer, on one page
  gradscope demo             the whole tour on a small model, in two minutes
  gradscope --help           all commands
"""
"""What `gradscope` alone prints."""


def _help(paragraphs: list[str], examples: tuple[str, ...]) -> str:
    """What a command is for, its examples, and the rest."""
    first, *more = (" ".join(paragraph.split()) for paragraph in paragraphs)
    shown = examples_in(examples).replace("[", r"\[")
    return "\n\n".join([first, f"[bold]Examples[/bold]\n{shown}", *more])


app = typer.Typer(
    name="gradscope",
    cls=Commands,
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


@app.callback(
    invoke_without_command=True,
    help="What carries signal in a GRPO run? RUN is a folder, a log or a URL.",
)
def gradscope(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """What carries signal in a GRPO run, and what does not."""
    if context.invoked_subcommand is None:
        write_data(_START_TEXT)


def _add(module: Any, panel: str, question: str) -> None:
    """Adds the command of a module, with its line on the page of all and the options of its own first page."""
    function: Callable[..., None] = getattr(module, module.__name__.rpartition(".")[2])
    words = getattr(module, "SUMMARY", inspect.getdoc(function) or "").split("\n\n")
    app.command(
        cls=page_of(function, module.EXAMPLES, module.COMMON),
        help=_help(words, module.EXAMPLES),
        short_help=question,
        context_settings={"help_option_names": HELP_NAMES},
        rich_help_panel=panel,
    )(function)


_add(demo, _START, "The whole tour on a small model, in two minutes")
_add(train, _START, "A reference run with TRL, of which everything is known")
_add(explain, _START, "What does a number mean?")
_add(config, _START, "Which options are kept for a run?")
_add(degeneracy, _DIAGNOSE, "How many groups gave no gradient, why, at what cost?")
_add(passk, _DIAGNOSE, "pass@k with intervals: wider, or only sharper?")
_add(rank, _DIAGNOSE, "How many directions have the gradients?")
_add(replay, _DIAGNOSE, "Does the log reproduce the trainer's numbers?")
_add(spike, _DIAGNOSE, "What made the step that stands out?")
_add(claims, _DIAGNOSE, "Does this run bear out what papers say?")
_add(compare, _DIAGNOSE, "Did changing one thing matter? Two runs, or seeds")
_add(report, _DIAGNOSE, "All that a log can answer, on one page")
_add(reduce, _DIAGNOSE, "The rewards of a log as one small file")
_add(check, _GATE, "Is the recipe still healthy? Exit codes for CI")


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
