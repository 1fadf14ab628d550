"""`gradscope check`: the gate that a training recipe's CI runs."""

from __future__ import annotations

import os
import shlex
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from msgspec import Struct
from msgspec.structs import replace

from gradscope.cli.arguments import options
from gradscope.cli.arguments.options import complete_metric, parse_metrics, with_records
from gradscope.cli.output.delivery import DeliveryOptions, delivery
from gradscope.cli.output.streams import of_same_run, say
from gradscope.gradients.engine_options import EngineOptions
from gradscope.machine import process_index
from gradscope.option import Option
from gradscope.rollouts.read_options import ReadOptions
from gradscope.writing import one_writer

if TYPE_CHECKING:
    from gradscope.diagnostics.check.requirements import CheckSettings
    from gradscope.results.verdicts import CheckReport

SUMMARY = r"""Test a run against requirements and a baseline; exit 1 when one fails or cannot be decided.

A metric that cannot be computed is unknown, and unknown never passes unless --allow-unknown names it. A metric can be
one of some steps: grad_norm@last20%, grad_norm@5-20:max, reward@trend; without @ a number that each step has is the
last step's. Without --require the requirements come from \[tool.gradscope.check] in pyproject.toml, or from
gradscope.toml, in the current folder."""
EXAMPLES = (
    "gradscope check my-run --require 'frac_reward_zero_std <= 0.5' --require 'pass@4 >= 0.6'",
    "gradscope check my-run --require 'reward@last20% >= 0.5' --format github",
    "gradscope check my-run --track pass@8 --baseline good.json --update-baseline",
    "gradscope check my-run --baseline good.json --format junit",
    "gradscope check my-run --config ci/gradscope.toml --json",
)
COMMON = (
    "--require",
    "--baseline",
    "--track",
    "--update-baseline",
    "--allow-unknown",
    "--config",
    "--format",
    "--json",
)
SETTINGS_FILES = ("gradscope.toml", "pyproject.toml")

_gate = partial(Option, panel="Gate")


class GateOptions(Struct, frozen=True, kw_only=True):
    """The requirements of a run, as typed; the rest is in the file of settings."""

    require: Annotated[
        list[str] | None, _gate("A requirement (repeatable).", "'METRIC OP NUMBER'", complete=complete_metric)
    ] = None
    track: Annotated[
        list[str] | None,
        _gate("Compare with the baseline; default: all in it.", "METRIC,...", complete=complete_metric),
    ] = None
    allow_unknown: Annotated[
        list[str] | None, _gate("These metrics may be undecided.", "METRIC,...", complete=complete_metric)
    ] = None
    baseline: Annotated[Path | None, _gate("Numbers of a good run to compare with.", "FILE")] = None
    update_baseline: Annotated[bool, _gate("Write this run's numbers into it; --force replaces one.")] = False
    decide_by: Annotated[
        Literal["interval", "value"] | None,
        _gate(
            "Fail where chance does not explain a change beyond the margin (default), or on the change itself.",
            "interval|value",
        ),
    ] = None
    config: Annotated[Path | None, _gate("A TOML file with requirements.", "FILE")] = None
    reward: options.RewardOption = None
    success_threshold: options.SuccessThresholdOption = None

    def settings(self) -> CheckSettings:
        """With those of the named file, or of the first usual file in the current folder that has any."""
        from gradscope.diagnostics.check.requirements import CheckSettings, read_settings

        usual = [Path(name) for name in SETTINGS_FILES if Path(name).is_file()]
        files, empty = usual if self.config is None else [self.config], CheckSettings()
        written = next((settings for file in files if (settings := read_settings(file)) != empty), empty)
        baseline = self.baseline or written.baseline
        return replace(
            written,
            requirements=tuple(self.require or ()) or written.requirements,
            track=parse_metrics("--track", self.track) or (written.track if baseline else ()),
            allow_unknown=(*parse_metrics("--allow-unknown", self.allow_unknown), *written.allow_unknown),
            baseline=baseline,
            rule=self.decide_by or written.rule,
            success_threshold=self.success_threshold,
            reward=self.reward,
        )


PrintOption = Annotated[
    Literal["text", "json", "junit", "github"],
    Option(
        "What stdout shows; github also adds to the job's summary.",
        "text|json|junit|github",
        panel="Output",
        flags=("--format",),
    ),
]


@with_records(leave_out=("engine", "verify", "num_samples", "num_correct"))
def check(
    context: typer.Context,
    run: options.RunArgument,
    *,
    gate: GateOptions,
    form: PrintOption = "text",
    read: ReadOptions,
    engine: EngineOptions,
    out: DeliveryOptions,
) -> None:
    """Holds a run against requirements and a baseline.

    Raises:
        Exit: A requirement failed or could not be decided; the exit code is 1.
    """
    from gradscope.diagnostics.check.measure import check_run

    settings = gate.settings()
    named, update = settings.baseline, gate.update_baseline
    lock = one_writer(Path(named)) if update and named and process_index() == 0 else nullcontext()
    with lock, delivery(replace(out, as_json=out.as_json or form == "json"), judges=True) as result:
        with result.progress() as progress:
            report = check_run(
                run,
                settings,
                update_baseline=update,
                force=out.force,
                read=read,
                engine=replace(engine, notice=result.notice),
                progress=progress,
            )
        # what looks closer at the first open requirement; the report where none names a command
        commands = (verdict.command for verdict in report.verdicts if not verdict.allowed)
        closer = shlex.split(next(filter(None, commands), ""))[1:] or of_same_run(context, "report")
        result.deliver(report, printed=_printed(report, form), then=[closer])
    if update and not out.quiet:
        say(f"wrote {named}")
        for name in report.without_interval:
            say(f"note: {name} has no interval, so a change of it will be undecided unless --decide-by value is given")
    if report.outcome != "pass":
        raise typer.Exit(1)


def _printed(report: CheckReport, form: str) -> str | None:
    """The output on stdout instead of the table; for GitHub the job's summary is written too."""
    if form == "junit":
        from gradscope.render.ci import render_junit

        return render_junit(report)
    if form == "github":
        from gradscope.render.ci import render_annotations, render_summary

        summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if summary:
            try:
                with Path(summary).open("a", encoding="utf-8") as file:
                    file.write(render_summary(report))
            except OSError as error:  # the verdict does not hang on it
                say(f"note: no summary was written to {summary} (GITHUB_STEP_SUMMARY): {error.strerror}.")
        return render_annotations(report)
    return None
