"""`gradscope demo`: the tour on the embedded default, each command as a user would type it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from gradscope.cli.output.streams import show_command, show_line
from gradscope.errors import OutputExistsError
from gradscope.render.terminal.names import VERDICT
from gradscope.render.words import STYLES

EXAMPLES = ("gradscope demo", "gradscope demo my-tour")
COMMON = ("--force",)

FolderArgument = Annotated[
    Path, typer.Argument(metavar="[DIR]", help="Where the run and the page go.", show_default="gradscope-demo")
]

_SENTENCE = f"bold {STYLES['unknown']}"
_REQUIREMENTS = ("frac_reward_zero_std <= 0.9", "pass@8 >= 0.5", "frac_replay_mismatch@1,21,41 == 0")
_PAGE = "report.html"


def demo(
    context: typer.Context,
    folder: FolderArgument = Path("gradscope-demo"),
    force: Annotated[bool, typer.Option("--force", help="Replace a tour that is already there.")] = False,
) -> None:
    """The tour: train a small model, then measure its run with every command.

    About three minutes on two CPU cores, without network. Each command is printed as you would type it, and answers
    with its verdict alone; the page at the end has everything.
    """
    if not force:
        _refuse_existing(folder)
    for sentence, arguments in _tour(folder):
        show_line("")
        show_line(sentence, style=_SENTENCE)
        show_command(["gradscope", *arguments])
        show_line("")
        _run(context.obj, [*arguments, "--force"] if force else arguments)
    show_line("")
    show_line(f"Each adds its table without --show {VERDICT}; --output DIR writes files.", style=_SENTENCE)
    show_line(f"All of it on one page, for a browser: {folder / _PAGE}")


def _refuse_existing(folder: Path) -> None:
    """A tour is never laid over something else."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise OutputExistsError(
            f"{folder} is already there.", hint="Name another folder, or add --force to replace the tour in it."
        )


def _run(main: Callable[[list[str]], int], arguments: list[str]) -> None:
    """The very call that a person's command line makes; the tour ends where one of them fails."""
    code = main(arguments)
    if code != 0:
        raise typer.Exit(code)


def _tour(folder: Path) -> list[tuple[str, list[str]]]:
    """Sentence and command, in the order in which one question leads to the next."""
    run = str(folder / "run")
    steps = ["--step", "1,21,41"]
    sizes = ["--group-size", "2,4"]
    verdict = ["--show", VERDICT]

    required = [word for text in _REQUIREMENTS for word in ("--require", text)]
    return [
        ("A small model learns sums by GRPO.", ["train", "--checkpoint-every", "20", "--output", run]),
        ("How many groups gave no gradient?", ["degeneracy", run, *sizes, *verdict]),
        ("Did training widen what the model can solve, or only sharpen it?", ["passk", run, *verdict]),
        ("Do the logged rollouts give the logged gradient norm?", ["replay", run, *steps, *verdict]),
        (
            "How many directions do a group's gradients have?",
            ["rank", run, *steps, "--advantage", "all", *sizes, *verdict],
        ),
        ("And of each weight, for one group?", ["rank", run, "--step", "41", "--rows", "weight", *sizes, *verdict]),
        ("Does this run bear out what papers say?", ["claims", run, *steps, *verdict]),
        ("What a recipe's CI would ask of this run:", ["check", run, *required, *verdict]),
        ("And all of it on one page:", ["report", run, *steps, "--output", str(folder / _PAGE), *verdict]),
    ]
