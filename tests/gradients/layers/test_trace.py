"""One forward pass, cut at the decoder layers."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PretrainedConfig

from gradscope.gradients.layers.trace import Tracer, decoder_layers
from gradscope.gradients.model.token_sequence import TokenSequence
from gradscope.gradients.model.tokenize import token_sequences
from tests.gradients.models import tiny_groups, tiny_policy


def longest() -> TokenSequence:
    sequences = token_sequences(tiny_policy("llama_untied_biases"), tiny_groups(1, 3))
    return max(sequences, key=lambda sequence: len(sequence.completion_ids))


def test_a_pass_is_cut_before_every_layer_and_after_the_last():
    policy, sequence = tiny_policy("llama_untied_biases"), longest()
    trace = Tracer(policy.model, policy.trainable, 0.5).trace(sequence)
    assert trace.is_cut
    assert [tuple(cut.shape) for cut in trace.cuts] == [(1, sequence.length, 16)] * 3
    # the embedding; per layer two norms, four and three projections; the last norm and the head
    assert [len(segment) for segment in trace.segments] == [1, 9, 9, 2]
    assert isinstance(trace.segments[0][0].module, nn.Embedding)
    assert trace.start == len(sequence.prompt_ids)


def test_log_probabilities_are_at_the_trainers_temperature():
    policy, sequence = tiny_policy("llama_untied_biases"), longest()
    trace = Tracer(policy.model, policy.trainable, 0.5).trace(sequence)
    ids = torch.tensor([sequence.prompt_ids + sequence.completion_ids])
    logits = policy.model(input_ids=ids).logits[0, trace.start - 1 : -1].detach() / 0.5
    expected = torch.log_softmax(logits.double(), -1).gather(1, ids[0, trace.start :, None]).squeeze(1)
    torch.testing.assert_close(trace.logprobs.detach(), expected, rtol=1e-5, atol=1e-6)


def test_a_shorter_pass_takes_the_inputs_of_a_longer_one():
    policy, sequence = tiny_policy("llama_untied_biases"), longest()
    tracer = Tracer(policy.model, policy.trainable, 1.0)
    whole = tracer.trace(sequence)
    shorter = TokenSequence(
        group_id="g",
        sample=0,
        prompt_ids=sequence.prompt_ids,
        completion_ids=sequence.completion_ids[:1],
        mask=(True,),
        inferred=False,
    )
    part = tracer.trace(shorter)
    before = [call.input.clone() for segment in part.segments[1:-1] for call in segment]
    part.share_inputs(whole)
    after = [call.input for segment in part.segments[1:-1] for call in segment]
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert after[0].data_ptr() == whole.segments[1][0].input.data_ptr()


def test_nothing_stays_behind_on_the_model():
    policy = tiny_policy("llama_untied_biases")
    Tracer(policy.model, policy.trainable, 1.0).trace(longest())
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in policy.model.modules())
    assert all(parameter.requires_grad for parameter in policy.trainable.values())


def test_decoder_layers_are_the_list_of_the_configured_depth():
    model = tiny_policy("gpt2_tied_conv1d").model
    assert decoder_layers(model) == tuple(model.transformer.h)
    model.config.num_hidden_layers = 7
    assert decoder_layers(model) == ()
    model.config = PretrainedConfig()  # a model of several stacks names no one depth
    assert decoder_layers(model) == ()


def test_a_call_whose_output_the_model_wrote_over_is_not_intact():
    policy, sequence = tiny_policy("llama_untied_biases"), longest()
    trace = Tracer(policy.model, policy.trainable, 1.0).trace(sequence)
    first, second, *_ = trace.segments[1]
    assert first.is_intact
    assert second.is_intact
    with torch.no_grad():
        second.output.detach().add_(1)
    assert not second.is_intact
