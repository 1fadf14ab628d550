from dataclasses import replace

import numpy as np
import pytest
import torch

from gradscope.errors import InputError, VerificationError
from gradscope.gradients.engines.loop import GramAccumulator
from gradscope.gradients.layers.factors import HeadProduct, OuterProduct, Scatter, Summed
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.step.verify import verify_gram
from tests.gradients.models import (
    ARCHITECTURES,
    DAPO,
    break_rule,
    measured_step,
    policy_of,
    prepared,
    tiny_experts,
    tiny_groups,
    tiny_model,
    tiny_policy,
)


def silent(rule, *names):
    """The rule with some parameters' factors scaled away: what a forgotten rule looks like."""

    def broken(use):
        zero = {
            Summed: lambda part: Summed(rows=part.rows * 0),
            OuterProduct: lambda part: OuterProduct(left=tuple(x * 0 for x in part.left), right=part.right),
            Scatter: lambda part: Scatter(ids=part.ids, grads=tuple(x * 0 for x in part.grads)),
        }
        result = dict(rule(use))
        return {name: zero[type(part)](part) if name in names else part for name, part in result.items()}

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
            full(self, shape, dtype, [(rows, uses[use : use + 1]) for rows, uses in parts])
        self.num_parameters -= (num_uses - 1) * shape.numel()  # the count alone must not give it away

    full = GramAccumulator.add_parameter
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
    verification = measured_step(tiny_policy("gpt2_tied_conv1d"), tiny_groups(), DAPO, engine="stream").verification
    described = verification.describe()
    assert described["passed"] is True
    assert described["dtype"] == "float32"
    assert 0 <= verification.error < verification.tolerance
    assert np.isclose(verification.tolerance, 2e-5)


def rows_of(gram):
    """Vectors with a Gram matrix."""
    vectors, values, _ = np.linalg.svd(gram)
    return vectors * np.sqrt(values)


def moved(gram, to, source):
    """A row gets a share of another one, which loses it: the sum of all rows stays what it was."""
    rows = rows_of(gram)
    rows[to] += 1e-2 * gram[to, to] ** 0.5 / gram[source, source] ** 0.5 * rows[source]
    rows[source] += rows_of(gram).sum(0) - rows.sum(0)
    return rows @ rows.T


def stretched(gram, row):
    factors = np.where(np.arange(len(gram)) == row, 1 + 1e-3, 1.0)
    return gram * np.outer(factors, factors)


def with_others(gram, row, other):
    """One inner product of two rows is wrong, or one squared norm."""
    changed = gram.copy()
    changed[row, other] += 1e-3 * (gram[row, row] * gram[other, other]) ** 0.5
    changed[other, row] = changed[row, other]
    return changed


@pytest.fixture(scope="module")
def honest():
    """A step, its batches, and the matrix that the check lets pass."""
    step = prepared(tiny_policy("qwen3_gqa_norms"), tiny_groups(), DAPO)
    batches, gram = step.batches(range(6), 4096), measure_step(step, engine="loop").gram
    assert verify_gram(step, gram, batches, "first").error < 2e-6
    return step, batches, gram


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda gram, first, two: moved(gram, first, two), id="moved to the larger"),
        pytest.param(lambda gram, first, two: moved(gram, two, first), id="moved to the smaller"),
        pytest.param(lambda gram, first, two: stretched(gram, first), id="larger row"),
        pytest.param(lambda gram, first, two: stretched(gram, two), id="smaller row"),
        pytest.param(lambda gram, first, two: with_others(gram, first, two), id="product of both"),
        pytest.param(lambda gram, first, two: with_others(gram, first, first), id="larger norm"),
        pytest.param(lambda gram, first, two: with_others(gram, two, two), id="smaller norm"),
    ],
)
def test_a_matrix_that_is_wrong_in_one_place_is_caught(honest, change):
    step, batches, gram = honest
    first, two = np.argsort(-np.diag(gram))[:2]
    with pytest.raises(VerificationError, match="disagrees"):
        verify_gram(step, change(gram, first, two), batches, "first")


HONEST = {
    **{name: lambda name=name: tiny_policy(name) for name in ARCHITECTURES},
    "LoRA": lambda: tiny_policy("qwen3_gqa_norms", lora=True),
    "qwen3_moe": lambda: policy_of(tiny_experts("qwen3_moe_normalized")),
    "bfloat16": lambda: tiny_policy("qwen3_gqa_norms", dtype=torch.bfloat16),
    "float64": lambda: tiny_policy("llama_untied_biases", dtype=torch.float64),
}


@pytest.mark.parametrize("name", HONEST)
def test_rounding_is_far_below_the_tolerance(name):
    verification = measured_step(HONEST[name](), tiny_groups(), DAPO, engine="stream", verify="all").verification
    assert verification.error < verification.tolerance / 4


def test_a_pair_of_two_batches_is_checked_with_all_of_them():
    """Of batches of one row each, none holds an inner product of two."""
    step = prepared(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)
    gram = measure_step(step, engine="loop").gram
    first, two = np.argsort(-np.diag(gram))[:2]
    batches = [step.batch([row]) for row in range(6)]
    longest = max(step.plan.lengths[first], step.plan.lengths[two])
    batches[0] = replace(batches[0], input_ids=torch.zeros(1, 2 * longest))  # a batch has room for both
    for verify in ("first", "all"):
        assert verify_gram(step, gram, batches, verify).num_batches == (1 if verify == "first" else 6)
        with pytest.raises(VerificationError, match="disagrees"):
            verify_gram(step, with_others(gram, first, two), batches, verify)


OTHERS = ("loop", "prompt")


def from_all_rows(output):
    return output + output.mean(dim=0)


def from_the_width(output):
    return output * (1 + 0.01 * output.shape[1])


def from_the_padding(output):
    return output + output.flip(1)


@pytest.mark.parametrize(
    ("size", "change", "engine"),
    [
        *((6, change, "stream") for change in (from_all_rows, from_the_width, from_the_padding)),
        *((2, change, "stream") for change in (from_all_rows, from_the_width, from_the_padding)),
        *((1, change, "stream") for change in (from_the_width, from_the_padding)),
        *((size, change, engine) for size, change in ((2, from_all_rows), (1, from_the_width)) for engine in OTHERS),
    ],
)
def test_a_model_whose_rows_depend_on_what_is_beside_them_is_blamed_itself(size, change, engine):
    """Also where the batch of an engine is the pair that is checked, or its one row."""
    policy = tiny_policy("llama_untied_biases")
    policy.model.model.layers[0].register_forward_hook(lambda module, inputs, output: change(output))
    with pytest.raises(InputError, match=r"change by .* with the rows and the padding beside it"):
        measured_step(policy, tiny_groups(1, size), DAPO, engine=engine)


@pytest.mark.parametrize("lora", [False, True])
def test_freed_memory_goes_back_before_a_trained_table_gets_its_gradient(monkeypatch, lora):
    """Twice the size of a table is held where an output layer is tied to it."""
    trims = []
    monkeypatch.setattr("gradscope.gradients.step.verify.trim_heap", lambda: trims.append(1))
    policy = tiny_policy("qwen3_gqa_norms", lora=lora)
    measured_step(policy, tiny_groups(), DAPO, engine="loop")
    assert len(trims) == (0 if lora else 1)
    assert not policy.model.get_input_embeddings()._forward_hooks
