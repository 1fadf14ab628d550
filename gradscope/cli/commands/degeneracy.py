"""`gradscope degeneracy`: groups without a gradient."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from gradscope.cli.arguments import options
from gradscope.cli.arguments.options import measure_option, parse_counts
from gradscope.cli.arguments.records import with_records
from gradscope.cli.output.delivery import DeliveryOptions, delivery
from gradscope.cli.output.streams import of_same_run, say, show_line
from gradscope.errors import UsageError
from gradscope.outside.numerals import number_from
from gradscope.rollouts.read_options import ReadOptions

EXAMPLES = (
    "gradscope degeneracy outputs/my-run",
    "gradscope degeneracy outputs/my-run --reward accuracy_reward --group-size 2,16",
    "gradscope degeneracy outputs/my-run --show prompts,rewards",
    "gradscope degeneracy outputs/my-run --target-degeneracy 0.2",
    "gradscope degeneracy outputs/my-run --follow",
    "gradscope degeneracy rollouts.jsonl --prompt-column question --reward-column score --json",
)
COMMON = (
    "--group-size",
    "--target-degeneracy",
    "--reward",
    "--success-threshold",
    "--follow",
    "--show",
    "--output",
    "--json",
)

GroupSizesOption = Annotated[
    list[str] | None,
    measure_option("--group-size", metavar="G,A:B", help="Also at these group sizes; forecast beyond the log's."),
]
BasePassRateOption = Annotated[
    str | None,
    measure_option(
        metavar="P", help="Predict from this pass rate, or from that of each 'step', instead of the log's mean."
    ),
]
TargetOption = Annotated[
    float | None,
    measure_option(
        "--target-degeneracy",
        metavar="SHARE",
        help="Say which group size, or how much resampling, leaves at most this share of dead groups.",
    ),
]
ByOption = Annotated[
    Literal["step", "window"],
    measure_option(
        "--by", metavar="step|window", help="The course over time: each step, or at most ten windows of steps."
    ),
]
FollowOption = Annotated[
    bool,
    typer.Option(
        "--follow",
        help="Keep up with a run that is still being written: a line a step, until Ctrl-C.",
        rich_help_panel="Follow",
    ),
]
EveryOption = Annotated[
    float, typer.Option("--every", metavar="SECONDS", help="Look at the log this often.", rich_help_panel="Follow")
]
ShowOption = Annotated[list[str] | None, options.show_option("degeneracy")]
IdleOption = Annotated[
    float | None,
    typer.Option(
        "--idle",
        metavar="SECONDS",
        help="End, with the whole report, once the log has not grown for so long.",
        rich_help_panel="Follow",
    ),
]


@with_records(needs_torch=False, leave_out=("model", "initial_weights", "completion_ids", "num_samples", "num_correct"))
def degeneracy(
    context: typer.Context,
    run: options.RunArgument,
    group_size: GroupSizesOption = None,
    reward: options.RewardOption = None,
    base_pass_rate: BasePassRateOption = None,
    target_degeneracy: TargetOption = None,
    by: ByOption = "step",
    success_threshold: options.SuccessThresholdOption = None,
    follow: FollowOption = False,
    every: EveryOption = 2.0,
    idle: IdleOption = None,
    show: ShowOption = None,
    *,
    read: ReadOptions,
    out: DeliveryOptions,
) -> None:
    """Share of groups whose rewards are all equal, so that they give no gradient.

    By kind (all fail, all pass, tied), over steps, beside the i.i.d. prediction p^G + (1-p)^G and the Jensen gap
    between the two; what the dead groups cost, and what would revive them; which prompts they are of, and which groups
    side rewards decide where the main one is tied. Reads logs only; no model is loaded.
    """
    from gradscope.diagnostics.degeneracy.measure import measure_degeneracy

    sizes, tables = parse_counts("--group-size", group_size), options.parse_show("degeneracy", show)
    base = _base_pass_rate(base_pass_rate)
    _refuse_alone(follow=follow, idle=idle, as_json=out.as_json)
    with delivery(out) as result:
        if follow:
            _print_steps(run, every=every, idle=idle, success_threshold=success_threshold, reward=reward, read=read)
        with result.progress() as progress:
            report = measure_degeneracy(
                run,
                group_sizes=sizes,
                success_threshold=success_threshold,
                base_pass_rate=base,
                target_degeneracy=target_degeneracy,
                by=by,
                reward=reward,
                read=read,
                progress=progress,
            )
        result.deliver(report, show=tables, then=[of_same_run(context, "report")])


def _refuse_alone(*, follow: bool, idle: float | None, as_json: bool) -> None:
    if idle is not None and not follow:
        raise UsageError("--idle says when --follow ends.", hint="Add --follow, or leave --idle out.")
    if as_json and follow:
        raise UsageError(
            "--follow prints a line a step, and --json one document and nothing else.",
            hint="Leave one of them out; with --idle SECONDS and --output DIR the document is a file.",
        )


def _print_steps(
    run: str,
    *,
    every: float,
    idle: float | None,
    success_threshold: float | None,
    reward: str | None,
    read: ReadOptions,
) -> None:
    from gradscope.diagnostics.degeneracy.measure import Pace, follow_degeneracy
    from gradscope.render.terminal.degeneracy import step_head, step_line

    steps = follow_degeneracy(
        run,
        success_threshold=success_threshold,
        reward=reward,
        pace=Pace(every=every, idle=idle),
        notice=lambda sentence: say(f"note: {sentence}"),
        read=read,
    )
    for number, row in enumerate(steps):
        if number == 0:
            show_line(step_head())
        show_line(step_line(row))


def _base_pass_rate(text: str | None) -> float | Literal["step"] | None:
    if text is None:
        return None
    if text == "step":
        return "step"
    try:
        return number_from(text)
    except ValueError:
        raise UsageError(
            f"--base-pass-rate is a number or 'step', not {text!r}.", hint="Write --base-pass-rate 0.3"
        ) from None
