"""Token rows by one plain backward pass each."""

from __future__ import annotations

from gradscope.gradients.engines.accumulator import GramAccumulator
from gradscope.gradients.model.tokenize import token_sequences
from gradscope.gradients.tokens.lockstep import lockstep_gram
from gradscope.gradients.tokens.loop import token_loop_rows
from gradscope.gradients.tokens.rows import TokenRow, chunks_of
from tests.gradients.models import (
    naive_token_rows,
    relative,
    tiny_groups,
    tiny_policy,
)


def test_a_model_without_a_list_of_layers_goes_the_slow_way():
    policy, groups = tiny_policy("qwen3_gqa_norms"), tiny_groups(1, 2)
    policy.model.config.num_hidden_layers = 7
    rows = naive_token_rows(policy, groups)
    sequences = token_sequences(policy, groups)
    chunks = chunks_of([TokenRow(sequence=0, position=0)], sequences)
    accumulator = GramAccumulator(1, policy.device)
    assert lockstep_gram(policy.model, policy.trainable, chunks, 1.0, accumulator) == frozenset(policy.trainable)
    token_loop_rows(policy.model, policy.trainable, chunks, 1.0, accumulator.add_rows)
    assert relative(accumulator.gram.numpy(), rows[:1] @ rows[:1].T) < 1e-5
