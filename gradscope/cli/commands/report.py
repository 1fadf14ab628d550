"""`gradscope report`: one page that a person reads."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gradscope.cli.arguments import options
from gradscope.cli.arguments.lists import parse_files
from gradscope.cli.arguments.options import GradientsOption, HeldOutOption, StepsOption
from gradscope.cli.arguments.records import with_records
from gradscope.cli.arguments.steps import parse_steps
from gradscope.cli.output.delivery import DeliveryOptions, delivery
from gradscope.cli.output.streams import say
from gradscope.errors import OutputExistsError
from gradscope.gradients.engine_options import EngineOptions
from gradscope.processes import process_index
from gradscope.rollouts.read_options import ReadOptions

EXAMPLES = (
    "gradscope report my-run",
    "gradscope report my-run --samples before.jsonl,after.jsonl --output my-run.html",
    "gradscope report outputs/trl-run --initial base-model --run-config args.json",
    "gradscope report rollouts.jsonl --no-gradients",
    "gradscope report folder-of-runs --output runs.html",
)
COMMON = ("--output", "--step", "--gradients", "--samples", "--model", "--success-threshold", "--show", "--force")
_MOST_COMMANDS = 2

PageOption = Annotated[
    Path,
    typer.Option("--output", "-o", metavar="FILE", help="The page.", rich_help_panel="Output"),
]
MaxTokensOption = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        metavar="N",
        min=0,
        help="Most tokens whose own gradients are computed; 0: none, 512 by default.",
        rich_help_panel="Measure",
    ),
]
ShowOption = Annotated[list[str] | None, options.show_option("report")]


@with_records(leave_out=("engine", "verify", "output", "num_samples", "num_correct"))
def report(
    context: typer.Context,
    run: options.RunArgument,
    output: PageOption = Path("report.html"),
    step: StepsOption = None,
    gradients: GradientsOption = True,
    max_tokens: MaxTokensOption = None,
    samples: HeldOutOption = None,
    success_threshold: options.SuccessThresholdOption = None,
    show: ShowOption = None,
    *,
    read: ReadOptions,
    engine: EngineOptions,
    out: DeliveryOptions,
) -> None:
    """Write one self-contained HTML page that answers what a run's log can answer.

    Which groups, rollouts, rewards and lengths make the gradient, whether the log replays, and what other advantages
    would have done. Gradients are recomputed at up to four steps, unless --step names others. A question whose data
    are missing says what to log. A folder of several runs gives an index of their logs, with small curves of each.
    """
    from gradscope.diagnostics.report.index import report_index, runs_below
    from gradscope.diagnostics.report.measure import report_run
    from gradscope.render.html.index_page import render_index
    from gradscope.render.html.page import render_page

    tables = options.parse_show("report", show)
    steps, held_out = parse_steps(step), parse_files("--samples", samples)
    _refuse_existing(output, force=out.force)
    with delivery(out) as result:
        with result.progress() as progress:
            runs = () if read.reader is not None else runs_below(run, progress)
        if len(runs) > 1:
            with result.progress() as progress:
                index = report_index(
                    run, runs, success_threshold=success_threshold, strict=read.strict, progress=progress
                )
            _write_page(render_index(index), output)
            result.deliver(index, show=tables, then=[_words(one.command) for one in index.runs[:1]])
        else:
            with result.progress() as progress:
                found = report_run(
                    run,
                    steps="all" if step and steps is None else steps,
                    gradients=gradients,
                    tokens=max_tokens,
                    samples=held_out,
                    success_threshold=success_threshold,
                    read=read,
                    engine=replace(engine, notice=result.notice),
                    progress=progress,
                )
            _write_page(render_page(found), output)
            closer = dict.fromkeys(one.command for one in found.sections if one.command and one.missing is None)
            result.deliver(found, show=tables, then=[_words(command) for command in list(closer)[:_MOST_COMMANDS]])
    if not out.quiet:
        say(f"wrote {output}")


def _words(command: str) -> list[str]:
    """The words of a command behind ``gradscope``."""
    return shlex.split(command)[1:]


def _refuse_existing(page: Path, *, force: bool) -> None:
    """Before any work: a page is never laid over something else unasked.

    Raises:
        OutputExistsError: There is a folder at that path, or a file and ``force`` is off.
    """
    if page.is_dir():
        raise OutputExistsError(f"{page} is a folder.", hint=f"Name a file: --output {page / 'report.html'}")
    if page.exists() and not force:
        raise OutputExistsError(
            f"{page} is already there.", hint="Name another --output, or add --force to replace it."
        )


def _write_page(page: str, path: Path) -> None:
    """Written aside, then renamed: a page is whole or not there. Of several processes the main one writes it."""
    if process_index() > 0:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        aside.write_text(page, encoding="utf-8")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
