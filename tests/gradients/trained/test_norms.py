from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from gradscope.gradients.model.batches import TrainerPadding
from gradscope.gradients.model.budget import TokenBudget
from gradscope.gradients.model.passes import completion_logprobs
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.prepared_step import prepare_step, step_logprobs
from gradscope.gradients.plan.rows import ForwardPasses
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.trained import norms
from gradscope.gradients.trained.norms import (
    TrainedNorms,
    TrainerArithmetic,
    _router_losses,
    fused_head,
    tensor_squares,
    trained_norms,
)
from gradscope.metrics.gram.geometry import batch_norm
from gradscope.rollouts.run import TrainerSettings
from tests.gradients.adapters import adapt
from tests.gradients.models import DAPO, VOCAB, policy_of, tiny_experts, tiny_groups, tiny_model, tiny_policy

KL = Objective(loss_type="grpo", beta=0.5)


def logged_norm(prepared) -> float:
    return batch_norm(measure_step(prepared).logged_gram)


@pytest.mark.parametrize("lora", [False, True])
def test_in_float32_every_order_has_the_norm_of_the_gram_matrix(lora: bool) -> None:
    prepared = prepare_step(tiny_policy("qwen3_gqa_norms", lora=lora), tiny_groups(), DAPO)
    found = trained_norms(prepared, TrainerArithmetic(micro_batch=2))
    assert found.norms == pytest.approx([logged_norm(prepared)] * 6, rel=1e-5)
    assert (found.dtype, found.router_norm) == ("float32", None)
    assert found.told_within < 1e-5
    squares = tensor_squares(prepared)
    assert set(squares) == set(prepared.policy.trainable)
    assert np.sqrt(sum(squares.values())) == pytest.approx(logged_norm(prepared), rel=1e-6)


def test_the_rounding_of_the_sum_of_squares_is_part_of_the_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's float32 norm of a table of 28 M numbers is 1.6e-5 off, by the processor."""
    norm_of, prepared = norms._norm, prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)
    monkeypatch.setattr(norms, "_norm", lambda gradients: norm_of(gradients) * (1 + 2e-5))
    assert trained_norms(prepared, TrainerArithmetic()).told_within == pytest.approx(2e-5, rel=0.05)


def test_gradients_that_were_there_come_back() -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)
    name, parameter = next(iter(prepared.policy.trainable.items()))
    parameter.grad = torch.ones_like(parameter)
    tensor_squares(prepared)
    assert torch.equal(parameter.grad, torch.ones_like(parameter)), name
    assert sum(other.grad is not None for other in prepared.policy.trainable.values()) == 1


@pytest.mark.parametrize("objective", [DAPO, KL], ids=["dapo", "kl"])
def test_autocast_is_that_of_pytorch(objective: Objective) -> None:
    """The oracle: the padded batch through the model under autocast, TRL's loss by hand, one backward pass."""
    model, reference = tiny_model("qwen3_gqa_norms"), tiny_model("qwen3_gqa_norms").requires_grad_(False)
    with torch.no_grad():
        reference.lm_head.weight.mul_(1.3)
    policy = replace(policy_of(model, reference=reference), padding=TrainerPadding())
    groups = tiny_groups(1, 3)
    prepared = prepare_step(policy, groups, objective)
    found = trained_norms(prepared, TrainerArithmetic(autocast=torch.bfloat16, fused_head=False), num_orders=3)
    expected = plain_norm(model, reference, groups[0].rollouts, objective)
    assert found.mean == pytest.approx(expected, rel=2e-4)
    assert found.dtype == "bfloat16"
    assert abs(found.mean / logged_norm(prepared) - 1) > 1e-5  # it is not float32's; by how much is the processor's


BF16 = TrainerArithmetic(autocast=torch.bfloat16, fused_head=False)


def other_model():
    model = tiny_model("qwen3_gqa_norms")
    with torch.no_grad():
        model.lm_head.weight.mul_(1.1)
    return model


