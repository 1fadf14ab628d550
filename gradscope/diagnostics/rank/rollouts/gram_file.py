"""The Gram matrix of a step as a safetensors file, so that any other question can be asked of it later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save

from gradscope.diagnostics.rank.rollouts.step_rows import StepRows
from gradscope.writing import atomic_write


def write_gram(folder: Path, rows: StepRows) -> str:
    """Write K, rewards and advantages of one step into a folder, made where it is absent; the file's name."""
    name = f"gram_step_{rows.step:05d}.safetensors"
    group_index = np.unique(rows.group_ids, return_inverse=True)[1]
    arrays = {"score_gram": rows.gram, "rewards": rows.rewards, "group_index": group_index.astype(np.int64)}
    if rows.full_gram is not None:
        arrays["gradient_gram"] = rows.full_gram
    if rows.advantages is not None:
        arrays["advantages"] = rows.advantages
    atomic_write(folder / name, save({key: np.ascontiguousarray(value) for key, value in arrays.items()}))
    return name
