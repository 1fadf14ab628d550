"""How many padded tokens one forward pass may have: a first guess, halved where memory runs out, and then said so."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

from gradscope.errors import InputError
from gradscope.gradients.model.batches import default_batch_tokens
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.processes.group import from_all, num_connected
from gradscope.progress import NoticeCallback, no_notice

LAYER_VALUES = 34
"""Numbers that a layer's backward pass keeps, per token and unit of width: twice the 17 of Korthikanti et al. 2022
(dropout masks in, attention scores out), for gated layers and the inputs that ``stream`` takes."""
LOGIT_COPIES = 5
"""Float32 copies of a token's logits that exist at one time."""
MOST_CUDA_TOKENS = 65536
"""The largest guess."""

_HINT = "Use a machine with more memory (--device cpu where the GPU has less), or --dtype bfloat16."

_AUTO, _GIVEN = "--batch-tokens auto, or a number", "--batch-tokens with a number"
"""Several processes cannot begin again: one that runs out of memory leaves the others in a pass."""
_ERRORS = (RuntimeError, MemoryError)
"""The types that :func:`is_out_of_memory` looks at: CUDA's error is a ``RuntimeError`` too."""

Made = TypeVar("Made")


class TokenBudget:
    """Padded tokens of one forward pass.

    Args:
        tokens: The first guess.
        fixed: Whether running out of memory is an error instead of a reason to halve it.
        notice: Told when it is halved.
    """

    def __init__(self, tokens: int, *, fixed: bool = False, notice: NoticeCallback = no_notice) -> None:
        self.tokens = tokens
        """Most padded tokens of a batch, as of now; a longer row is a batch of its own."""
        self.notes: list[str] = []
        """What was halved, in sentences."""
        self._fixed, self._notice = fixed, notice

    def fit(self, lengths: Sequence[int], attempt: Callable[[int], Made]) -> Made:
        """The result of an attempt that fits; each begins anew, so nothing of one that did not fit is left.

        Returns:
            What the first attempt that fits returns.

        Raises:
            InputError: One row alone does not fit, or the budget is fixed.
        """
        longest, whole = max(lengths), max(lengths) * len(lengths)
        while True:
            try:
                return attempt(self.tokens)
            except _ERRORS as error:
                if not is_out_of_memory(error):
                    raise
                if self.tokens <= longest:
                    raise InputError(f"Memory ran out on one rollout of {longest} tokens alone.", hint=_HINT) from error
                if self._fixed:
                    raise InputError(
                        f"Memory ran out at {self.tokens} tokens a batch.",
                        hint=f"Use {_AUTO if num_connected() == 1 else _GIVEN} below {min(self.tokens, whole)}.",
                    ) from error
            self._halve(longest, whole)  # outside, where the error and the frames that it held are gone

    def _halve(self, longest: int, whole: int) -> None:
        if torch.cuda.is_available():
            gc.collect()
            torch.cuda.empty_cache()
        before, self.tokens = self.tokens, max(longest, min(self.tokens, whole) // 2)
        self.notes.append(f"Memory ran out at {before} tokens a batch; went on with {self.tokens}.")
        self._notice(self.notes[-1])


def first_batch_tokens(policy: MeasuredPolicy) -> int:
    """The first guess: on CUDA from the memory that is free, in the process that has least; on the CPU a constant."""
    if policy.device.type != "cuda":
        return default_batch_tokens(policy.vocab_size)
    free, _ = torch.cuda.mem_get_info(policy.device)
    cached = torch.cuda.memory_reserved(policy.device) - torch.cuda.memory_allocated(policy.device)
    config = policy.model.config.get_text_config()
    num_layers, width = (getattr(config, name, None) for name in ("num_hidden_layers", "hidden_size"))
    if num_layers is None or width is None:  # a model of several stacks
        return default_batch_tokens(policy.vocab_size)
    return tokens_that_fit(
        min(from_all(free + cached)),
        vocab_size=policy.vocab_size,
        num_layers=num_layers,
        width=width,
        itemsize=policy.dtype.itemsize,
    )


def tokens_that_fit(free_bytes: int, *, vocab_size: int, num_layers: int, width: int, itemsize: int) -> int:
    """Tokens whose forward and backward pass takes about half of the free memory.

    Args:
        vocab_size: V.
        itemsize: Bytes of a number of the model.

    Returns:
        A rough count, for :class:`TokenBudget` to correct.

    Example:
        >>> tokens_that_fit(120 * 2**30, vocab_size=151936, num_layers=36, width=2560, itemsize=2)
        6923
    """
    per_token = LOGIT_COPIES * 4 * vocab_size + LAYER_VALUES * num_layers * width * itemsize
    return min(MOST_CUDA_TOKENS, max(1, free_bytes // (2 * per_token)))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says so: CUDA's, Python's, or that of PyTorch's CPU allocator, which has no type."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


@contextmanager
def names_out_of_memory(what: str) -> Iterator[None]:
    """Turn running out of memory into an error that says on what.

    Raises:
        InputError: Memory ran out.
    """
    try:
        yield
    except _ERRORS as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(f"Memory ran out on {what}.", hint=_HINT) from error
