"""`gradscope degeneracy`: groups without a gradient."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import typer
from msgspec import Struct

from gradscope.cli.arguments import options
from gradscope.cli.arguments.options import parse_counts, with_records
from gradscope.cli.output.delivery import DeliveryOptions, delivery
from gradscope.cli.output.streams import of_same_run, say, show_line
from gradscope.errors import UsageError
from gradscope.option import Option
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

_follow_option = partial(Option, panel="Follow")


class GroupQuestions(Struct, frozen=True, kw_only=True):
    """Questions about the groups."""

    group_size: Annotated[
        list[str] | None, Option("Also at these group sizes; forecast beyond the log's.", "G,A:B")
    ] = None
    reward: options.RewardOption = None
    base_pass_rate: Annotated[
        str | None, Option("Predict from this pass rate, or from that of each 'step', instead of the log's mean.", "P")
    ] = None
    target_degeneracy: Annotated[
        float | None,
        Option("Say which group size, or how much resampling, leaves at most this share of dead groups.", "SHARE"),
    ] = None
    by: Annotated[
        Literal["step", "window"],
        Option("The course over time: each step, or at most ten windows of steps.", "step|window"),
    ] = "step"
    success_threshold: options.SuccessThresholdOption = None


class FollowOptions(Struct, frozen=True, kw_only=True):
    """Whether to keep up with a log, how often to look at it, and for how long."""

    follow: Annotated[
        bool, _follow_option("Keep up with a run that is still being written: a line a step, until Ctrl-C.")
    ] = False
    every: Annotated[float, _follow_option("Look at the log this often.", "SECONDS")] = 2.0
    idle: Annotated[
        float | None, _follow_option("End, with the whole report, once the log has not grown for so long.", "SECONDS")
    ] = None


@with_records(needs_torch=False, leave_out=("model", "initial_weights", "completion_ids", "num_samples", "num_correct"))
def degeneracy(
    context: typer.Context,
    run: options.RunArgument,
    *,
    questions: GroupQuestions,
    follow: FollowOptions,
    read: ReadOptions,
    out: DeliveryOptions,
) -> None:
    """Share of groups whose rewards are all equal, so that they give no gradient.

    By kind (all fail, all pass, tied), over steps, with the i.i.d. prediction p^G + (1-p)^G and the Jensen gap
    between the two; what the dead groups cost, and what would revive them; which prompts they are of, and which groups
    side rewards decide where the main one is tied. Reads logs only; no model is loaded.
    """
    from gradscope.diagnostics.degeneracy.group_rewards import DegeneracyOptions
    from gradscope.diagnostics.degeneracy.measure import measure_degeneracy

    sizes, base = parse_counts("--group-size", questions.group_size), _base_pass_rate(questions.base_pass_rate)
    _refuse_alone(follow, as_json=out.as_json)
    with delivery(out) as result:
        if follow.follow:
            _print_steps(run, questions, follow, read)
        with result.progress() as progress:
            report = measure_degeneracy(
                run,
                group_sizes=sizes,
                success_threshold=questions.success_threshold,
                reward=questions.reward,
                options=DegeneracyOptions(
                    base_pass_rate=base, target_degeneracy=questions.target_degeneracy, by=questions.by
                ),
                read=read,
                progress=progress,
            )
        result.deliver(report, then=[of_same_run(context, "report")])


def _refuse_alone(options: FollowOptions, *, as_json: bool) -> None:
    if options.idle is not None and not options.follow:
        raise UsageError("--idle says when --follow ends.", hint="Add --follow, or leave --idle out.")
    if as_json and options.follow:
        raise UsageError(
            "--follow prints a line a step, and --json one document and nothing else.",
            hint="Leave one of them out; with --idle SECONDS and --output DIR the document is a file.",
        )


def _print_steps(run: str, questions: GroupQuestions, follow: FollowOptions, read: ReadOptions) -> None:
    from gradscope.diagnostics.degeneracy.measure import Pace, follow_degeneracy
    from gradscope.render.terminal.degeneracy import step_head, step_line

    steps = follow_degeneracy(
        run,
        success_threshold=questions.success_threshold,
        reward=questions.reward,
        pace=Pace(interval=follow.every, idle=follow.idle),
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
