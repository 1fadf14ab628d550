"""Decoder layers that keep nothing of their forward pass but what goes in, and run again within the backward pass.

A backward pass holds the activations of every layer: in bfloat16 some 10 MB a token of a model of 8 billion parameters.
A layer that runs again holds its input, and all the rest for itself alone. That is PyTorch's reentrant checkpoint: the
first run builds no graph, the second one, layer by layer, does, and its hooks see the inputs of the second run.

A layer is left as it is where a second run would not be the first one: where it is given anything but numbers, tensors
without a gradient, and a cache, which is put back after each run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.cache_utils import Cache

Run = Callable[[Callable[[], Any]], Any]
"""Runs a layer and returns what it returns."""


@contextmanager
def recomputed(layers: Sequence[nn.Module], run: Run) -> Iterator[None]:
    """Let layers run again within the backward pass of the forward pass that runs inside; leave it after that.

    Args:
        layers: Called one after the other, the hidden state first among their arguments.
        run: Around each of a layer's runs, without a graph at first.

    Yields:
        Nothing.
    """
    with ExitStack() as stack:
        for layer in layers:
            before = vars(layer).get("forward")
            vars(layer)["forward"] = _again(layer.forward, run)
            stack.callback(_put_back, layer, before)
        yield


def share_nothing(layers: Sequence[nn.Module]) -> bool:
    """Whether no parameter is in two layers: the gradient of such a one comes in parts when both run again."""
    every = [id(parameter) for layer in layers for parameter in layer.parameters()]
    return len(every) == len(set(every))


def _put_back(layer: nn.Module, forward: Any) -> None:
    if forward is None:
        del vars(layer)["forward"]
    else:
        vars(layer)["forward"] = forward


def _again(forward: Callable[..., Any], run: Run) -> Callable[..., Any]:
    def recomputing(*arguments: Any, **keywords: Any) -> Any:
        given = (*arguments[1:], *keywords.values())
        if not torch.is_grad_enabled() or not arguments or not all(map(_is_repeatable, given)):
            return forward(*arguments, **keywords)

        def once(inputs: torch.Tensor) -> Any:
            with _as_it_was([value for value in given if isinstance(value, Cache)]):
                return run(lambda: forward(inputs, *arguments[1:], **keywords))

        hidden: torch.Tensor = arguments[0]
        if not hidden.requires_grad:
            hidden = hidden.detach().requires_grad_(True)  # the graph cannot start inside a run that builds none
        return checkpoint(once, hidden, use_reentrant=True)

    return recomputing


def _is_repeatable(value: Any) -> bool:
    """Whether an argument is the same at a second run, and gets no gradient from it."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_repeatable, value))
    if isinstance(value, torch.Tensor):
        return not value.requires_grad
    return value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device, Cache))


@contextmanager
def _as_it_was(caches: Sequence[Cache]) -> Iterator[None]:
    """Take back what a layer adds to a cache: no other layer reads it."""
    entries = [(entry, dict(vars(entry))) for cache in caches for entry in cache.layers]
    try:
        yield
    finally:
        for entry, values in entries:
            vars(entry).update(values)
