import numpy as np
import pytest
import torch
from msgspec.structs import replace

from gradscope.errors import InputError, VerificationError
from gradscope.gradients.engines.loop import GramAccumulator
from gradscope.gradients.layers.factors import HeadProduct
from gradscope.gradients.plan.prepared_step import prepare_step
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


@pytest.mark.parametrize(
    ("name", "rule", "parameter", "share"),
    [
        ("qwen3_gqa_norms", "norm", "weight", 0.0),
        ("gpt2_tied_conv1d", "norm", "bias", 0.0),
        ("gpt2_tied_conv1d", "conv1d", "weight", 0.0),
        ("gpt2_tied_conv1d", "embedding", "weight", 0.0),
        ("llama_untied_biases", "embedding", "weight", 0.0),
        ("llama_untied_biases", "linear", "weight", 0.0),
        ("llama_untied_biases", "linear", "bias", 0.0),
        ("gemma3_scaled", "embedding", "weight", 1.05),
    ],
)
def test_a_dropped_or_wrong_rule_is_caught(monkeypatch, name, rule, parameter, share):
    break_rule(monkeypatch, rule, parameter, share=share)
    with pytest.raises(VerificationError, match="disagrees with an ordinary backward pass"):
        measured_step(tiny_policy(name), tiny_groups(), DAPO, engine="stream")


def test_a_dropped_tied_cross_term_is_caught(monkeypatch):
    def untied(self, shape, dtype, parts):
        """Each use of a parameter on its own, as if its uses were different parameters."""
        num_uses = max(len(uses) for _, uses in parts)
        for use in range(num_uses):
            full(self, shape, dtype, [(rows, uses[use : use + 1]) for rows, uses in parts])
        self.num_parameters -= (num_uses - 1) * shape.numel()  # the count alone must not give it away

    full = GramAccumulator.add_parameter
    monkeypatch.setattr(GramAccumulator, "add_parameter", untied)
    with pytest.raises(VerificationError, match="disagrees"):
        measured_step(tiny_policy("qwen3_gqa_norms"), tiny_groups(), DAPO, engine="stream")
    monkeypatch.undo()
    assert measured_step(tiny_policy("qwen3_gqa_norms"), tiny_groups(), DAPO, engine="stream").coverage == 1.0


@pytest.mark.parametrize("name", ["llama_untied_biases", "qwen3_gqa_norms"])
def test_a_wrong_output_layer_is_caught(monkeypatch, name):
    """Of a layer in slices, which has no rule: its rows are one way to its gradient, an ordinary pass takes another."""

    def scaled(self, row, start, target):
        before = target.clone()
        honest(self, row, start, target)
        target.add_(target - before, alpha=1e-3)

    honest = HeadProduct.add_to
    monkeypatch.setattr(HeadProduct, "add_to", scaled)
    with pytest.raises(VerificationError, match="disagrees"):
        measured_step(tiny_policy(name), tiny_groups(), DAPO, engine="stream")


@pytest.mark.slow
def test_an_error_in_a_later_batch_is_caught_by_checking_all(monkeypatch):
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups()
    break_rule(monkeypatch, "linear", "weight", below=6)
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
def test_weights_that_make_all_tokens_equally_likely_are_blamed(engine):
    policy = tiny_policy("llama_untied_biases")
    policy.model.model.layers[0].mlp.down_proj.weight.data.fill_(2e30)  # whose square no float32 holds
    policy.model.lm_head.bias = None
    with pytest.raises(InputError, match="gives every token the same probability") as caught:
        measured_step(policy, tiny_groups(), DAPO, engine=engine)
    assert caught.value.cause == "weights_unreadable"


def moved(gram, to, source):
    """A row gets a share of another one, which loses it: the sum of all rows stays the same."""
    vectors, values, _ = np.linalg.svd(gram)
    rows = vectors * np.sqrt(values)
    part = 1e-2 * gram[to, to] ** 0.5 / gram[source, source] ** 0.5 * rows[source]
    rows[to] += part
    rows[source] -= part
    return rows @ rows.T


def stretched(gram, row):
    factors = np.where(np.arange(len(gram)) == row, 1 + 1e-3, 1.0)
    return gram * np.outer(factors, factors)


@pytest.fixture(scope="module")
def honest():
    """A step, its batches, and the matrix that the check lets pass."""
    step = prepared(tiny_policy("qwen3_gqa_norms"), tiny_groups(), DAPO)
    batches, gram = step.batches(range(6), 4096), measure_step(step, engine="loop").gram
    assert verify_gram(step, gram, batches, "first").error < 2e-6
    return step, batches, gram


def with_product(gram, row, other):
    """The inner product of two rows is wrong, or a squared norm."""
    result = gram.copy()
    result[row, other] += 1e-3 * (gram[row, row] * gram[other, other]) ** 0.5
    result[other, row] = result[row, other]
    return result


