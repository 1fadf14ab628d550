"""How many padded tokens one forward pass may have: a first guess, halved with a message where memory runs out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from msgspec import Struct
from msgspec.structs import asdict

from gradscope.errors import InputError
from gradscope.gradients.model.batches import default_batch_tokens
from gradscope.gradients.model.checked import is_out_of_memory
from gradscope.gradients.model.head import plain_head
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.processes import all_gather, num_connected
from gradscope.progress import NoticeCallback, no_notice

LAYER_VALUES = 34
"""Numbers that a layer's backward pass keeps, per token and unit of width: twice the 17 of Korthikanti et al. 2022
(dropout masks in, attention scores out), for gated layers and the inputs that ``stream`` takes."""
LOGIT_COPIES = 5  # float32 copies of a token's logits that exist at one time, where all logits are formed
MAX_CUDA_TOKENS = 65536  # the largest guess
CPU_BYTES = 2**30
"""Memory for a batch's activations on a CPU, where larger batches are hardly faster and free memory is hard to know."""

_HINT = "Use a machine with more memory (--device cpu where the GPU has less), or --dtype bfloat16."

_AUTO, _NUMBER = "--batch-tokens auto, or a number", "--batch-tokens with a number"
"""Several processes cannot begin again: one that runs out of memory leaves the others in a pass."""
_ERRORS = (RuntimeError, MemoryError)
"""The types that :func:`is_out_of_memory` looks at: CUDA's error is a ``RuntimeError`` too."""

Made = TypeVar("Made")


ROW_BYTES = 2**30  # memory for gradient rows of all parameters
PENDING_BYTES = 2**28  # memory for parts that wait for other batches


