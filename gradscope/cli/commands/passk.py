"""`gradscope passk`: the share of prompts that a policy solves with k samples."""

from __future__ import annotations

from typing import Annotated

import typer

from gradscope.cli.arguments import options
from gradscope.cli.output.delivery import DeliveryOptions, delivery
from gradscope.cli.output.streams import of_same_run
from gradscope.option import Option
from gradscope.render.terminal.names import ALL
from gradscope.rollouts.read_options import ReadOptions

EXAMPLES = ("gradscope passk my-run", "gradscope passk my-run/heldout/before.jsonl my-run/heldout/after.jsonl --k 1,16")
COMMON = ("--k", "--success-threshold", "--prompt-column", "--reward-column", "--show", "--output", "--json")

FilesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help="Samples as rows, lists or counts (n, c), or a gradscope run; the first is compared with each other.",
        show_default=False,
    ),
]


@options.with_records(
    needs_torch=False,
    leave_out=(
        "model",
        "initial_weights",
        "completion_ids",
        "trainer_args",
        "step",
        "group",
        "metric_columns",
        "metric_run",
    ),
)
def passk(
    context: typer.Context,
    files: FilesArgument,
    k: Annotated[list[str] | None, Option("Budgets of samples.", "K,A:B")] = None,
    success_threshold: options.SuccessThresholdOption = None,
    *,
    read: ReadOptions,
    out: DeliveryOptions,
) -> None:
    """Chance that at least one of k samples is correct (pass@k), and that all are (pass^k).

    Unbiased, with intervals that resample prompts; files of samples of the same prompts are compared pair by pair.
    A k above the number of samples is undefined, with the reason; a forecast has its own column and never replaces it.
    """
    from gradscope.diagnostics.passk.measure import measure_pass_at_k

    budgets = options.parse_counts("--k", k)
    with delivery(out) as result:
        with result.progress() as progress:
            report = measure_pass_at_k(
                *files, ks=budgets, success_threshold=success_threshold, read=read, progress=progress
            )
        table = "files" if report.comparison is None else "pairs"
        is_shown = not {table, ALL}.isdisjoint(result.show)
        result.deliver(report, then=[] if is_shown else [[*of_same_run(context, "passk"), "--show", table]])
