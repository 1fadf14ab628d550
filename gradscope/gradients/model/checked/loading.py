"""What a loader raises over somebody's files, as an error of the input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open

from gradscope.errors import InputError

_REFUSED = (
    *(OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, ImportError),
    *(RuntimeError, SafetensorError, StrictDataclassError),
)
"""What transformers and PEFT raise where a configuration says what none can."""
UNREADABLE = "weights_unreadable"
"""The cause of an error over weights that are there and cannot be used."""
_SHOWN = 300


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says so: CUDA's, Python's, or that of PyTorch's CPU allocator, which has no type."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


@contextmanager
def refusing(what: str, hint: str | None = None) -> Iterator[None]:
    """Turn what a loader raises into an error that names the folder; running out of memory stays what it is.

    Args:
        what: What goes before the loader's own words: "<folder> does not load as a tokenizer".
        hint: The next step.

    Raises:
        InputError: The loader gave up.
    """
    try:
        yield
    except Exception as error:
        of_files = isinstance(error, _REFUSED) or type(error) is Exception  # tokenizers has no type of its own
        if not of_files or is_out_of_memory(error):
            raise
        words = " ".join(str(error).split())[:_SHOWN] or type(error).__name__
        raise InputError(f"{what}: {words}", hint=hint, cause=UNREADABLE) from error


@contextmanager
def opened_tensors(file: Path) -> Iterator[Any]:
    """A file of tensors.

    Yields:
        The file, open.

    Raises:
        InputError: It is no safetensors, or a tensor that is asked of it is not as its header says.
    """
    again = "Save it again with save_pretrained()."
    with refusing(f"{file} cannot be read", again), safe_open(file, "pt") as tensors:
        yield tensors
