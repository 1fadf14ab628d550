"""The Gram matrix of a step as a safetensors file, so that any other question can be asked of it later."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import save

from gradscope.rollouts.files import atomic_write

if TYPE_CHECKING:
    from gradscope.gradients.step import StepGram


def write_gram(folder: Path, step: int, gram: StepGram) -> str:
    """Write K, rewards and advantages of one step.

    Args:
        folder: An output folder; made where it is absent.
        step: The trainer's step.
        gram: The engine's answer.

    Returns:
        The file's name within the folder.
    """
    name = f"gram_step_{step:05d}.safetensors"
    group_index = np.unique(gram.group_ids, return_inverse=True)[1]
    arrays = {"score_gram": gram.score_gram, "rewards": gram.rewards, "group_index": group_index.astype(np.int64)}
    if gram.logged_gram is not None:
        arrays["gradient_gram"] = gram.logged_gram
    if gram.advantages is not None:
        arrays["advantages"] = gram.advantages
    atomic_write(folder / name, save({key: np.ascontiguousarray(value) for key, value in arrays.items()}))
    return name
