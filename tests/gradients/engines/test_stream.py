"""One forward and backward pass a batch, weight gradients off."""

from __future__ import annotations

from itertools import groupby

import pytest
import torch

from gradscope.gradients.engines.accumulator import GramAccumulator
from gradscope.gradients.engines.stream import stream_gram
from gradscope.gradients.plan.prepared_step import prepare_step
from tests.gradients.models import DAPO, naive_rows, relative, tiny_groups, tiny_policy


@pytest.mark.parametrize("batch_tokens", [1, 4096])
def test_rows_are_those_of_one_backward_a_rollout_in_one_batch_or_many(batch_tokens):
    prepared = prepare_step(tiny_policy("qwen3_gqa_norms", dtype=torch.float64), tiny_groups(), DAPO)
    policy, plan, accumulator = prepared.policy, prepared.plan, GramAccumulator(6, torch.device("cpu"))
    logprobs = {}
    slow = stream_gram(
        policy.model,
        policy.trainable,
        plan,
        prepared.batches(range(6), batch_tokens),
        accumulator,
        logprobs.__setitem__,
    )
    rows = naive_rows(policy, tiny_groups(), 1 / sum(len(of.completion_ids) for of in plan.sequences))
    assert relative(accumulator.gram.numpy(), rows @ rows.T) < 1e-12
    assert accumulator.num_parameters == policy.num_parameters
    assert slow == frozenset()
    assert [len(logprobs[i]) for i in range(6)] == [len(of.completion_ids) for of in plan.sequences]
    assert not any(values.requires_grad for values in logprobs.values())


def test_parameters_that_no_rule_covers_are_named_and_left_out(monkeypatch):
    monkeypatch.setattr("gradscope.gradients.layers.coverage.rule_for", lambda module: None)
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(1, 2), DAPO)
    policy, accumulator = prepared.policy, GramAccumulator(2, torch.device("cpu"))
    batches = prepared.batches(range(2), 4096)
    slow = stream_gram(policy.model, policy.trainable, prepared.plan, batches, accumulator, lambda *_: None)
    assert slow == frozenset(policy.trainable)
    assert not accumulator.gram.any()
    assert accumulator.num_parameters == 0


@pytest.mark.parametrize(("kept", "times"), [(0, 6), (2**28, 1)])
def test_what_a_pass_has_freed_goes_back_before_the_next_one_where_much_waits(monkeypatch, kept, times):
    policy = tiny_policy("llama_untied_biases")
    step = prepare_step(policy, tiny_groups(), DAPO)
    batches, total, seen = step.batches(range(6), 1), GramAccumulator(6, policy.device), []
    policy.model.model.embed_tokens.register_forward_hook(lambda *_: seen.append("ran"))
    monkeypatch.setattr("gradscope.gradients.engines.spill.trim_heap", lambda: seen.append("trimmed"))
    stream_gram(policy.model, policy.trainable, step.plan, batches, total, lambda *_: None, max_kept_bytes=kept)
    assert [event for event, _ in groupby(seen)] == ["ran", "trimmed"] * times  # the last when nothing waits any more
