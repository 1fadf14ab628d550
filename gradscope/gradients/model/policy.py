"""The policy whose gradients are measured: its weights, its tokenizer, its reference, and what was found on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from gradscope.errors import InputError, UsageError
from gradscope.gradients.model.checked.tokenizer import load_tokenizer
from gradscope.gradients.model.checkpoint import (
    FloatName,
    is_fresh,
    load_adapter,
    load_model,
    padding_id,
    require_finite,
)
from gradscope.gradients.model.embedding import padding_row, token_embedding
from gradscope.gradients.model.padding import TrainerPadding
from gradscope.gradients.processes.sharding import own_device
from gradscope.rollouts.run import WeightsRef

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPolicy:
    """A model with the parameters that the trainer trained."""

    model: Any
    """The model in evaluation mode, with its adapter where it has one."""
    tokenizer: Any
    """Its tokenizer; None where none was found."""
    trainable: Mapping[str, nn.Parameter]
    """Name -> parameter: everything for a full model, else the adapter's; tied parameters once."""
    kind: Literal["full", "adapter"]
    """What was trained."""
    device: torch.device
    """Where the model is."""
    dtype: torch.dtype
    """The coarsest dtype of its weights: PEFT keeps an adapter in float32 on a base in half precision."""
    reference: Any = None
    """The reference model of the KL term; None where that is the base under an adapter, or is not known."""
    padding: TrainerPadding | None = None
    """How the trainer padded its rows; None where it gave the model each token's own position."""
    padding_rows: tuple[int | None, ...] = ()
    """Tokens whose embedding may have got no gradient from being read, the likeliest first; None: none. TRL writes the
    tokenizer's padding token into the configuration of a model that is built already."""
    source: str = ""
    """The folder that the weights came from."""
    in_float32: Callable[[], MeasuredPolicy] | None = None
    """Loads the same numbers again in float32; None where the policy was not loaded."""

    @property
    def num_parameters(self) -> int:
        """Number of trainable parameters, P."""
        return sum(parameter.numel() for parameter in self.trainable.values())

    @property
    def vocab_size(self) -> int:
        """Number of token ids that the model can read."""
        return int(token_embedding(self.model).weight.shape[0])

    @contextmanager
    def as_reference(self) -> Iterator[Any]:
        """The reference policy of the KL term.

        Yields:
            A model: the weights before the first update; for an adapter that started fresh, its base alone.

        Raises:
            InputError: The weights before the first update were not given.
        """
        if self.reference is not None:
            yield self.reference
            return
        if self.kind == "adapter":
            with self.model.disable_adapter():
                yield self.model
            return
        raise InputError(
            "The loss has a KL term, and the weights before the first update, its reference, are not known.",
            hint="Give them with --initial PATH.",
        )