class TokenBudget:
    """Padded tokens of one forward pass, and the memory that may be spent on top of it.

    Args:
        tokens: The first guess.
        fixed: Whether running out of memory is an error instead of a reason to halve it.
        notice: Called when it is halved.
    """

    def __init__(self, tokens: int, *, fixed: bool = False, notice: NoticeCallback = no_notice) -> None:
        self.tokens = tokens  # most padded tokens of a batch, as of now; a longer row is a batch of its own
        self.recompute = False
        """Whether decoder layers run again in the backward pass instead of keeping their activations."""
        self.row_bytes = ROW_BYTES
        """Beyond it ``stream`` is chosen in place of ``loop``, and parameters without a layer rule go in blocks."""
        self.pending_bytes = PENDING_BYTES
        """What waits beyond it goes to a temporary file; parts beyond half of the free disk take further rounds."""
        self.notes: list[str] = []  # sentences on halved batches and on work that took longer for want of memory
        self._fixed, self._notice = fixed, notice

    def fit(self, lengths: Sequence[int], attempt: Callable[[int], Made], *, recomputed: int | None = None) -> Made:
        """The result of an attempt that fits; each begins anew, so nothing of one that did not fit is left.

        Args:
            lengths: Tokens of each row.
            attempt: Called with the tokens of a batch; it reads ``recompute`` too.
            recomputed: Where layers can run again: the most tokens for which one batch of that kind is better than
                several of the other. None: they cannot.

        Raises:
            InputError: One row alone does not fit, or the budget is fixed.
        """
        longest, total = max(lengths), max(lengths) * len(lengths)
        if not self._fixed and self.tokens < total <= (recomputed or 0):
            self.tokens, self.recompute = total, True
        while True:
            try:
                return attempt(self.tokens)
            except _ERRORS as error:
                if not is_out_of_memory(error):
                    raise
                is_single = self.tokens <= longest
                if is_single and (self.recompute or recomputed is None):
                    raise InputError(f"Memory ran out on one rollout of {longest} tokens alone.", hint=_HINT) from error
                if self._fixed and not is_single:
                    raise InputError(
                        f"Memory ran out at {self.tokens} tokens a batch.",
                        hint=f"Use {_AUTO if num_connected() == 1 else _NUMBER} below {min(self.tokens, total)}.",
                    ) from error
            if torch.cuda.is_available():
                gc.collect()
                torch.cuda.empty_cache()
            before, self.recompute = self.tokens, self.tokens <= longest
            self.tokens = max(longest, min(self.tokens, total) // 2)
            retry = "layers that run again in the backward pass" if self.recompute else str(self.tokens)
            self.say(f"Memory ran out at {before} tokens a batch; went on with {retry}.")

    def say(self, note: str) -> None:
        """Say something of the resources at once, and in the result's notes."""
        self.notes.append(note)
        self._notice(note)


def first_batch_tokens(policy: MeasuredPolicy) -> int:
    """The first guess: on CUDA from the memory that is free, in the process that has least; on the CPU a constant."""
    shape = _shape(policy)
    if shape is None:  # a model of several stacks
        return default_batch_tokens(policy.vocab_size)
    if policy.device.type != "cuda":
        activations = LAYER_VALUES * shape.num_layers * shape.width * shape.itemsize  # of a token, logits left out
        return min(default_batch_tokens(shape.vocab_size), max(1, CPU_BYTES // activations))
    return _tokens_that_fit(min(all_gather(free_cuda_bytes(policy.device))), **asdict(shape))


def recomputed_tokens(policy: MeasuredPolicy) -> int:
    """Most tokens of a batch whose decoder layers had better run again than wait, in several batches, for each other.

    Pending parts move from a GPU to the CPU, and forward passes are cheap there: as many as its memory holds. On a CPU
    pairs that wait cost a few percent of a pass and layers that run again a quarter, so they do only where nothing else
    fits. A rough count; 0 on a CPU.
    """
    shape = _shape(policy)
    if shape is None or policy.device.type != "cuda":
        return 0
    return _tokens_that_fit(free_cuda_bytes(policy.device), **asdict(shape), recompute=True)


def _tokens_that_fit(
    free_bytes: int, *, vocab_size: int, num_layers: int, width: int, itemsize: int, recompute: bool = False
) -> int:
    """Tokens whose forward and backward pass takes about half of the free memory, for :class:`TokenBudget` to correct.

    >>> _tokens_that_fit(120 * 2**30, vocab_size=0, num_layers=36, width=4096, itemsize=2)
    6425
    >>> _tokens_that_fit(120 * 2**30, vocab_size=0, num_layers=36, width=4096, itemsize=2, recompute=True)
    65536
    """
    values = num_layers + 2 * LAYER_VALUES if recompute else LAYER_VALUES * num_layers
    per_token = LOGIT_COPIES * 4 * vocab_size + values * width * itemsize
    return min(MAX_CUDA_TOKENS, max(1, free_bytes // (2 * per_token)))


class _Shape(Struct, frozen=True, kw_only=True):
    """The sizes that decide how much memory a token takes."""

    vocab_size: int  # V; 0 where the output layer is computed in slices
    num_layers: int  # decoder layers
    width: int  # of the hidden state
    itemsize: int  # bytes of a number


def _shape(policy: MeasuredPolicy) -> _Shape | None:
    """The shape of a model that is one stack; None for others."""
    config = policy.model.config.get_text_config()
    num_layers, width = (getattr(config, name, None) for name in ("num_hidden_layers", "hidden_size"))
    if num_layers is None or width is None:
        return None
    vocab_size = policy.vocab_size if plain_head(policy.model) is None else 0
    return _Shape(vocab_size=vocab_size, num_layers=num_layers, width=width, itemsize=policy.dtype.itemsize)


def free_cuda_bytes(device: torch.device) -> int:
    """Bytes of a GPU that nothing holds, those included that PyTorch has reserved and does not use."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


@contextmanager
def names_out_of_memory(subject: str) -> Iterator[None]:
    """Turn running out of memory into an error that names the work.

    Raises:
        InputError: Memory ran out.
    """
    try:
        yield
    except _ERRORS as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(f"Memory ran out on {subject}.", hint=_HINT) from error
