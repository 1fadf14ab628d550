"""The norm of a step's gradient by the trainer's own arithmetic: ordinary backward passes over its micro-batches.

The Gram matrix is exact in float32 and sums what one rollout gives. Two things it cannot hold: arithmetic in bfloat16
or float16, whose rounding depends on which rollouts share a batch and in which order, and a router's load-balancing
term, which is one of the entire batch. The order is not logged, so the passes run in several random orders; how far
their norms differ is how closely the logged one can be reproduced.

Facts that a folder lacks are tried against that norm: whether the padding token's embedding got a gradient depends on
when the padding token was written into the model's configuration; which tensors were frozen is not recorded, but a
frozen one is the same in every checkpoint. Either changes the norm by far more than rounding, so at most one way of
training fits what was logged.

Shapes: R rollouts of a step, N or S tokens, H width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import nn

from gradscope.gradients.model.batches import PaddedBatch, TokenSequence, pad_batch
from gradscope.gradients.model.calls import exchanged_forward, removed_later, without_adapter
from gradscope.gradients.model.passes import backpropagate, backward, completion_logprobs, own_gradients, sum_of_squares
from gradscope.gradients.model.policy import MeasuredPolicy, padding_row, token_embedding
from gradscope.gradients.model.sharding import full_tensor, local_tensor, original_type
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.plan.rows import ForwardPasses, RowPlan
from gradscope.gradients.processes import num_connected, true_in_all_processes
from gradscope.metrics.uncertainty.intervals import prediction_interval
from gradscope.rollouts.run import TrainerSettings


@contextmanager
def fused_head(model: Any, *, in_float32: bool = False) -> Iterator[None]:
    """Let a model's output layer compute as TRL's head does; one that is not a plain linear layer stays as it is.

    With ``in_float32`` its logits are not rounded either (``cast_lm_head_to_fp32``).
    """
    head = model.get_output_embeddings()
    saved = hasattr(head, "modules_to_save")  # PEFT's wrapper around the layer and its copies
    if original_type(head.original_module if saved else head) is not nn.Linear:
        yield
        return
    fixed_dtype = torch.float32 if in_float32 else None
    with exchanged_forward(head, lambda hidden: _FusedHead.apply(hidden, head.weight, head.bias, fixed_dtype)):  # type: ignore[no-untyped-call]
        yield


class _FusedHead(torch.autograd.Function):
    """hidden W' + b in the dtype of products or a given one, returned in float32; gradients are float32 products."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, fixed_dtype: torch.dtype | None
    ) -> torch.Tensor:
        kind = hidden.device.type
        dtype = fixed_dtype or (torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype)
        with torch.autocast(kind, enabled=False):
            ctx.save_for_backward(hidden, weight)
            ctx.dtype, ctx.bias_dtype = dtype, None if bias is None else bias.dtype
            logits = hidden.to(dtype) @ weight.to(dtype).t()
            return (logits if bias is None else logits + bias.to(dtype)).float()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        # the cotangent of a logit is rounded like the logit; its products are not
        rounded = grad.to(ctx.dtype).float()
        to_hidden = (rounded @ weight.to(ctx.dtype).float()).to(hidden.dtype) if ctx.needs_input_grad[0] else None
        to_weight = to_bias = None
        if ctx.needs_input_grad[1]:
            flat, inputs = rounded.flatten(0, -2), hidden.to(ctx.dtype).float().flatten(0, -2)
            to_weight = (flat.t() @ inputs).to(weight.dtype)
        if ctx.bias_dtype is not None and ctx.needs_input_grad[2]:
            to_bias = rounded.flatten(0, -2).sum(0).to(ctx.bias_dtype)
        return to_hidden, to_weight, to_bias, None


