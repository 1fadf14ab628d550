"""The typer app: which commands there are, in which order, with which examples."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from gradscope.cli.commands import check, claims, compare, degeneracy, demo, explain, passk, rank, replay, report, train
from gradscope.cli.output.streams import write_data
from gradscope.version import __version__

_START = "Start"
_DIAGNOSE = "Diagnose"
_GATE = "Gate"

app = typer.Typer(
    name="gradscope",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 1 a check failed or could not be decided (`replay` is one), 2 usage or unusable input, "
    "3 a bug in gradscope, 130 interrupted.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        write_data(f"gradscope {__version__}\n")
        raise typer.Exit


@app.callback()
def gradscope(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """What carries signal in a GRPO run, and what does not.

    Give a command a run folder: gradscope's own, or what TRL or verl wrote. stdout is data, stderr is talk.
    """


def _add(function: Callable[..., None], panel: str, examples: tuple[str, ...], summary: str | None = None) -> None:
    words = (summary or inspect.getdoc(function) or "").split("\n\n")
    paragraphs = "\n\n".join(" ".join(paragraph.split()) for paragraph in words)
    epilog = "\n\n".join(["[bold]Examples[/bold]", *(example.replace("[", r"\[") for example in examples)])
    app.command(help=paragraphs, epilog=epilog, rich_help_panel=panel)(function)


_add(demo.demo, _START, demo.EXAMPLES)
_add(train.train, _START, train.EXAMPLES)
_add(explain.explain, _START, explain.EXAMPLES)
_add(degeneracy.degeneracy, _DIAGNOSE, degeneracy.EXAMPLES)
_add(passk.passk, _DIAGNOSE, passk.EXAMPLES)
_add(rank.rank, _DIAGNOSE, rank.EXAMPLES)
_add(replay.replay, _DIAGNOSE, replay.EXAMPLES, replay.SUMMARY)
_add(claims.claims, _DIAGNOSE, claims.EXAMPLES)
_add(compare.compare, _DIAGNOSE, compare.EXAMPLES)
_add(report.report, _DIAGNOSE, report.EXAMPLES)
_add(check.check, _GATE, check.EXAMPLES, check.SUMMARY)


def command() -> Any:
    """The app as one callable; its ``main``, outside standalone mode, raises instead of exiting."""
    return typer.main.get_command(app)


def options_by_command() -> dict[str, frozenset[str]]:
    """Command -> its options as they are typed, aliases included."""
    return {
        name: frozenset(
            word for one in inner.params for word in (*one.opts, *one.secondary_opts) if word.startswith("-")
        )
        for name, inner in command().commands.items()
    }
