"""Reasons to refuse a run beyond its configuration: the formulation, the task, the launch, and files on disk.

Settings that contradict each other by themselves are refused by ``TrainConfig``. This module has the rest,
which takes a look at something else, all of it before anything is loaded, computed or written.
"""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from gradscope import version
from gradscope.advantages.registry import formulation, named_formulation, short_name
from gradscope.errors import OutputExistsError, UsageError
from gradscope.machine import num_processes
from gradscope.rollouts.run_folder import RunManifest, manifest_path
from gradscope.training.config import TrainConfig
from gradscope.training.processes import refuse_once, shards_model
from gradscope.training.tasks.task import Task

_STEPWISE = ("per_step", "per_token")  # formulations of the rewards of single steps of a completion


def check_settings(config: TrainConfig) -> None:
    """Refuse a formulation that does not exist, or that this run cannot have.

    Raises:
        UsageError: There is no such formulation, it is none to train with, groups or rewards do not suit it, the
            sampling needs one process, or the reward or the control an unsharded model in each.
    """
    chosen = named_formulation(config.advantage)
    if chosen.scope == "gram":
        raise UsageError(
            f"{config.advantage} weighs rewards by the norms of score vectors, which training does not have.",
            hint=f"Ask it of a run: gradscope rank RUN --advantage {config.advantage}",
        )
    if config.group_size < chosen.min_group_size:
        raise UsageError(
            f"{config.advantage} needs groups of at least {chosen.min_group_size}.", hint="Raise --group-size."
        )
    if chosen.needs_binary and config.task == "steps":
        raise UsageError(
            f"{config.advantage} is defined for rewards of 0 and 1, and the task steps rewards shares.",
            hint="Choose another --advantage, or --task running-sums.",
        )
    if config.reward == "answer_probability" and (chosen.needs_binary or config.advantage in _STEPWISE):
        why = "reads rewards of steps alone" if config.advantage in _STEPWISE else "is defined for rewards of 0 and 1"
        raise UsageError(
            f"{config.advantage} {why}, and --reward answer_probability rewards with a probability.",
            hint="Choose another --advantage, or leave out --reward.",
        )
    if config.sampling == "reallocated" and config.group_size // 2 < chosen.min_group_size:
        raise UsageError(
            f"{config.advantage} needs groups of at least {chosen.min_group_size}, and reallocated sampling leaves "
            f"{config.group_size // 2} to a solved prompt.",
            hint=f"Give --group-size {2 * chosen.min_group_size} or more.",
        )
    if config.sampling != "fixed" and num_processes() > 1:
        refuse_once(
            f"{config.sampling} sampling looks at all groups of a step in one process, and a launcher started "
            f"{num_processes()}.",
            hint="Call gradscope itself, or leave out --sampling.",
        )
    if shards_model() and (config.reward == "answer_probability" or config.match_grad_norm is not None):
        refuse_once(
            "--reward answer_probability and --match-grad-norm need the whole model in every process, and FSDP "
            "shards it.",
            hint="Leave them out, or launch plain data parallelism: accelerate launch --multi_gpu ...",
        )


def check_task(config: TrainConfig, task: Task) -> None:
    """Refuse a task that the formulation or the sampling cannot be trained on.

    Raises:
        UsageError: The formulation reads rewards of steps and the task has none, or dynamic sampling would have no
            other prompt to take.
    """
    if config.advantage in _STEPWISE and task.step_grader is None:
        raise UsageError(
            f"{config.advantage} needs rewards of single steps, and the task {config.task} has none.",
            hint="Choose another --advantage, or --task steps or running-sums.",
        )
    if config.sampling == "dynamic" and len({problem.prompt_id for problem in task.train}) <= config.num_prompts:
        raise UsageError(
            f"Dynamic sampling replaces dead groups by those of other prompts, and a step takes all {len(task.train)}.",
            hint="Raise --train-prompts or lower --num-prompts.",
        )


def check_free(run: Path, *, force: bool, in_script: bool = False) -> None:
    """Refuse a folder that holds something, and under ``force`` one that holds something else than a run.

    ``in_script``: the caller is a user's own script, which has arguments in place of options.

    Raises:
        OutputExistsError: Something is in the way.
    """
    if not run.exists() or (run.is_dir() and not any(run.iterdir())):
        return
    if not force:
        raise OutputExistsError(
            f"{run} already exists.",
            hint="Give another folder, or force=True to replace the run in it."
            if in_script
            else "Name another --output, go on with that run by --resume, or replace it with --force.",
        )
    if not manifest_path(run).is_file():
        raise OutputExistsError(
            f"{run} is not a run of gradscope; {'force' if in_script else '--force'} replaces runs only.",
            hint="Give another folder." if in_script else "Name another --output.",
        )


def require_separate_folders(run: Path, config: TrainConfig) -> None:
    """Refuse to replace a folder that the new run reads from.

    Raises:
        UsageError: The model or a file of prompts is in it.
    """
    for path in (config.model, config.data, config.heldout_data):
        if path is not None and run.exists() and Path(path).resolve().is_relative_to(run.resolve()):
            raise UsageError(
                f"{path} lies in {run}, which would be replaced before it is used.", hint="Name another --output."
            )


_PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers", "numpy", "pyarrow")

LOGPROBS_NOTE = (
    "The log-probabilities in the rollouts are recomputed, by one forward with the weights that sampled: "
    "Hugging Face's generation returns none."
)
VLLM_NOTE = (
    "The log-probabilities in the rollouts are vLLM's, of sampling; trainer_logprobs are recomputed, by one forward "
    "with the weights that sampled. Held-out prompts were sampled by transformers."
)
DENSE_REWARD_NOTE = (
    "The reward is the probability of the true answer after the sampled reasoning; the outcome is recorded beside it, "
    "with a weight of zero, and grades the held-out samples."
)
SHARDED_NOTE = (
    "The model was sharded among processes by FSDP; held-out prompts were sampled by the main process alone, with the "
    "weights of the first and the last checkpoint."
)


def make_manifest(config: TrainConfig, trainer_arguments: Mapping[str, Any], notes: Sequence[str]) -> RunManifest:
    """The manifest of a run that starts now, with notes of the task and the model that a reader should know."""
    return begun_manifest(
        f"{config.task}-{short_name(config.advantage)}-{config.seed}",
        command=shlex.join(["gradscope", *sys.argv[1:]])
        if Path(sys.argv[0]).name in {"gradscope", "__main__.py"}
        else "gradscope.train",
        config=config.to_json(),
        seed=config.seed,
        model=config.model,
        task=config.task,
        trainer_arguments=dict(trainer_arguments),
        advantage=config.advantage,
        advantage_digest=formulation(config.advantage).digest,
        notes=(
            LOGPROBS_NOTE if config.vllm is None else VLLM_NOTE,
            *([DENSE_REWARD_NOTE] if config.reward == "answer_probability" else []),
            *([SHARDED_NOTE] if shards_model() else []),
            *notes,
        ),
    )


def begun_manifest(name: str, **fields: Any) -> RunManifest:
    """The manifest of a run that starts now on this machine; its maker gives the other fields."""
    return RunManifest(
        run_id=f"{name}-{uuid.uuid4().hex[:8]}",
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={
            "gradscope": version.__version__,
            "python": platform.python_version(),
            **{package: metadata.version(package) for package in _PACKAGES},
        },
        commit=checkout_commit(),
        **fields,
    )


def checkout_commit() -> str | None:
    """The commit of the checkout that this file is in; None for an installed package."""
    root = Path(version.__file__).parent.parent
    if not (root / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
