"""Hooks: each call of a layer is joined with the gradient of its output, and handed on when its parameter is complete.

Weight gradients stay off. The hooks take a layer's input in the forward pass and the gradient of its output in the
backward pass; they are joined per call, not by a stack, so modules may be called many times and in any order. Once all
calls with a parameter have arrived (a tied weight has several), its factors go to the sink and can be dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.cache_utils import Cache

from gradscope.gradients.layers.factors import GradientFactor, HeadProduct, LayerCall, begin_graph
from gradscope.gradients.layers.rules import is_id_lookup, returned_by
from gradscope.gradients.layers.trace import CoveredLayers, decoder_layers
from gradscope.gradients.model.batches import PaddedBatch
from gradscope.gradients.model.calls import exchanged_forward, removed_later
from gradscope.gradients.model.head import HeadTokens, PlainHead, Watch, plain_head

# Decoder layers that store only the input of their forward pass, and run again within the backward pass.
#
# A backward pass holds the activations of every layer: in bfloat16 some 10 MB a token of a model of 8 billion
# parameters. A layer that runs again holds its input, and all the rest for itself alone. That is PyTorch's reentrant
# checkpoint: the first run builds no graph, the second one, layer by layer, does, and its hooks see the inputs of the
# second run.
#
# A layer is left as it is where a second run would not be the first one: where it is given anything but numbers,
# tensors without a gradient, and a cache, which is put back after each run.
Run = Callable[[Callable[[], Any]], Any]  # runs a layer and returns what it returns


@contextmanager
def recomputed(layers: Sequence[nn.Module], run: Run) -> Iterator[None]:
    """Let layers run again within the backward pass of the forward pass that runs inside; leave it after that.

    Args:
        layers: Called one after the other, the hidden state first among their arguments.
        run: Around each of a layer's runs, without a graph at first.
    """
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(exchanged_forward(layer, _recomputing(layer.forward, run)))
        yield


def share_nothing(layers: Sequence[nn.Module]) -> bool:
    """Whether no parameter is in two layers: the gradient of a shared one comes in parts when both run again."""
    ids = [id(parameter) for layer in layers for parameter in layer.parameters()]
    return len(ids) == len(set(ids))


def _recomputing(forward: Callable[..., Any], run: Run) -> Callable[..., Any]:
    def recomputing(*arguments: Any, **keywords: Any) -> Any:
        extra_inputs = (*arguments[1:], *keywords.values())
        if not torch.is_grad_enabled() or not arguments or not all(map(_is_repeatable, extra_inputs)):
            return forward(*arguments, **keywords)

        def once(inputs: torch.Tensor) -> Any:
            caches = [value for value in extra_inputs if isinstance(value, Cache)]
            entries = [(entry, dict(vars(entry))) for cache in caches for entry in cache.layers]
            try:
                return run(lambda: forward(inputs, *arguments[1:], **keywords))
            finally:  # undo the layer's additions to a cache: no other layer reads them
                for entry, values in entries:
                    vars(entry).update(values)

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


Sink = Callable[[str, list[GradientFactor]], None]
"""Called with a parameter's name and the factors of all calls with it."""


