"""`gradscope train`: a reference run that every other command can read."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin, get_type_hints

from gradscope.cli.arguments.options import parse_counts, parse_names, parse_numbers, with_parameters
from gradscope.cli.output.streams import pause, progress_bar, say, show, show_next
from gradscope.errors import UsageError
from gradscope.machine import process_index
from gradscope.option import Option
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


def _joined_with_or(names: Sequence[str]) -> str:
    """`a, b or c`."""
    return f"{', '.join(names[:-1])} or {names[-1]}"


_SETTINGS = {
    "Run": {
        "output": ("The run's folder.", "DIR"),
        "seed": ("Seed of everything random.", "N"),
        "device": ("Where it runs.", "auto|cpu|cuda"),
        "dtype": ("Precision.", "float32|bfloat16"),
        "checkpoint_every": ("Updates a checkpoint.", "N"),
    },
    "Task": {
        "task": (f"What is trained: {_joined_with_or(TASKS)}.", "NAME"),
        "data": ("Prompts, for gsm8k and jsonl.", "FILE"),
        "heldout_data": ("Held-out prompts.", "FILE"),
        "grader": ("How final answers are compared.", "|".join(GRADERS)),
        "train_prompts": ("Distinct prompts to train on.", "N"),
        "heldout_prompts": ("Held-out prompts to sample.", "N"),
        "heldout_samples": ("Samples of each.", "N"),
    },
    "Model": {
        "model": ("The embedded model, a folder, or a hub id.", "PATH_OR_ID"),
        "lora_rank": ("Train a LoRA adapter of this rank.", "N"),
        "lora_alpha": ("The adapter's scale.", "X"),
        "max_completion_length": ("Most tokens of a completion.", "N"),
        "temperature": ("Sampling temperature.", "X"),
    },
    "Optimization": {
        "reward": (f"What is trained on: {_joined_with_or(REWARDS)}.", "NAME"),
        "advantage": ("The formulation, my.py:name for your own; several: a grid.", "NAME,..."),
        "group_size": ("Rollouts of a prompt, G.", "N"),
        "num_prompts": ("Prompts of a step.", "N"),
        "sampling": (f"What becomes of dead groups: {_joined_with_or(SAMPLINGS)}.", "NAME"),
        "vllm": ("Sample by vLLM: TRL's vllm_* arguments without vllm_.", "JSON"),
        "max_resampling": ("Rounds of dynamic sampling; 4 by default.", "N"),
        "steps": ("Optimizer updates.", "N"),
        "learning_rate": ("Of AdamW; several: a grid.", "X,..."),
        "critic_learning_rate": ("Of the head of token_critic and gae.", "X"),
        "max_grad_norm": ("Clip to this.", "X"),
        "match_grad_norm": ("Scale each gradient to this norm.", "X"),
        "gradient_accumulation_steps": ("Parts of a step.", "N"),
        "beta": ("Weight of the KL penalty.", "X"),
        "loss_type": (f"Average over tokens: {_joined_with_or(LOSS_TYPES)}.", "NAME"),
    },
}
"""Panel of the help -> field of the configuration -> its help and metavar."""
_run_option, _grid_option = (partial(Option, panel=panel) for panel in ("Run", "Grid"))


def _settings() -> Iterator[inspect.Parameter]:
    """A flag for each field of the configuration, None where it is not typed; the help has its default."""
    types = get_type_hints(TrainConfig) | {"advantage": list[str], "learning_rate": list[str], "vllm": str}
    for panel, settings in _SETTINGS.items():
        for name, (words, metavar) in settings.items():
            default = getattr(_DEFAULTS, name)
            shown = words if default is None else rf"{words} \[default: {default}]"
            kind = str if get_origin(types[name]) is Literal else types[name]  # TrainConfig checks the choices
            flag = Option(shown, metavar, panel, shows_default=False)
            yield inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, flag]
            )


@with_parameters(_settings(), panels=("Run", "Grid", *_SETTINGS, "Output"))
def train(
    *,
    config: Annotated[Path | None, _run_option("Settings as JSON, or the manifest of a run to repeat.", "FILE")] = None,
    resume: Annotated[bool, _run_option("Continue an interrupted run in --output.")] = False,
    force: Annotated[bool, _run_option("Replace a run that is already there.")] = False,
    seeds: Annotated[list[str] | None, _grid_option("A run for each seed, in a folder each.", "N,A:B")] = None,
    jobs: Annotated[
        int | None, _grid_option("Cells of a grid at once; one a core by default.", "N", at_least=1)
    ] = None,
    quiet: Annotated[
        bool, Option("Say nothing but errors on stderr.", panel="Output", flags=("--quiet", "-q"))
    ] = False,
    **settings: Any,
) -> None:
    """Train a reference run with GRPO and keep everything that the other commands need.

    The default is the embedded task and model: a minute on a CPU. The folder holds the exact rollouts, rewards,
    advantages and log-probabilities of every step, and the weights before the first update.

    Several formulations, learning rates or --seeds make a grid: one folder a cell in --output, cells side by side,
    equal in everything but what is varied. `gradscope compare` reads it.

    Under `torchrun` or `accelerate launch -m gradscope train ...` several processes make one run.
    """
    typed = {name: value for name, value in settings.items() if value is not None}
    if "vllm" in typed:
        typed["vllm"] = _read_vllm(typed["vllm"])
    base = (read_config(config) if config is not None else _DEFAULTS).to_json()
    varied: dict[str, Any] = {
        "advantages": parse_names("--advantage", typed.pop("advantage", None)),
        "learning_rates": parse_numbers("--learning-rate", typed.pop("learning_rate", None)),
        "seeds": parse_counts("--seeds", seeds),
    }
    if config is not None and not varied["advantages"]:
        _check_code(base["advantage"])
    run_options = {"resume": resume, "force": force, "quiet": quiet}
    is_grid = bool(seeds) or any(len(values) > 1 for values in varied.values())
    _check_one_or_many(settings["seed"], seeds, None if is_grid else jobs)
    if is_grid:
        grid = TrainConfig.from_json(base | typed)
        _train_grid(grid, varied, jobs, **run_options)
        if not quiet:
            show_next(["compare", grid.output])
        return
    single = {name.removesuffix("s"): values[0] for name, values in varied.items() if values}
    run_options["quiet"] = quiet or process_index() > 0
    chosen = TrainConfig.from_json(base | typed | single)
    folder = _train(chosen, **run_options)
    if not run_options["quiet"]:
        _say_done(folder, chosen)
        _show_answer(folder, chosen)


def _read_vllm(text: str) -> Any:
    """The settings of vLLM, which are typed as JSON."""
    try:
        return parse_json(text)
    except ValueError as error:
        raise UsageError(f"--vllm is not JSON: {error}.", hint='For example: {"mode": "colocate"}') from error


def _say_done(folder: Path, config: TrainConfig) -> None:
    """Prints the run's folder and, where reasoning can be checked, which rollouts were rewarded."""
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


def _check_one_or_many(seed: int | None, seeds: list[str] | None, jobs_of_one: int | None) -> None:
    """Refuses two answers to one question, and an option without an effect."""
    if seeds and seed is not None:
        raise UsageError("--seed and --seeds exclude each other.", hint="Give --seeds alone.")
    if jobs_of_one is not None:
        raise UsageError("--jobs is for a grid, and this is one run.", hint="Give --seeds too, or leave it out.")


def _train(config: TrainConfig, *, resume: bool, force: bool, quiet: bool) -> Path:
    """Trains under a progress bar; after Ctrl-C or on a full disk finished work stays, with a hint how to go on."""
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
    """Trains the cells under one progress bar; after Ctrl-C finished cells stay, and a message says how to go on."""
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
