"""`gradscope spike`: the cause of a step that stands out."""

from __future__ import annotations

from typing import Annotated

import typer
from msgspec.structs import replace

from gradscope.cli.arguments import options
from gradscope.cli.output.delivery import DeliveryOptions, delivery
from gradscope.cli.output.streams import of_same_run
from gradscope.gradients.engine_options import EngineOptions
from gradscope.option import Option
from gradscope.rollouts.read_options import ReadOptions

EXAMPLES = (
    "gradscope spike my-run",
    "gradscope spike my-run --step 37",
    "gradscope spike my-run --step 37 --show rollouts,tokens --output spike",
)
COMMON = ("--step", "--max-tokens", "--model", "--initial", "--run-config", "--show", "--output", "--json")

StepOption = Annotated[int | None, Option("The step; the one that stands out most by default.", "N", at_least=1)]


@options.with_records(leave_out=("unfinished",))  # its question needs the weights again
def spike(
    context: typer.Context,
    run: options.RunArgument,
    step: StepOption = None,
    max_tokens: Annotated[int, Option("Tokens whose gradients are computed; 0: none.", "N", at_least=0)] = 512,
    *,
    read: ReadOptions,
    engine: EngineOptions,
    out: DeliveryOptions,
) -> None:
    """Take apart the step whose gradient norm, KL or loss stands out.

    Whether it does, compared with the steps around it and with chance; which rollouts, tokens and layers make its
    gradient, and its norm without the worst of them; where numbers first stopped being finite. Without the weights
    before the step, as much as the log alone shows.
    """
    from gradscope.diagnostics.spike.measure import measure_spike

    with delivery(out) as result:
        with result.progress() as progress:
            report = measure_spike(
                run,
                step=step,
                tokens=max_tokens,
                read=read,
                engine=replace(engine, notice=result.notice),
                progress=progress,
            )
        result.deliver(report, then=[of_same_run(context, "report")])
