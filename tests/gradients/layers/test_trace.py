import torch
from torch import nn
from transformers import PretrainedConfig

from gradscope.gradients.layers import rules
from gradscope.gradients.layers.trace import CoveredLayers, Tracer, decoder_layers
from gradscope.gradients.model.batches import TokenSequence
from gradscope.gradients.model.policy import token_sequences
from tests.gradients.adapters import adapted
from tests.gradients.models import plain_logprobs, plain_model, sequence_of, tiny_groups, tiny_policy


def longest() -> TokenSequence:
    sequences = token_sequences(tiny_policy("llama_untied_biases"), tiny_groups(1, 3))
    return max(sequences, key=lambda sequence: len(sequence.completion_ids))


def test_a_pass_at_the_trainers_temperature_is_cut_before_every_layer_and_after_the_last():
    policy, sequence = tiny_policy("llama_untied_biases"), longest()
    trace = Tracer(policy.model, policy.trainable, 0.5).trace(sequence)
    assert trace.is_cut
    assert [tuple(cut.shape) for cut in trace.cuts] == [(1, sequence.length, 16)] * 3
    # the embedding; per layer two norms, four and three projections; the last norm and the head
    assert [len(segment) for segment in trace.segments] == [1, 9, 9, 2]
    assert isinstance(trace.segments[0][0].module, nn.Embedding)
    assert trace.start == len(sequence.prompt_ids)
    expected = plain_logprobs(plain_model(policy)[0], sequence, 0.5).detach()
    torch.testing.assert_close(trace.logprobs.detach(), expected, rtol=1e-5, atol=1e-6)
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in policy.model.modules())
    assert all(parameter.requires_grad for parameter in policy.trainable.values())


def test_a_shorter_pass_takes_the_inputs_of_a_longer_one():
    policy, sequence = tiny_policy("llama_untied_biases"), longest()
    tracer = Tracer(policy.model, policy.trainable, 1.0)
    full = tracer.trace(sequence)
    part = tracer.trace(sequence_of(sequence.prompt_ids, sequence.completion_ids[:1]))
    before = [call.input.clone() for segment in part.segments[1:-1] for call in segment]
    part.share_inputs(full)
    after = [call.input for segment in part.segments[1:-1] for call in segment]
    for first, other in zip(before, after, strict=True):
        torch.testing.assert_close(first, other, rtol=1e-4, atol=1e-5)
    assert after[0].data_ptr() == full.segments[1][0].input.data_ptr()


def test_decoder_layers_are_the_list_of_the_configured_depth():
    model = tiny_policy("gpt2_tied_conv1d").model
    assert decoder_layers(model) == tuple(model.transformer.h)
    model.config.num_hidden_layers = 7
    assert decoder_layers(model) == ()
    model.config = PretrainedConfig()  # a model of several stacks names no one depth
    assert decoder_layers(model) == ()


def test_a_call_whose_output_the_model_wrote_over_is_not_intact():
    policy, sequence = tiny_policy("llama_untied_biases"), longest()
    first, second, *_ = Tracer(policy.model, policy.trainable, 1.0).trace(sequence).segments[1]
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
    trained = CoveredLayers(model, {"second.bias": model.second.bias})
    assert (list(trained.owned), trained.uncovered) == ([model.second], set())  # frozen parameters have no owner


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
