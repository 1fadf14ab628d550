"""The options that several commands share, each with its one wording, and the names that a shell completes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer

from gradscope.cli.arguments.lists import parse_choices
from gradscope.render.terminal.names import ALL, NOTES, TABLES, VERDICT, choices_of

measure_option, input_option, output_option = (
    partial(typer.Option, rich_help_panel=panel) for panel in ("Measure", "Input", "Output")
)
"""An option of each of the usual panels of a command's help."""

RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A gradscope run, a trainer's folder, a JSONL, Parquet or CSV file; or its URL (s3, gs, hf, https).",
        show_default=False,
    ),
]

REWARD = "One reward function instead of the scalar reward; the main one of several."
SUCCESS_THRESHOLD = "A rollout passes at this reward or more; for rewards that are not 0/1."
RewardOption = Annotated[str | None, input_option("--reward", metavar="NAME", help=REWARD)]
SuccessThresholdOption = Annotated[float | None, input_option(metavar="X", help=SUCCESS_THRESHOLD)]

StepsOption = Annotated[list[str] | None, measure_option("--step", metavar="N,A:B|all", help="Steps to compute.")]
HeldOutOption = Annotated[
    list[str] | None,
    input_option(
        metavar="FILE,...", help="Samples of held-out prompts, before and after; those of the run folder by default."
    ),
]
GradientsOption = Annotated[
    bool, measure_option("--gradients/--no-gradients", help="Whether to load the model and recompute gradients.")
]


def show_option(command: str) -> Any:
    """The option that adds tables to a command's answer."""
    return output_option(
        "--show",
        metavar="NAME,...",
        help=f"Further tables, which the answer names. Any of {', '.join([*TABLES[command], NOTES])}; {ALL}, or the "
        f"{VERDICT} alone.",
    )


def parse_show(command: str, words: Sequence[str] | None) -> tuple[str, ...]:
    """The names of tables that were asked for, each one that the command has."""
    return parse_choices("--show", words, choices_of(command))


def complete_metric(incomplete: str) -> list[str]:
    """Metrics of the catalogue, the last of a list by comma."""
    from gradscope.catalog.lookup import CATALOG

    return _last_of_list(incomplete, list(CATALOG))


def complete_formulation(incomplete: str) -> list[str]:
    """Formulations of the registry, the last of a list by comma."""
    from gradscope.advantages.registry import ALL_FORMULATIONS, CONSTANT

    constants = (f"{name}{CONSTANT}" for name, entry in ALL_FORMULATIONS.items() if entry.takes_c)
    return _last_of_list(incomplete, [*ALL_FORMULATIONS, *constants])


def _last_of_list(incomplete: str, names: list[str]) -> list[str]:
    head, comma, last = incomplete.rpartition(",")
    return [f"{head}{comma}{name}" for name in names if name.startswith(last)]
