"""`gradscope replay`: does the log give the trainer's own numbers?"""

from __future__ import annotations

import shlex
from typing import Annotated

import typer
from msgspec.structs import replace

from gradscope.cli.arguments import options
from gradscope.cli.output.delivery import DeliveryOptions, delivery
from gradscope.cli.output.streams import of_same_run
from gradscope.gradients.engine_options import EngineOptions
from gradscope.option import Option
from gradscope.rollouts.read_options import ReadOptions

SUMMARY = """Recompute what the trainer logged; exit 1 on a mismatch, and where no step could be recomputed.

Reward, advantage, frac_reward_zero_std and grad_norm of each step, or of those of --step, from its rollouts and the
weights before its update. A step says match, mismatch or, where its weights are not on disk, cannot, with the cause."""
EXAMPLES = (
    "gradscope replay my-run",
    "gradscope replay outputs/trl-run --step 1 --initial base-model --run-config args.json",
)
COMMON = ("--step", "--model", "--initial", "--run-config", "--show", "--output", "--json")

AdvantageOption = Annotated[
    str | None,
    Option(
        "The formulation to hold the logged advantages to; the folder's by default, my.py:name for your own.",
        "NAME",
        complete=options.complete_formulation,
    ),
]


@options.with_records(leave_out=("num_samples", "num_correct", "metric_columns", "metric_run"))
def replay(
    context: typer.Context,
    run: options.RunArgument,
    step: options.StepsOption = None,
    tolerance: Annotated[float, Option("Largest relative error of grad_norm that is a match.", "X")] = 1e-5,
    advantage: AdvantageOption = None,
    *,
    read: ReadOptions,
    engine: EngineOptions,
    out: DeliveryOptions,
) -> None:
    """Recomputes what the trainer logged.

    Raises:
        Exit: A step mismatches, none could be recomputed, or a part of the run could not be read; the exit code is 1.
    """
    from gradscope.diagnostics.replay.measure import replay_run

    steps = options.parse_steps(step)
    with delivery(out, judges=True) as result:
        with result.progress() as progress:
            report = replay_run(
                run,
                steps=steps,
                tolerance=tolerance,
                advantage=advantage,
                read=read,
                engine=replace(engine, notice=result.notice, unfinished=engine.unfinished or result.unfinished),
                progress=progress,
            )
        is_judged = report.verdict != "cannot"
        gate = shlex.split(report.equivalent_check)[1:] if is_judged else of_same_run(context, "report")
        result.deliver(report, then=[gate])
    if report.verdict != "match" or result.lost:
        raise typer.Exit(1)
