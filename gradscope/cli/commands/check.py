"""`gradscope check`: the gate that a training recipe's CI runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gradscope.cli.arguments import options
from gradscope.cli.arguments.columns import column_names
from gradscope.cli.output.delivery import delivery
from gradscope.cli.output.streams import say

if TYPE_CHECKING:
    from gradscope.diagnostics.check.requirements import CheckSettings
    from gradscope.results.check import CheckReport

SUMMARY = r"""Hold a run against requirements and a baseline; exit 1 when one fails or cannot be decided.

A metric that cannot be computed is unknown, and unknown never passes unless --allow-unknown names it. A metric can be
one of some steps: grad_norm@last20%, grad_norm@5-20:max, reward@trend. Without --require the requirements come from
\[tool.gradscope.check] in pyproject.toml, or from gradscope.toml, in the current folder."""
EXAMPLES = (
    "gradscope check my-run --require 'frac_reward_zero_std <= 0.5' --require 'pass@4 >= 0.6'",
    "gradscope check my-run --require 'frac_reward_zero_std@last20% <= 0.5' --format github",
    "gradscope check my-run --track pass@8 --baseline ci/baseline.json --update-baseline",
    "gradscope check my-run --track pass@8 --baseline ci/baseline.json --format junit",
    "gradscope check my-run --config ci/gradscope.toml --json",
)
SETTINGS_FILES = ("gradscope.toml", "pyproject.toml")

_GATE = "Gate"
RequireOption = Annotated[
    list[str] | None,
    typer.Option(metavar="'METRIC OP NUMBER'", help="A requirement (repeatable).", rich_help_panel=_GATE),
]
TrackOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="METRIC", help="Compare with the baseline, without a limit (repeatable).", rich_help_panel=_GATE
    ),
]
AllowUnknownOption = Annotated[
    list[str] | None,
    typer.Option(metavar="METRIC", help="This metric may be undecided (repeatable).", rich_help_panel=_GATE),
]
BaselineOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Numbers of a good run to compare with.", rich_help_panel=_GATE),
]
UpdateOption = Annotated[
    bool, typer.Option("--update-baseline", help="Write this run's numbers into it.", rich_help_panel=_GATE)
]
RuleOption = Annotated[
    Literal["interval", "value"] | None,
    typer.Option(
        metavar="interval|value",
        help="Fail where the interval of the change is worse than the margin (default), or the change itself.",
        rich_help_panel=_GATE,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A TOML file with requirements.", rich_help_panel=_GATE),
]
ReaderOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Force a reader instead of detecting it.", rich_help_panel="Input"),
]
PrintOption = Annotated[
    Literal["text", "json", "junit", "github"],
    typer.Option(
        "--format",
        metavar="text|json|junit|github",
        help="What stdout shows; github also adds to the job's summary.",
        rich_help_panel="Output",
    ),
]


def check(
    run: options.RunArgument,
    require: RequireOption = None,
    track: TrackOption = None,
    allow_unknown: AllowUnknownOption = None,
    baseline: BaselineOption = None,
    update_baseline: UpdateOption = False,
    rule: RuleOption = None,
    config: ConfigOption = None,
    reward: options.RewardOption = None,
    success_threshold: options.SuccessThresholdOption = None,
    reader: ReaderOption = None,
    prompt_column: options.PromptColumnOption = None,
    reward_column: options.RewardColumnOption = None,
    step_column: options.StepColumnOption = None,
    group_column: options.GroupColumnOption = None,
    run_config: options.RunConfigOption = None,
    completion_ids: options.CompletionIdsOption = None,
    strict: options.StrictOption = False,
    model: options.ModelOption = None,
    initial: options.InitialOption = None,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    precision: options.PrecisionOption = "auto",
    batch_tokens: options.BatchTokensOption = None,
    form: PrintOption = "text",
    as_json: options.JsonOption = False,
    output: options.OutputOption = None,
    force: options.ForceOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Holds a run against requirements and a baseline.

    Raises:
        Exit: A requirement failed or could not be decided; the exit code is 1.
    """
    from gradscope.diagnostics.check.measure import check_run

    settings = _settings(config)
    named = baseline or settings.baseline
    with delivery(as_json=as_json or form == "json", output=output, force=force, quiet=quiet) as result:
        report = check_run(
            run,
            requirements=tuple(require or ()) or settings.requirements,
            track=tuple(track or ()) or (settings.track if named else ()),
            allow_unknown=(*(allow_unknown or ()), *settings.allow_unknown),
            baseline=named,
            update_baseline=update_baseline,
            rule=rule or settings.rule,
            margins=settings.margins,
            success_threshold=success_threshold,
            reward=reward,
            format=reader,
            columns=column_names(prompt_column, reward_column, step_column, group_column),
            model=model,
            initial=initial,
            run_config=run_config,
            completion_ids=completion_ids,
            device=device,
            dtype=dtype,
            precision=precision,
            batch_tokens=batch_tokens,
            notice=result.notice,
            strict=strict,
        )
        result.deliver(report, printed=_printed(report, form))
    if update_baseline and not quiet:
        say(f"wrote {named}")
    if report.outcome != "pass":
        raise typer.Exit(1)


def _printed(report: CheckReport, form: str) -> str | None:
    """What stdout shows in place of the table; in GitHub's case the job's summary is written too."""
    if form == "junit":
        from gradscope.render.files.junit import render_junit

        return render_junit(report)
    if form == "github":
        from gradscope.render.files.github import render_annotations, render_summary

        summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if summary:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(render_summary(report))
        return render_annotations(report)
    return None


def _settings(config: Path | None) -> CheckSettings:
    """The settings of the file that was named, or of the first usual file here that has any."""
    from gradscope.diagnostics.check.requirements import CheckSettings, read_settings

    files = [config] if config is not None else [Path(name) for name in SETTINGS_FILES if Path(name).is_file()]
    empty = CheckSettings()
    return next((found for file in files if (found := read_settings(file)) != empty), empty)
