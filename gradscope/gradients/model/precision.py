"""Which arithmetic float32 products use: their own, or TensorFloat-32 (10 bits of mantissa) where a GPU was told so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def uses_tf32(device: torch.device) -> bool:
    """Whether float32 products on a device may round their factors to TF32, by PyTorch's setting of this moment."""
    return device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"


@contextmanager
def exact_products(first: torch.dtype, second: torch.dtype) -> Iterator[None]:
    """Let float32 products of numbers that came from half precision be made on a GPU's tensor cores.

    bfloat16 has 8 bits of mantissa and float16 has 11, as has TensorFloat-32: nothing is rounded on the way in, and
    sums are float32 either way. With any other numbers the products stay as they are.

    Args:
        first: What one factor was in before it became float32.
        second: What the other was in.

    Yields:
        Nothing.
    """
    before = torch.get_float32_matmul_precision()
    if before != "highest" or not {first, second} <= {torch.bfloat16, torch.float16}:
        yield
        return
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def without_tf32() -> Iterator[None]:
    """Keep float32 products float32; PyTorch's settings come back afterwards."""
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions
