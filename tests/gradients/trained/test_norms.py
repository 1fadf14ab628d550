from itertools import count

import numpy as np
import pytest
import torch
import transformers
from msgspec.structs import replace
from torch import nn

from gradscope.gradients.model.batches import Frame, TrainerPadding
from gradscope.gradients.model.budget import TokenBudget
from gradscope.gradients.model.head import plain_head
from gradscope.gradients.model.passes import completion_logprobs
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.prepared_step import prepare_step, step_logprobs
from gradscope.gradients.plan.rows import ForwardPasses
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.trained import norms
from gradscope.gradients.trained.norms import (
    Assumption,
    TrainedNorms,
    TrainerArithmetic,
    fused_head,
    is_own_output,
    is_random,
    norm_under,
    other_assumptions,
    takes_random_numbers,
    tensor_squares,
    trained_norms,
    trl_output,
    unchanged,
)
from gradscope.metrics.gram.geometry import batch_norm
from gradscope.rollouts.run import TrainerSettings
from tests.gradients.adapters import adapt, adapted
from tests.gradients.models import (
    DAPO,
    VOCAB,
    changed,
    policy_of,
    sequence_of,
    tiny_experts,
    tiny_groups,
    tiny_model,
    tiny_policy,
    waiting_gradients,
)

KL = Objective(loss_type="grpo", beta=0.5)


BF16 = TrainerArithmetic(autocast=torch.bfloat16, fused_head=False)


def padded_batch(prepared):
    """All rollouts in the trainer's padding."""
    sequences = TrainerPadding().framed(prepared.plan.sequences, 0)
    return replace(prepared, plan=replace(prepared.plan, sequences=sequences)).batch(range(len(sequences)))


def norm_of_gradients(model) -> float:
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return float(torch.nn.utils.get_total_norm(grads))


def logged_norm(prepared) -> float:
    return batch_norm(measure_step(prepared).logged_gram)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True])
def test_in_float32_every_order_has_the_norm_of_the_gram_matrix(lora: bool) -> None:
    prepared = prepare_step(tiny_policy("qwen3_gqa_norms", lora=lora), tiny_groups(), DAPO)
    with waiting_gradients(prepared.policy):
        result, squares = trained_norms(prepared, TrainerArithmetic(micro_batch=2)), tensor_squares(prepared)
    assert result.norms == pytest.approx([logged_norm(prepared)] * 6, rel=1e-5)
    assert result.dtype == "float32"
    assert result.told_within < 1e-5
    assert set(squares) == set(prepared.policy.trainable)
    assert np.sqrt(sum(squares.values())) == pytest.approx(logged_norm(prepared), rel=1e-6)


def test_the_rounding_of_the_sum_of_squares_is_part_of_the_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's float32 norm of a table of 28 M numbers is 1.6e-5 off, by the processor."""
    norm_of, prepared = norms._norm, prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)
    monkeypatch.setattr(norms, "_norm", lambda gradients: norm_of(gradients) * (1 + 2e-5))
    assert trained_norms(prepared, TrainerArithmetic()).told_within == pytest.approx(2e-5, rel=0.05)


def test_the_mask_of_high_entropies_moves_by_their_rounding() -> None:
    prepared = prepare_step(tiny_policy("qwen3_gqa_norms"), tiny_groups(), replace(DAPO, top_entropy_quantile=0.5))
    arithmetic = TrainerArithmetic(autocast=torch.bfloat16)
    fine, coarse = (trained_norms(prepared, arithmetic, entropy_rounding=rounding) for rounding in (2.0**-30, 0.3))
    assert fine.num_ties == 0 < coarse.num_ties
    assert coarse.told_within > 10 * fine.told_within
    assert coarse.norms[0] == pytest.approx(fine.norms[0], rel=1e-3)  # as computed: equal ones stay equal


@pytest.mark.parametrize("objective", [DAPO, KL], ids=["dapo", "kl"])
def test_autocast_is_that_of_pytorch(objective: Objective) -> None:
    """The oracle: the padded batch through the model under autocast, TRL's loss by hand, one backward pass."""
    model, reference = tiny_model("qwen3_gqa_norms"), tiny_model("qwen3_gqa_norms").requires_grad_(False)
    reference.lm_head.weight.mul_(1.3)
    policy = replace(policy_of(model, reference=reference), padding=TrainerPadding())
    prepared = prepare_step(policy, tiny_groups(1, 3), objective)
    batch = padded_batch(prepared)
    prompts = max(len(rollout.prompt_ids) for rollout in prepared.rollouts)
    counted = batch.attention_mask[:, prompts:].float()

    def logprobs(net):
        with torch.autocast("cpu", torch.bfloat16):
            logits = net(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
        logs = logits[:, prompts - 1 : -1].float().log_softmax(-1)
        return logs.gather(2, batch.input_ids[:, prompts:, None])[:, :, 0]

    ours = logprobs(model)
    ratio = torch.exp(ours - ours.detach())
    terms = -ratio * torch.tensor([[rollout.advantage] for rollout in prepared.rollouts])
    if objective.beta:
        behind = logprobs(reference) - ours
        terms = terms + objective.beta * (behind.exp() - behind - 1) * ratio
    by_sequence = ((terms * counted).sum(1) / counted.sum(1)).mean()
    loss = by_sequence if objective.loss_type == "grpo" else (terms * counted).sum() / counted.sum()
    result = trained_norms(prepared, BF16, num_orders=3)
    loss.backward()
    assert result.mean == pytest.approx(norm_of_gradients(model), rel=2e-4)
    assert result.dtype == "bfloat16"
    model.zero_grad()
    assert abs(result.mean / logged_norm(prepared) - 1) > 1e-5  # it is not float32's; by how much is the processor's


@pytest.mark.slow
def test_what_sampled_a_reused_batch_is_looked_at_in_the_same_precision() -> None:
    """The oracle: log-probabilities by a plain pass under autocast, as those that were sampled with."""
    policy, model = replace(tiny_policy("qwen3_gqa_norms"), padding=TrainerPadding()), tiny_model("qwen3_gqa_norms")
    model.lm_head.weight.data.mul_(1.1)
    sampler, reused = policy_of(model), replace(DAPO, importance_ratio=True)
    in_float32 = step_logprobs(sampler, tiny_groups(), reused, TokenBudget(999))
    prepared = prepare_step(policy, tiny_groups(), reused, old=in_float32)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        rounded = completion_logprobs(model, padded_batch(prepared), 1.0)
    assert any(not torch.equal(exact, rough) for exact, rough in zip(in_float32, rounded, strict=True))
    expected = trained_norms(prepare_step(policy, tiny_groups(), reused, old=rounded), BF16)
    assert trained_norms(prepared, BF16, sampler).norms == pytest.approx(expected.norms, rel=1e-6)
    assert trained_norms(prepared, BF16).norms != pytest.approx(expected.norms, rel=1e-6)


def test_tokens_are_chosen_by_their_entropy_in_the_same_precision() -> None:
    policy = replace(tiny_policy("qwen3_gqa_norms"), padding=TrainerPadding())
    prepared = prepare_step(policy, tiny_groups(), replace(DAPO, top_entropy_quantile=0.5))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        rows = completion_logprobs(policy.model, padded_batch(prepared), 1.0, entropies=True)
    by_hand = prepared.planned_with(ForwardPasses(entropies=[row[len(row) // 2 :] for row in rows]))
    assert trained_norms(prepared, BF16).norms == pytest.approx(trained_norms(by_hand, BF16).norms, rel=1e-6)


def test_a_few_live_rollouts_share_a_micro_batch_in_some_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding depends on which share one; random orders of eight rarely bring two together."""
    groups = changed(tiny_groups(2, 4), advantage=lambda rollout: float(rollout.sample == 0))
    chunks, together = norms._chunks, []

    def noted(prepared, order, arithmetic):
        batches = chunks(prepared, order, arithmetic)
        together.append(max(len({0, 4} & set(batch.rows)) for batch in batches))
        return batches

    monkeypatch.setattr(norms, "_chunks", noted)
    prepared = prepare_step(tiny_policy("llama_untied_biases"), groups, DAPO)
    trained_norms(prepared, TrainerArithmetic(micro_batch=2), seed=3)
    assert together[-2:] == [2, 1]


def test_weights_in_bfloat16_have_their_norm_in_bfloat16() -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases", dtype=torch.bfloat16), tiny_groups(), DAPO)
    result = trained_norms(prepared, TrainerArithmetic(micro_batch=2))
    assert all(float(torch.tensor(norm).to(torch.bfloat16)) == norm for norm in result.norms)
    assert result.told_within >= 2**-7


@pytest.mark.slow
def test_float16_is_scaled_until_it_is_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)
    monkeypatch.setattr("gradscope.gradients.trained.norms._LARGEST_SCALE", 2.0**40)
    result = trained_norms(prepared, TrainerArithmetic(autocast=torch.float16), num_orders=2)
    assert result.mean == pytest.approx(logged_norm(prepared), rel=1e-2)


@pytest.mark.parametrize("truncated", [None, 1], ids=["all end", "the second is truncated"])
def test_the_routers_term_is_added_and_sees_no_truncated_completion(truncated: int | None) -> None:
    """The oracle: the term of the padded batch, added to the policy's gradient by plain autograd."""
    model = tiny_experts("mixtral")
    groups = changed(tiny_groups(1, 3), status=lambda r: "truncated" if r.sample == truncated else "completed")
    policy = replace(policy_of(model), padding=TrainerPadding())
    objective, arithmetic = Objective(loss_type="grpo", mask_truncated=True), TrainerArithmetic(router_coefficient=0.3)
    prepared, unrewarded = (prepare_step(policy, g, objective) for g in (groups, changed(groups, advantage=0.0)))
    result, router_only = (trained_norms(step, arithmetic, num_orders=2) for step in (prepared, unrewarded))
    assert prepared.plan.sequences[0].frame is None  # rotary: only this pass stands in the trainer's rows
    batch = padded_batch(prepared)
    if truncated is not None:
        batch.attention_mask[1, batch.spans[1][1] - batch.num_completion[1] :] = 0
    output = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, output_router_logits=True)
    model.zero_grad()
    (0.3 * output.aux_loss).backward()
    assert router_only.mean == pytest.approx(norm_of_gradients(model), rel=1e-5)
    assert not {**model._forward_pre_hooks, **model._forward_hooks}
    model.zero_grad()
    assert result.mean != pytest.approx(logged_norm(prepared), rel=1e-4)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, (torch.bfloat16, None, 0.02)),
        ({"bf16": False, "router_aux_loss_coef": None, "per_device_train_batch_size": 0}, (None, None, 0.02)),
        ({"bf16": False, "fp16": True, "router_aux_loss_coef": 0.5}, (torch.float16, None, 0.5)),
        ({"bf16": True, "per_device_train_batch_size": 4}, (torch.bfloat16, 4, 0.02)),
    ],
)
def test_the_arguments_tell_the_arithmetic(values: dict, expected: tuple) -> None:
    model = tiny_experts("mixtral")
    model.config.router_aux_loss_coef = 0.02
    result = TrainerArithmetic.from_settings(TrainerSettings(values=values), model)
    assert (result.autocast, result.micro_batch, result.router_coefficient) == expected
    dense = TrainerArithmetic.from_settings(TrainerSettings(values=values), tiny_model("llama_untied_biases"))
    assert dense.router_coefficient == 0.0


def test_how_closely_a_norm_can_be_recomputed() -> None:
    spread = TrainedNorms(dtype="bfloat16", norms=(1.0, 1.001, 0.999), resolution=1e-7)
    assert spread.told_within == pytest.approx(31.6 * 0.001 * np.sqrt(4 / 3), rel=1e-2)
    assert replace(spread, norms=(0.0, 0.0)).told_within == 0.0
    assert spread.meets(1.03)
    assert not spread.meets(1.05)
    assert not replace(spread, norms=(1.0, 1.1, 0.9)).meets(1.0)  # to 360 %, which tells nothing


class Model(nn.Module):
    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(8, 11, bias=bias)

    def get_output_embeddings(self) -> nn.Module:
        return self.head


@pytest.mark.parametrize(("bias", "in_float32"), [(False, False), (True, False), (True, True)])
def test_in_float32_a_fused_head_is_the_layer_itself(bias: bool, in_float32: bool) -> None:
    """Also under autocast where the trainer kept the head in float32."""
    model, hidden = Model(bias=bias), torch.randn(2, 5, 8, requires_grad=True)
    expected = model.head(hidden)
    cotangent, leaves = torch.randn_like(expected), [hidden, *model.head.parameters()]
    gradients = torch.autograd.grad(expected, leaves, cotangent)
    with torch.autocast("cpu", torch.bfloat16, enabled=in_float32), fused_head(model, in_float32=in_float32):
        result = model.head(hidden)
    for first, other in zip(torch.autograd.grad(result, leaves, cotangent), gradients, strict=True):
        torch.testing.assert_close(first, other)
    torch.testing.assert_close(result, expected)
    assert "forward" not in vars(model.head)
    model.head.requires_grad_(False)
    with fused_head(model):
        model.head(hidden).sum().backward()
    assert (hidden.grad is None, model.head.weight.grad is None) == (False, True)
    adapted_model = adapt(tiny_model("llama_untied_biases"), {"target_modules": ["lm_head"]})
    with fused_head(adapted_model):
        assert "forward" not in vars(adapted_model.get_output_embeddings())  # no plain layer


def test_the_copy_of_a_saved_head_is_fused_and_under_the_reference_the_head_itself() -> None:
    model = adapt(tiny_model("llama_untied_biases"), {"modules_to_save": ["lm_head"]})
    head, hidden = model.get_output_embeddings(), torch.randn(2, 16)
    with torch.no_grad():
        head.weight.add_(1.0)
    with torch.autocast("cpu", torch.bfloat16), fused_head(model):
        assert head(hidden).dtype == torch.float32
        torch.testing.assert_close(head(hidden), (hidden.bfloat16() @ head.weight.bfloat16().t()).float())
        with model.disable_adapter():
            expected = hidden.bfloat16() @ head.original_module.weight.bfloat16().t()
            torch.testing.assert_close(head(hidden), expected.float())


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


FROZEN = frozenset({"model.embed_tokens.weight", "model.norm.weight"})
FIRST = Assumption(padding_row=0)


def prepared_with(*rows: int | None):
    policy = replace(tiny_policy("llama_untied_biases"), padding_rows=rows)
    policy.model.get_input_embeddings().padding_idx = 0
    return prepare_step(policy, tiny_groups(), DAPO)


def test_every_other_way_is_tried_the_fewest_changes_first() -> None:
    prepared, unpadded = prepared_with(0, None), [Assumption(padding_row=None)]
    assert other_assumptions(prepared, frozenset(), FIRST) == unpadded
    frozen = [Assumption(padding_row=row, frozen=FROZEN) for row in (0, None)]
    assert other_assumptions(prepared, FROZEN, FIRST) == [*unpadded, *frozen]
    assert other_assumptions(prepared_with(), frozenset(), FIRST) == []
    unread = tuple(replace(sequence, prompt_ids=(1, 2), completion_ids=(3,)) for sequence in prepared.plan.sequences)
    without_the_token = replace(prepared, plan=replace(prepared.plan, sequences=unread))
    assert other_assumptions(without_the_token, frozenset(), FIRST) == []
    ends = tuple(replace(sequence, prompt_ids=(1, 2), completion_ids=(0,)) for sequence in prepared.plan.sequences)
    ending = replace(prepared, plan=replace(prepared.plan, sequences=ends))
    assert [other_assumptions(ending, frozenset(), FIRST, routes=routes) for routes in (False, True)] == [[], unpadded]


@pytest.mark.slow
def test_each_assumption_has_the_norm_of_its_own_gram_matrix() -> None:
    prepared = prepared_with(0, None)
    assumptions = [FIRST, *other_assumptions(prepared, FROZEN, FIRST)]
    result = dict(norm_under(prepared, assumptions))
    norms = set()
    for assumption in assumptions:
        policy = assumption.holds_for(prepared.policy)
        assert set(policy.trainable) == set(prepared.policy.trainable) - assumption.frozen
        gram = measure_step(replace(prepared, policy=policy), engine="loop")
        assert result[assumption] == pytest.approx(batch_norm(gram.logged_gram), rel=1e-5)
        norms.add(round(result[assumption], 6))
    assert len(norms) == 3  # a frozen embedding has no padding row to speak of
    assert all(parameter.requires_grad for parameter in FIRST.holds_for(prepared.policy).trainable.values())
    adapter = tiny_policy("llama_untied_biases", lora=True)
    row = adapter.model.get_input_embeddings().padding_idx
    Assumption(padding_row=5).holds_for(adapter)
    assert adapter.model.get_input_embeddings().padding_idx == row


def test_what_two_checkpoints_share_may_have_been_frozen() -> None:
    first, second = tiny_policy("llama_untied_biases"), tiny_policy("llama_untied_biases")
    assert unchanged(first, second) == frozenset()  # all of it: nothing was learned
    with torch.no_grad():
        for name, parameter in second.trainable.items():
            if name not in FROZEN:
                parameter.add_(1e-6)
    assert unchanged(first, second) == FROZEN


def test_an_assumption_is_described_where_it_is_not_the_first() -> None:
    assert list(FIRST.describe(FIRST)) == []
    for assumption, first, words in (
        (Assumption(padding_row=None), FIRST, "The embedding of the padding token 0 had a gradient: the folder does"),
        (Assumption(padding_row=4), Assumption(padding_row=None), "token 4 had no gradient"),
        (Assumption(padding_row=0, frozen=frozenset({"a.weight"})), FIRST, "a.weight was frozen: the same in two"),
        (
            Assumption(padding_row=0, frozen=FROZEN),
            FIRST,
            "model.embed_tokens.weight and 1 more parameters were frozen",
        ),
    ):
        (sentence,) = assumption.describe(first)
        assert words in sentence


SEQUENCE = sequence_of((1, 5), (2, 3))
SHAPE = {
    **{"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "pad_token_id": 0},
}


def capped() -> nn.Module:
    model = tiny_model("gemma3_scaled")
    model.config.final_logit_softcapping = 0.5
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: tiny_model("llama_untied_biases"),
        lambda: tiny_model("gpt2_tied_conv1d"),
        capped,
        lambda: adapted("rslora"),
        lambda: transformers.CohereForCausalLM(
            transformers.CohereConfig(**SHAPE, logit_scale=0.25, eos_token_id=1, bos_token_id=2)
        ),
        lambda: transformers.GraniteForCausalLM(transformers.GraniteConfig(**SHAPE, logits_scaling=4.0)),
        lambda: transformers.HyperCLOVAXForCausalLM(transformers.HyperCLOVAXConfig(**SHAPE, logits_scaling=4.0)),
    ],
    ids=["llama", "gpt2", "a soft cap", "an adapter", "a scale", "a divisor", "a factor of a divisor's name"],
)
def test_a_linear_head_with_its_scale_is_the_models_own(make):
    assert is_own_output(make().eval(), SEQUENCE)