class Capture:
    """Collects the contributions of rows to each parameter, batch by batch.

    Args:
        trainable: Name -> parameter, tied parameters once.
        recompute: Whether decoder layers run again in the backward pass instead of keeping their activations.
    """

    def __init__(self, model: nn.Module, trainable: Mapping[str, nn.Parameter], *, recompute: bool = False) -> None:
        self._layers = CoveredLayers(model, trainable)
        head = plain_head(model)
        self.head = head if head is not None and head.module in self._layers.owned else None
        """The output layer where it runs in slices and a rule covers it; None where it is hooked as any other."""
        self._batch: PaddedBatch | None = None
        self._expected: dict[str, int] = defaultdict(int)
        self._arrived: dict[str, list[GradientFactor]] = defaultdict(list)
        self._sink: Sink | None = None
        self.recompute = recompute  # whether decoder layers run again
        self._recomputed = decoder_layers(model) if recompute else ()
        self._is_counted = False

    @property
    def uncovered(self) -> set[str]:
        """Names of the parameters that must be computed another way."""
        return self._layers.uncovered

    @property
    def sliced(self) -> frozenset[str]:
        """Names of the parameters of an output layer in slices."""
        return frozenset() if self.head is None else frozenset(self._layers.owned[self.head.module].values())

    @property
    def watch(self) -> Watch | None:
        """The observer of an output layer in slices during a pass; None where that layer is hooked as any other."""
        return None if self.head is None else self._join_head

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Keep the hooks on."""
        handles = []
        for module in self._layers.owned:
            if self.head is not None and module is self.head.module:
                continue
            if is_id_lookup(module):
                handles.append(module.register_forward_pre_hook(self._expand_ids))
            handles.append(module.register_forward_hook(self._take))
        with removed_later(handles), recomputed(self._recomputed, self._run):
            yield

    @contextmanager
    def batch(self, batch: PaddedBatch, sink: Sink) -> Iterator[None]:
        """Collect the forward and backward pass that run inside.

        A parameter of which not every call got a gradient is uncovered from here on: it must be computed another way.
        """
        self._batch, self._sink = batch, sink
        self._expected.clear()
        self._arrived.clear()
        for name in self.sliced:
            self._expected[name] += 1
        try:
            yield
            self._layers.settle()
            covered = {name for owned in self._layers.owned.values() for name in owned.values()}
            delivered = {name for name in covered if self._expected[name] < 0}
            self.uncovered.update(covered - delivered)
        finally:
            self._batch = self._sink = None
            self._arrived.clear()

    def _expand_ids(self, module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Give every row its own lookup where one serves all (positions in GPT-2), so rows stay apart."""
        if self._batch is None or self._layers.asks or not arguments or not isinstance(arguments[0], torch.Tensor):
            return None
        ids, num_rows = arguments[0], len(self._batch.rows)
        if ids.dim() == 2 and ids.shape[0] == 1 < num_rows:
            return (ids.expand(num_rows, -1), *arguments[1:])
        return None

    def _take(self, module: nn.Module, arguments: tuple[Any, ...], returned: Any) -> torch.Tensor | None:
        """Record one call, and return the replacement of its output."""
        if self._batch is None or self._layers.asks:
            return None
        owned = self._layers.covered_by(module)
        if not owned:
            return None
        output = returned_by(module, returned)
        if not self._is_counted:
            num_rows, length = len(self._batch.rows), self._batch.length
            if not self._layers.accept(module, arguments, output, num_rows=num_rows, length=length):
                return None
            for name in owned.values():
                self._expected[name] += 1
        if not torch.is_grad_enabled():
            return None  # the layer around it will run again
        graph_start = begin_graph(output, returned)
        batch, (hidden, *extra) = self._batch, [part.detach() for part in arguments]

        def join(grad: torch.Tensor) -> None:
            self._layers.settle()
            if self.uncovered.issuperset(owned.values()):
                return
            call = LayerCall(
                module=module,
                input=hidden,
                extra=tuple(extra),
                grad=grad.detach(),
                # rows in the trainer's padding are there because the model reads it: gradients reach it too
                spans=((0, batch.length),) * len(batch.rows) if batch.position_ids is None else batch.spans,
                length=batch.length,
            )
            self._deliver(owned, self._layers.ask(lambda: self._layers.rules[module].factors(call)))

        output.register_hook(join)
        return graph_start

    def _run(self, layer: Callable[[], Any]) -> Any:
        """One run of a layer that has two: the first counts its calls, the second, with a graph, takes them."""
        before, self._is_counted = self._is_counted, torch.is_grad_enabled()
        try:
            return layer()
        finally:
            self._is_counted = before

    def _join_head(self, head: PlainHead, tokens: HeadTokens) -> None:
        assert self._batch is not None, "only told of batches"
        rows = tokens.split(self._batch.num_completion)
        weight, bias = (HeadProduct(head=head, tokens=rows, is_bias=is_bias) for is_bias in (False, True))
        self._deliver(self._layers.covered_by(head.module), {"weight": weight, "bias": bias})

    def _deliver(self, owned: Mapping[str, str], factors: Mapping[str, GradientFactor]) -> None:
        """Add one call's contributions to its parameters; pass on the parameters that are then complete."""
        for local, name in owned.items():
            self._arrived[name].append(factors[local])
            self._expected[name] -= 1
            if self._expected[name] == 0 and name not in self.uncovered:
                self._expected[name] = -1
                assert self._sink is not None, "gradients arrive while a batch is collected"
                self._sink(name, self._arrived.pop(name))