def test_what_sampled_a_reused_batch_is_looked_at_in_the_same_precision() -> None:
    """The oracle: log-probabilities by a plain pass under autocast, given as those that were sampled with."""
    policy = replace(tiny_policy("qwen3_gqa_norms"), padding=TrainerPadding())
    sampler, reused = policy_of(other_model()), replace(DAPO, importance_ratio=True)
    in_float32 = step_logprobs(sampler, tiny_groups(), reused, TokenBudget(999))
    prepared = prepare_step(policy, tiny_groups(), reused, old=in_float32)
    batch = replace(prepared, plan=framed(prepared)).batch(range(6))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        rounded = completion_logprobs(sampler.model, batch, 1.0)
    assert any(not torch.equal(one, other) for one, other in zip(in_float32, rounded, strict=True))
    expected = trained_norms(prepare_step(policy, tiny_groups(), reused, old=rounded), BF16)
    assert trained_norms(prepared, BF16, sampler).norms == pytest.approx(expected.norms, rel=1e-6)
    assert trained_norms(prepared, BF16).norms != pytest.approx(expected.norms, rel=1e-6)


def framed(prepared):
    return replace(prepared.plan, sequences=TrainerPadding().framed(prepared.plan.sequences, 0))


def test_tokens_are_chosen_by_their_entropy_in_the_same_precision() -> None:
    policy = replace(tiny_policy("qwen3_gqa_norms"), padding=TrainerPadding())
    prepared = prepare_step(policy, tiny_groups(), replace(DAPO, top_entropy_quantile=0.5))
    batch = replace(prepared, plan=framed(prepared)).batch(range(6))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        rows = completion_logprobs(policy.model, batch, 1.0, entropies=True)
    by_hand = prepared.planned_with(ForwardPasses(entropies=[row[len(row) // 2 :] for row in rows]))
    found, expected = trained_norms(prepared, BF16).norms, trained_norms(by_hand, BF16).norms
    assert found == pytest.approx(expected, rel=1e-6)


def test_few_rollouts_that_count_share_a_micro_batch_in_one_order_and_not_in_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rounding depends on which share one; random orders of eight rarely bring two together."""
    groups = [
        replace(group, rollouts=tuple(replace(one, advantage=float(one.sample == 0)) for one in group.rollouts))
        for group in tiny_groups(2, 4)
    ]
    chunks, together = norms._chunks, []

    def noted(prepared, order, arithmetic):
        batches = chunks(prepared, order, arithmetic)
        together.append(max(len({0, 4} & set(batch.rows)) for batch in batches))
        return batches

    monkeypatch.setattr(norms, "_chunks", noted)
    prepared = prepare_step(tiny_policy("llama_untied_biases"), groups, DAPO)
    trained_norms(prepared, TrainerArithmetic(micro_batch=2), seed=3)
    assert together[-2:] == [2, 1]


def plain_norm(model, reference, rollouts, objective: Objective) -> float:
    prompts, completions = (max(len(getattr(r, n)) for r in rollouts) for n in ("prompt_ids", "completion_ids"))
    ids = torch.zeros(len(rollouts), prompts + completions, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, r in enumerate(rollouts):
        start, stop = prompts - len(r.prompt_ids), prompts + len(r.completion_ids)
        ids[row, start:stop], mask[row, start:stop] = torch.tensor([*r.prompt_ids, *r.completion_ids]), 1

    def logprobs(net):
        with torch.autocast("cpu", torch.bfloat16):
            logits = net(input_ids=ids, attention_mask=mask).logits
        return logits[:, prompts - 1 : -1].float().log_softmax(-1).gather(2, ids[:, prompts:, None])[:, :, 0]

    counted, ours = mask[:, prompts:].float(), logprobs(model)
    terms = -torch.exp(ours - ours.detach()) * torch.tensor([[r.advantage] for r in rollouts])
    if objective.beta:
        with torch.no_grad():
            theirs = logprobs(reference)
        kl = torch.exp(theirs - ours) - (theirs - ours) - 1
        terms = terms + objective.beta * kl * torch.exp(ours - ours.detach())
    if objective.loss_type == "grpo":
        loss = ((terms * counted).sum(1) / counted.sum(1)).mean()
    else:
        loss = (terms * counted).sum() / counted.sum()
    model.zero_grad()
    loss.backward()
    return float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))


def test_weights_in_bfloat16_have_their_norm_in_bfloat16() -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases", dtype=torch.bfloat16), tiny_groups(), DAPO)
    found = trained_norms(prepared, TrainerArithmetic(micro_batch=2))
    assert all(float(torch.tensor(norm).to(torch.bfloat16)) == norm for norm in found.norms)
    assert found.told_within >= 2**-7


@pytest.mark.slow
def test_float16_is_scaled_until_it_is_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)
    monkeypatch.setattr("gradscope.gradients.trained.norms._LARGEST_SCALE", 2.0**130)
    found = trained_norms(prepared, TrainerArithmetic(autocast=torch.float16), num_orders=2)
    assert found.mean == pytest.approx(logged_norm(prepared), rel=1e-2)


def test_the_routers_term_is_added_and_its_norm_is_told() -> None:
    """The oracle: the term of the whole padded batch, added to the policy's gradient by plain autograd."""
    model, groups = tiny_experts("mixtral"), tiny_groups(1, 3)
    policy = replace(policy_of(model), padding=TrainerPadding())
    prepared = prepare_step(policy, groups, DAPO)
    found = trained_norms(prepared, TrainerArithmetic(router_coefficient=0.3), num_orders=2)
    framed = prepared.plan.sequences if prepared.plan.sequences[0].frame else None
    assert framed is None  # rotary: only this pass stands in the trainer's rows
    rows = replace(prepared, plan=replace(prepared.plan, sequences=TrainerPadding().framed(prepared.plan.sequences, 0)))
    batch = rows.batch(range(3))
    output = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, output_router_logits=True)
    model.zero_grad()
    (0.3 * output.aux_loss).backward()
    alone = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    assert found.router_norm == pytest.approx(float(alone), rel=1e-5)
    assert found.mean != pytest.approx(logged_norm(prepared), rel=1e-4)


def test_truncated_completions_are_hidden_from_the_router() -> None:
    model = tiny_experts("mixtral")
    (group,) = tiny_groups(1, 3)
    ends = ("completed", "truncated", "completed")
    rollouts = [replace(one, status=end) for one, end in zip(group.rollouts, ends, strict=True)]
    policy = replace(policy_of(model), padding=TrainerPadding())
    prepared = prepare_step(
        policy, [replace(group, rollouts=tuple(rollouts))], replace(DAPO, loss_type="grpo", mask_truncated=True)
    )
    found = trained_norms(prepared, TrainerArithmetic(router_coefficient=0.3), num_orders=2)
    batch = replace(prepared, plan=framed(prepared)).batch(range(3))
    batch.attention_mask[1, batch.spans[1][1] - batch.num_completion[1] :] = 0
    output = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, output_router_logits=True)
    model.zero_grad()
    (0.3 * output.aux_loss).backward()
    alone = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    assert found.router_norm == pytest.approx(float(alone), rel=1e-5)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, (torch.bfloat16, None, 0.0)),
        ({"bf16": False}, (None, None, 0.0)),
        ({"bf16": False, "fp16": True}, (torch.float16, None, 0.0)),
        ({"bf16": True, "per_device_train_batch_size": 4}, (torch.bfloat16, 4, 0.0)),
    ],
)
def test_the_arguments_tell_the_arithmetic(values: dict, expected: tuple) -> None:
    found = TrainerArithmetic.from_settings(TrainerSettings(values=values), tiny_model("llama_untied_biases"))
    assert (found.autocast, found.micro_batch, found.router_coefficient) == expected


def test_a_routers_coefficient_is_that_of_the_arguments_else_the_models() -> None:
    model = tiny_experts("mixtral")
    model.config.router_aux_loss_coef = 0.02
    given = TrainerArithmetic.from_settings(TrainerSettings(values={"router_aux_loss_coef": 0.5}), model)
    own = TrainerArithmetic.from_settings(TrainerSettings(values={"router_aux_loss_coef": None}), model)
    assert (given.router_coefficient, own.router_coefficient) == (0.5, 0.02)


def test_how_closely_a_norm_is_told() -> None:
    spread = TrainedNorms(dtype="bfloat16", norms=(1.0, 1.001, 0.999), resolution=1e-7, router_norm=None)
    assert spread.told_within == pytest.approx(31.6 * 0.001 * np.sqrt(4 / 3), rel=1e-2)
    assert replace(spread, norms=(0.0, 0.0)).told_within == 0.0


class Model(nn.Module):
    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(8, 11, bias=bias)

    def get_output_embeddings(self) -> nn.Module:
        return self.head


@pytest.mark.parametrize("bias", [False, True])
def test_in_float32_it_is_the_layer_itself(bias: bool) -> None:
    model, hidden = Model(bias=bias), torch.randn(2, 5, 8, requires_grad=True)
    expected = model.head(hidden)
    cotangent = torch.randn_like(expected)
    leaves = [hidden, *model.head.parameters()]
    gradients = torch.autograd.grad(expected, leaves, cotangent)
    with fused_head(model):
        found = model.head(hidden)
    for one, other in zip(torch.autograd.grad(found, leaves, cotangent), gradients, strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(found, expected)
    assert "forward" not in vars(model.head)


def test_in_autocast_logits_and_their_cotangents_are_rounded_and_their_products_are_not() -> None:
    model, hidden = Model(bias=True), torch.randn(2, 5, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16), fused_head(model):
        logits = model.head(hidden)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, logits.to(torch.bfloat16).float())
    cotangent = torch.randn_like(logits)
    to_hidden, to_weight, to_bias = torch.autograd.grad(logits, [hidden, *model.head.parameters()], cotangent)
    rounded = cotangent.to(torch.bfloat16).float().flatten(0, 1)
    inputs, weight = hidden.to(torch.bfloat16).float().flatten(0, 1), model.head.weight.to(torch.bfloat16).float()
    torch.testing.assert_close(to_weight, rounded.t() @ inputs)
    torch.testing.assert_close(to_hidden.flatten(0, 1), rounded @ weight)
    torch.testing.assert_close(to_bias, rounded.sum(0))
    assert not torch.equal(to_weight, to_weight.to(torch.bfloat16).float())


