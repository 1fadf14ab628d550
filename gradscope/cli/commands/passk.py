"""`gradscope passk`: what a policy can solve with k samples."""

from __future__ import annotations

from typing import Annotated

import typer

from gradscope.cli.arguments import options
from gradscope.cli.arguments.options import measure_option, parse_counts
from gradscope.cli.arguments.records import with_records
from gradscope.cli.output.delivery import DeliveryOptions, delivery
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
KOption = Annotated[list[str] | None, measure_option("--k", metavar="K,A:B", help="Budgets of samples.")]
ShowOption = Annotated[list[str] | None, options.show_option("passk")]


@with_records(
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
    files: FilesArgument,
    k: KOption = None,
    success_threshold: options.SuccessThresholdOption = None,
    show: ShowOption = None,
    *,
    read: ReadOptions,
    out: DeliveryOptions,
) -> None:
    """Chance that at least one of k samples is correct (pass@k), and that all are (pass^k).

    Unbiased, with intervals that resample prompts; files of samples of the same prompts are compared pair by pair.
    A k above the number of samples is undefined and says so; a forecast stands beside it, never in its place.
    """
    from gradscope.diagnostics.passk.measure import measure_pass_at_k

    budgets, tables = parse_counts("--k", k), options.parse_show("passk", show)
    with delivery(out) as result:
        with result.progress() as progress:
            report = measure_pass_at_k(
                *files, ks=budgets, success_threshold=success_threshold, read=read, progress=progress
            )
        result.deliver(report, show=tables)
