"""The options that several commands share, each with its one wording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from gradscope.errors import UsageError

_INPUT = "Input"
_MODEL = "Model"
_OUTPUT = "Output"


def parse_batch_tokens(text: str) -> int | None:
    """The tokens of a batch.

    Args:
        text: ``auto`` or a whole number.

    Returns:
        The number; None for ``auto``.

    Raises:
        UsageError: It is neither.
    """
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{text!r} is not a number of tokens.", hint="Use auto, or a whole number from 1 on.")
    return int(text)


RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A gradscope run folder, a trainer's output folder (TRL, verl), or a JSONL, Parquet or CSV file.",
        show_default=False,
    ),
]

# Input ------------------------------------------------------------------------------------------------------------

FormatOption = Annotated[
    str | None,
    typer.Option("--format", metavar="NAME", help="Force a reader instead of detecting it.", rich_help_panel=_INPUT),
]
RunConfigOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The trainer's arguments as JSON, where the folder does not tell them.",
        rich_help_panel=_INPUT,
    ),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Refuse a log with unusable rows.", rich_help_panel=_INPUT)
]
RewardOption = Annotated[
    str | None,
    typer.Option(
        "--reward", metavar="NAME", help="One reward function instead of the scalar reward.", rich_help_panel=_INPUT
    ),
]
SuccessThresholdOption = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        help="A rollout passes at this reward or more; for rewards that are not 0/1.",
        rich_help_panel=_INPUT,
    ),
]
PromptColumnOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Column that names the prompt.", rich_help_panel=_INPUT)
]
RewardColumnOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Column of rewards.", rich_help_panel=_INPUT)
]
StepColumnOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Column of training steps.", rich_help_panel=_INPUT)
]
GroupColumnOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Column that names the group.", rich_help_panel=_INPUT)
]
CompletionIdsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Exact completion token ids (step, row, completion_ids).", rich_help_panel=_INPUT
    ),
]

# Model ------------------------------------------------------------------------------------------------------------

ModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATH_OR_ID",
        help="The base model, where the log names none or its path moved.",
        rich_help_panel=_MODEL,
    ),
]
InitialOption = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="The weights before the first update (model or adapter folder), where the run does not hold them.",
        rich_help_panel=_MODEL,
    ),
]
DeviceOption = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option(metavar="auto|cpu|cuda", help="Where to compute.", rich_help_panel=_MODEL),
]
DtypeOption = Annotated[
    Literal["auto", "float32", "bfloat16"],
    typer.Option(
        metavar="auto|float32|bfloat16",
        help="What the weights are loaded in; auto: float32 on the CPU, on CUDA that of the checkpoint.",
        rich_help_panel=_MODEL,
    ),
]
PrecisionOption = Annotated[
    Literal["auto", "high"],
    typer.Option(
        metavar="auto|high",
        help="high: --dtype float32 with TF32 off, to confirm a low rank that was found in less.",
        rich_help_panel=_MODEL,
    ),
]
BatchTokensOption = Annotated[
    int | None,
    typer.Option(
        metavar="auto|N",
        parser=parse_batch_tokens,
        help="Most tokens of one forward pass, padding included; auto (default): halved while memory runs out.",
        show_default=False,
        rich_help_panel=_MODEL,
    ),
]
EngineOption = Annotated[
    Literal["auto", "loop", "stream", "prompt"],
    typer.Option(metavar="auto|loop|stream|prompt", help="How gradients are computed.", rich_help_panel=_MODEL),
]
VerifyOption = Annotated[
    Literal["first", "all"],
    typer.Option(
        metavar="first|all",
        help="Which batches to check against an ordinary backward pass.",
        rich_help_panel=_MODEL,
    ),
]

# Output -----------------------------------------------------------------------------------------------------------

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document and nothing else.", rich_help_panel=_OUTPUT)
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Write JSON, CSV, arrays and figures into this folder.",
        rich_help_panel=_OUTPUT,
    ),
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Replace files of the same name there.", rich_help_panel=_OUTPUT)
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Say nothing but errors on stderr.", rich_help_panel=_OUTPUT)
]


StepsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--step", metavar="N|A:B|all", help="Steps to compute (repeatable); all by default.", rich_help_panel="Measure"
    ),
]
