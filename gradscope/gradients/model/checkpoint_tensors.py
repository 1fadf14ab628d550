"""Weight matrices of several checkpoints, tensor by tensor, from safetensors alone: no model is built, no code runs.

Of an adapter the product that it adds to its base is the matrix, s B A; nothing is merged, so what is compared between
checkpoints is exact in the adapter's own precision.

Shapes: O outputs, I inputs, r the rank of an adapter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gradscope.errors import InputError
from gradscope.gradients.model.checked.adapter import read_adapter_config
from gradscope.gradients.model.checked.loading import opened_tensors
from gradscope.metrics.gram.spectrum import Array
from gradscope.rollouts.places.fetch import bring_weights
from gradscope.rollouts.run import WeightsRef

_FACTOR = re.compile(r"^base_model\.model\.(.+)\.lora_[AB](?:\.[^.]+)?\.weight$")
_UNSUPPORTED = ("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One set of weights, its matrices read when they are asked for."""

    num_updates: int
    """How many optimizer updates it has had."""
    matrices: dict[str, Callable[[], Array]]
    """Tensor -> reads its matrix, [O, I]."""
    factors: dict[str, Callable[[], tuple[Array, Array]]] = field(default_factory=dict)
    """Of an adapter: tensor -> reads A, [r, I], and B, [O, r]; the scale is in neither."""


def open_checkpoint(weights: WeightsRef) -> Checkpoint:
    """The two-dimensional tensors of a model folder or LoRA adapter.

    Returns:
        Its matrices by the model's own names.

    Raises:
        InputError: A file of tensors cannot be read, or an adapter is not one product of two factors.
    """
    if weights.kind == "adapter":
        return _adapter(weights)
    matrices = {name: _reader(file, name) for name, file in _matrices(weights.path).items()}
    return Checkpoint(num_updates=weights.num_updates, matrices=matrices)


def base_matrices(weights: WeightsRef) -> dict[str, Callable[[], Array]]:
    """The matrices that updates are measured against: those of the model itself, or of an adapter's base.

    Returns:
        Readers; empty where an adapter's base model is not on this disk.
    """
    folder = weights.path if weights.kind == "full" else Path(weights.base or "")
    if not (folder / "config.json").is_file():
        return {}
    return {name: _reader(file, name) for name, file in _matrices(folder).items()}


def changed_in_bfloat16(before: Array, after: Array) -> float:
    """Share of entries whose bfloat16 rounding differs between two matrices, [O, I] each."""
    first, second = (torch.from_numpy(matrix).to(torch.bfloat16) for matrix in (before, after))
    return float((first != second).double().mean())


def _matrices(folder: Path) -> dict[str, Path]:
    """Names of two-dimensional tensors and the file that holds each."""
    files: dict[str, Path] = {}
    bring_weights(folder)
    for file in sorted(folder.glob("*.safetensors")):
        with opened_tensors(file) as tensors:
            files |= {name: file for name in tensors.keys() if len(tensors.get_slice(name).get_shape()) == 2}  # noqa: SIM118
    return files


def _reader(file: Path, name: str) -> Callable[[], Array]:
    return lambda: np.asarray(_tensor(file, name).double().numpy(), dtype=np.float64)


def _tensor(file: Path, name: str) -> torch.Tensor:
    with opened_tensors(file) as tensors:
        tensor: torch.Tensor = tensors.get_tensor(name)
        return tensor


def _adapter(weights: WeightsRef) -> Checkpoint:
    """The matrices s B A of a LoRA adapter and their factors, by the names of the weights that they are added to."""
    folder = weights.path
    config = read_adapter_config(folder)
    scale = _scale(folder, config)
    files = _matrices(folder)
    matches = {name: _FACTOR.match(name) for name in files}
    modules: dict[str, dict[str, str]] = {}
    for name, match in matches.items():
        if match is None:
            raise InputError(f"{folder}: {name} is no factor of a LoRA adapter.", hint="Merge it into its base model.")
        modules.setdefault(match[1], {})["A" if ".lora_A" in name else "B"] = name

    def read(factors: dict[str, str]) -> tuple[Array, Array]:
        down, up = (_tensor(files[factors[side]], factors[side]).double().numpy() for side in "AB")
        return np.asarray(down, dtype=np.float64), np.asarray(up, dtype=np.float64)

    def product(factors: dict[str, str]) -> Array:
        down, up = read(factors)
        matrix = scale * (up @ down)
        return np.ascontiguousarray(matrix.T) if config.get("fan_in_fan_out") else matrix

    return Checkpoint(
        num_updates=weights.num_updates,
        matrices={f"{module}.weight": partial(product, factors) for module, factors in modules.items()},
        factors={f"{module}.weight": partial(read, factors) for module, factors in modules.items()},
    )


def _scale(folder: Path, config: dict[str, Any]) -> float:
    """What PEFT multiplies B A with: alpha / r, or alpha / sqrt(r) with ``use_rslora``."""
    used = next((name for name in _UNSUPPORTED if config.get(name)), None)
    if config.get("peft_type") != "LORA" or used is not None:
        raise InputError(
            f"{folder}: this adapter is not one product of two factors ({used or config.get('peft_type')}).",
            hint="Merge the adapters into their base model and give the merged folders.",
        )
    rank, alpha = float(config["r"]), float(config["lora_alpha"])
    return alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank


def common_tensors(checkpoints: Sequence[Checkpoint]) -> list[str]:
    """Names of the tensors that every checkpoint holds, in the order of the first."""
    return [name for name in checkpoints[0].matrices if all(name in other.matrices for other in checkpoints)]