def test_a_prediction_head_is_left_out():
    model = transformers.BertLMHeadModel(transformers.BertConfig(**SHAPE, is_decoder=True)).eval()
    assert not is_own_output(model, SEQUENCE)
    ids = torch.tensor([[1, 5, 2, 3]])
    expected, hidden = model(input_ids=ids).logits, model.bert(input_ids=ids).last_hidden_state
    with trl_output(model):
        made, last = model(input_ids=ids).logits, model(input_ids=ids, logits_to_keep=2).logits
    torch.testing.assert_close(made, model.get_output_embeddings()(hidden))
    torch.testing.assert_close(last, made[:, -2:])
    assert torch.equal(model(input_ids=ids).logits, expected)


def varies(model, *, without_dropout: bool = False, lora: bool = False) -> bool:
    prepared = prepare_step(policy_of(model, lora=lora), tiny_groups(), DAPO)
    before = torch.get_rng_state()
    result = is_random(prepared.policy, prepared.plan.sequences[0], without_dropout=without_dropout)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(module.training for module in model.modules())
    return result


def test_dropout_of_modules_can_be_switched_off_and_comes_back() -> None:
    """GPT-2 has a tenth of it by default."""
    model = tiny_model("gpt2_tied_conv1d")
    assert varies(model)
    assert not varies(model, without_dropout=True)
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {0.1}
    assert varies(adapted("dropout"), lora=True)
    assert not varies(adapted("dropout"), without_dropout=True, lora=True)


