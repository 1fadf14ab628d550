"""`gradscope rank`: how many directions a run's gradients have."""

from __future__ import annotations

from typing import Annotated

import typer

from gradscope.cli.arguments import options
from gradscope.cli.arguments.options import StepsOption
from gradscope.cli.arguments.steps import parse_steps
from gradscope.cli.output.delivery import delivery
from gradscope.results.rank import RowKind

EXAMPLES = (
    "gradscope rank my-run --step 1 --step 40",
    "gradscope rank my-run --step 1:10 --advantage all --group-size 2 --group-size 4 --output ranks",
    "gradscope rank my-run --step 40 --rows token --advantage logged --tokens 256",
    "gradscope rank outputs/trl-run --initial base-model --run-config args.json --rows weight",
)

RowsOption = Annotated[
    RowKind,
    typer.Option(
        metavar="rollout|group|token|weight|update",
        help="What a row of the matrix is: a rollout's gradient, a group's sum, one token's, an output of each "
        "weight's gradient, or of its change between checkpoints.",
        rich_help_panel="Measure",
    ),
]
AdvantagesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--advantage",
        metavar="NAME",
        help="'logged' or a formulation (repeatable): what the same rollouts would give under it; all by default.",
        rich_help_panel="Measure",
    ),
]
GroupSizesOption = Annotated[
    list[int] | None,
    typer.Option(
        "--group-size",
        metavar="G",
        help="Size of sub-groups (repeatable); 2, 4, 8 and the logged size by default.",
        rich_help_panel="Measure",
    ),
]
TokensOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="For --rows token: most tokens of a group, drawn at random where it has more; 512 by default.",
        rich_help_panel="Measure",
    ),
]
SketchOption = Annotated[
    int | None,
    typer.Option(
        metavar="K",
        help="For --rows token: all tokens, however many, each row sketched in K numbers; the error is stated.",
        rich_help_panel="Measure",
    ),
]
MatrixFreeOption = Annotated[
    bool,
    typer.Option(
        "--matrix-free",
        help="For --rows token: all tokens, however many, by products with their matrix; ranks get an interval.",
        rich_help_panel="Measure",
    ),
]
SeedOption = Annotated[
    int, typer.Option(metavar="N", help="Decides what is drawn at random.", rich_help_panel="Measure")
]
CenterOption = Annotated[bool, typer.Option("--center", help="Subtract the mean row first.", rich_help_panel="Measure")]


def rank(
    run: options.RunArgument,
    step: StepsOption = None,
    rows: RowsOption = "rollout",
    advantage: AdvantagesOption = None,
    group_size: GroupSizesOption = None,
    center: CenterOption = False,
    tokens: TokensOption = None,
    sketch: SketchOption = None,
    matrix_free: MatrixFreeOption = False,
    seed: SeedOption = 0,
    model: options.ModelOption = None,
    initial: options.InitialOption = None,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    precision: options.PrecisionOption = "auto",
    batch_tokens: options.BatchTokensOption = None,
    engine: options.EngineOption = "auto",
    verify: options.VerifyOption = "first",
    reader: options.FormatOption = None,
    run_config: options.RunConfigOption = None,
    completion_ids: options.CompletionIdsOption = None,
    strict: options.StrictOption = False,
    as_json: options.JsonOption = False,
    output: options.OutputOption = None,
    force: options.ForceOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Singular-value spectra and effective ranks of per-rollout gradients.

    Recomputes each rollout's gradient at the weights before its update, from the logged rollouts, and counts
    directions: per group and per step, for the logged advantage and for any other formulation.
    """
    from gradscope.diagnostics.rank.measure import measure_rank

    steps = parse_steps(step)
    with delivery(as_json=as_json, output=output, force=force, quiet=quiet) as result:
        with result.progress() as progress:
            report = measure_rank(
                run,
                steps=steps,
                rows=rows,
                advantages=tuple(advantage) if advantage else None,
                group_sizes=tuple(group_size or ()),
                centered=center,
                tokens=tokens,
                sketch=sketch,
                matrix_free=matrix_free,
                seed=seed,
                engine=engine,
                verify=verify,
                format=reader,
                device=device,
                dtype=dtype,
                precision=precision,
                batch_tokens=batch_tokens,
                notice=result.notice,
                unfinished=result.unfinished,
                model=model,
                initial=initial,
                run_config=run_config,
                completion_ids=completion_ids,
                output=result.staging,
                strict=strict,
                progress=progress,
            )
        result.deliver(report)
