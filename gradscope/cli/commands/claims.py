"""`gradscope claims`: claims of papers, tested on a run."""

from __future__ import annotations

from pathlib import Path
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
    "gradscope claims my-run",
    "gradscope claims my-run --no-gradients",
    "gradscope claims my-run --samples before.jsonl,after.jsonl --output claims",
    "gradscope claims my-run --claims mine.toml --json",
)
COMMON = ("--step", "--gradients", "--samples", "--claims", "--show", "--output", "--json")

ClaimsOption = Annotated[
    Path | None,
    Option("A TOML file with claims of your own, added to ours.", "FILE", panel="Input", flags=("--claims",)),
]
AdvantageOption = Annotated[
    str | None,
    Option(
        "The formulation under which ranks are measured; dr_grpo by default, my.py:name for your own.",
        "NAME",
        complete=options.complete_formulation,
    ),
]


@options.with_records(leave_out=("metric_columns", "metric_run", "unfinished"))  # its questions need the weights again
def claims(
    context: typer.Context,
    run: options.RunArgument,
    *,
    questions: options.RunQuestions,
    claims_file: ClaimsOption = None,
    advantage: AdvantageOption = None,
    read: ReadOptions,
    engine: EngineOptions,
    out: DeliveryOptions,
) -> None:
    """Test what papers say on one run: for each claim a number, what chance would give, and a verdict.

    Effective rank about 2, growing sparsity, the best baseline, dead groups beyond the prediction, Sign and pass@k,
    search or capacity, and what training does to weights. A claim that this run cannot tell says what would settle it.
    Gradients are recomputed at up to five steps, unless --step names others.
    """
    from gradscope.diagnostics.claims.evidence import ADVANTAGE, ClaimOptions
    from gradscope.diagnostics.claims.measure import measure_claims, read_claims
    from gradscope.diagnostics.claims.registry import CLAIMS

    steps, held_out = options.parse_steps(questions.step), options.parse_files("--samples", questions.samples)
    own_claims = read_claims(claims_file) if claims_file else ()
    with delivery(out) as result:
        with result.progress() as progress:
            report = measure_claims(
                run,
                steps=steps,
                gradients=questions.gradients,
                claims=(*CLAIMS, *own_claims),
                options=ClaimOptions(
                    samples=held_out, success_threshold=questions.success_threshold, advantage=advantage or ADVANTAGE
                ),
                read=read,
                engine=replace(engine, notice=result.notice),
                progress=progress,
            )
        result.deliver(report, then=[of_same_run(context, "report")])
