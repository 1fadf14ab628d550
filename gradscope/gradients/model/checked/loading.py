"""What a loader raises over somebody's files, as an error of the input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from gradscope.errors import InputError
from gradscope.gradients.model.budget import is_out_of_memory

_REFUSED = (
    *(OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, ImportError),
    *(RuntimeError, SafetensorError, StrictDataclassError),
)
"""What transformers and PEFT raise where a configuration says what none can."""
_SHOWN = 300


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
    except _REFUSED as error:
        if is_out_of_memory(error):
            raise
        words = " ".join(str(error).split())[:_SHOWN] or type(error).__name__
        raise InputError(f"{what}: {words}", hint=hint) from error
