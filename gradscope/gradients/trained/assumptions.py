"""What a folder does not tell of how a model was trained, to be tried against the norm that the trainer logged.

Whether the padding token's embedding got a gradient depends on when the padding token was written into the model's
configuration; which tensors were frozen stands nowhere, but a frozen one is the same in every checkpoint. Either
changes the norm of the gradient by far more than rounding, so at most one way of training fits what was logged.

Shapes: S tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from gradscope.gradients.model.batches import TokenSequence, pad_batch
from gradscope.gradients.model.calls import exchanged_forward, without_adapter
from gradscope.gradients.model.passes import completion_logprobs
from gradscope.gradients.model.policy import MeasuredPolicy, padding_row, token_embedding
from gradscope.gradients.model.sharding import local_tensor
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.processes import true_in_all_processes
from gradscope.gradients.trained.norms import tensor_squares


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """One way in which a model may have been trained."""

    padding_row: int | None  # the token whose embedding got no gradient from being read; None: every token's did
    frozen: frozenset[str] = frozenset()  # parameters that were not trained

    @classmethod
    def of(cls, policy: MeasuredPolicy) -> Assumption:
        """What the folder itself says."""
        return cls(padding_row=padding_row(policy.model))

    def holds_for(self, policy: MeasuredPolicy) -> MeasuredPolicy:
        """The policy under this assumption. The model is shared: only the latest assumption is in force."""
        if policy.kind == "full":
            token_embedding(policy.model).padding_idx = self.padding_row
        for name, parameter in policy.trainable.items():
            parameter.requires_grad_(name not in self.frozen)
        return replace(policy, trainable={n: p for n, p in policy.trainable.items() if n not in self.frozen})

    def describe(self, start: Assumption) -> Iterator[str]:
        """What it says beyond what the folder says, which is ``start``, in sentences."""
        if self.padding_row != start.padding_row:
            had = "a gradient" if self.padding_row is None else "no gradient"
            token = start.padding_row if self.padding_row is None else self.padding_row
            yield (
                f"The embedding of the padding token {token} had {had}: the folder does not tell, and only so is the "
                "logged grad_norm met."
            )
        if self.frozen:
            names = sorted(self.frozen)
            more = f" and {len(names) - 1} more parameters were" if len(names) > 1 else " was"
            yield f"{names[0]}{more} frozen: the same in two checkpoints, and only so is the logged grad_norm met."


def other_assumptions(prepared: PreparedStep, frozen: frozenset[str], start: Assumption) -> list[Assumption]:
    """The other ways in which a step may have been trained, fewest changes first."""
    rows = dict.fromkeys([start.padding_row, *_padding_rows(prepared)])
    sets = dict.fromkeys([frozenset[str](), frozen])
    every = [Assumption(padding_row=row, frozen=left_out) for left_out in sets for row in rows]
    return [assumption for assumption in every if assumption != start]


def norm_under(prepared: PreparedStep, assumptions: Sequence[Assumption]) -> Iterator[tuple[Assumption, float]]:
    """The norm of a step's whole gradient under each of some assumptions; one backward pass a padding row tells all."""
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


def _padding_rows(prepared: PreparedStep) -> Sequence[int | None]:
    """Tokens whose embedding may have got no gradient, where that makes a difference to the step."""
    sequences, rows = prepared.plan.sequences, prepared.policy.padding_rows
    read = {token for s in sequences for token in (*s.prompt_ids, *s.completion_ids)[:-1]}
    return rows if any(row in read for row in rows) else ()


# TRL's output layer, where it is not a model's own.
#
# From 1.13 on TRL asks a model for its last hidden state only, multiplies it by the output embedding, scales and caps
# it by a few numbers of the configuration, and takes log-probabilities from that. What a model does beyond, as BERT's
# family does in its prediction head, was no part of such a training.
_SAME = 1e-3  # relative difference of logits that is rounding


def is_own_output(model: Any, sequence: TokenSequence) -> bool:
    """Whether a model's logits of one sequence are those that TRL's layer would make of its last hidden state."""
    device = next(model.parameters()).device
    ids = torch.tensor([(*sequence.prompt_ids, *sequence.completion_ids)], device=device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    with torch.no_grad():
        own = model(**inputs).logits
        with trl_output(model):
            made = model(**inputs).logits
    return made.shape == own.shape and bool((made - own).abs().max() <= _SAME * own.abs().max())


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
    """What TRL makes of the product, [1, S, V], by the configuration's numbers of these names."""
    known = (getattr(config, name, None) for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"))
    scale, divisor = next((number for number in known if number is not None), None), "logits_scaling"
    if scale is None and getattr(config, divisor, None) is not None:
        scale = getattr(config, divisor) if config.model_type == "hyperclovax" else 1 / getattr(config, divisor)
    logits = logits if scale is None else logits * scale
    cap = getattr(config, "final_logit_softcapping", None)
    return logits if cap is None else cap * torch.tanh(logits / cap)


_MOST_TOKENS = 16
"""Tokens of a prompt, and of a completion, that the model is asked about: what it draws, it draws for each."""


def is_random(policy: MeasuredPolicy, sequence: TokenSequence, *, without_dropout: bool) -> bool:
    """Whether two forward passes of training would differ.

    The model itself is asked, in training mode, for what it is called differs from one architecture to the next. Where
    TRL switched dropout off (``disable_dropout``) it switched off the modules; what a layer hands to a function as a
    number stays on.
    """
    batch = pad_batch([0], [_piece(sequence)], policy.device)
    with torch.no_grad(), _training(policy.model, without_dropout=without_dropout):
        first, second = (_seeded(policy, batch, seed) for seed in (0, 1))
    return not torch.equal(first.nan_to_num(), second.nan_to_num())  # what overflowed is equal to itself here


def takes_random_numbers(policy: MeasuredPolicy, sequence: TokenSequence, *, without_dropout: bool) -> bool:
    """Whether a forward pass of training draws anything at all, which rarely may have changed something."""
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