def load_measured_policy(
    weights: WeightsRef,
    *,
    device: str = "auto",
    dtype: str = "auto",
    tokenizer: Path | None = None,
    initial: WeightsRef | None = None,
    mixed: Sequence[tuple[WeightsRef, float]] = (),
    origin: Path | None = None,
    padding: TrainerPadding | None = None,
    rounded: FloatName = "float32",
) -> MeasuredPolicy:
    """Load a set of weights for gradient computations; safetensors only, no code from the folder is run.

    Args:
        weights: The model or adapter.
        device: ``cpu``, ``cuda``, or ``auto``: CUDA where there is one.
        dtype: ``float32``, ``bfloat16``, ``float16``, ``float64``, or ``auto``: float32 on the CPU, on CUDA what is
            stored.
        tokenizer: A folder with the tokenizer; by default the weights' own folder, then the base model's.
        initial: The weights before the first update: the reference of the KL term. A fresh adapter changes nothing,
            so its base serves; a run that went on from a trained adapter has that adapter as its reference.
        padding: How the trainer padded its rows; None: it gave the model each token's own position.
        rounded: The dtype that the trainer had its weights in, to which those of another are rounded first.
        mixed: Weights that were mixed into the reference later, in order, each with the share that it got.
        origin: The folder of the model that the trainer loaded. Where an architecture leaves the padding token's
            embedding without a gradient, its configuration names that token; a checkpoint's names the tokenizer's,
            which TRL writes after loading. None: the weights' own configuration.

    Returns:
        The policy, in evaluation mode.
    """
    at = _device(device)
    wanted = _dtype(dtype, at)
    candidates: tuple[int | None, ...] = ()
    if weights.kind == "adapter":
        model = load_adapter(weights, wanted)
    else:
        model = load_model(weights.path, wanted)
        model.requires_grad_(True)
        built = padding_row(model)
        if built is not None and origin is not None:
            token_embedding(model).padding_idx = padding_id(origin)
        candidates = tuple(dict.fromkeys([padding_row(model), built, None, *_default_padding(model, built)]))
    require_finite(model, str(weights.path))
    if rounded != "float32":
        round_to(model, _DTYPES[rounded], adapter=weights.kind == "adapter")
    model.to(at).eval()
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    folders = [folder for folder in (tokenizer, weights.path, Path(weights.base) if weights.base else None) if folder]
    loaded = {name: parameter.dtype for name, parameter in model.named_parameters()}

    def in_float32() -> MeasuredPolicy:
        again = load_measured_policy(weights, device=device, dtype="float32", origin=origin)
        with torch.no_grad():
            for name, parameter in again.model.named_parameters():
                parameter.copy_(parameter.to(loaded[name]))
        return again

    return MeasuredPolicy(
        model=model,
        tokenizer=load_tokenizer(folders),
        trainable=trainable,
        kind=weights.kind,
        device=at,
        dtype=coarsest_dtype(model),
        reference=None if initial is None else _reference(initial, mixed, wanted, at, rounded),
        padding=padding,
        padding_rows=candidates,
        source=str(weights.path),
        in_float32=in_float32,
    )


def coarsest_dtype(model: nn.Module) -> torch.dtype:
    """The dtype of a model's parameters that rounds most: what its gradients are as exact as."""
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)


def _mix(model: nn.Module, other: nn.Module, share: float) -> None:
    """Move a model's parameters towards another's, as TRL's callback does."""
    with torch.no_grad():
        for parameter, towards in zip(model.parameters(), other.parameters(), strict=True):
            parameter.mul_(1.0 - share).add_(towards, alpha=share)


def round_to(model: nn.Module, dtype: torch.dtype, *, adapter: bool) -> None:
    """Round the weights of a model to a dtype and keep them in their own; of an adapter's, only those of the base."""
    with torch.no_grad():
        for parameter in model.parameters():
            if not (adapter and parameter.requires_grad):
                parameter.copy_(parameter.to(dtype))


def _default_padding(model: Any, built: int | None) -> tuple[int, ...]:
    """The padding token of an architecture's own defaults, where its embedding has such a row at all.

    A model made from those keeps that row, whatever token TRL writes into every folder that is saved afterwards.

    Returns:
        One token or none.
    """
    default = getattr(type(model.config.get_text_config())(), "pad_token_id", None)
    if built is None or not isinstance(default, int):
        return ()
    return (default,) if 0 <= default < len(token_embedding(model).weight) else ()


def _device(name: str) -> torch.device:
    if name == "auto":
        return own_device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise UsageError(f"There is no device {name!r}.", hint="Use auto, cpu or cuda.")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("PyTorch sees no CUDA device.", hint="Use --device cpu.")
    return own_device(name)


def _dtype(name: str, device: torch.device) -> torch.dtype | None:
    """The dtype to load in; None means the checkpoint's own."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else None
    if name not in _DTYPES:
        raise UsageError(f"There is no dtype {name!r}.", hint="Use auto, float32, bfloat16 or float16.")
    return _DTYPES[name]


def _reference(
    initial: WeightsRef,
    mixed: Sequence[tuple[WeightsRef, float]],
    dtype: torch.dtype | None,
    device: torch.device,
    rounded: FloatName,
) -> Any:
    """The weights before the first update with what was mixed in; None for an adapter that changes nothing yet."""
    if initial.kind == "adapter":
        if is_fresh(initial.path):
            return None
        model = load_adapter(initial, dtype)
    else:
        model = load_model(initial.path, dtype)
        for weights, share in mixed:
            _mix(model, load_model(weights.path, dtype), share)
    require_finite(model, str(initial.path))
    if rounded != "float32":
        round_to(model, _DTYPES[rounded], adapter=initial.kind == "adapter")
    return model.to(device).eval().requires_grad_(False)
