"""What a loader raises over somebody's files, as an error of the input."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers.utils import logging as progress

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


@contextmanager
def quiet() -> Iterator[None]:
    """Without what loaders print and warn of: what matters of it is checked here."""
    bars = progress.is_progress_bar_enabled()
    loggers = [logging.getLogger(name) for name in ("transformers", "peft")]
    levels = [logger.level for logger in loggers]
    try:
        progress.disable_progress_bar()
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            progress.enable_progress_bar()
