"""`gradscope compare`: the effect of changing one thing."""

from __future__ import annotations

from typing import Annotated

import typer

from gradscope.cli.arguments.options import parse_counts, with_records
from gradscope.cli.output.delivery import DeliveryOptions, delivery
from gradscope.cli.output.streams import of_same_run
from gradscope.option import Option
from gradscope.rollouts.read_options import ReadOptions

EXAMPLES = (
    "gradscope compare grid",
    "gradscope compare run-grpo run-sign --k 1,16 --output comparison",
    "gradscope compare outputs/trl-a outputs/trl-b",
    "gradscope compare grid --vary advantage --gradients",
)
COMMON = ("--k", "--vary", "--gradients", "--show", "--output", "--json")

RunsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN_OR_DIR...", help="Runs as every command reads them, or folders that hold them.", show_default=False
    ),
]


@with_records(leave_out=("model", "initial_weights", "completion_ids", "trainer_args", "num_samples", "num_correct"))
def compare(
    context: typer.Context,
    runs: RunsArgument,
    k: Annotated[list[str] | None, Option("Budgets of held-out pass@k.", "K,A:B")] = None,
    vary: Annotated[str | None, Option("Test only pairs that differ in this setting.", "NAME")] = None,
    gradients: Annotated[bool, Option("Effective rank and signal to noise too, from saved weights.")] = False,
    *,
    read: ReadOptions,
    out: DeliveryOptions,
) -> None:
    """Formulations and settings side by side: means over seeds, paired differences, corrected tests.

    Runs with the same settings are a cell; two cells are compared where exactly one thing differs, paired by seed. The
    p-values are corrected for all tests made (Holm). A decision needs 8 seeds and the test that flips signs; what stays
    undecided is named, with the difference that would have been detected. --vary asks less, and so decides more.
    """
    from gradscope.diagnostics.compare.measure import compare_runs
    from gradscope.diagnostics.report.index import MAX_COMPARED

    budgets = parse_counts("--k", k)
    with delivery(out) as result:
        with result.progress() as progress:
            comparison = compare_runs(
                *runs, ks=budgets, only=vary, gradients=gradients, strict=read.strict, read=read, progress=progress
            )
        are_runs = sum(len(cell.runs) for cell in comparison.cells) == len(runs) <= MAX_COMPARED
        side_by_side = [of_same_run(context, "report")] if len(runs) == 1 or are_runs else ()
        result.deliver(comparison, then=side_by_side)