CHANGES = {
    "moved to the larger": lambda gram, large, small: moved(gram, large, small),
    "moved to the smaller": lambda gram, large, small: moved(gram, small, large),
    "larger row": lambda gram, large, small: stretched(gram, large),
    "smaller row": lambda gram, large, small: stretched(gram, small),
    "product of both": with_product,
    "larger norm": lambda gram, large, small: with_product(gram, large, large),
    "smaller norm": lambda gram, large, small: with_product(gram, small, small),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_matrix_that_is_wrong_in_a_single_entry_is_caught(honest, change):
    step, batches, gram = honest
    large, small = np.argsort(-np.diag(gram))[:2]
    with pytest.raises(VerificationError, match="disagrees"):
        verify_gram(step, CHANGES[change](gram, large, small), batches, "first")


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
    assert 0 <= verification.error < verification.tolerance / 4
    described = verification.describe()
    assert described["passed"] is True
    assert described["dtype"] == (name if "float" in name else "float32")
    if described["dtype"] == "float32":
        assert np.isclose(verification.tolerance, 2e-5)


def test_a_pair_of_two_batches_is_checked_with_all_of_them():
    """Of batches of one row each, none holds an inner product of two."""
    step = prepared(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)
    gram = measure_step(step, engine="loop").gram
    large, small = np.argsort(-np.diag(gram))[:2]
    batches = [step.batch([row]) for row in range(6)]
    longest = max(step.plan.lengths[large], step.plan.lengths[small])
    batches[0] = replace(batches[0], input_ids=torch.zeros(1, 2 * longest))  # a batch has room for both
    for verify in ("first", "all"):
        assert verify_gram(step, gram, batches, verify).num_batches == (1 if verify == "first" else 6)
        with pytest.raises(VerificationError, match="disagrees"):
            verify_gram(step, with_product(gram, large, small), batches, verify)


DEPENDENCES = {
    "rows": lambda output: output + output.mean(dim=0),
    "width": lambda output: output * (1 + 0.01 * output.shape[1]),
    "padding": lambda output: output + output.flip(1),
    # as of LILY, which averages its router over a batch, before its first update
    "rows, by their gradients alone": lambda output: output + output.mean((0, 1)) - output.mean((0, 1)).detach(),
}


@pytest.mark.parametrize(
    ("size", "dependence", "engine"),
    [
        *((6, dependence, "stream") for dependence in DEPENDENCES),
        *((1, dependence, "stream") for dependence in ("width", "padding")),
        *((2, "rows", engine) for engine in ("stream", "loop", "prompt")),
        (1, "width", "prompt"),
    ],
)
def test_a_model_whose_rows_depend_on_their_neighbors_is_blamed_itself(size, dependence, engine):
    """Also where the batch of an engine is the pair that is checked, or its one row."""
    policy = tiny_policy("llama_untied_biases")
    change = DEPENDENCES[dependence]
    policy.model.model.layers[0].register_forward_hook(lambda module, inputs, output: change(output))
    with pytest.raises(InputError, match=r"changes by .* with the rows and the padding beside it"):
        measured_step(policy, tiny_groups(1, size), DAPO, engine=engine)


def test_the_pair_that_is_checked_is_of_two_rollouts_where_each_has_several_rows(monkeypatch):
    """The rows of one rollout, alike where its ratio is near 1, together say nothing of neighbors."""
    policy, groups, checked = tiny_policy("llama_untied_biases"), tiny_groups(), []
    old = [torch.zeros(len(rollout.completion_ids)) for group in groups for rollout in group.rollouts]
    step = prepare_step(policy, groups, replace(DAPO, importance_ratio=True), old=old)
    monkeypatch.setattr(
        "gradscope.gradients.step.verify._error", lambda prepared, gram, batch: checked.append(batch.rows) or 0.0
    )
    largest, second = (row for row, spec in enumerate(step.plan.rows) if spec.sequence == 1)
    gram = np.diag([3.0 if row == largest else 2.0 if row == second else 1.0 for row in range(len(step.plan.rows))])
    verify_gram(step, gram, step.batches(range(len(step.plan.rows)), 4096), "first")
    assert [{step.plan.rows[row].sequence for row in rows} for rows in checked] == [{0, 1}]


@pytest.mark.parametrize("lora", [False, True])
def test_freed_memory_goes_back_before_a_trained_table_gets_its_gradient(monkeypatch, lora):
    """Twice the size of a table is held where an output layer is tied to it."""
    trims = []
    monkeypatch.setattr("gradscope.gradients.step.verify.trim_heap", lambda: trims.append(1))
    policy = tiny_policy("qwen3_gqa_norms", lora=lora)
    measured_step(policy, tiny_groups(), DAPO, engine="loop")
    assert len(trims) == (0 if lora else 1)
    assert not policy.model.get_input_embeddings()._forward_hooks
