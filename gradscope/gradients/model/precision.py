"""Which arithmetic float32 products use: their own, or TensorFloat-32 (10 bits of mantissa) where a GPU was told so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def uses_tf32(device: torch.device) -> bool:
    """Whether float32 products on a device may round their factors to TF32, by PyTorch's setting of this moment."""
    return device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"


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