@contextmanager
def _router_losses(model: Any, losses: list[torch.Tensor]) -> Iterator[None]:
    """Let each forward pass inside return its load-balancing term, with its graph and without a coefficient."""

    def ask(_: Any, arguments: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return arguments, keywords | {"output_router_logits": True}

    def take(_: Any, arguments: Any, output: Any) -> None:
        losses.append(output.aux_loss)

    with removed_later([model.register_forward_pre_hook(ask, with_kwargs=True), model.register_forward_hook(take)]):
        yield


NUM_ORDERS = 6  # random orders that the passes run in; their standard deviation is then known to a third
_NUDGE = 2.0**-21
"""What another order of float32 sums changes in a loss, relative, and in a log-probability or an entropy, relative to
the larger of it and 1: now and then it moves a number across a tie."""
_LARGEST_SCALE = 2.0**16  # where float16's gradients are scaled from; PyTorch's own scaler begins there


class TrainerArithmetic(Struct, frozen=True, kw_only=True):
    """How a trainer computed, apart from the loss itself."""

    autocast: torch.dtype | None = None  # the dtype of its products; None: that of the weights
    micro_batch: int | None = None  # rollouts of one forward and backward pass; None: all of the step
    fused_head: bool = True
    """Whether the output layer's gradients are products in float32 (TRL's fused head) or in the dtype of the others."""
    float32_head: bool = False  # whether the fused head's logits are in float32 (``cast_lm_head_to_fp32``)
    router_coefficient: float = 0.0  # factor on the router's load-balancing term

    @classmethod
    def from_settings(cls, settings: TrainerSettings, model: object) -> TrainerArithmetic:
        """The arithmetic of a trainer's arguments, TRL's defaults where they are not known."""
        half = torch.float16 if settings.get("fp16") else torch.bfloat16 if settings.get("bf16", True) else None
        rows = settings.get("per_device_train_batch_size")
        config = model.config.get_text_config()  # type: ignore[attr-defined]
        coefficient = 0.0
        if hasattr(config, "output_router_logits"):
            configured = getattr(config, "router_aux_loss_coef", 0.0)
            coefficient = settings.get("router_aux_loss_coef", configured)
        return cls(
            autocast=half,
            micro_batch=rows if isinstance(rows, int) and rows > 0 else None,
            float32_head=bool(settings.get("cast_lm_head_to_fp32", False)),
            router_coefficient=float(coefficient),
        )

    def is_reduced(self, policy: MeasuredPolicy) -> bool:
        """Whether anything is rounded to less than float32."""
        coarsest = min(parameter.dtype.itemsize for parameter in policy.model.parameters())
        return self.autocast is not None or coarsest < torch.float32.itemsize

    @contextmanager
    def on(self, device: torch.device, model: object) -> Iterator[None]:
        """Compute inside as the trainer did."""
        head = fused_head(model, in_float32=self.float32_head) if self.fused_head else nullcontext()
        with torch.autocast(device.type, self.autocast, enabled=self.autocast is not None), head:
            yield


class TrainedNorms(Struct, frozen=True, kw_only=True):
    """Norms of one step's gradient as the trainer could have computed it."""

    dtype: str  # the dtype of the products
    norms: tuple[float, ...]  # one for each order of the rollouts
    resolution: float
    """Relative distance of two neighbouring norms: gradients in bfloat16 have their norm in bfloat16. In float32 the
    rounding of the sum of squares where that is more: 2e-5 of a table of 30 M numbers, and otherwise elsewhere."""
    num_ties: int = 0  # tokens that the orders mask or leave, as their entropies are rounded

    @property
    def mean(self) -> float:
        """The middle of the norms."""
        return sum(self.norms) / len(self.norms)

    @property
    def told_within(self) -> float:
        """Relative uncertainty of the reproduced norm: half the range in which one more order would lie."""
        low, high = prediction_interval(self.norms)
        return max((high - low) / (high + low), self.resolution) if high + low > 0 else 0.0

    @property
    def is_vague(self) -> bool:
        """Whether orders differ by so much that other weights or ids may give the logged norm as well."""
        return self.told_within > _VAGUE

    def meets(self, logged: float) -> bool:
        """Whether a logged norm is as close as it can be reproduced, and that is close enough to mean something."""
        return not self.is_vague and abs(self.mean - logged) <= self.told_within * self.mean


_VAGUE = 0.05  # a relative spread of norms; the widest of 71 runs that it fitted was 0.016


def tensor_squares(prepared: PreparedStep) -> dict[str, float]:
    """The squared norm of the step's gradient, tensor by tensor, in the arithmetic of the policy."""
    batches = prepared.batches(range(len(prepared.plan.sequences)), prepared.budget.tokens)
    with _accumulated(prepared, batches, TrainerArithmetic()) as gradients:
        return {name: float(full_tensor(gradient.double().square().sum())) for name, gradient in gradients.items()}


def trained_norms(
    prepared: PreparedStep,
    arithmetic: TrainerArithmetic,
    sampler: MeasuredPolicy | None = None,
    *,
    num_orders: int = NUM_ORDERS,
    seed: int = 0,
    entropy_rounding: float | None = None,
) -> TrainedNorms:
    """The norm of a step's gradient, its rollouts in several random orders.

    The step has its weights in the dtype that the trainer had them in. ``sampler`` has those that sampled a reused
    batch, where their log-probabilities were not logged. ``entropy_rounding`` is that of float32 where it is None.
    """
    prepared, passes = _in_trainers_rows(prepared, arithmetic, sampler)
    orders = _orders(prepared.plan, arithmetic.micro_batch, num_orders, seed)
    norms, resolution = [], min(torch.finfo(parameter.dtype).eps for parameter in prepared.policy.trainable.values())
    masks = []
    for number, order in enumerate(orders):
        noise = torch.Generator().manual_seed(seed + number)
        # entropies that are equal stay so in the first order alone
        step = _nudged(prepared, passes, noise, _NUDGE if entropy_rounding is None else entropy_rounding * (number > 0))
        masks.append(torch.cat([row != 0 for row in step.plan.weights]))
        with _accumulated(step, _chunks(step, order, arithmetic), arithmetic) as gradients:
            norms.append(_norm(gradients.values()))
            if not arithmetic.is_reduced(prepared.policy):  # how far PyTorch's norm is off the one added up in float64
                parts = (torch.linalg.vector_norm(part, dtype=torch.float64) for part in gradients.values())
                exact = math.sqrt(sum(float(full_tensor(part**2)) for part in parts))
                resolution = max(resolution, abs(norms[-1] / exact - 1) if exact > 0 else 0.0)
    policy, differ = prepared.policy, torch.stack(masks).any(0) & ~torch.stack(masks).all(0)
    return TrainedNorms(
        dtype=str(arithmetic.autocast or policy.dtype).removeprefix("torch."),
        norms=tuple(norms),
        resolution=resolution,
        num_ties=prepared.plan.num_ties if entropy_rounding is None else int(differ.sum()),
    )


def _orders(plan: RowPlan, micro_batch: int | None, number: int, seed: int) -> list[list[int]]:
    """Random orders; with four or more, two of them have the rollouts that count most in one micro-batch, and apart."""
    # Where few rollouts count, such as where most were truncated, random orders may all keep the same ones apart.
    draw, num_rows = np.random.default_rng(seed), len(plan.sequences)
    orders: list[list[int]] = [draw.permutation(num_rows).tolist() for _ in range(number)]
    num_chunks = -(-num_rows // (micro_batch or num_rows))
    if number >= 4 and num_chunks > 1:
        ranked = sorted(range(num_rows), key=lambda row: -_share(plan, row))
        orders[-2:] = [ranked, [row for first in range(num_chunks) for row in ranked[first::num_chunks]]]
    return orders


def _share(plan: RowPlan, row: int) -> float:
    """How much of the loss is a rollout's, roughly."""
    advantages, weights = plan.advantages[row], plan.weights[row]
    reward = weights if advantages is None else weights * advantages.to(weights)
    return float(reward.abs().sum() + plan.kl_weights[row].abs().sum())


def _chunks(prepared: PreparedStep, order: Sequence[int], arithmetic: TrainerArithmetic) -> list[PaddedBatch]:
    """The micro-batches of an order of the rollouts."""
    plan, size = prepared.plan, arithmetic.micro_batch or len(order)
    batches = [prepared.batch(order[start : start + size]) for start in range(0, len(order), size)]
    if not plan.objective.mask_truncated:
        return batches
    hidden = []
    for batch in batches:  # completions that left the loss are hidden from attention and router, as TRL hides them
        mask = batch.attention_mask.clone()
        for index, (row, (_, stop)) in enumerate(zip(batch.rows, batch.spans, strict=True)):
            if not plan.completions[plan.rows[row].sequence].counted.any():
                mask[index, stop - batch.num_completion[index] : stop] = 0
        hidden.append(replace(batch, attention_mask=mask))
    return hidden


def _in_trainers_rows(
    prepared: PreparedStep, arithmetic: TrainerArithmetic, sampler: MeasuredPolicy | None
) -> tuple[PreparedStep, ForwardPasses]:
    """The step in the trainer's padding, and the inputs of its loss, computed by the same arithmetic."""
    policy, plan = prepared.policy, prepared.plan
    framed, is_reduced = prepared.framed(), arithmetic.is_reduced(policy)

    def forward(model: Any, *, entropies: bool = False) -> list[torch.Tensor]:
        outputs: list[torch.Tensor] = []
        with torch.no_grad(), arithmetic.on(policy.device, model):
            for batch in _chunks(framed, range(len(plan.sequences)), arithmetic):
                outputs += completion_logprobs(model, batch, plan.objective.temperature, entropies=entropies)
        return [row[len(row) // 2 :] for row in outputs] if entropies else outputs

    old = [completion.old for completion in plan.completions if completion.old is not None]
    reference = [completion.reference for completion in plan.completions if completion.reference is not None]
    passes = ForwardPasses(
        old=forward(sampler.model) if sampler is not None and is_reduced else old or None,
        reference=reference if plan.objective.has_reference else None,
        entropies=forward(policy.model, entropies=True) if plan.objective.top_entropy_quantile < 1.0 else None,
    )
    if plan.objective.has_reference and is_reduced:
        with policy.as_reference() as model:
            passes = replace(passes, reference=forward(model))
    return framed.planned_with(passes), passes


def _nudged(
    prepared: PreparedStep, passes: ForwardPasses, draw: torch.Generator, entropy_rounding: float
) -> PreparedStep:
    """The step with every token's weight, and the results of forward passes, a little larger or smaller."""

    def nudge(rows: Sequence[torch.Tensor], floor: float = 0.0, size: float = _NUDGE) -> tuple[torch.Tensor, ...]:
        draws = (size * torch.randn(row.shape, generator=draw).to(row) for row in rows)
        return tuple(row + drawn * row.abs().clamp(min=floor) for row, drawn in zip(rows, draws, strict=True))

    sizes = {"reference": _NUDGE, "old": _NUDGE, "entropies": entropy_rounding}
    fields = ((name, size, getattr(passes, name)) for name, size in sizes.items())
    nudged = {name: rows and nudge(rows, 1.0, size) for name, size, rows in fields if rows is not None}
    plan = prepared.planned_with(ForwardPasses(**nudged)).plan
    return replace(prepared, plan=replace(plan, weights=nudge(plan.weights), kl_weights=nudge(plan.kl_weights)))


@contextmanager
def _accumulated(
    prepared: PreparedStep, batches: Sequence[PaddedBatch], arithmetic: TrainerArithmetic
) -> Iterator[dict[str, torch.Tensor]]:
    """The gradients that a step's backward passes leave on the parameters; their previous ones are restored."""
    trainable = prepared.policy.trainable
    scale = _LARGEST_SCALE if arithmetic.autocast == torch.float16 else 1.0
    with own_gradients(trainable):
        while True:
            for parameter in trainable.values():
                parameter.grad = None
            for batch in batches:
                _backward(prepared, batch, arithmetic, scale, scale / len(batches))
            grads = {name: p.grad for name, p in trainable.items() if p.grad is not None}
            finite = [bool(torch.isfinite(local_tensor(gradient)).all()) for gradient in grads.values()]
            if scale <= 1 or true_in_all_processes(all(finite)):
                break
            scale /= 2
        for gradient in grads.values():
            gradient.div_(scale)
        yield grads


def _backward(
    prepared: PreparedStep, batch: PaddedBatch, arithmetic: TrainerArithmetic, rewards: float, routed: float
) -> None:
    """One micro-batch: its part of the loss, and the router's term, from one forward pass."""
    policy, plan, coefficient = prepared.policy, prepared.plan, routed * arithmetic.router_coefficient
    terms: list[torch.Tensor] = []
    with (
        _router_losses(policy.model, terms) if coefficient else nullcontext(),
        arithmetic.on(policy.device, policy.model),
    ):
        outputs = prepared.outputs(batch)
    sequences = [plan.rows[row].sequence for row in batch.rows]
    weights = [plan.gradient(sequence, row.detach()) for sequence, row in zip(sequences, outputs, strict=True)]
    backpropagate(outputs, [rewards * weight for weight in weights], [coefficient * term for term in terms])


def _norm(gradients: Iterable[torch.Tensor]) -> float:
    """As PyTorch's clipping computes it, in the dtype of the gradients."""
    parts = list(gradients)
    if num_connected() > 1:  # of sharded tensors and unsharded ones
        return float(torch.linalg.vector_norm(torch.stack([full_tensor(torch.linalg.vector_norm(p)) for p in parts])))
    return float(torch.nn.utils.get_total_norm(parts))


class Assumption(Struct, frozen=True, kw_only=True):
    """One way in which a model may have been trained."""

    padding_row: int | None  # the token whose embedding got no gradient from being read; None: every token's did
    frozen: frozenset[str] = frozenset()  # parameters that were not trained

    @classmethod
    def from_policy(cls, policy: MeasuredPolicy) -> Assumption:
        """The facts from the folder itself."""
        return cls(padding_row=padding_row(policy.model))

    def holds_for(self, policy: MeasuredPolicy) -> MeasuredPolicy:
        """The policy under this assumption. The model is shared: only the latest assumption is in force."""
        if policy.kind == "full":
            token_embedding(policy.model).padding_idx = self.padding_row
        for name, parameter in policy.trainable.items():
            parameter.requires_grad_(name not in self.frozen)
        return replace(policy, trainable={n: p for n, p in policy.trainable.items() if n not in self.frozen})

    def describe(self, start: Assumption) -> Iterator[str]:
        """Its differences from the folder's own facts, ``start``, in sentences."""
        if self.padding_row != start.padding_row:
            grad = "a gradient" if self.padding_row is None else "no gradient"
            token = start.padding_row if self.padding_row is None else self.padding_row
            yield (
                f"The embedding of the padding token {token} had {grad}: the folder does not tell, and only so is the "
                "logged grad_norm met."
            )
        if self.frozen:
            names = sorted(self.frozen)
            verb = f" and {len(names) - 1} more parameters were" if len(names) > 1 else " was"
            yield f"{names[0]}{verb} frozen: the same in two checkpoints, and only so is the logged grad_norm met."


def other_assumptions(
    prepared: PreparedStep, frozen: frozenset[str], start: Assumption, *, routes: bool = False
) -> list[Assumption]:
    """The other ways in which a step may have been trained, fewest changes first.

    With ``routes`` the last token of a completion, which predicts nothing, counts for the router's term.
    """
    # other tokens whose embedding may have got no gradient, where that makes a difference to the step
    candidates, end = prepared.policy.padding_rows, None if routes else -1
    read = {token for s in prepared.plan.sequences for token in (*s.prompt_ids, *s.completion_ids)[:end]}
    is_open = bool(read.intersection(candidates))
    rows = dict.fromkeys([start.padding_row, *(row for row in candidates if is_open and row in {None, *read})])
    sets = dict.fromkeys([frozenset[str](), frozen])
    combinations = [Assumption(padding_row=row, frozen=left_out) for left_out in sets for row in rows]
    return [assumption for assumption in combinations if assumption != start]


def norm_under(prepared: PreparedStep, assumptions: Sequence[Assumption]) -> Iterator[tuple[Assumption, float]]:
    """The norm of a step's gradient under each of several assumptions, by one backward pass a padding row."""
    for row in dict.fromkeys(assumption.padding_row for assumption in assumptions):
        policy = Assumption(padding_row=row).holds_for(prepared.policy)
        squares = tensor_squares(replace(prepared, policy=policy))
        for assumption in assumptions:
            if assumption.padding_row == row:
                trained = (square for name, square in squares.items() if name not in assumption.frozen)
                yield assumption, math.sqrt(sum(trained))


def unchanged(policy: MeasuredPolicy, other: MeasuredPolicy) -> frozenset[str]:
    """Trainable parameters that are the same in two checkpoints to the last bit; none where all are."""
    same = [
        name
        for name, tensor in policy.trainable.items()
        if name in other.trainable
        and true_in_all_processes(torch.equal(local_tensor(tensor), local_tensor(other.trainable[name])))
    ]
    return frozenset() if len(same) == len(policy.trainable) else frozenset(same)


# TRL's output layer, where it is not a model's own.
#
# From 1.13 on TRL asks a model for its last hidden state only, multiplies it by the output embedding, scales and caps
# it by a few numbers of the configuration, and takes log-probabilities from that. Further layers of a model, as BERT's
# family does in its prediction head, was no part of such a training.
_SAME = 1e-3  # relative difference of logits that is rounding


def is_own_output(model: Any, sequence: TokenSequence) -> bool:
    """Whether a model's logits of one sequence are those that TRL's layer would make of its last hidden state."""
    device = next(model.parameters()).device
    ids = torch.tensor([(*sequence.prompt_ids, *sequence.completion_ids)], device=device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    with torch.no_grad():
        expected = model(**inputs).logits
        with trl_output(model):
            logits = model(**inputs).logits
    return logits.shape == expected.shape and bool((logits - expected).abs().max() <= _SAME * expected.abs().max())


@contextmanager
def trl_output(model: Any) -> Iterator[None]:
    """Let a model answer with the logits of TRL's layer."""
    base = without_adapter(model)
    config = base.config.get_text_config()

    def forward(*, logits_to_keep: int = 0, **arguments: Any) -> SimpleNamespace:
        hidden = base.base_model(**arguments).last_hidden_state[:, -logits_to_keep:]
        return SimpleNamespace(logits=_scaled(config, base.get_output_embeddings()(hidden)))

    with exchanged_forward(base, forward):
        yield


def _scaled(config: Any, logits: torch.Tensor) -> torch.Tensor:
    """TRL's function of the product, [1, S, V], by the configuration's numbers of these names."""
    scales = (getattr(config, name, None) for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"))
    scale, divisor = next((number for number in scales if number is not None), None), "logits_scaling"
    if scale is None and getattr(config, divisor, None) is not None:
        scale = getattr(config, divisor) if config.model_type == "hyperclovax" else 1 / getattr(config, divisor)
    logits = logits if scale is None else logits * scale
    cap = getattr(config, "final_logit_softcapping", None)
    return logits if cap is None else cap * torch.tanh(logits / cap)


_MAX_TOKENS = 16
"""Tokens of a prompt, and of a completion, that the model is probed with: random numbers are drawn for each."""
_SAME_GRADIENT = 1e-5  # relative difference of two gradients that the order of a GPU's sums explains


def is_random(policy: MeasuredPolicy, sequence: TokenSequence, *, without_dropout: bool) -> bool:
    """Whether two forward passes of training would differ.

    The model itself is asked, in training mode, for what it is called differs from one architecture to the next. Where
    TRL switched dropout off (``disable_dropout``) it switched off the modules; a rate that a layer hands to a function
    as a number stays on.
    """
    batch = pad_batch([0], [_piece(sequence)], policy.device)
    outputs: list[torch.Tensor] = []
    with torch.no_grad(), _training(policy.model, without_dropout=without_dropout):
        for seed in (0, 1):
            torch.manual_seed(seed)
            outputs += completion_logprobs(policy.model, batch, 1.0)
    return not torch.equal(*(logprobs.nan_to_num() for logprobs in outputs))  # overflow is equal to itself


def takes_random_numbers(policy: MeasuredPolicy, sequence: TokenSequence, *, without_dropout: bool) -> bool:
    """Whether a pass of training draws anything at all, which rarely may have changed something.

    Noise that was drawn before and meets weights of zero, those of a new adapter, shows in the gradient alone.
    """
    batch = pad_batch([0], [_piece(sequence)], policy.device)
    state = torch.cuda.get_rng_state if policy.device.type == "cuda" else torch.get_rng_state

    def norms() -> NDArray[np.float64]:  # of each parameter's gradient: all of them would be as large as the model
        squares: list[float] = []
        arguments = policy.model, policy.trainable, batch, 1.0, lambda _, row: torch.ones_like(row)
        backward(*arguments, lambda _, grad: squares.append(float(sum_of_squares(grad))))
        return np.sqrt(squares)

    with _training(policy.model, without_dropout=without_dropout):
        before, first, second = state(), norms(), norms()
        differs = np.linalg.norm(first - second) > _SAME_GRADIENT * np.linalg.norm(first)
        return not torch.equal(state(), before) or bool(differs)


def _piece(sequence: TokenSequence) -> TokenSequence:
    """The tokens around the end of a prompt; a row in a trainer's frame is not cut."""
    if sequence.frame is not None:
        return sequence
    completion_ids, mask = sequence.completion_ids[:_MAX_TOKENS], sequence.mask[:_MAX_TOKENS]
    return replace(sequence, prompt_ids=sequence.prompt_ids[-_MAX_TOKENS:], completion_ids=completion_ids, mask=mask)


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
