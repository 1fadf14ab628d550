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
EXAMPLES = ("gradscope demo", "gradscope degeneracy outputs/my-run", "gradscope report outputs/my-run")


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
    epilog="Exit codes: 0 done, 1 a check failed or could not be decided (`replay` is one), 2 usage or unusable input, "
    "also where a part of it is damaged and the rest is shown, "
    "3 a bug in gradscope, 130 interrupted.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        write_data(f"gradscope {__version__}\n")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    help=_help(
        [
            "What carries signal in a GRPO run, and what does not.",
            "Give a command a run: its folder, a log or a URL. stdout is data, stderr is talk.",
        ],
        EXAMPLES,
    ),
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


def _add(
    function: Callable[..., None],
    panel: str,
    examples: tuple[str, ...],
    common: tuple[str, ...],
    summary: str | None = None,
) -> None:
    """Adds a command with the options of its first page of help."""
    words = (summary or inspect.getdoc(function) or "").split("\n\n")
    app.command(
        cls=page_of(function, examples, common),
        help=_help(words, examples),
        context_settings={"help_option_names": HELP_NAMES},
        rich_help_panel=panel,
    )(function)


_add(demo.demo, _START, demo.EXAMPLES, demo.COMMON)
_add(train.train, _START, train.EXAMPLES, train.COMMON)
_add(explain.explain, _START, explain.EXAMPLES, explain.COMMON)
_add(config.config, _START, config.EXAMPLES, config.COMMON)
_add(degeneracy.degeneracy, _DIAGNOSE, degeneracy.EXAMPLES, degeneracy.COMMON)
_add(passk.passk, _DIAGNOSE, passk.EXAMPLES, passk.COMMON)
_add(rank.rank, _DIAGNOSE, rank.EXAMPLES, rank.COMMON)
_add(replay.replay, _DIAGNOSE, replay.EXAMPLES, replay.COMMON, replay.SUMMARY)
_add(spike.spike, _DIAGNOSE, spike.EXAMPLES, spike.COMMON)
_add(claims.claims, _DIAGNOSE, claims.EXAMPLES, claims.COMMON)
_add(compare.compare, _DIAGNOSE, compare.EXAMPLES, compare.COMMON)
_add(report.report, _DIAGNOSE, report.EXAMPLES, report.COMMON)
_add(reduce.reduce, _DIAGNOSE, reduce.EXAMPLES, reduce.COMMON)
_add(check.check, _GATE, check.EXAMPLES, check.COMMON, check.SUMMARY)


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
