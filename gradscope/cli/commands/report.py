"""`gradscope report`: one page that a person reads."""

from __future__ import annotations

import shlex
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct
from msgspec.structs import replace

from gradscope.cli.arguments.options import RunQuestions, parse_files, parse_steps, with_records
from gradscope.cli.output.delivery import DeliveryOptions, delivery, staged_folder
from gradscope.cli.output.streams import say
from gradscope.errors import OutputExistsError, UsageError
from gradscope.gradients.engine_options import EngineOptions
from gradscope.machine import process_index
from gradscope.option import Option
from gradscope.outside.limits import open_file
from gradscope.rollouts.read_options import ReadOptions
from gradscope.writing import atomic_write, one_writer, refuse_existing

if TYPE_CHECKING:
    from gradscope.results.report import RunIndex, RunReport

_PAGE = b"<!doctype html"
_START = 64  # bytes in which a page says that it is one
EXAMPLES = (
    "gradscope report my-run --open",
    "gradscope report run-a run-b --output beside.html",
    "gradscope report outputs/trl-run --initial base-model --run-config args.json",
    "gradscope report my-run --samples before.jsonl,after.jsonl --output my-run.html",
    "gradscope report rollouts.jsonl --no-gradients --figures slides",
)
COMMON = ("--output", "--open", "--figures", "--step", "--gradients", "--samples", "--show", "--force")

RunsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="A run, several to be set side by side, or a folder of runs for an index.",
        show_default=False,
    ),
]


class PageOptions(Struct, frozen=True, kw_only=True):
    """Where the page goes, and its charts."""

    path: Annotated[Path, Option("The page.", "FILE", panel="Output", flags=("--output", "-o"))] = Path("report.html")
    open_page: Annotated[bool, Option("Show the page in the browser.", panel="Output", flags=("--open",))] = False
    figures: Annotated[
        Path | None, Option("Write the page's charts there, as PNG and SVG for slides.", "DIR", panel="Output")
    ] = None


MaxTokensOption = Annotated[
    int | None, Option("Most tokens whose own gradients are computed; 0: none, 512 by default.", "N", at_least=0)
]


@with_records(leave_out=("engine", "verify", "output", "num_samples", "num_correct"))
def report(
    context: typer.Context,
    runs: RunsArgument,
    *,
    page: PageOptions,
    questions: RunQuestions,
    max_tokens: MaxTokensOption = None,
    read: ReadOptions,
    engine: EngineOptions,
    out: DeliveryOptions,
) -> None:
    """Write one self-contained HTML page that answers what a run's log can answer.

    Which groups, rollouts, rewards and lengths make the gradient, whether the log replays, and what other advantages
    would have done. Gradients are recomputed at up to four steps, unless --step names others. A question whose data
    are missing says what to log. Several runs are set side by side from their logs: what differs, with intervals, and
    which settings do. A folder of runs gives an index with small curves of each.
    """
    from gradscope.diagnostics.report.measure import ReportOptions, report_run, runs_below

    steps, held_out = parse_steps(questions.step), parse_files("--samples", questions.samples)
    with delivery(out) as result, _outputs(page, force=out.force, inputs=result.inputs) as folder:
        with result.progress() as progress:
            below = () if read.reader is not None or len(runs) > 1 else runs_below(runs[0], progress)
        if len(runs) > 1 or len(below) > 1:
            _refuse_of_one_run({"--step": questions.step, "--max-tokens": max_tokens, "--samples": questions.samples})
        result_of_runs: RunReport | RunIndex
        with result.progress() as progress:
            if len(runs) > 1:
                from gradscope.diagnostics.report.index import report_runs

                result_of_runs = report_runs(
                    runs, success_threshold=questions.success_threshold, read=read, progress=progress
                )
            elif len(below) > 1:
                from gradscope.diagnostics.report.index import report_index

                result_of_runs = report_index(
                    runs[0], below, success_threshold=questions.success_threshold, strict=read.strict, progress=progress
                )
            else:
                result_of_runs = report_run(
                    runs[0],
                    steps="all" if questions.step and steps is None else steps,
                    gradients=questions.gradients,
                    options=ReportOptions(
                        tokens=max_tokens, samples=held_out, success_threshold=questions.success_threshold
                    ),
                    read=read,
                    engine=replace(engine, notice=result.notice),
                    progress=progress,
                )
        _write_page(result_of_runs, page.path, force=out.force)
        if folder is not None:
            _write_figures(result_of_runs, folder)
        result.deliver(result_of_runs, then=_closer(result_of_runs))
    if not out.quiet:
        say(f"wrote {page.path}" if page.figures is None else f"wrote {page.path} and the charts in {page.figures}")
    if page.open_page and process_index() == 0:
        webbrowser.open(page.path.resolve().as_uri())


def _refuse_of_one_run(options_of_one: Mapping[str, object]) -> None:
    """Several runs are looked at in their logs alone, where these options have no use."""
    for name in [name for name, value in options_of_one.items() if value is not None]:
        raise UsageError(
            f"{name} does not apply to several runs, which are compared by their logs.",
            hint=f"Leave {name} out, or name one run.",
        )


@contextmanager
def _outputs(page: PageOptions, *, force: bool, inputs: Sequence[str]) -> Iterator[Path | None]:
    """Lock the page's path for this process; yields a staging folder for charts, None where there are none to write."""
    if process_index() > 0:
        yield None
        return
    path = page.path
    with one_writer(path), ExitStack() as stack:
        # before any work: an existing page is replaced on request alone, and a file that is no page never
        if path.is_dir():
            raise OutputExistsError(f"{path} is a folder.", hint=f"Name a file: --output {path / 'report.html'}")
        if path.suffix.lower() not in (".html", ".htm"):
            name = path.with_name(f"{path.stem}.html")
            raise UsageError(f"{path.name} is not the name of a page.", hint=f"Name an HTML file: --output {name}")
        refuse_existing(path, force=force)
        if path.exists():
            with open_file(path) as stream:
                start = stream.read(_START).strip().lower()
            if start and not start.startswith(_PAGE):
                raise OutputExistsError(
                    f"{path} is no page, and --force replaces pages only.", hint="Name another file with --output."
                )
        if page.figures is None:
            yield None
        else:
            yield stack.enter_context(staged_folder(page.figures, force=force, inputs=inputs))


def _write_figures(result: RunReport | RunIndex, folder: Path) -> None:
    from gradscope.render.figures.style import save_figure
    from gradscope.render.registry import draw_figures

    for stem, figure in draw_figures(result).items():
        save_figure(figure, folder / stem)


def _closer(result: RunReport | RunIndex) -> list[list[str]]:
    """The words behind ``gradscope`` of a command that looks closer: at the first answer by urgency, or run."""
    from gradscope.results.report import RunIndex

    if isinstance(result, RunIndex):
        commands = [run.command for run in result.runs]
    else:
        commands = [section.command for section in result.by_severity if section.command and section.missing is None]
    return [shlex.split(command)[1:] for command in commands[:1]]


def _write_page(result: RunReport | RunIndex, path: Path, *, force: bool) -> None:
    """Written completely or not at all. Of several processes the main one writes it."""
    from gradscope.render.html.page import render_index, render_page
    from gradscope.results.report import RunIndex

    if process_index() == 0:
        page = render_index(result) if isinstance(result, RunIndex) else render_page(result)
        atomic_write(path, page, force=force)
