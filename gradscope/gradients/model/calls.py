"""How a model of any class is called: the arguments that it takes, and temporary changes to its modules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import torch

_CHECKPOINTING = "gradient_checkpointing"


def forward_arguments(model: Any) -> frozenset[str]:
    """Names of the arguments of a model's forward pass."""
    return _parameters(type(without_adapter(model)).forward)


def without_adapter(model: Any) -> Any:
    """The model inside PEFT's wrapper, where there is one."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def call_on(model: Any, ids: torch.Tensor) -> Any:
    """A model's output for rows of ids, [B, S], without a cache."""
    options = {"use_cache": False} if "use_cache" in forward_arguments(model) else {}
    with without_checkpointing(model):
        return model(input_ids=ids, attention_mask=torch.ones_like(ids), **options)


@contextmanager
def without_checkpointing(model: Any) -> Iterator[None]:
    """Switch off gradient checkpointing, which transformers does in training mode.

    A forward pass that runs again within the backward pass would be seen twice by every hook, and the reentrant kind
    knows no gradients of chosen tensors.
    """
    switched = [module for module in model.modules() if module.training and getattr(module, _CHECKPOINTING, False)]
    for module in switched:
        setattr(module, _CHECKPOINTING, False)
    try:
        yield
    finally:
        for module in switched:
            setattr(module, _CHECKPOINTING, True)


@contextmanager
def exchanged_forward(module: Any, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace a module's forward for a while; a forward of the instance's own is restored."""
    before = vars(module).get("forward")
    vars(module)["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del vars(module)["forward"]
        else:
            vars(module)["forward"] = before


@contextmanager
def removed_later(handles: Iterable[Any]) -> Iterator[None]:
    """Keep hooks on for a while."""
    installed = list(handles)
    try:
        yield
    finally:
        for handle in installed:
            handle.remove()


@lru_cache
def _parameters(forward: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters)


def uses_tf32(device: torch.device) -> bool:
    """Whether float32 products on a device may round their factors to TF32, by PyTorch's setting of this moment."""
    return device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"


def exact_products(first: torch.dtype, second: torch.dtype) -> AbstractContextManager[None]:
    """Let float32 products of numbers that came from half precision be made on a GPU's tensor cores.

    bfloat16 has 8 bits of mantissa and float16 has 11, as has TensorFloat-32: nothing is rounded on the way in, and
    sums are float32 either way. With any other numbers the products stay as they are. The arguments say what either
    factor was in before it became float32.
    """
    are_half = {first, second} <= {torch.bfloat16, torch.float16}
    is_exact = torch.get_float32_matmul_precision() == "highest"
    return _products("high") if is_exact and are_half else nullcontext()


def without_tf32() -> AbstractContextManager[None]:
    """Keep float32 products float32; PyTorch's settings come back afterwards."""
    return _products("highest")


def finer_products(dtype: torch.dtype) -> AbstractContextManager[None]:
    """Float32 products that are finer than those of a dtype: of bfloat16's 8 bits of mantissa TF32's 11 are enough."""
    return _products("high" if dtype == torch.bfloat16 else "highest")


@contextmanager
def _products(precision: str) -> Iterator[None]:
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = precision != "highest"
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions
