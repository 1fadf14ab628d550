"""Sums of token gradients under several weights, against one plain backward pass a token."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch

from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.tokens.sums import token_sums
from gradscope.gradients.tokens.sums.counted_tokens import CountedTokens, counted_tokens
from gradscope.gradients.tokens.sums.token_sums import measure_token_sums
from tests.gradients.models import ARCHITECTURES, DAPO, naive_token_rows, relative, tiny_groups, tiny_policy

NUM_WEIGHTINGS = 3


def asked(prepared: PreparedStep, seed: int = 0) -> tuple[CountedTokens, np.ndarray]:
    tokens = counted_tokens(prepared, measure_step(prepared))
    assert tokens is not None
    weights = np.random.default_rng(seed).normal(size=(NUM_WEIGHTINGS, len(tokens.groups)))
    weights[1, tokens.groups == 0] = 0.0  # a weighting that leaves out a whole group
    return tokens, weights


def by_group(rows: np.ndarray, weights: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The sums as plain matrices, [V, J, P], and their products."""
    sums = np.stack([[weight[groups == j] @ rows[groups == j] for j in np.unique(groups)] for weight in weights])
    return np.einsum("vjp,wkp->vjwk", sums, sums)


@pytest.mark.parametrize("max_bytes", [2**30, 0], ids=["by group", "by layer"])
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_sums_are_those_of_one_backward_pass_a_token(name: str, lora: bool, max_bytes: int) -> None:
    policy, groups = tiny_policy(name, lora=lora), tiny_groups(3, 2)
    prepared = prepare_step(policy, groups, DAPO)
    tokens, weights = asked(prepared)
    found = measure_token_sums(prepared, tokens, weights, np.zeros(NUM_WEIGHTINGS, dtype=bool), max_bytes=max_bytes)
    assert relative(found, by_group(naive_token_rows(policy, groups), weights, tokens.groups)) < 2e-5


@pytest.mark.parametrize("max_bytes", [2**30, 0], ids=["by group", "by layer"])
def test_a_weighting_of_entropies_is_their_gradient(max_bytes: int) -> None:
    policy, groups = tiny_policy("qwen3_gqa_norms"), tiny_groups(2, 2)
    prepared = prepare_step(policy, groups, dataclasses.replace(DAPO, temperature=0.8))
    tokens, weights = asked(prepared)
    found = measure_token_sums(prepared, tokens, weights, np.array([False, True, False]), max_bytes=max_bytes)
    model = copy.deepcopy(policy.model).double()
    parameters, rows, entropies = list(model.parameters()), [], []
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        ids = torch.tensor([rollout.prompt_ids + rollout.completion_ids])
        logs = torch.log_softmax(model(input_ids=ids).logits[0, len(rollout.prompt_ids) - 1 : -1].double() / 0.8, -1)
        for position, token in enumerate(rollout.completion_ids):
            for value, into in (
                (logs[position, token], rows),
                (-(logs[position].exp() * logs[position]).sum(), entropies),
            ):
                grads = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
                flat = [torch.zeros_like(p) if g is None else g for g, p in zip(grads, parameters, strict=True)]
                into.append(torch.cat([part.flatten() for part in flat]).numpy())
    sums = np.stack(
        [
            [weights[v][mask] @ np.stack(entropies if v == 1 else rows)[mask] for mask in masks]
            for v in range(NUM_WEIGHTINGS)
            for masks in [[tokens.groups == j for j in (0, 1)]]
        ]
    )
    assert relative(found, np.einsum("vjp,wkp->vjwk", sums, sums)) < 2e-5


def test_parameters_without_a_rule_are_added_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(2, 2)
    prepared = prepare_step(policy, groups, DAPO)
    tokens, weights = asked(prepared)
    none = np.zeros(NUM_WEIGHTINGS, dtype=bool)
    expected = measure_token_sums(prepared, tokens, weights, none)
    monkeypatch.setattr(token_sums, "stream_gram", lambda model, trainable, *_, **__: frozenset(trainable))
    found = measure_token_sums(prepared, tokens, weights, none, max_bytes=1)
    assert relative(found, expected) < 1e-5
