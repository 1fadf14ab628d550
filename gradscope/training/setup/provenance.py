"""What a run's manifest says about where it came from: command, versions, commit."""

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
from gradscope.advantages.registry import formulation, short_name
from gradscope.rollouts.run_folder import RunManifest
from gradscope.training.setup.config import TrainConfig
from gradscope.training.setup.processes import shards_model

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


def make_manifest(config: TrainConfig, trainer_arguments: Mapping[str, Any], notes: Sequence[str] = ()) -> RunManifest:
    """The manifest of a run that starts now.

    Args:
        config: Its configuration.
        trainer_arguments: The trainer's arguments, in TRL's names.
        notes: What the task and the model add to what a reader should know.

    Returns:
        The manifest.
    """
    return RunManifest(
        run_id=f"{config.task}-{short_name(config.advantage)}-{config.seed}-{uuid.uuid4().hex[:8]}",
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=_command(),
        config=config.to_json(),
        seed=config.seed,
        model=config.model,
        task=config.task,
        versions=package_versions(),
        commit=checkout_commit(),
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


def _command() -> str:
    """The command line where the program runs, else the function's name."""
    if Path(sys.argv[0]).name in {"gradscope", "__main__.py"}:
        return shlex.join(["gradscope", *sys.argv[1:]])
    return "gradscope.train"


def package_versions() -> dict[str, str]:
    """The versions that a run depends on, gradscope's and Python's own among them."""
    return {
        "gradscope": version.__version__,
        "python": platform.python_version(),
        **{package: metadata.version(package) for package in _PACKAGES},
    }


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