def test_dropout_that_a_layer_hands_to_a_function_and_noise_of_a_router_stay_on() -> None:
    model, mixture = tiny_model("qwen3_gqa_norms"), tiny_experts("mixtral")
    assert not varies(model)
    assert not varies(mixture)
    for layer, layer_of_experts in zip(model.model.layers, mixture.model.layers, strict=True):
        layer.self_attn.attention_dropout = 0.5
        layer_of_experts.mlp.jitter_noise = 0.5
    assert varies(model, without_dropout=True)
    assert varies(mixture, without_dropout=True)


def test_noise_that_meets_zeros_shows_only_in_the_gradient() -> None:
    """As MonteCLoRA's, which draws its numbers in advance, in an adapter that starts at zero."""
    model = tiny_model("qwen3_gqa_norms")
    draws, scale = count(1), torch.nn.Parameter(torch.zeros(()))
    model.noisy_scale = scale
    model.model.norm.register_forward_hook(lambda _, inputs, output: output + scale * next(draws) * output.detach())
    policy = policy_of(model)
    sequence = prepare_step(policy, tiny_groups(), DAPO).shortest
    assert not is_random(policy, sequence, without_dropout=False)
    assert takes_random_numbers(policy, sequence, without_dropout=False)


def test_a_few_tokens_are_enough() -> None:
    model = tiny_model("gpt2_tied_conv1d")
    plain_head(model)  # it runs the model, once and for all
    widths: list[int] = []
    model.transformer.wte.register_forward_pre_hook(lambda module, inputs: widths.append(inputs[0].shape[1]))
    policy = policy_of(model)
    sequence = prepare_step(policy, tiny_groups(), DAPO).plan.sequences[0]
    long = replace(sequence, prompt_ids=(1,) * 15, completion_ids=(2,) * 17, mask=(True,) * 17)
    framed = replace(long, frame=Frame(prompt_width=15, completion_width=17, padding_id=0))
    for asked_about, width in ((long, 31), (framed, 32)):
        widths.clear()
        assert is_random(policy, asked_about, without_dropout=False)
        assert takes_random_numbers(policy, asked_about, without_dropout=False)
        assert set(widths) == {width}
