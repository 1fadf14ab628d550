"""`gradscope check`: the gate that a training recipe's CI runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradscope.cli import options as o
from gradscope.cli.columns import column_names
from gradscope.cli.delivery import delivery
from gradscope.results.check import Requirement

SUMMARY = r"""Hold a run against requirements; exit 1 when one fails or cannot be decided.

A metric that cannot be computed is unknown, and unknown never passes. Without --require the requirements come from
\[tool.gradscope.check] in pyproject.toml, or from gradscope.toml, in the current folder."""
EXAMPLES = (
    "gradscope check my-run --require 'frac_reward_zero_std <= 0.5' --require 'pass@4 >= 0.6'",
    "gradscope check my-run --config ci/gradscope.toml --json",
)
SETTINGS_FILES = ("gradscope.toml", "pyproject.toml")

RequireOption = Annotated[
    list[str] | None,
    typer.Option(metavar="'METRIC OP NUMBER'", help="A requirement (repeatable).", rich_help_panel="Measure"),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A TOML file with requirements.", rich_help_panel="Measure"),
]


def check(
    run: o.RunArgument,
    require: RequireOption = None,
    config: ConfigOption = None,
    reward: o.RewardOption = None,
    success_threshold: o.SuccessThresholdOption = None,
    reader: o.FormatOption = None,
    prompt_column: o.PromptColumnOption = None,
    reward_column: o.RewardColumnOption = None,
    step_column: o.StepColumnOption = None,
    group_column: o.GroupColumnOption = None,
    run_config: o.RunConfigOption = None,
    completion_ids: o.CompletionIdsOption = None,
    strict: o.StrictOption = False,
    model: o.ModelOption = None,
    initial: o.InitialOption = None,
    device: o.DeviceOption = "auto",
    dtype: o.DtypeOption = "auto",
    as_json: o.JsonOption = False,
    output: o.OutputOption = None,
    force: o.ForceOption = False,
    quiet: o.QuietOption = False,
) -> None:
    """Holds a run against requirements.

    Raises:
        Exit: A requirement failed or could not be decided; the exit code is 1.
    """
    from gradscope.diagnostics.check import check_run, parse_requirement

    requirements = tuple(parse_requirement(text) for text in require or ()) or _settings(config)
    with delivery(as_json=as_json, output=output, force=force, quiet=quiet) as result:
        report = check_run(
            run,
            requirements=requirements,
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
            strict=strict,
        )
        result.deliver(report)
    if report.outcome != "pass":
        raise typer.Exit(1)


def _settings(config: Path | None) -> tuple[Requirement, ...]:
    """The requirements of the file that was named, or of the first usual file here that has any."""
    from gradscope.diagnostics.check import read_requirements

    files = [config] if config is not None else [Path(name) for name in SETTINGS_FILES if Path(name).is_file()]
    return next((found for file in files if (found := read_requirements(file))), ())
