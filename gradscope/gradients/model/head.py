"""Which models have an output layer that can be computed in slices, determined by running the model.

Configurations are not consulted. The model runs on a few tokens with numbers of our choice in place of the
layer's output, over their full range and for every id: its function of them is a scale and a soft cap, or the logits
are all formed as the model forms them. Log-probabilities, entropies and gradients of the same tokens are then held
against the model's own. Where several processes share the model, all of them ask it, and go by one answer.

Shapes: B rows, S tokens, H width, V vocabulary, N tokens, C columns of a slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from msgspec import Struct
from msgspec.structs import asdict, replace
from torch import nn

from gradscope.gradients.model.calls import call_on, exchanged_forward, without_adapter
from gradscope.gradients.model.sharding import is_distributed, is_sharding_hook, original_type, start_of_pass
from gradscope.gradients.processes import all_gather, true_in_all_processes

# The output layer in slices of the vocabulary: log-probabilities and entropies without logits of all tokens.
#
# Where the last layer is a linear one, and a model makes no more of its output than a scale and a soft cap, nothing of
# tokens x vocabulary has to exist. One pass over slices of the weight gives the log-sum-exp and, as attention gives its
# output, what the softmax pulls each hidden state by: sum_v p_v W_v, the token itself left out. With it the gradient by
# a hidden state needs no second pass,
#
#     d log p_y / dh = (1 - p_y) W_y - sum_{v != y} p_v W_v
#
# and because 1 - p_y is a sum of other tokens' shares it keeps its digits where p_y is near 1. The weight's own
# gradient takes the logits again, slice by slice.
#
# TRL and Liger have the same for the sum over tokens that training needs. Here each rollout is a row of its own, so the
# cotangents of a slice can be had for some tokens alone, and weight gradients need not be on.
SLICE_BYTES = 2**24
"""Memory for one tensor of a slice's logits on a CPU, where the few that exist at one time should stay in the cache."""
DEVICE_SLICE_BYTES = 2**28  # the same on a GPU, where small products leave it idle; not measured


