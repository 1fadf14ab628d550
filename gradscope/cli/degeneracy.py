"""`gradscope degeneracy`: groups without a gradient."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from gradscope.cli import options as o
from gradscope.cli.columns import column_names
from gradscope.cli.delivery import delivery
from gradscope.errors import UsageError

EXAMPLES = (
    "gradscope degeneracy outputs/my-run",
    "gradscope degeneracy outputs/my-run --reward accuracy_reward --group-size 2 --group-size 16",
    "gradscope degeneracy outputs/my-run --target-degeneracy 0.2",
    "gradscope degeneracy rollouts.jsonl --prompt-column question --reward-column score --json",
)

GroupSizesOption = Annotated[
    list[int] | None,
    typer.Option(
        "--group-size",
        metavar="G",
        help="Also at this group size; forecast beyond the log's (repeatable).",
        rich_help_panel="Measure",
    ),
]
BasePassRateOption = Annotated[
    str | None,
    typer.Option(
        metavar="P",
        help="Predict from this pass rate, or from that of each 'step', instead of the log's mean.",
        rich_help_panel="Measure",
    ),
]
TargetOption = Annotated[
    float | None,
    typer.Option(
        "--target-degeneracy",
        metavar="SHARE",
        help="Say which group size, or how much resampling, leaves at most this share of dead groups.",
        rich_help_panel="Measure",
    ),
]
ByOption = Annotated[
    Literal["step", "window"],
    typer.Option(
        "--by",
        metavar="step|window",
        help="The course over time: each step, or at most ten windows of steps.",
        rich_help_panel="Measure",
    ),
]


def degeneracy(
    run: o.RunArgument,
    group_size: GroupSizesOption = None,
    reward: o.RewardOption = None,
    base_pass_rate: BasePassRateOption = None,
    target_degeneracy: TargetOption = None,
    by: ByOption = "step",
    success_threshold: o.SuccessThresholdOption = None,
    reader: o.FormatOption = None,
    prompt_column: o.PromptColumnOption = None,
    reward_column: o.RewardColumnOption = None,
    step_column: o.StepColumnOption = None,
    group_column: o.GroupColumnOption = None,
    run_config: o.RunConfigOption = None,
    strict: o.StrictOption = False,
    as_json: o.JsonOption = False,
    output: o.OutputOption = None,
    force: o.ForceOption = False,
    quiet: o.QuietOption = False,
) -> None:
    """Share of groups whose rewards are all equal, so that they give no gradient.

    By kind (all fail, all pass, tied), over steps, beside the i.i.d. prediction p^G + (1-p)^G and the Jensen gap
    between the two; what the dead groups cost, and what would revive them. Reads logs only; no model is loaded.
    """
    from gradscope.diagnostics.degeneracy import measure_degeneracy

    with delivery(as_json=as_json, output=output, force=force, quiet=quiet) as result:
        with result.progress() as progress:
            report = measure_degeneracy(
                run,
                format=reader,
                group_sizes=tuple(group_size or ()),
                success_threshold=success_threshold,
                base_pass_rate=_base_pass_rate(base_pass_rate),
                target_degeneracy=target_degeneracy,
                by=by,
                reward=reward,
                columns=column_names(prompt_column, reward_column, step_column, group_column),
                run_config=run_config,
                strict=strict,
                progress=progress,
            )
        result.deliver(report)


def _base_pass_rate(text: str | None) -> float | Literal["step"] | None:
    if text is None:
        return None
    if text == "step":
        return "step"
    try:
        return float(text)
    except ValueError:
        raise UsageError(
            f"--base-pass-rate is a number or 'step', not {text!r}.", hint="Use --base-pass-rate 0.3."
        ) from None
