"""Engine ``prompt``: the rollouts of a group share their prompt, so it runs, and its activations are held, once.

All of the prompt but its last token is the prefix. It runs once; the completions, each behind the prompt's last token,
which predicts their first, run on its keys and values, expanded to all rows. Their backward pass ends in cotangents of
those keys and values, one set a row, and these go down the one graph of the prefix. What a row adds to a parameter is
the sum of both parts. The forward pass is shared; the backward pass and the weight gradients stay per row, for their
cotangents differ.

Shapes: R rows of a group, N rows of the step, B rows of a batch, Q tokens of the prefix, H width, L decoder layers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace
from transformers import DynamicCache

from gradscope.errors import UsageError
from gradscope.gradients.engines import stream
from gradscope.gradients.engines.loop import GramAccumulator
from gradscope.gradients.layers.capture import Capture
from gradscope.gradients.layers.factors import GradientFactor
from gradscope.gradients.layers.rules import waits_for_tokens
from gradscope.gradients.layers.trace import TracedCall, Tracer, decoder_layers
from gradscope.gradients.model.batches import PaddedBatch, pad_batch, split_rows
from gradscope.gradients.model.calls import forward_arguments, without_checkpointing
from gradscope.gradients.model.passes import Past, gradients_on
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.plan.rows import RowPlan

# The prefix of a group: one forward pass, whose graph many rows' cotangents go down.
#
# The graph is cut at the decoder layers. A layer gets, row by row, the cotangent of the hidden state that comes from
# the layer above and that of the keys and values that the completions read; the output gradients of its modules exist
# for all rows of that one layer, and only the hidden state's cotangents go on. Any attention kernel serves.
_NEEDS = (
    "The engine `prompt` needs a model that keeps the keys and values of all tokens for each decoder layer; this one "
    "does not."
)
_HINT = "Use --engine stream."

KeysAndValues = tuple[torch.Tensor, torch.Tensor]  # of one decoder layer, [rows, heads, Q, width of a head] each


def can_share(model: Any) -> bool:
    """Whether all layers of a model attend and can be expected to keep keys and values of all tokens."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ("full_attention",))
    return (
        {"past_key_values", "logits_to_keep"} <= forward_arguments(model)
        and len(decoder_layers(model)) > 0
        and kinds <= {"full_attention", "sliding_attention"}
        and not getattr(config, "num_kv_shared_layers", 0)
        and not waits_for_tokens(model)  # the shared prefix may contain those
    )