class PlainHead(Struct, frozen=True, eq=False, kw_only=True):
    """A linear output layer, and the model's function of its output z: cap tanh(scale z / cap), or scale z."""

    module: nn.Linear
    scale: float  # factor on the output
    cap: float | None  # bound of the soft cap; None without one
    temperature: float = 1.0  # divisor of the logits

    @property
    def vocab_size(self) -> int:
        """V."""
        return int(self.module.weight.shape[0])

    def with_rows(self, weight: torch.Tensor, bias: torch.Tensor | None) -> PlainHead:
        """The same head of some ids alone, which count from 0, by their rows of the weight and the bias."""
        module = nn.Linear(1, 1, bias=False, device="meta")  # one without any ids would be warned of
        module.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            module.bias = nn.Parameter(bias, requires_grad=False)
        return replace(self, module=module)

    def slices(self, num_tokens: int, first: int = 0, last: int | None = None) -> Iterator[tuple[int, int]]:
        """Start and end of each slice of the vocabulary's columns, or of a part of them, for this many tokens."""
        slice_bytes = SLICE_BYTES if self.module.weight.device.type == "cpu" else DEVICE_SLICE_BYTES
        width = max(1, slice_bytes // (4 * max(1, num_tokens)))
        end = self.vocab_size if last is None else last
        for start in range(first, end, width):
            yield start, min(start + width, end)

    def logits(self, hidden: torch.Tensor, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor | float]:
        """Logits of a slice, [N, C], over the temperature, and their derivative by the layer's output."""
        weight, bias = self.module.weight.detach()[start:stop], self.module.bias
        if _multiplies_wide(hidden, weight):  # these hidden states came from the weight's dtype
            product = torch.mm(hidden.to(weight.dtype), weight.t(), out_dtype=hidden.dtype)
        else:
            product = hidden @ weight.to(hidden).t()
        return self._scaled(product, None if bias is None else bias.detach()[start:stop])

    def own_logits(self, hidden: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | float]:
        """The logit of one id a token, [N], and its derivative by the layer's output."""
        weight, bias = self.module.weight.detach()[ids], self.module.bias
        return self._scaled((hidden * weight.to(hidden)).sum(1), None if bias is None else bias.detach()[ids])

    def _scaled(self, output: torch.Tensor, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | float]:
        output = output if bias is None else output + bias.to(output)
        if self.cap is None:
            factor = self.scale / self.temperature
            return (output if factor == 1.0 else output * factor), factor
        squashed = torch.tanh(output * (self.scale / self.cap))
        return squashed * (self.cap / self.temperature), (1 - squashed * squashed) * (self.scale / self.temperature)


class HeadTokens(Struct, frozen=True, kw_only=True):
    """Tensors of tokens from which the gradient of each slice of their logits can be computed again."""

    hidden: torch.Tensor  # the layer's input, [N, H]
    ids: torch.Tensor  # the tokens, [N]
    log_total: torch.Tensor  # log-sum-exp of the logits over the temperature, [N]
    rest: torch.Tensor  # 1 - p of the token itself, [N]
    entropy: torch.Tensor  # entropy, [N]
    weights: torch.Tensor  # weights of the log-probabilities, [N]
    entropy_weights: torch.Tensor | None = None  # weights of the entropies, [N]; None: zero

    def split(self, lengths: Sequence[int]) -> tuple[HeadTokens, ...]:
        """The tokens row by row."""
        parts = {name: torch.split(value, list(lengths)) for name, value in self.tensors().items()}
        return tuple(HeadTokens(**{name: rows[row] for name, rows in parts.items()}) for row in range(len(lengths)))

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors by the names of the fields; entropy weights only where there are some."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def cotangents(self, head: PlainHead, start: int, stop: int) -> torch.Tensor:
        """The gradient of the weighed sum by the layer's output, [N, C]."""
        hidden = self.hidden.to(self.log_total.dtype)
        logits, slope = head.logits(hidden, start, stop)
        logs = logits.sub_(self.log_total.unsqueeze(1)) if head.cap is None else logits - self.log_total.unsqueeze(1)
        local, inside = _columns_in_slice(self.ids, start, stop)
        own_log = logs.gather(1, local).squeeze(1)
        share = logs.exp()
        own_grad = self.weights * self.rest
        grad = share * -self.weights.unsqueeze(1)
        if self.entropy_weights is not None:
            grad -= share * (logs + self.entropy.unsqueeze(1)) * self.entropy_weights.unsqueeze(1)
            own_grad = own_grad - self.entropy_weights * (1 - self.rest) * (own_log + self.entropy)
        grad.scatter_(1, local, torch.where(inside, own_grad.unsqueeze(1), grad.gather(1, local)))
        return grad.mul_(slope)


Watch = Callable[[PlainHead, HeadTokens], None]
"""Called within the backward pass with the contribution of a pass's tokens to the layer's parameters."""


def sliced_outputs(
    head: PlainHead,
    hidden: torch.Tensor,
    ids: torch.Tensor,
    dtype: torch.dtype,
    *,
    entropies: bool,
    watch: Watch | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of tokens and the entropies of the policy there, with their graph, [N] each.

    Args:
        head: The output layer, at a temperature.
        hidden: The layer's input where each token is predicted, [N, H].
        ids: The tokens, [N].
        dtype: Precision of the sums, float32 or float64.
        entropies: Whether entropies get a gradient too.
        watch: Called with the contribution to the layer's own parameters, which autograd is not asked for then.
    """
    if watch is not None and not hidden.requires_grad:
        hidden = hidden.detach().requires_grad_(True)  # nothing trainable led to it, as with weight gradients off
    parameters: tuple[torch.Tensor | None, ...] = (head.module.weight, head.module.bias)
    if watch is not None:
        parameters = tuple(None if parameter is None else parameter.detach() for parameter in parameters)
    result: tuple[torch.Tensor, torch.Tensor] = _Sliced.apply(  # type: ignore[no-untyped-call]
        hidden, *parameters, ids, _Call(head, dtype, entropies, watch, torch.is_grad_enabled())
    )
    return result


class _Call(NamedTuple):
    """What a call asks of the head, other than tensors; autograd does not look into it."""

    head: PlainHead
    dtype: torch.dtype
    entropies: bool
    watch: Watch | None
    has_graph: bool


class _Sliced(torch.autograd.Function):
    """Log-probabilities and entropies of tokens; both passes in slices of the vocabulary."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, ids: torch.Tensor, call: _Call
    ) -> tuple[torch.Tensor, torch.Tensor]:
        head, entropies = call.head, call.entropies
        wide = hidden.to(call.dtype)
        num_pulls = (1 + entropies) if call.has_graph and hidden.requires_grad else 0
        top, rest, moment, pull = _scan(head, wide, ids, num_pulls)
        logit, slope = head.own_logits(wide, ids)
        shifted = logit - top
        own_share = shifted.exp()
        total = rest + own_share
        log_total = top + total.log()
        entropy = total.log() - (moment + own_share * shifted) / total
        if not entropies:
            ctx.mark_non_differentiable(entropy)
        ctx.set_materialize_grads(False)
        pulls = [part.div_(total.unsqueeze(1)) for part in pull]
        ctx.save_for_backward(hidden, ids, log_total, rest / total, entropy, logit - log_total, *pulls)
        ctx.head, ctx.watch, ctx.slope, ctx.top = head, call.watch, slope, top - log_total
        return shifted - total.log(), entropy

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None, entropy_grad: torch.Tensor | None) -> Any:
        hidden, ids, log_total, rest, entropy, own_log, *pulls = ctx.saved_tensors
        head: PlainHead = ctx.head
        weights = torch.zeros_like(log_total) if grad is None else grad.to(log_total)
        tokens = HeadTokens(
            hidden=hidden.detach(),
            ids=ids,
            log_total=log_total,
            rest=rest,
            entropy=entropy.detach(),
            weights=weights,
            entropy_weights=None if entropy_grad is None else entropy_grad.to(log_total),
        )
        if ctx.watch is not None:
            ctx.watch(head, tokens)
        to_hidden = to_weight = to_bias = None
        if ctx.needs_input_grad[0]:
            own_grad, pulled = weights * rest, weights.unsqueeze(1) * pulls[0]
            if tokens.entropy_weights is not None:
                entropy_weights = tokens.entropy_weights
                own_grad = own_grad - entropy_weights * (1 - rest) * (own_log + entropy)
                pulled += entropy_weights.unsqueeze(1) * (pulls[1] + (ctx.top + entropy).unsqueeze(1) * pulls[0])
            rows = head.module.weight.detach()[ids].to(pulled)
            to_hidden = ((own_grad * ctx.slope).unsqueeze(1) * rows - pulled).to(hidden.dtype)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            to_weight, to_bias = _parameter_gradients(head, tokens)
        return to_hidden, to_weight, to_bias, None, None


