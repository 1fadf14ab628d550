"""What a model looks up: its tokens and its positions."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import (
    GPTJConfig,
    GPTJForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    RobertaConfig,
    RobertaForCausalLM,
    WhisperConfig,
    WhisperForCausalLM,
    XLNetConfig,
)

from gradscope.gradients.model.embedding import built_for, longest_sequence, padding_row, token_embedding
from tests.gradients.adapters import adapted
from tests.gradients.models import VOCAB, tiny_model

SHAPE = {"vocab_size": VOCAB, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "pad_token_id": 0}


def with_trainable_tokens() -> Any:
    config = LoraConfig(r=2, target_modules=["q_proj"], trainable_token_indices=[3, 4], task_type="CAUSAL_LM")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return get_peft_model(tiny_model("llama_untied_biases"), config)


@pytest.mark.parametrize(
    "model",
    [adapted("embedding"), adapted("saved embedding and head"), with_trainable_tokens()],
    ids=["adapter", "trained copy", "trained tokens"],
)
def test_the_embedding_is_found_under_what_peft_puts_around_it(model):
    assert type(token_embedding(model)) is nn.Embedding
    assert token_embedding(model).num_embeddings == VOCAB
    assert padding_row(model) == 0


def test_a_plain_model_names_its_embedding_itself():
    model = tiny_model("gpt2_tied_conv1d")
    assert token_embedding(model) is model.transformer.wte
    assert padding_row(model) is None


def roberta() -> Any:
    return RobertaForCausalLM(
        RobertaConfig(**SHAPE, intermediate_size=8, max_position_embeddings=20, is_decoder=True, bos_token_id=1)
    )


def opt() -> Any:
    return OPTForCausalLM(OPTConfig(**SHAPE, ffn_dim=8, max_position_embeddings=20, word_embed_proj_dim=8))


def gptj() -> Any:
    return GPTJForCausalLM(GPTJConfig(vocab_size=VOCAB, n_embd=8, n_layer=1, n_head=2, rotary_dim=4, n_positions=20))


def whisper() -> Any:
    shape = {"vocab_size": VOCAB, "d_model": 8, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 8}
    return WhisperForCausalLM(WhisperConfig(**shape, max_target_positions=20, pad_token_id=0))


@pytest.mark.parametrize(
    ("make", "longest"),
    [
        (lambda: tiny_model("llama_untied_biases"), None),  # rotary
        (lambda: tiny_model("gpt2_tied_conv1d"), 32),
        (opt, 20),  # its table has two rows more, and starts at the third
        (roberta, 19),  # positions start after the padding token's
        (gptj, 20),  # sines in a buffer
        (whisper, 20),  # a parameter that is indexed, of a length that the configuration names otherwise
    ],
    ids=["llama", "gpt2", "opt", "roberta", "gptj", "whisper"],
)
def test_a_table_of_positions_says_how_long_a_sequence_can_be(make, longest):
    model = make().eval()
    assert longest_sequence(model) == longest
    one = torch.full((1, 1 if longest is None else longest), 5)
    with torch.no_grad():
        model(input_ids=one)
        if longest is not None:
            with pytest.raises((IndexError, RuntimeError)):
                model(input_ids=torch.full((1, longest + 1), 5))


def test_an_adapter_around_the_model_changes_nothing():
    assert longest_sequence(adapted("dora, conv1d")) == 32


def test_what_a_configuration_names_is_the_length_it_was_built_for():
    model = tiny_model("llama_untied_biases")
    assert built_for(model) == 32
    model.config = XLNetConfig()  # any length, as it says with -1
    assert built_for(model) is None
