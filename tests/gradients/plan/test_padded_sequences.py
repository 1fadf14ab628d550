"""Which models see the padding around their rows, and that their gradients are then those of TRL's padded rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, BloomConfig, GPTNeoConfig, LlamaConfig, OPTConfig

from gradscope.errors import UsageError
from gradscope.gradients.model.padding import TrainerPadding
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.plan.padded_sequences import (
    in_frames,
    padding_id_of,
    pretrained_length,
    scales_with_width,
    see_batch,
    sees_padding,
)
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.measure import measure_step
from tests.diagnostics.inputs.test_longest_batch import scaled_model
from tests.gradients.models import DAPO, VOCAB, policy_of, tiny_groups, tiny_model, tiny_policy

SHAPE = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
LLAMA = {**SHAPE, "intermediate_size": 24}


def built(config) -> MeasuredPolicy:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return replace(policy_of(model), padding=TrainerPadding())


def rope(kind: str, positions: int) -> LlamaConfig:
    parameters = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}
    return LlamaConfig(**LLAMA, max_position_embeddings=positions, rope_parameters=parameters)


CASES = {
    "learned positions": (lambda: replace(tiny_policy("gpt2_tied_conv1d"), padding=TrainerPadding()), True),
    "learned, local attention": (
        lambda: built(
            GPTNeoConfig(
                vocab_size=VOCAB, hidden_size=16, num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]]
            )
        ),
        True,
    ),
    "positions by the mask": (lambda: built(OPTConfig(**SHAPE, ffn_dim=24, word_embed_proj_dim=16)), False),
    "slopes": (lambda: built(BloomConfig(vocab_size=VOCAB, hidden_size=16, n_layer=2, n_head=2)), False),
    "rotary": (lambda: replace(tiny_policy("qwen3_gqa_norms"), padding=TrainerPadding()), False),
    "rotary, sliding": (lambda: replace(tiny_policy("gemma3_scaled"), padding=TrainerPadding()), False),
    "rotary, linear": (lambda: built(rope("linear", 8)), False),
    "rotary, dynamic": (lambda: built(rope("dynamic", 8)), True),
}


@pytest.mark.parametrize("name", CASES)
def test_the_model_itself_says_whether_it_sees_the_padding(name: str) -> None:
    make, framed = CASES[name]
    prepared = prepare_step(make(), tiny_groups(), DAPO)
    assert all((sequence.frame is not None) == framed for sequence in prepared.plan.sequences)


@pytest.mark.parametrize("engine", ["loop", "stream"])
@pytest.mark.parametrize("name", ["learned positions", "learned, local attention", "rotary, dynamic"])
def test_rows_are_those_of_the_padded_batch(name: str, engine: str) -> None:
    """The oracle: TRL's padded rows through the model, one plain backward pass a rollout."""
    policy, groups = CASES[name][0](), tiny_groups()
    gram = measure_step(prepare_step(policy, groups, DAPO), engine=engine)
    rows = [rollout for group in groups for rollout in group.rollouts]
    prompts, completions = max(len(r.prompt_ids) for r in rows), max(len(r.completion_ids) for r in rows)
    total = sum(len(r.completion_ids) for r in rows)
    gradients = []
    for row in rows:
        left, right = prompts - len(row.prompt_ids), completions - len(row.completion_ids)
        ids = torch.tensor([[0] * left + [*row.prompt_ids, *row.completion_ids] + [0] * right])
        mask = torch.tensor([[0] * left + [1] * (ids.shape[1] - left - right) + [0] * right])
        policy.model.zero_grad()
        logprobs = policy.model(input_ids=ids, attention_mask=mask).logits[0, prompts - 1 : -1].log_softmax(-1)
        chosen = logprobs[range(len(row.completion_ids)), list(row.completion_ids)]
        (chosen.sum() / total).backward()
        flat = [parameter.grad.flatten().double() for parameter in policy.trainable.values()]
        gradients.append(torch.cat(flat).numpy())
    expected = np.array(gradients) @ np.array(gradients).T
    np.testing.assert_allclose(gram.score_gram, expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())


def test_without_a_trainers_padding_nothing_is_framed() -> None:
    prepared = prepare_step(tiny_policy("gpt2_tied_conv1d"), tiny_groups(), DAPO)
    assert in_frames(prepared.policy, prepared.plan) is prepared.plan.sequences


def test_rounding_depends_on_the_frame_even_where_the_output_does_not() -> None:
    policy = replace(tiny_policy("qwen3_gqa_norms"), padding=TrainerPadding())
    prepared = prepare_step(policy, tiny_groups(), DAPO)
    framed = in_frames(policy, prepared.plan)
    assert all(sequence.frame is not None for sequence in framed)
    again = replace(prepared, plan=replace(prepared.plan, sequences=framed))
    assert in_frames(policy, again.plan) is again.plan.sequences


def test_a_sequence_without_padding_has_none_to_see() -> None:
    policy = replace(tiny_policy("gpt2_tied_conv1d"), padding=TrainerPadding())
    prepared = prepare_step(policy, tiny_groups(1, 1), DAPO)
    assert not sees_padding(policy, prepared.plan.sequences[0])


def test_a_shared_prompt_cannot_stand_in_a_frame() -> None:
    policy = replace(tiny_policy("gpt2_tied_conv1d"), padding=TrainerPadding())
    with pytest.raises(UsageError, match="sees the padding before it"):
        measure_step(prepare_step(policy, tiny_groups(), DAPO), engine="prompt")


@pytest.mark.parametrize(("kind", "scales"), [("linear", False), ("dynamic", True)])
def test_frequencies_that_follow_the_width_are_known_by_their_kind(kind: str, scales: bool) -> None:
    assert scales_with_width(built(rope(kind, 8)).model) == scales


def test_the_padding_token_is_the_tokenizers_else_that_of_the_end_else_the_models() -> None:
    class Tokenizer:
        pad_token_id, eos_token_id = 7, 3

    policy = policy_of(tiny_model("llama_untied_biases"))
    assert padding_id_of(replace(policy, tokenizer=Tokenizer())) == 7
    Tokenizer.pad_token_id = None
    assert padding_id_of(replace(policy, tokenizer=Tokenizer())) == 3
    assert padding_id_of(policy) == policy.model.config.pad_token_id
    Tokenizer.eos_token_id = VOCAB + 1  # a tokenizer may know tokens that the model does not
    policy.model.config.pad_token_id = None
    assert padding_id_of(replace(policy, tokenizer=Tokenizer())) == 0


def test_other_models_keep_nothing() -> None:
    assert pretrained_length(scaled_model()) == 8
    assert pretrained_length(scaled_model("linear")) is None


def test_a_model_keeps_the_frequencies_of_the_longest_batch() -> None:
    ids, fresh, model = torch.arange(12)[None] % 16, scaled_model(), scaled_model()
    see_batch(model, 20)
    with torch.no_grad():
        assert not torch.allclose(fresh(input_ids=ids).logits, model(input_ids=ids).logits, atol=1e-5)