def _scan(
    head: PlainHead, hidden: torch.Tensor, ids: torch.Tensor, pulls: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """One pass over the vocabulary, each token's own id left out."""
    # With m the largest logit z: m, the sums of exp(z - m) and of (z - m) exp(z - m), [N], and as many pulls as asked
    # for, the sums of exp(z - m) W and of (z - m) exp(z - m) W over the columns, times the slope of z, [N, H].
    top, _ = head.own_logits(hidden, ids)
    rest, moment = torch.zeros_like(top), torch.zeros_like(top)
    pull = [torch.zeros_like(hidden) for _ in range(pulls)]
    for start, stop in head.slices(len(hidden)):
        logits, slope = head.logits(hidden, start, stop)
        local, inside = _columns_in_slice(ids, start, stop)
        new_top = torch.maximum(top, logits.amax(1))
        shift, top = top - new_top, new_top
        scale = shift.exp()
        shifted = logits.sub_(new_top.unsqueeze(1))
        share = shifted.exp()
        share.scatter_(1, local, share.gather(1, local).masked_fill(inside, 0.0))
        moment = scale * (moment + shift * rest)
        moment += torch.linalg.vecdot(share, shifted)
        rest = scale * rest + share.sum(1)
        if not pulls:
            continue
        weight = head.module.weight.detach()[start:stop]
        if pulls == 2:
            pull[1].add_(shift.unsqueeze(1) * pull[0]).mul_(scale.unsqueeze(1))
            _add_product(pull[1], share * shifted * slope, weight)
        pull[0].mul_(scale.unsqueeze(1))
        _add_product(pull[0], share.mul_(slope), weight)
    return top, rest, moment, pull


def _parameter_gradients(head: PlainHead, tokens: HeadTokens) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The gradient of the layer's weight, [V, H], and of its bias, [V]."""
    weight, bias = head.module.weight, head.module.bias
    to_weight, to_bias = torch.empty_like(weight), None if bias is None else torch.empty_like(bias)
    wide = tokens.hidden.to(tokens.log_total.dtype)
    for start, stop in head.slices(len(wide)):
        grad = tokens.cotangents(head, start, stop)
        to_weight[start:stop] = grad.t() @ wide
        if to_bias is not None:
            to_bias[start:stop] = grad.sum(0)
    return to_weight, to_bias


def _columns_in_slice(ids: torch.Tensor, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Each id's column within a slice, any where it is outside, and whether it is inside, [N, 1]; nothing waits."""
    return (ids - start).clamp(0, stop - start - 1).unsqueeze(1), ((ids >= start) & (ids < stop)).unsqueeze(1)


def _add_product(total: torch.Tensor, shares: torch.Tensor, weight: torch.Tensor) -> None:
    """Add [N, C] times a slice of the weight, [C, H], to a sum in its own precision."""
    if _multiplies_wide(total, weight):
        torch.addmm(total, shares.to(weight.dtype), weight, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(shares, weight.to(total))


def _multiplies_wide(wide: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether products of half precision can be had in float32: the GPU's fast ones, not rounded (PyTorch 2.8)."""
    half = weight.dtype in (torch.bfloat16, torch.float16) and wide.dtype == torch.float32
    return half and wide.device.type == "cuda" and torch.__version__ >= "2.8"


_NUM_TOKENS = 3  # tokens that the model is asked about
_TINY, _HUGE, _RANGE = 2.0**-20, 2.0**40, 300.0
"""Outputs that a soft cap does not touch, that it maps to the cap, and between which it is looked at."""
_SAME = 1e-6  # relative difference of a scaled and capped number that is rounding to float32

Tail = tuple[float, float | None]  # scale and cap
_Pair = tuple[torch.Tensor, torch.Tensor]
_tails: WeakKeyDictionary[nn.Module, tuple[ReferenceType[Any], Tail | None]] = WeakKeyDictionary()
"""Output layer -> the forward pass that was asked, and its answer."""


def plain_head(model: Any) -> PlainHead | None:
    """The output layer where it can be computed in slices; None where the model itself must form all logits.

    A layer with a hook, with a replaced forward or with an adapter around it is not plain, and under autocast its
    products are the trainer's. One that FSDP shards is gathered whenever it is called. The first call for a model runs
    it twice on three tokens.
    """
    module = _output_layer(model)
    if module is None:
        return None
    base = without_adapter(model)
    forward = vars(base).get("forward", type(base))
    previous, tail = _tails.get(module, (None, None))
    if previous is None or previous() is not forward:
        tail = _tail(model, module)
        _tails[module] = (ref(forward), tail)
    return None if tail is None else PlainHead(module=module, scale=tail[0], cap=tail[1])


@contextmanager
def observed_input(head: PlainHead, observe: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Observe the layer's input, and let it return a single column, with which the model goes on.

    ``observe`` is called within the layer's call, where a sharded weight is gathered, with [B, S, H].
    """

    def note(hidden: torch.Tensor) -> torch.Tensor:
        observe(hidden)
        return start_of_pass(hidden.detach()[..., :1].clone())

    with exchanged_forward(head.module, note):
        yield


def _output_layer(model: Any) -> nn.Linear | None:
    """The layer, if it is PyTorch's own linear one, unhooked, and complete where it is called."""
    find = getattr(model, "get_output_embeddings", None)
    module = None if find is None else find()
    if not isinstance(module, nn.Linear) or original_type(module) is not nn.Linear or "forward" in vars(module):
        return None
    kind = module.weight.device.type
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    is_watched = any(not is_sharding_hook(hook) for registry in hooks for hook in registry.values())
    is_local = type(module.weight) in (nn.Parameter, torch.Tensor) or is_distributed(module.weight)
    return module if is_local and kind != "meta" and not is_watched and not torch.is_autocast_enabled(kind) else None


def _tail(model: Any, module: nn.Linear) -> Tail | None:
    """Scale and cap, if there is nothing else; every process makes the same passes and gets the same answer."""
    ids = torch.arange(1, _NUM_TOKENS + 1, device=model.get_input_embeddings().weight.device)
    ids = (ids % module.weight.shape[0]).unsqueeze(0)
    tail, *rest = all_gather(_scale_and_cap(model, module, ids))
    if tail is None or any(other != tail for other in rest):
        return None
    head = PlainHead(module=module, scale=tail[0], cap=tail[1])
    return tail if true_in_all_processes(_agrees(model, head, ids)) else None


def _scale_and_cap(model: Any, module: nn.Linear, ids: torch.Tensor) -> Tail | None:
    """The model's function of outputs of our choice, if that is a scale and a cap."""
    # of three tokens: tiny ones, huge ones, and a range, each id another number
    size, device = module.weight.shape[0], module.weight.device
    outputs = torch.empty(1, _NUM_TOKENS, size, dtype=torch.float64, device=device)
    outputs[0, 0], outputs[0, 1] = _TINY, _HUGE
    outputs[0, 2] = torch.linspace(-_RANGE, _RANGE, size, dtype=torch.float64, device=device)

    def choose(hidden: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(hidden.shape))
        return outputs.clone()

    shapes: list[tuple[int, ...]] = []
    with torch.no_grad(), exchanged_forward(module, choose):
        logits = call_on(model, ids).logits
    if shapes != [(1, _NUM_TOKENS, module.weight.shape[1])] or logits.shape != outputs.shape:
        return None
    scale, bound = float(logits[0, 0, 0]) / _TINY, float(logits[0, 1, 0])
    cap = None if abs(bound) > abs(scale) * _HUGE / 2 else bound
    if not scale or cap == 0.0:
        return None
    expected = outputs * scale if cap is None else cap * torch.tanh(outputs * (scale / cap))
    return (scale, cap) if bool(((logits - expected).abs() <= _SAME * expected.abs()).all()) else None


def _agrees(model: Any, head: PlainHead, ids: torch.Tensor) -> bool:
    """Whether a few tokens have the log-probabilities, entropies and gradients that the model's own logits give."""
    tensors: list[torch.Tensor] = []
    sliced: list[tuple[_Pair, _Pair]] = []
    eps = torch.finfo(head.module.weight.dtype).eps

    def keep(hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden.detach().requires_grad_(True)
        sliced.append(_in_slices(head, hidden[0], ids[0].to(hidden.device)))
        bias = head.module.bias
        output = nn.functional.linear(hidden, head.module.weight.detach(), None if bias is None else bias.detach())
        tensors.extend((output, hidden))
        return output.clone()

    with torch.enable_grad(), exchanged_forward(head.module, keep):
        logits = call_on(model, ids).logits[0]
    ((values, grads),), tokens = sliced, ids[0].to(logits.device)
    wide = torch.promote_types(logits.dtype, torch.float32)
    with torch.enable_grad():
        logs = torch.log_softmax(logits.to(wide), dim=-1)
        exact = logs.gather(1, tokens.unsqueeze(1)).squeeze(1), -(logs.exp() * logs).sum(1)
        exact_grads = torch.autograd.grad(_weighed(exact), tensors)
    units = 64 * torch.finfo(wide).eps if tensors[0].dtype == wide else 8 * eps  # half precision rounds each logit
    limit = units * max(1.0, float(logits.detach().abs().max()))
    return all(bool((a - b).abs().max() <= limit) for a, b in zip(values, exact, strict=True)) and all(
        bool((a - b[0]).abs().max() <= eps**0.5 * b.abs().max()) for a, b in zip(grads, exact_grads, strict=True)
    )


def _in_slices(head: PlainHead, hidden: torch.Tensor, ids: torch.Tensor) -> tuple[_Pair, _Pair]:
    """Log-probabilities and entropies of tokens, [N]; their weighed sum's gradients by output, [N, V], and input."""
    received: list[HeadTokens] = []
    hidden = hidden.detach().requires_grad_(True)
    wide = torch.promote_types(hidden.dtype, torch.float32)
    logprobs, entropies = sliced_outputs(
        head, hidden, ids, wide, entropies=True, watch=lambda _, tokens: received.append(tokens)
    )
    (to_hidden,) = torch.autograd.grad(_weighed((logprobs, entropies)), hidden)
    return (logprobs.detach(), entropies.detach()), (received[0].cotangents(head, 0, head.vocab_size), to_hidden)


def _weighed(outputs: _Pair) -> torch.Tensor:
    """Unequal weights, so that exchanged tokens are noticed."""
    logprobs, entropies = outputs
    weights = torch.arange(1, len(logprobs) + 1, device=logprobs.device).to(logprobs)
    return (weights * (logprobs - entropies.flip(0) / 2)).sum()
