"""`gradscope rank`: how many directions a run's gradients have."""

from __future__ import annotations

from typing import Annotated

import typer
from msgspec import Struct
from msgspec.structs import replace

from gradscope.cli.arguments import options
from gradscope.cli.output.delivery import DeliveryOptions, delivery
from gradscope.cli.output.streams import of_same_run
from gradscope.diagnostics.rank.options import RankOptions
from gradscope.gradients.engine_options import EngineOptions
from gradscope.option import Option
from gradscope.results.source import RowKind
from gradscope.rollouts.read_options import ReadOptions

EXAMPLES = (
    "gradscope rank my-run --step 1,40",
    "gradscope rank my-run --step 1:10 --advantage all --group-size 2,4 -o ranks",
    "gradscope rank my-run --step 40 --show formulations,signal",
    "gradscope rank my-run --step 40 --heldout my-run/heldout",
    "gradscope rank my-run --step 40 --rows token --max-tokens 256",
    "gradscope rank outputs/trl-run --initial base-model --run-config args.json --rows weight",
)
COMMON = ("--step", "--rows", "--advantage", "--group-size", "--model", "--show", "--output", "--json")


class MatrixQuestions(Struct, frozen=True, kw_only=True):
    """Which matrices are asked for, as it is typed."""

    step: options.StepsOption = None
    rows: Annotated[
        RowKind,
        Option(
            "Which matrix. Gradients by all parameters, a row a rollout, group or token; dL/dW of each weight; "
            "gradients by the last hidden state or the logits; the advantages, rollouts by tokens; the change of each "
            "weight between checkpoints.",
            "rollout|group|token|weight|hidden|logit|advantage|update",
        ),
    ] = "rollout"
    advantage: Annotated[
        list[str] | None,
        Option(
            "'logged' or formulations, my.py:name for your own: what the same rollouts would give under it; all by "
            "default.",
            "NAME,...",
            complete=options.complete_formulation,
        ),
    ] = None
    group_size: Annotated[
        list[str] | None, Option("Sizes of sub-groups; 2, 4, 8 and the logged size by default.", "G,A:B")
    ] = None


@options.with_records(leave_out=("num_samples", "num_correct", "metric_columns", "metric_run"))
def rank(
    context: typer.Context,
    run: options.RunArgument,
    *,
    questions: MatrixQuestions,
    drawn: RankOptions,
    read: ReadOptions,
    engine: EngineOptions,
    out: DeliveryOptions,
) -> None:
    """Singular-value spectra and effective ranks of per-rollout gradients.

    Recomputes each rollout's gradient at the weights before its update, from the logged rollouts, and counts
    directions: per group and per step, for the logged advantage and for any other formulation. All steps whose weights
    are on disk, unless --step names some.
    """
    from gradscope.diagnostics.rank.measure import measure_rank

    steps = options.parse_steps(questions.step)
    if drawn.heldout is not None and not out.show:
        out = replace(out, show=["heldout"])  # no pass is made whose numbers are not shown
    advantages = options.parse_names("--advantage", questions.advantage)
    sizes = options.parse_counts("--group-size", questions.group_size)
    with delivery(out) as result:
        with result.progress() as progress:
            report = measure_rank(
                run,
                steps=steps,
                rows=questions.rows,
                advantages=advantages or None,
                options=replace(drawn, group_sizes=sizes, output=result.staging),
                read=read,
                engine=replace(engine, notice=result.notice, unfinished=engine.unfinished or result.unfinished),
                progress=progress,
            )
        result.deliver(report, then=[of_same_run(context, "report")])