class _Prefix:
    """The forward pass that the rows of a group share, and the cotangents that they have left on it."""

    def __init__(self, model: Any, tracer: Tracer, ids: Sequence[int], device: torch.device) -> None:
        if not can_share(model):
            raise UsageError(_NEEDS, hint=_HINT)
        self._layers, self._length = tracer.layers, len(ids)
        self._expanded: list[list[KeysAndValues]] = []
        cache = DynamicCache()
        with tracer.recording(self._length) as self._trace, without_checkpointing(model):
            # one row of logits, for no token is predicted from the prompt; they get no gradient
            model(input_ids=torch.tensor([ids], device=device), past_key_values=cache, use_cache=True, logits_to_keep=1)
        self._past = [(layer.keys, layer.values) for layer in cache.layers]
        is_complete = len(self._past) == len(self._trace.cuts) - 1 and all(
            isinstance(part, torch.Tensor) and part.dim() == 4 and part.shape[2] == self._length
            for pair in self._past
            for part in pair
        )
        if not self._trace.is_cut or not is_complete:  # some layer left no keys and values of all tokens
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
        """Send the cotangents of all batches down the prefix."""
        segments, owned = self._trace.segments, self._layers.owned
        names = [[name for call in calls for name in owned[call.module].values()] for calls in segments]
        last = {name: segment for segment in reversed(range(len(segments))) for name in names[segment]}
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

    def _through(
        self, segment: int, hidden: torch.Tensor | None, calls: Sequence[TracedCall]
    ) -> tuple[torch.Tensor | None, list[torch.Tensor | None]]:
        """All rows through one segment: the cotangents of the hidden state below, and of the calls' outputs."""
        cuts = self._trace.cuts
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        if hidden is not None:
            pairs.append((cuts[segment], hidden))
        if segment > 0:
            pairs += [pair for pair in self._cached_pairs(segment - 1) if pair[0].requires_grad]
        continues = segment > 0 and cuts[segment - 1].requires_grad
        targets = [*([cuts[segment - 1]] if continues else []), *(call.output for call in calls)]
        if not pairs or not targets:
            return None, [None] * len(calls)
        outputs, num_rows = [output for output, _ in pairs], len(pairs[0][1])
        stacked: list[torch.Tensor | None] = [None] * len(targets)
        for row in range(num_rows):
            grads: Sequence[torch.Tensor | None] = torch.autograd.grad(
                outputs,
                targets,
                [cotangents[row] for _, cotangents in pairs],
                retain_graph=row < num_rows - 1,
                allow_unused=True,
            )
            for index, grad in enumerate(grads):
                if grad is not None:
                    rows = stacked[index]
                    rows = grad.new_empty(num_rows, *grad.shape) if rows is None else rows
                    rows[row], stacked[index] = grad, rows
        return (stacked.pop(0) if continues else None), stacked

    def _cached_pairs(self, layer: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of a layer, each with its cotangents of all rows."""
        for kind in (0, 1):  # keys, values
            leaves = [expanded[layer][kind] for expanded in self._expanded]
            parts = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
            yield self._past[layer][kind], torch.cat(parts).unsqueeze(1)


MIN_SHARED = 0.1
"""Share of a plain pass that running each prompt once must save to be worth it: 0.04 was measured to save nothing."""
MIN_PREFIX = 128  # tokens that a prompt must have for it: a shorter one costs less than the bookkeeping


class _PromptGroup(Struct, frozen=True, kw_only=True):
    """Rows that share their prompt."""

    rows: tuple[int, ...]  # their indices among the step's rows, [R]
    prompt_ids: tuple[int, ...]  # the prompt that they share

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        """The part of the prompt that runs once: its last token predicts the completions' first and runs with them."""
        return self.prompt_ids[:-1]


def _group_by_prompt(plan: RowPlan) -> tuple[_PromptGroup, ...]:
    """The rows by the ids of their prompts, whatever groups the log put them in, in order of first rows."""
    rows: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, row in enumerate(plan.rows):
        rows[plan.sequences[row.sequence].prompt_ids].append(index)
    return tuple(_PromptGroup(rows=tuple(indices), prompt_ids=prompt_ids) for prompt_ids, indices in rows.items())


def is_worth_sharing(plan: RowPlan, *, weight_gradients: bool) -> bool:
    """Whether running each prompt once saves enough of a plain pass, and prompts are long: picks ``prompt``."""
    if any(sequence.frame for sequence in plan.sequences):
        return False  # each prompt starts at a position of its own
    groups = _group_by_prompt(plan)
    mean_prefix = sum(len(group.prefix_ids) for group in groups) / len(groups)
    return mean_prefix >= MIN_PREFIX and _frac_shared(plan, weight_gradients=weight_gradients) >= MIN_SHARED


def _frac_shared(plan: RowPlan, *, weight_gradients: bool) -> float:
    """The share of a plain forward and backward pass that running each prompt once saves."""
    # A token costs one unit forward, one backward, and one for the gradients of the weights where these are large; only
    # the forward pass of prompts is shared, so the share is below 1/3 (1/2 for adapters).
    tokens = sum(plan.sequences[row.sequence].length for row in plan.rows)
    saved = sum((len(group.rows) - 1) * len(group.prefix_ids) for group in _group_by_prompt(plan))
    return saved / ((3 if weight_gradients else 2) * tokens) if tokens else 0.0


PREFIX_SHARE = 4
"""As many expanded tokens of the prefix, of which only keys and values exist, count as one token of a batch."""
CPU_TOKENS = 1024
"""Most tokens of a batch of completions on a CPU, where larger ones hold more memory and are not faster."""


def prompt_gram(
    prepared: PreparedStep,
    batch_tokens: int,
    accumulator: GramAccumulator,
    on_sequence: stream.OnSequence,
    on_rounds: stream.OnRounds = lambda _: None,
) -> frozenset[str]:
    """Add the Gram of all parameters that a layer rule covers. Returns the names of the others.

    ``on_sequence`` is called in every round, ``on_rounds`` with the number of rounds. Parts that wait for other groups
    take the budget's memory; the rest goes to a temporary file, of at most half of the free disk space a round.
    Where the budget says so, decoder layers run again in the backward pass instead of keeping their activations.

    Raises:
        UsageError: The model's output depends on the padding before a prompt.
    """
    policy, plan = prepared.policy, prepared.plan
    if any(sequence.frame for sequence in plan.sequences):
        raise UsageError(
            "The engine `prompt` runs each prompt once, and this model sees the padding before it.",
            hint="Use --engine stream.",
        )
    capture = Capture(policy.model, policy.trainable, recompute=prepared.budget.recompute)
    tracer = Tracer(policy.model, policy.trainable, plan.objective.temperature)
    groups = _group_by_prompt(plan)
    remaining, waits, pending_bytes = policy.trainable, len(groups) > 1, prepared.budget.pending_bytes
    while remaining:
        with stream.PendingParts(remaining, accumulator, waits=waits, max_pending_bytes=pending_bytes) as pending:
            for number, group in enumerate(groups):
                batches = _completion_batches(plan, group, batch_tokens, accumulator.device)
                with gradients_on(policy.trainable, on=False):
                    prefix = _run_group(prepared, group, batches, capture, tracer, pending, on_sequence)
                rows = [row for batch in batches for row in batch.rows]
                for complete, added in prefix.descend() if prefix else ():
                    for name, factors in added.items():
                        pending.take(name, rows, factors)
                    for name in complete - capture.uncovered if not waits else ():
                        pending.combine(name)
                if number == 0:
                    shares = stream.share_of_first([batch_group.rows for batch_group in groups], plan)
                    on_rounds(pending.defer_oversized(*shares))
            pending.combine_all(capture.uncovered)
        remaining = {name: part for name, part in pending.left.items() if name not in capture.uncovered}
    return frozenset(capture.uncovered)


def _run_group(
    prepared: PreparedStep,
    group: _PromptGroup,
    batches: Sequence[PaddedBatch],
    capture: Capture,
    tracer: Tracer,
    pending: stream.PendingParts,
    on_sequence: stream.OnSequence,
) -> _Prefix | None:
    """The prefix of a group, with the cotangents that its completions left on it; None where it has none."""
    device = batches[0].input_ids.device
    prefix = _Prefix(prepared.policy.model, tracer, group.prefix_ids, device) if group.prefix_ids else None
    capture.uncovered.update(tracer.layers.uncovered)
    for batch in batches:

        def take(name: str, factors: list[GradientFactor], rows: tuple[int, ...] = batch.rows) -> None:
            pending.take(name, rows, factors)

        pending.trim_memory()
        past = prefix.expanded(len(batch.rows)) if prefix else None
        stream.capture_batch(prepared, batch, capture, take, on_sequence, past)
    return prefix


def _completion_batches(
    plan: RowPlan, group: _PromptGroup, batch_tokens: int, device: torch.device
) -> list[PaddedBatch]:
    """The completions of a group, each behind the last token of its prompt, every row in one batch."""
    inputs = [replace(plan.sequences[plan.rows[row].sequence], prompt_ids=group.prompt_ids[-1:]) for row in group.rows]
    expanded = len(group.prefix_ids) // PREFIX_SHARE
    max_tokens = min(batch_tokens, CPU_TOKENS) if device.type == "cpu" else batch_tokens
    return [
        pad_batch([group.rows[i] for i in part], [inputs[i] for i in part], device)
        for part in split_rows([sequence.length + expanded for sequence in inputs], max_tokens)
    ]
