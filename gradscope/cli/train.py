"""`gradscope train`: a reference run that every other command can read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gradscope.cli.options import QuietOption
from gradscope.cli.progress import progress_bar
from gradscope.cli.streams import say
from gradscope.training.config import LOSS_TYPES, TASKS, TrainConfig, read_config

EXAMPLES = (
    "gradscope train --output my-run",
    "gradscope train --output run-sign --advantage sign --group-size 4 --steps 100",
    "gradscope train --task gsm8k --data train.jsonl --model Qwen/Qwen2.5-0.5B-Instruct --lora-rank 16 --output gsm",
    "gradscope train --config my-run/manifest.json --output again",
)

_DEFAULTS = TrainConfig()
_NOT_FIELDS = ("config", "resume", "force", "quiet")


def _option(field: str, words: str, panel: str, metavar: str = "N") -> Any:
    """The option of one field of the configuration, with the field's own default in its help."""
    default = getattr(_DEFAULTS, field)
    shown = "" if default is None else rf" \[default: {default}]"
    flag = f"--{field.replace('_', '-')}"
    return typer.Option(flag, help=words + shown, rich_help_panel=panel, metavar=metavar, show_default=False)


def train(
    context: typer.Context,
    output: Annotated[str | None, _option("output", "The run's folder.", "Run", "DIR")] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Settings as JSON, or the manifest of a run to repeat.", rich_help_panel="Run"
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run in --output.", rich_help_panel="Run")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a run that is already there.", rich_help_panel="Run")
    ] = False,
    seed: Annotated[int | None, _option("seed", "Seed of everything random.", "Run")] = None,
    device: Annotated[str | None, _option("device", "Where it runs.", "Run", "auto|cpu|cuda")] = None,
    dtype: Annotated[str | None, _option("dtype", "Precision.", "Run", "float32|bfloat16")] = None,
    task: Annotated[str | None, _option("task", "What is trained.", "Task", "|".join(TASKS))] = None,
    data: Annotated[str | None, _option("data", "Prompts, for gsm8k and jsonl.", "Task", "FILE")] = None,
    heldout_data: Annotated[str | None, _option("heldout_data", "Held-out prompts.", "Task", "FILE")] = None,
    train_prompts: Annotated[int | None, _option("train_prompts", "Distinct prompts to train on.", "Task")] = None,
    heldout_prompts: Annotated[int | None, _option("heldout_prompts", "Held-out prompts to sample.", "Task")] = None,
    heldout_samples: Annotated[int | None, _option("heldout_samples", "Samples of each.", "Task")] = None,
    model: Annotated[
        str | None, _option("model", "The embedded model, a folder, or a hub id.", "Model", "PATH_OR_ID")
    ] = None,
    lora_rank: Annotated[int | None, _option("lora_rank", "Train a LoRA adapter of this rank.", "Model")] = None,
    lora_alpha: Annotated[float | None, _option("lora_alpha", "The adapter's scale.", "Model", "X")] = None,
    max_completion_length: Annotated[
        int | None, _option("max_completion_length", "Most tokens of a completion.", "Model")
    ] = None,
    temperature: Annotated[float | None, _option("temperature", "Sampling temperature.", "Model", "X")] = None,
    advantage: Annotated[str | None, _option("advantage", "The formulation.", "Optimization", "NAME")] = None,
    group_size: Annotated[int | None, _option("group_size", "Rollouts of a prompt, G.", "Optimization")] = None,
    num_prompts: Annotated[int | None, _option("num_prompts", "Prompts of a step.", "Optimization")] = None,
    steps: Annotated[int | None, _option("steps", "Optimizer updates.", "Optimization")] = None,
    learning_rate: Annotated[float | None, _option("learning_rate", "Of AdamW.", "Optimization", "X")] = None,
    max_grad_norm: Annotated[float | None, _option("max_grad_norm", "Clip to this.", "Optimization", "X")] = None,
    gradient_accumulation_steps: Annotated[
        int | None, _option("gradient_accumulation_steps", "Parts of a step.", "Optimization")
    ] = None,
    beta: Annotated[float | None, _option("beta", "Weight of the KL penalty.", "Optimization", "X")] = None,
    loss_type: Annotated[
        str | None, _option("loss_type", "Average over tokens.", "Optimization", "|".join(LOSS_TYPES))
    ] = None,
    checkpoint_every: Annotated[int | None, _option("checkpoint_every", "Updates a checkpoint.", "Run")] = None,
    quiet: QuietOption = False,
) -> None:
    """Train a reference run with GRPO and keep everything that the other commands need.

    The default is the embedded task and model: a minute on a CPU. The folder holds the exact rollouts, rewards,
    advantages and log-probabilities of every step, and the weights before the first update.
    """
    given = {name: value for name, value in context.params.items() if value is not None and name not in _NOT_FIELDS}
    base = (read_config(config) if config is not None else _DEFAULTS).to_json()
    folder = _train(TrainConfig.from_json(base | given), resume=resume, force=force, quiet=quiet)
    if not quiet:
        say(f"wrote the run {folder}")


def _train(config: TrainConfig, *, resume: bool, force: bool, quiet: bool) -> Path:
    """Trains under a progress bar; Ctrl-C keeps what is done, and says so."""
    from gradscope.training.trainer import train as train_run

    try:
        with progress_bar(quiet=quiet) as progress:
            return train_run(config, resume=resume, force=force, progress=progress)
    except KeyboardInterrupt:
        say("hint: the finished steps are kept; the same command with --resume goes on")
        raise
