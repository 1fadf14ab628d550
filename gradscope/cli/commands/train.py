"""`gradscope train`: a reference run that every other command can read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gradscope.cli.arguments.lists import parse_counts, parse_names, parse_numbers
from gradscope.cli.output.next_commands import show_next
from gradscope.cli.output.progress import progress_bar
from gradscope.cli.output.streams import pause, say, show
from gradscope.errors import UsageError
from gradscope.machine.processes import process_index
from gradscope.outside.plain_json import parse_json
from gradscope.render.registry import render_table
from gradscope.render.terminal.names import VERDICT
from gradscope.training.config import GRADERS, LOSS_TYPES, REWARDS, SAMPLINGS, TASKS, TrainConfig, read_config

EXAMPLES = (
    "gradscope train --output my-run",
    "gradscope train --output run-sign --advantage sign --group-size 4 --steps 100",
    "gradscope train --task gsm8k --data train.jsonl --model Qwen/Qwen2.5-0.5B-Instruct --lora-rank 16 --output gsm",
    "gradscope train --config my-run/manifest.json --output again",
    "gradscope train --advantage grpo,sign --seeds 0-4 --learning-rate 1e-4,2e-4 --output grid",
)
COMMON = ("--output", "--task", "--model", "--advantage", "--group-size", "--steps", "--learning-rate", "--seeds")

_DEFAULTS = TrainConfig()
_NOT_FIELDS = ("config", "resume", "force", "quiet", "seeds", "jobs", "advantage", "learning_rate")


def _either(names: Sequence[str]) -> str:
    """`a, b or c`."""
    return f"{', '.join(names[:-1])} or {names[-1]}"


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
    seeds: Annotated[
        list[str] | None,
        typer.Option(metavar="N,A:B", help="A run for each seed, in a folder each.", rich_help_panel="Grid"),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Cells of a grid at once; one a core by default.", rich_help_panel="Grid"
        ),
    ] = None,
    device: Annotated[str | None, _option("device", "Where it runs.", "Run", "auto|cpu|cuda")] = None,
    dtype: Annotated[str | None, _option("dtype", "Precision.", "Run", "float32|bfloat16")] = None,
    task: Annotated[str | None, _option("task", f"What is trained: {_either(TASKS)}.", "Task", "NAME")] = None,
    data: Annotated[str | None, _option("data", "Prompts, for gsm8k and jsonl.", "Task", "FILE")] = None,
    heldout_data: Annotated[str | None, _option("heldout_data", "Held-out prompts.", "Task", "FILE")] = None,
    grader: Annotated[
        str | None, _option("grader", "How final answers are compared.", "Task", "|".join(GRADERS))
    ] = None,
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
    reward: Annotated[
        str | None, _option("reward", f"What is trained on: {_either(REWARDS)}.", "Optimization", "NAME")
    ] = None,
    advantage: Annotated[
        list[str] | None,
        _option("advantage", "The formulation, my.py:name for your own; several: a grid.", "Optimization", "NAME,..."),
    ] = None,
    group_size: Annotated[int | None, _option("group_size", "Rollouts of a prompt, G.", "Optimization")] = None,
    num_prompts: Annotated[int | None, _option("num_prompts", "Prompts of a step.", "Optimization")] = None,
    sampling: Annotated[
        str | None, _option("sampling", f"What becomes of dead groups: {_either(SAMPLINGS)}.", "Optimization", "NAME")
    ] = None,
    vllm: Annotated[
        str | None, _option("vllm", "Sample by vLLM: TRL's vllm_* arguments without vllm_.", "Optimization", "JSON")
    ] = None,
    max_resampling: Annotated[
        int | None, _option("max_resampling", "Rounds of dynamic sampling; 4 by default.", "Optimization")
    ] = None,
    steps: Annotated[int | None, _option("steps", "Optimizer updates.", "Optimization")] = None,
    learning_rate: Annotated[
        list[str] | None, _option("learning_rate", "Of AdamW; several: a grid.", "Optimization", "X,...")
    ] = None,
    critic_learning_rate: Annotated[
        float | None, _option("critic_learning_rate", "Of the head of token_critic and gae.", "Optimization", "X")
    ] = None,
    max_grad_norm: Annotated[float | None, _option("max_grad_norm", "Clip to this.", "Optimization", "X")] = None,
    match_grad_norm: Annotated[
        float | None, _option("match_grad_norm", "Scale each gradient to this norm.", "Optimization", "X")
    ] = None,
    gradient_accumulation_steps: Annotated[
        int | None, _option("gradient_accumulation_steps", "Parts of a step.", "Optimization")
    ] = None,
    beta: Annotated[float | None, _option("beta", "Weight of the KL penalty.", "Optimization", "X")] = None,
    loss_type: Annotated[
        str | None, _option("loss_type", f"Average over tokens: {_either(LOSS_TYPES)}.", "Optimization", "NAME")
    ] = None,
    checkpoint_every: Annotated[int | None, _option("checkpoint_every", "Updates a checkpoint.", "Run")] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Say nothing but errors on stderr.", rich_help_panel="Output")
    ] = False,
) -> None:
    """Train a reference run with GRPO and keep everything that the other commands need.

    The default is the embedded task and model: a minute on a CPU. The folder holds the exact rollouts, rewards,
    advantages and log-probabilities of every step, and the weights before the first update.

    Several formulations, learning rates or --seeds make a grid: one folder a cell in --output, cells side by side,
    equal in everything but what is varied. `gradscope compare` reads it.

    Under `torchrun` or `accelerate launch -m gradscope train ...` several processes make one run.
    """
    given = {name: value for name, value in context.params.items() if value is not None and name not in _NOT_FIELDS}
    if vllm is not None:
        given["vllm"] = _read_json("--vllm", vllm)
    base = (read_config(config) if config is not None else _DEFAULTS).to_json()
    varied: dict[str, Any] = {
        "advantages": parse_names("--advantage", advantage),
        "learning_rates": parse_numbers("--learning-rate", learning_rate),
        "seeds": parse_counts("--seeds", seeds),
    }
    if config is not None and not varied["advantages"]:
        _check_code(base["advantage"])
    how = {"resume": resume, "force": force, "quiet": quiet}
    if seeds or any(len(values) > 1 for values in varied.values()):
        _check_seeds(seed, seeds)
        grid = TrainConfig.from_json(base | given)
        _train_grid(grid, varied, jobs, **how)
        if not quiet:
            show_next(["compare", grid.output])
        return
    _check_jobs(jobs)
    single = {name.removesuffix("s"): values[0] for name, values in varied.items() if values}
    how["quiet"] = quiet or process_index() > 0
    chosen = TrainConfig.from_json(base | given | single)
    folder = _train(chosen, **how)
    if not how["quiet"]:
        _say_done(folder, chosen)
        _show_answer(folder, chosen)


def _read_json(option: str, text: str) -> Any:
    """The value of an option that is typed as JSON."""
    try:
        return parse_json(text)
    except ValueError as error:
        raise UsageError(f"{option} is not JSON: {error}.", hint='For example: {"mode": "colocate"}') from error


def _say_done(folder: Path, config: TrainConfig) -> None:
    """Says where the run is and, of a reward that could go to anything, what it went to."""
    say(f"wrote the run {folder}")
    if config.reward == "answer_probability":
        from gradscope.training.tasks.task import incoherence_sentence

        say(incoherence_sentence(folder) or f"the steps of the task {config.task} cannot be checked")


def _show_answer(folder: Path, config: TrainConfig) -> None:
    """The verdicts on the run that the other commands would begin with, and these commands."""
    from gradscope.diagnostics.degeneracy.measure import measure_degeneracy
    from gradscope.diagnostics.passk.measure import measure_pass_at_k

    pause()
    reports = [measure_pass_at_k(folder)] if config.heldout_prompts else []
    for report in (*reports, measure_degeneracy(folder)):
        show(render_table(report, [VERDICT]))
    show_next(["degeneracy", str(folder)])


def _check_code(configured: str) -> None:
    """Refuses to run code that only a file of settings names."""
    from gradscope.diagnostics.inputs.names import is_code

    if is_code(configured):
        raise UsageError(
            f"The settings name {configured}, which is code in a file and runs only where you name it.",
            hint=f"Add --advantage {configured}",
        )


def _check_seeds(seed: int | None, seeds: list[str] | None) -> None:
    """Refuses two answers to one question."""
    if seeds and seed is not None:
        raise UsageError("--seed and --seeds exclude each other.", hint="Give --seeds alone.")


def _check_jobs(jobs: int | None) -> None:
    """Refuses what has no effect."""
    if jobs is not None:
        raise UsageError("--jobs is for a grid, and this is one run.", hint="Give --seeds too, or leave it out.")


def _train(config: TrainConfig, *, resume: bool, force: bool, quiet: bool) -> Path:
    """Trains under a progress bar; Ctrl-C or a full disk keeps what is done, and says how to go on."""
    from gradscope.training.train import resume_command
    from gradscope.training.train import train as train_run

    try:
        with progress_bar(quiet=quiet) as progress:
            return train_run(config, resume=resume, force=force, progress=progress)
    except (KeyboardInterrupt, OSError):
        if (Path(config.output) / "manifest.json").is_file() and process_index() == 0:
            say(f"stopped; continue with `{resume_command(Path(config.output))}`")
        raise


def _train_grid(
    base: TrainConfig, varied: dict[str, Any], jobs: int | None, *, resume: bool, force: bool, quiet: bool
) -> None:
    """Trains the cells under one progress bar; Ctrl-C keeps what is done, and says how to go on."""
    from gradscope.training.grid import make_cells, train_grid

    cells = make_cells(base, **varied)
    try:
        with progress_bar(quiet=quiet) as progress:
            train_grid(
                cells,
                num_processes=jobs,
                resume=resume,
                force=force,
                progress=progress,
                on_cell=(lambda folder: None) if quiet else (lambda folder: _say_done(folder, base)),
            )
    except KeyboardInterrupt:
        say("stopped; the same command with --resume makes what is missing")
        raise
