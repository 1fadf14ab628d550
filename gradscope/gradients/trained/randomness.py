"""Random numbers in the forward pass of training: dropout, a router's jitter. Such a gradient cannot be had again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from gradscope.gradients.model.batches import pad_batch
from gradscope.gradients.model.forward import completion_logprobs
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.model.token_sequence import TokenSequence

_MOST_TOKENS = 16
"""Tokens of a prompt, and of a completion, that the model is asked about: what it draws, it draws for each."""


def is_random(policy: MeasuredPolicy, sequence: TokenSequence, *, without_dropout: bool) -> bool:
    """Whether two forward passes of training would differ.

    The model itself is asked, in training mode, for what it is called differs from one architecture to the next.

    Args:
        policy: The weights.
        sequence: Any sequence that it can read.
        without_dropout: Whether TRL switched dropout off (``disable_dropout``). It switches off the modules; what a
            layer hands to a function as a number stays on.

    Returns:
        True where they would.
    """
    batch = pad_batch([0], [_piece(sequence)], policy.device)
    with torch.no_grad(), _training(policy.model, without_dropout=without_dropout):
        first, second = (_seeded(policy, batch, seed) for seed in (0, 1))
    return not torch.equal(first.nan_to_num(), second.nan_to_num())  # what overflowed is equal to itself here


def takes_random_numbers(policy: MeasuredPolicy, sequence: TokenSequence, *, without_dropout: bool) -> bool:
    """Whether a forward pass of training draws anything at all, which rarely may have changed something.

    Returns:
        True where it does; arguments are those of :func:`is_random`.
    """
    batch = pad_batch([0], [_piece(sequence)], policy.device)
    state = torch.cuda.get_rng_state if policy.device.type == "cuda" else torch.get_rng_state
    with torch.no_grad(), _training(policy.model, without_dropout=without_dropout):
        before = state()
        completion_logprobs(policy.model, batch, 1.0)
        return not torch.equal(state(), before)


def _piece(sequence: TokenSequence) -> TokenSequence:
    """The tokens around the end of a prompt; a row in a trainer's frame stays whole."""
    if sequence.frame is not None:
        return sequence
    completion_ids, mask = sequence.completion_ids[:_MOST_TOKENS], sequence.mask[:_MOST_TOKENS]
    return replace(sequence, prompt_ids=sequence.prompt_ids[-_MOST_TOKENS:], completion_ids=completion_ids, mask=mask)


def _seeded(policy: MeasuredPolicy, batch: object, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    (logprobs,) = completion_logprobs(policy.model, batch, 1.0)  # type: ignore[arg-type]
    return logprobs


@contextmanager
def _training(model: nn.Module, *, without_dropout: bool) -> Iterator[None]:
    """Training mode inside; modes, dropout and the random state come back."""
    modes = {module: module.training for module in model.modules()}
    shares = {module: module.p for module in modes if isinstance(module, nn.Dropout)}
    devices = [next(model.parameters()).device] if next(model.parameters()).is_cuda else []
    try:
        model.train()
        for dropout in shares if without_dropout else ():
            dropout.p = 0.0
        with torch.random.fork_rng(devices):
            yield
    finally:
        for dropout, share in shares.items():
            dropout.p = share
        for module, mode in modes.items():
            module.training = mode
