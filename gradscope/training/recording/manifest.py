"""The manifest of a run that somebody's own script trains: TRL's arguments, and what a reader should know."""

from __future__ import annotations

import json
import shlex
import sys
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trl import GRPOTrainer

from gradscope.errors import UsageError
from gradscope.rollouts.run_folder import CUSTOM_ADVANTAGE, TRL_ADVANTAGE, RunManifest, read_manifest
from gradscope.training.protocols import Trainer, TrainerArguments
from gradscope.training.setup.provenance import checkout_commit, package_versions

_SCALED = {"group": "grpo", "none": "dr_grpo"}
"""TRL's ``scale_rewards`` -> the formulation that it is; with ``batch`` it is none of ours."""
_SHAPING = (
    *("loss_type", "beta", "temperature", "epsilon", "epsilon_high", "delta", "importance_sampling_level"),
    *("num_generations", "generation_batch_size", "steps_per_generation", "gradient_accumulation_steps"),
    *("num_iterations", "max_completion_length", "reward_weights", "scale_rewards", "mask_truncated_completions"),
)
"""Arguments without which recorded steps cannot be read, so that a run keeps them when it is resumed."""


def recorded_manifest(trainer: Trainer, notes: Sequence[str] = ()) -> RunManifest:
    """The manifest of a run that is recorded from now on.

    Args:
        notes: What a reader should know beside where the log-probabilities are from.

    Returns:
        The manifest; its configuration is empty, for no command of ours repeats somebody's script.
    """
    return RunManifest(
        run_id=f"recorded-{uuid.uuid4().hex[:8]}",
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join(["python", *sys.argv]),
        config={},
        seed=trainer.args.seed,
        model=str(trainer.model.config._name_or_path),
        task="recorded",
        versions=package_versions(),
        commit=checkout_commit(),
        trainer_arguments=plain_arguments(trainer.args),
        advantage=formulation_of(trainer),
        notes=(_logprobs_note(trainer.args), *_sharing_note(trainer.args), *notes),
    )


def plain_arguments(arguments: TrainerArguments) -> dict[str, Any]:
    """The arguments of a ``GRPOConfig`` as far as they are plain JSON; the folder of checkpoints is absolute."""
    plain = {name: value for name, value in arguments.to_dict().items() if _is_plain(value)}
    return plain | {"output_dir": str(Path(arguments.output_dir).resolve())}


def formulation_of(trainer: Any) -> str:
    """How the trainer makes advantages: a formulation of ours, ``trl`` for TRL's own that is none, or ``custom``."""
    own = type(trainer)._generate_and_score_completions is GRPOTrainer._generate_and_score_completions
    if not own or getattr(trainer.args, "multi_objective_aggregation", "sum_then_normalize") != "sum_then_normalize":
        return CUSTOM_ADVANTAGE
    return _SCALED.get(str(trainer.args.scale_rewards), TRL_ADVANTAGE)


def check_same_run(run: Path, trainer: Trainer) -> None:
    """Refuse to go on with a run whose recorded steps could then not be read with one set of arguments.

    Raises:
        UsageError: An argument that shapes the gradient is another one now.
    """
    before, now = read_manifest(run).trainer_arguments, plain_arguments(trainer.args)
    different = [name for name in _SHAPING if before.get(name) != now.get(name)]
    if different:
        listed = ", ".join(f"{name} ({before.get(name)!r}, now {now.get(name)!r})" for name in different)
        raise UsageError(
            f"{run} was recorded with other arguments: {listed}.", hint="Record what follows into another folder."
        )


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _logprobs_note(arguments: TrainerArguments) -> str:
    if arguments.use_vllm:
        return "The log-probabilities in the rollouts are vLLM's, of sampling."
    if _is_reused(arguments):
        return "The log-probabilities in the rollouts are the trainer's, recomputed with the weights that sampled."
    return (
        "The rollouts have no log-probabilities: Hugging Face's generation returns none, and TRL computes none for a "
        "batch that is used once."
    )


def _sharing_note(arguments: TrainerArguments) -> tuple[str, ...]:
    if not _is_reused(arguments):
        return ()
    return ("A generation batch that feeds several updates is recorded once, at the first of them.",)


def _is_reused(arguments: TrainerArguments) -> bool:
    """Whether updates share a generation batch, so that TRL needs an importance ratio."""
    return bool(arguments.gradient_accumulation_steps % (arguments.steps_per_generation * arguments.num_iterations))
