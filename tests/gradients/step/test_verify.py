from __future__ import annotations

import numpy as np
import pytest

from gradscope.errors import InputError, VerificationError
from gradscope.gradients.engines.accumulator import GramAccumulator
from gradscope.gradients.layers.factors import HeadProduct, OuterProduct, Scatter, Summed
from tests.gradients.models import DAPO, break_rule, measured_step, tiny_groups, tiny_model, tiny_policy


def silent(rule, *names):
    """The rule with some parameters' factors scaled away: what a forgotten rule looks like."""

    def broken(use):
        zero = {
            Summed: lambda part: Summed(rows=part.rows * 0),
            OuterProduct: lambda part: OuterProduct(left=tuple(x * 0 for x in part.left), right=part.right),
            Scatter: lambda part: Scatter(ids=part.ids, grads=tuple(x * 0 for x in part.grads)),
        }
        found = dict(rule(use))
        return {name: zero[type(part)](part) if name in names else part for name, part in found.items()}

    return broken


@pytest.mark.parametrize(
    ("name", "rule", "parameter"),
    [
        ("qwen3_gqa_norms", "norm", "weight"),
        ("gpt2_tied_conv1d", "norm", "bias"),
        ("gpt2_tied_conv1d", "conv1d", "weight"),
        ("gpt2_tied_conv1d", "embedding", "weight"),
        ("qwen3_gqa_norms", "embedding", "weight"),
        ("llama_untied_biases", "embedding", "weight"),
        ("llama_untied_biases", "linear", "weight"),
        ("llama_untied_biases", "linear", "bias"),
    ],
)
def test_a_dropped_rule_is_caught(monkeypatch, name, rule, parameter):
    break_rule(monkeypatch, rule, lambda honest: silent(honest, parameter))
    with pytest.raises(VerificationError, match="disagrees with an ordinary backward pass"):
        measured_step(tiny_policy(name), tiny_groups(), DAPO, engine="stream")


def test_a_dropped_tied_cross_term_is_caught(monkeypatch):
    def apart(self, shape, dtype, parts):
        """Each use of a parameter on its own, as if its uses were different parameters."""
        num_uses = max(len(uses) for _, uses in parts)
        for use in range(num_uses):
            whole(self, shape, dtype, [(rows, uses[use : use + 1]) for rows, uses in parts])
        self.num_parameters -= (num_uses - 1) * shape.numel()  # the count alone must not give it away

    whole = GramAccumulator.add_parameter
    monkeypatch.setattr(GramAccumulator, "add_parameter", apart)
    with pytest.raises(VerificationError, match="disagrees"):
        measured_step(tiny_policy("qwen3_gqa_norms"), tiny_groups(), DAPO, engine="stream")
    monkeypatch.undo()
    assert measured_step(tiny_policy("qwen3_gqa_norms"), tiny_groups(), DAPO, engine="stream").coverage == 1.0


@pytest.mark.parametrize("name", ["llama_untied_biases", "qwen3_gqa_norms"])
def test_a_wrong_output_layer_is_caught(monkeypatch, name):
    """Of a layer in slices, which has no rule: its rows are one way to its gradient, an ordinary pass takes another."""

    def larger(self, row, start, out):
        before = out.clone()
        honest(self, row, start, out)
        out.add_(out - before, alpha=1e-3)

    honest = HeadProduct.add_to
    monkeypatch.setattr(HeadProduct, "add_to", larger)
    with pytest.raises(VerificationError, match="disagrees"):
        measured_step(tiny_policy(name), tiny_groups(), DAPO, engine="stream")


def test_a_wrong_embedding_scale_is_caught(monkeypatch):
    def scaled(honest):
        return lambda call: {
            name: Scatter(ids=part.ids, grads=tuple(1.05 * grad for grad in part.grads))
            for name, part in honest(call).items()
        }

    break_rule(monkeypatch, "embedding", scaled)
    with pytest.raises(VerificationError, match="disagrees"):
        measured_step(tiny_policy("gemma3_scaled"), tiny_groups(), DAPO, engine="stream")


def test_an_error_in_a_later_batch_is_caught_by_checking_all(monkeypatch):
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups()

    def wrong_on_short_sequences(honest):
        return lambda call: silent(honest, "weight")(call) if call.length < 6 else honest(call)

    break_rule(monkeypatch, "linear", wrong_on_short_sequences)
    assert measured_step(policy, groups, DAPO, batch_tokens=1, engine="stream").verification.num_batches == 1
    with pytest.raises(VerificationError, match="a batch"):
        measured_step(policy, groups, DAPO, batch_tokens=1, engine="stream", verify="all")


@pytest.mark.parametrize("engine", ["loop", "stream"])
def test_a_forward_pass_through_other_weights_is_caught(engine):
    policy = tiny_policy("llama_untied_biases")
    policy.model.forward = tiny_model("llama_untied_biases").forward
    with pytest.raises(VerificationError, match=r"No gradient reaches any of the 35 .*, model\.embed_tokens\.weight"):
        measured_step(policy, tiny_groups(), DAPO, engine=engine)


@pytest.mark.parametrize("engine", ["loop", "stream"])
def test_weights_that_make_all_tokens_alike_are_blamed_themselves(engine):
    policy = tiny_policy("llama_untied_biases")
    policy.model.model.layers[0].mlp.down_proj.weight.data.fill_(2e30)  # whose square no float32 holds
    policy.model.lm_head.bias = None
    with pytest.raises(InputError, match="gives every token the same probability") as caught:
        measured_step(policy, tiny_groups(), DAPO, engine=engine)
    assert caught.value.cause == "weights_unreadable"


def test_the_outcome_travels_in_the_result():
    found = measured_step(tiny_policy("gpt2_tied_conv1d"), tiny_groups(), DAPO, engine="stream").verification
    described = found.describe()
    assert described["passed"] is True
    assert described["dtype"] == "float32"
    assert 0 <= found.error < found.tolerance
    assert np.isclose(found.tolerance, 2e-5)


def test_a_model_that_mixes_the_rows_of_a_batch_is_blamed_itself():
    policy = tiny_policy("llama_untied_biases")
    layer = policy.model.model.layers[0]
    layer.register_forward_hook(lambda module, given, output: output + output.mean(dim=(0, 1)))
    with pytest.raises(InputError, match=r"change by .* with the rows and the padding beside it"):
        measured_step(policy, tiny_groups(), DAPO, engine="loop")
