"""TRL's output layer and the models' own."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    BertConfig,
    BertLMHeadModel,
    CohereConfig,
    CohereForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    HyperCLOVAXConfig,
    HyperCLOVAXForCausalLM,
)

from gradscope.gradients.model.token_sequence import TokenSequence
from gradscope.gradients.trained.output_layer import is_own_output, trl_output
from tests.gradients.adapters import adapted
from tests.gradients.models import VOCAB, tiny_model

SEQUENCE = TokenSequence(
    group_id="g", sample=0, prompt_ids=(1, 5), completion_ids=(2, 3), mask=(True, True), inferred=False
)
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "pad_token_id": 0,
}


@pytest.mark.parametrize(
    "make",
    [
        lambda: tiny_model("llama_untied_biases"),
        lambda: tiny_model("gpt2_tied_conv1d"),
        lambda: tiny_model("gemma3_scaled"),
        lambda: adapted("rslora"),
        lambda: CohereForCausalLM(CohereConfig(**SHAPE, logit_scale=0.25, eos_token_id=1, bos_token_id=2)),
        lambda: GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=4.0)),
        lambda: HyperCLOVAXForCausalLM(HyperCLOVAXConfig(**SHAPE, logits_scaling=4.0)),
    ],
    ids=["llama", "gpt2", "gemma3", "an adapter", "a scale", "a divisor", "a factor of a divisor's name"],
)
def test_a_linear_head_with_its_scale_is_the_models_own(make):
    assert is_own_output(make().eval(), SEQUENCE)


def test_a_soft_cap_is_applied_as_the_configuration_says():
    model = tiny_model("gemma3_scaled")
    model.config.final_logit_softcapping = 0.5
    assert is_own_output(model, SEQUENCE)


def test_a_prediction_head_is_left_out():
    model = BertLMHeadModel(BertConfig(**SHAPE, is_decoder=True)).eval()
    assert not is_own_output(model, SEQUENCE)
    ids = torch.tensor([[1, 5, 2, 3]])
    own, hidden = model(input_ids=ids).logits, model.bert(input_ids=ids).last_hidden_state
    with trl_output(model):
        made, last = model(input_ids=ids).logits, model(input_ids=ids, logits_to_keep=2).logits
    torch.testing.assert_close(made, model.get_output_embeddings()(hidden))
    torch.testing.assert_close(last, made[:, -2:])
    assert torch.equal(model(input_ids=ids).logits, own)
