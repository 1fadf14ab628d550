"""`gradscope replay`: does the log give the trainer's own numbers?"""

from __future__ import annotations

from typing import Annotated

import typer

from gradscope.cli import options as o
from gradscope.cli.delivery import delivery
from gradscope.cli.rank import StepsOption
from gradscope.cli.steps import parse_steps

EXAMPLES = (
    "gradscope replay my-run",
    "gradscope replay outputs/trl-run --step 1 --initial base-model --run-config args.json",
)

ToleranceOption = Annotated[
    float,
    typer.Option(metavar="X", help="Largest relative error of grad_norm that is a match.", rich_help_panel="Measure"),
]


def replay(
    run: o.RunArgument,
    step: StepsOption = None,
    tolerance: ToleranceOption = 1e-5,
    model: o.ModelOption = None,
    initial: o.InitialOption = None,
    device: o.DeviceOption = "auto",
    dtype: o.DtypeOption = "auto",
    precision: o.PrecisionOption = "auto",
    batch_tokens: o.BatchTokensOption = None,
    engine: o.EngineOption = "auto",
    verify: o.VerifyOption = "first",
    reader: o.FormatOption = None,
    run_config: o.RunConfigOption = None,
    completion_ids: o.CompletionIdsOption = None,
    strict: o.StrictOption = False,
    as_json: o.JsonOption = False,
    output: o.OutputOption = None,
    force: o.ForceOption = False,
    quiet: o.QuietOption = False,
) -> None:
    """Recompute what the trainer logged, and say match, mismatch or cannot, with the cause.

    Reward, advantage, frac_reward_zero_std and grad_norm of each step, from its rollouts and the weights before its
    update. A step whose weights are not on disk says cannot.
    """
    from gradscope.diagnostics.replay import replay_run

    steps = parse_steps(step)
    with delivery(as_json=as_json, output=output, force=force, quiet=quiet) as result:
        with result.progress() as progress:
            report = replay_run(
                run,
                steps=steps,
                tolerance=tolerance,
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
                strict=strict,
                progress=progress,
            )
        result.deliver(report)
