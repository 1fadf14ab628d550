"""From a configuration to its task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gradscope.errors import InputError
from gradscope.training.setup.config import TrainConfig
from gradscope.training.tasks import data_files, running_sums, sum_variants
from gradscope.training.tasks.answers import grade_final_answer
from gradscope.training.tasks.math_answers import math_grader
from gradscope.training.tasks.task import Grader, Problem, Task

_STEPWISE = ("running-sums", "steps")
_ANSWER_APART = ("running-sums", "conflict")
DEFAULT_TRAIN_PROMPTS = 256
_DEFAULT_COMPLETION_LENGTH = 256
_MAKERS: dict[str, Callable[..., tuple[Problem, ...]]] = {
    "running-sums": running_sums.make_problems,
    "conflict": sum_variants.conflict_problems,
    "starved": sum_variants.starved_problems,
    "steps": sum_variants.steps_problems,
}
_GRADERS: dict[str, Grader] = {"starved": sum_variants.grade_whole, "steps": sum_variants.grade_share}
"""Where it is not the answer alone that counts."""


def load_task(config: TrainConfig) -> Task:
    """The task with its prompts.

    Returns:
        The task.

    Raises:
        InputError: There are fewer training prompts than one step needs.
    """
    task = _running_sums(config) if config.data is None else _from_files(config, Path(config.data))
    if len(task.train) < config.num_prompts:
        raise InputError(
            f"There are {len(task.train)} prompts to train on, and a step takes {config.num_prompts}.",
            hint="Lower --num-prompts or --heldout-prompts, or raise --train-prompts.",
        )
    return task


def _running_sums(config: TrainConfig) -> Task:
    make = _MAKERS[config.task]
    return Task(
        name=config.task,
        train=make(config.train_prompts or DEFAULT_TRAIN_PROMPTS, seed=config.seed, heldout=False),
        heldout=make(config.heldout_prompts, seed=config.seed, heldout=True),
        graders={"steps" if config.task == "steps" else "answer": _GRADERS.get(config.task, running_sums.grade_answer)},
        step_grader=running_sums.grade_steps if config.task in _STEPWISE else None,
        answer_mark=running_sums.ANSWER_MARK if config.task in _ANSWER_APART else None,
        is_coherent=running_sums.is_coherent if config.task == "running-sums" else None,
    )


def _from_files(config: TrainConfig, data: Path) -> Task:
    read = data_files.gsm8k_task if config.task == "gsm8k" else data_files.jsonl_task
    return read(
        data,
        None if config.heldout_data is None else Path(config.heldout_data),
        heldout_prompts=config.heldout_prompts,
        train_prompts=config.train_prompts,
        grader=math_grader() if config.grader == "math-verify" else grade_final_answer,
    )


def max_completion_length(config: TrainConfig) -> int:
    """Most tokens of a completion: what the configuration says, else what the task needs."""
    if config.max_completion_length is not None:
        return config.max_completion_length
    return running_sums.MAX_COMPLETION_LENGTH if config.data is None else _DEFAULT_COMPLETION_LENGTH
