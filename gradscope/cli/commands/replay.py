"""`gradscope replay`: does the log give the trainer's own numbers?"""

from __future__ import annotations

from typing import Annotated

import typer

from gradscope.cli.arguments import options
from gradscope.cli.arguments.options import StepsOption
from gradscope.cli.arguments.steps import parse_steps
from gradscope.cli.output.delivery import delivery

EXAMPLES = (
    "gradscope replay my-run",
    "gradscope replay outputs/trl-run --step 1 --initial base-model --run-config args.json",
)

ToleranceOption = Annotated[
    float,
    typer.Option(metavar="X", help="Largest relative error of grad_norm that is a match.", rich_help_panel="Measure"),
]


def replay(
    run: options.RunArgument,
    step: StepsOption = None,
    tolerance: ToleranceOption = 1e-5,
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
    """Recompute what the trainer logged, and say match, mismatch or cannot, with the cause.

    Reward, advantage, frac_reward_zero_std and grad_norm of each step, from its rollouts and the weights before its
    update. A step whose weights are not on disk says cannot.
    """
    from gradscope.diagnostics.replay.measure import replay_run

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
