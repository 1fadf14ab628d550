"""One step's Gram matrix as a safetensors file, so that interrupted work need not compute it again.

The file carries the key of what it was computed from; it is never read under another one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from gradscope.gradients.plan.rows import Row
from gradscope.gradients.step.step_gram import StepGram
from gradscope.gradients.step.step_norm import StepNorm
from gradscope.gradients.step.verify import Verification
from gradscope.gradients.trained.assumptions import Assumption
from gradscope.gradients.trained.norms import TrainedNorms
from gradscope.writing import atomic_write, repeatable

_ARRAYS = ("gram", "rewards", "advantages", "logprobs")
_TUPLES = ("group_ids", "samples", "slow_parameters", "notes")


def write_step(path: Path, step: StepGram | StepNorm, key: str) -> None:
    """Write everything that is known of a step, with the key of what it was computed from."""
    arrays = {
        "logprobs": np.concatenate([np.zeros(0), *step.logprobs]),
        "lengths": np.array([len(row) for row in step.logprobs], dtype=np.int64),
    }
    rest: dict[str, Any] = {
        field.name: getattr(step, field.name) for field in fields(step) if field.name not in _ARRAYS
    }
    if isinstance(step, StepGram):
        arrays |= {"gram": step.gram, "rewards": step.rewards}
        arrays |= {} if step.advantages is None else {"advantages": step.advantages}
        rest |= _parts_of(step)
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    atomic_write(path, repeatable(save(whole, metadata={"key": key, "step": json.dumps(rest)})), force=True)


def _parts_of(gram: StepGram) -> dict[str, Any]:
    """What is no number or text by itself."""
    rest: dict[str, Any] = {}
    rest |= {"rows": [asdict(row) for row in gram.rows], "verification": asdict(gram.verification)}
    rest["trained"] = gram.trained and asdict(gram.trained)
    rest["assumption"] = gram.assumption and {
        "padding_row": gram.assumption.padding_row,
        "frozen": sorted(gram.assumption.frozen),
    }
    return rest


def read_step(path: Path, key: str) -> StepGram | StepNorm | None:
    """Read a step again; None where there is no such file, or it is of something else than the key."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("key") != key:
                return None
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError):
        return None
    rest: dict[str, Any] = json.loads(metadata["step"])
    logprobs = tuple(np.split(arrays["logprobs"], np.cumsum(arrays["lengths"])[:-1]))
    rest["other_texts"] = tuple(rest["other_texts"])
    if "gram" not in arrays:
        return StepNorm(logprobs=logprobs, **rest)
    rest |= {name: tuple(rest[name]) for name in _TUPLES}
    rest |= {"rows": tuple(Row(**row) for row in rest["rows"]), "verification": Verification(**rest["verification"])}
    if rest["trained"]:
        rest["trained"] = TrainedNorms(**rest["trained"] | {"norms": tuple(rest["trained"]["norms"])})
    if rest["assumption"]:
        kept = rest["assumption"]
        rest["assumption"] = Assumption(padding_row=kept["padding_row"], frozen=frozenset(kept["frozen"]))
    return StepGram(
        gram=arrays["gram"],
        rewards=arrays["rewards"],
        advantages=arrays.get("advantages"),
        logprobs=logprobs,
        **rest,
    )
