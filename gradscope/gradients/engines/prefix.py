"""The prefix of a group: one forward pass, whose graph many rows' cotangents go down.

The graph is cut at the decoder layers. A layer gets, row by row, the cotangent of the hidden state that comes from the
layer above and that of the keys and values that the completions read; the output gradients of its modules exist for all
rows of that one layer, and only the hidden state's cotangents go on. Any attention kernel serves.

Shapes: B rows of a batch, R rows of the group, Q tokens of the prefix, H width, L decoder layers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import DynamicCache

from gradscope.errors import UsageError
from gradscope.gradients.layers.adapters import waits_for_tokens
from gradscope.gradients.layers.factors import GradientFactor
from gradscope.gradients.layers.trace import TracedCall, Tracer, decoder_layers
from gradscope.gradients.model.calls import activations_kept, forward_arguments
from gradscope.gradients.model.forward import Past

_NEEDS = (
    "The engine `prompt` needs a model that keeps the keys and values of all tokens for each decoder layer; this one "
    "does not."
)
_HINT = "Use --engine stream."

KeysAndValues = tuple[torch.Tensor, torch.Tensor]
"""Of one decoder layer, [rows, heads, Q, width of a head] each."""


def can_share(model: Any) -> bool:
    """Whether all layers of a model attend and can be expected to keep keys and values of all tokens."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ("full_attention",))
    return (
        {"past_key_values", "logits_to_keep"} <= forward_arguments(model)
        and len(decoder_layers(model)) > 0
        and kinds <= {"full_attention", "sliding_attention"}
        and not getattr(config, "num_kv_shared_layers", 0)
        and not waits_for_tokens(model)  # which may stand in what is shared
    )


class Prefix:
    """What the rows of a group share, and the cotangents that they have left on it.

    Args:
        model: The model; weight gradients must be off.

    Raises:
        UsageError: The model does not keep its past as keys and values of all tokens, layer by layer.
    """

    def __init__(self, model: Any, tracer: Tracer, ids: Sequence[int], device: torch.device) -> None:
        if not can_share(model):
            raise UsageError(_NEEDS, hint=_HINT)
        self._layers, self._length = tracer.layers, len(ids)
        self._expanded: list[list[KeysAndValues]] = []
        cache = DynamicCache()
        with tracer.recording(self._length) as self._trace, activations_kept(model):
            # One row of logits, for nothing is predicted here; they get no gradient.
            model(input_ids=torch.tensor([ids], device=device), past_key_values=cache, use_cache=True, logits_to_keep=1)
        self._past = [(layer.keys, layer.values) for layer in cache.layers]
        if not self._trace.is_cut or not self._is_whole():
            raise UsageError(_NEEDS, hint=_HINT)

    def expanded(self, num_rows: int) -> Past:
        """The keys and values for a batch of B rows; its backward pass must run before ``descend``."""
        leaves = [
            (keys.detach().expand(num_rows, -1, -1, -1), values.detach().expand(num_rows, -1, -1, -1))
            for keys, values in self._past
        ]
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(leaves):
            cache.update(keys.requires_grad_(True), values.requires_grad_(True), layer)
        self._expanded.append(leaves)
        return Past(cache=cache, length=self._length)

    def descend(self) -> Iterator[tuple[set[str], dict[str, list[GradientFactor]]]]:
        """Send the cotangents of all batches down the prefix.

        Yields:
            From the top layer down: the parameters of which nothing more will come, and what the rows, batch after
            batch, add to each parameter through the prefix, [R].
        """
        segments = self._trace.segments
        last = {name: segment for segment in reversed(range(len(segments))) for name in self._names(segments[segment])}
        hidden: torch.Tensor | None = None
        for segment in reversed(range(len(segments))):
            calls = [call for call in segments[segment] if self._layers.covered_by(call.module)]
            grads: list[torch.Tensor | None] = [None] * len(calls)
            if segment <= len(self._past):  # above the last layer nothing reaches the completions
                hidden, grads = self._through(segment, hidden, calls)
            added: dict[str, list[GradientFactor]] = defaultdict(list)
            for call, grad in zip(calls, grads, strict=True):
                if grad is not None:
                    rows = call.as_rows(grad, [self._length] * len(grad), self._length)
                    factors = self._layers.rules[call.module].factors(rows)
                    for local, name in self._layers.covered_by(call.module).items():
                        added[name].append(factors[local])
            segments[segment] = []
            yield {name for name, lowest in last.items() if lowest == segment}, added

    def _is_whole(self) -> bool:
        """Whether every decoder layer left keys and values of all tokens."""
        return len(self._past) == len(self._trace.cuts) - 1 and all(
            isinstance(part, torch.Tensor) and part.dim() == 4 and part.shape[2] == self._length
            for pair in self._past
            for part in pair
        )

    def _names(self, calls: Sequence[TracedCall]) -> Iterator[str]:
        for call in calls:
            yield from self._layers.owned[call.module].values()

    def _through(
        self, segment: int, hidden: torch.Tensor | None, calls: Sequence[TracedCall]
    ) -> tuple[torch.Tensor | None, list[torch.Tensor | None]]:
        """All rows through one segment: the cotangents of the hidden state below, and of the calls' outputs."""
        cuts = self._trace.cuts
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        if hidden is not None:
            pairs.append((cuts[segment], hidden))
        if segment > 0:
            pairs += [pair for pair in self._of_past(segment - 1) if pair[0].requires_grad]
        goes_on = segment > 0 and cuts[segment - 1].requires_grad
        targets = [*([cuts[segment - 1]] if goes_on else []), *(call.output for call in calls)]
        if not pairs or not targets:
            return None, [None] * len(calls)
        grads = _row_by_row(pairs, targets)
        return (grads.pop(0) if goes_on else None), grads

    def _of_past(self, layer: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of a layer, each with its cotangents of all rows."""
        for kind in (0, 1):
            parts = [_gradient(leaves[layer][kind]) for leaves in self._expanded]
            yield self._past[layer][kind], torch.cat(parts).unsqueeze(1)


def _row_by_row(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], targets: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Gradients [R, ...] of some tensors, from pairs of an output and its cotangents [R, ...]."""
    outputs, num_rows = [output for output, _ in pairs], len(pairs[0][1])
    stacked: list[torch.Tensor | None] = [None] * len(targets)
    for row in range(num_rows):
        cotangents_of_row = [cotangents[row] for _, cotangents in pairs]
        grads: Sequence[torch.Tensor | None] = torch.autograd.grad(
            outputs, targets, cotangents_of_row, retain_graph=row < num_rows - 1, allow_unused=True
        )
        for index, grad in enumerate(grads):
            if grad is not None:
                rows = stacked[index]
                rows = grad.new_empty(num_rows, *grad.shape) if rows is None else rows
                rows[row], stacked[index] = grad, rows
    return stacked


def _gradient(leaf: torch.Tensor) -> torch.Tensor:
    """What a backward pass left on a leaf; zero where it did not reach it."""
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