def test_where_the_trainer_kept_it_in_float32_nothing_is_rounded() -> None:
    model, hidden = Model(bias=True), torch.randn(2, 5, 8, requires_grad=True)
    expected = model.head(hidden)
    with torch.autocast("cpu", torch.bfloat16), fused_head(model, in_float32=True):
        logits = model.head(hidden)
    torch.testing.assert_close(logits, expected)
    cotangent, leaves = torch.randn_like(logits), [hidden, *model.head.parameters()]
    found = torch.autograd.grad(logits, leaves, cotangent)
    for one, other in zip(found, torch.autograd.grad(expected, leaves, cotangent), strict=True):
        torch.testing.assert_close(one, other)


def test_a_head_that_is_frozen_gets_no_gradient() -> None:
    model, hidden = Model(bias=True), torch.randn(3, 8, requires_grad=True)
    model.head.requires_grad_(False)
    with fused_head(model):
        model.head(hidden).sum().backward()
    assert hidden.grad is not None
    assert model.head.weight.grad is None


def test_a_head_that_is_no_plain_layer_stays_as_it_is() -> None:
    model = adapt(tiny_model("llama_untied_biases"), {"target_modules": ["lm_head"]})
    head = model.get_output_embeddings()
    with fused_head(model):
        assert "forward" not in vars(head)


def test_the_term_is_that_of_the_pass_with_its_graph() -> None:
    model, ids = tiny_experts("mixtral"), torch.arange(12).reshape(2, 6) % VOCAB
    expected = model(input_ids=ids, output_router_logits=True)
    found: list[torch.Tensor] = []
    with _router_losses(model, found):
        logits = model(input_ids=ids).logits
    torch.testing.assert_close(logits, expected.logits)
    torch.testing.assert_close(found[0], expected.aux_loss)
    found[0].backward()
    assert model.model.layers[0].mlp.gate.weight.grad is not None
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
