"""`gradscope check`: the gate that a training recipe's CI runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradscope.cli import options as o
from gradscope.cli.delivery import delivery
from gradscope.errors import UsageError

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
    success_threshold: o.SuccessThresholdOption = None,
    model: o.ModelOption = None,
    initial: o.InitialOption = None,
    device: o.DeviceOption = "auto",
    dtype: o.DtypeOption = "auto",
    reader: o.FormatOption = None,
    run_config: o.RunConfigOption = None,
    completion_ids: o.CompletionIdsOption = None,
    strict: o.StrictOption = False,
    as_json: o.JsonOption = False,
    output: o.OutputOption = None,
    force: o.ForceOption = False,
    quiet: o.QuietOption = False,
) -> None:
    """Holds a run against requirements.

    Raises:
        Exit: A requirement failed or could not be decided; the exit code is 1.
        UsageError: There is no requirement.
    """
    from gradscope.diagnostics.check import check_run, parse_requirement, read_requirements

    files = [config] if config is not None else [Path(name) for name in SETTINGS_FILES if Path(name).is_file()]
    if require:
        requirements = tuple(parse_requirement(text) for text in require)
    else:
        requirements = tuple(item for file in files[:1] for item in read_requirements(file))
    if not requirements:
        raise UsageError(
            "There is no requirement to check.", hint="Add one, such as --require 'frac_reward_zero_std <= 0.5'."
        )
    with delivery(as_json=as_json, output=output, force=force, quiet=quiet) as result:
        with result.progress() as progress:
            report = check_run(
                run,
                requirements=requirements,
                success_threshold=success_threshold,
                format=reader,
                device=device,
                dtype=dtype,
                model=model,
                initial=initial,
                run_config=run_config,
                completion_ids=completion_ids,
                strict=strict,
                progress=progress,
            )
        result.deliver(report)
    if report.outcome != "pass":
        raise typer.Exit(1)
