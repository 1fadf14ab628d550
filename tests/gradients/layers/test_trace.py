import torch
from torch import nn
from transformers import PretrainedConfig

from gradscope.gradients.layers import rules
from gradscope.gradients.layers.trace import CoveredLayers, Tracer, decoder_layers
from gradscope.gradients.model.batches import TokenSequence
from gradscope.gradients.model.policy import token_sequences
from tests.gradients.adapters import adapted
from tests.gradients.models import plain_logprobs, plain_model, tiny_groups, tiny_policy


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
    expected = plain_logprobs(plain_model(policy)[0], sequence, 0.5).detach()
    torch.testing.assert_close(trace.logprobs.detach(), expected, rtol=1e-5, atol=1e-6)


def test_a_shorter_pass_takes_the_inputs_of_a_longer_one():
    policy, sequence = tiny_policy("llama_untied_biases"), longest()
    tracer = Tracer(policy.model, policy.trainable, 1.0)
    full = tracer.trace(sequence)
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
    part.share_inputs(full)
    after = [call.input for segment in part.segments[1:-1] for call in segment]
    for first, other in zip(before, after, strict=True):
        torch.testing.assert_close(first, other, rtol=1e-4, atol=1e-5)
    assert after[0].data_ptr() == full.segments[1][0].input.data_ptr()


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


class Scale(nn.Module):
    """Multiplies by a weight that it shares with a layer; there is no rule for it."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.scale = Scale(self.first.weight)


def test_a_parameter_is_covered_where_every_call_with_it_has_a_rule():
    model = Model()
    layers = CoveredLayers(model, dict(model.named_parameters()))
    assert layers.uncovered == {"first.weight"}  # the second module that holds it has no rule
    assert layers.covered_by(model.first) == {"bias": "first.bias"}
    assert layers.covered_by(model.second) == {"weight": "second.weight", "bias": "second.bias"}
    assert layers.rules[model.second] is rules.LINEAR
    assert model.scale not in layers.owned


def test_engines_may_add_what_they_find_on_the_way():
    model = Model()
    layers = CoveredLayers(model, dict(model.named_parameters()))
    layers.uncovered.add("second.bias")
    assert layers.covered_by(model.second) == {"weight": "second.weight"}


def test_frozen_parameters_have_no_owner():
    model = Model()
    layers = CoveredLayers(model, {"second.bias": model.second.bias})
    assert list(layers.owned) == [model.second]
    assert layers.uncovered == set()


def test_a_layer_around_others_owns_what_it_computes_with():
    model = adapted("dora")
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    layers = CoveredLayers(model, trainable)
    module = model.base_model.model.model.layers[0].self_attn.q_proj
    assert layers.rules[module] is rules.ADAPTER
    assert len(layers.covered_by(module)) == 3  # A, B and the magnitudes
    assert module.lora_A["default"] not in layers.owned
    assert layers.uncovered == set()


def test_a_rule_that_is_taken_to_fit_is_asked_about_once():
    model = Model()
    layers = CoveredLayers(model, dict(model.named_parameters()))
    assert layers.assume(True, ["second.weight"])
    assert not layers.assume(False, ["first.bias"])
    assert layers.uncovered == {"first.weight", "first.bias"}
    assert layers.assume(torch.tensor(True), ["second.weight"])
    assert layers.assume(torch.tensor(False), ["second.bias"])
    assert "second.bias" not in layers.uncovered
    layers.settle()
    assert layers.uncovered == {"first.weight", "first.bias", "second.bias"}
    layers.settle()
    assert layers.covered_by(model.second) == {"weight": "second.weight"}
