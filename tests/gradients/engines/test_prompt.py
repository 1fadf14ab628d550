import numpy as np
import pytest
import torch
from msgspec.structs import replace

from gradscope.errors import UsageError
from gradscope.gradients.engines import prompt as prompt_module
from gradscope.gradients.engines.prompt import PREFIX_SHARE, _completion_batches, _frac_shared, _group_by_prompt
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.rows import RowPlan, plan_rows
from gradscope.gradients.step.measure import _choose, measure_step
from gradscope.gradients.step.step_gram import measure_norm
from gradscope.metrics.gram.geometry import batch_norm
from gradscope.rollouts.groups import Rollout
from tests.gradients.adapters import adapt
from tests.gradients.models import (
    DAPO,
    TYPICAL,
    changed,
    long_prompts,
    measured_step,
    policy_of,
    prepared,
    relative,
    score_error,
    sequence_of,
    tiny_experts,
    tiny_groups,
    tiny_model,
    tiny_policy,
    waiting_gradients,
)


def plan_of(prompts: list[tuple[int, ...]], lengths: list[int]) -> RowPlan:
    """Score rows of completions of these lengths behind prompts."""
    sequences = [
        sequence_of(prompt, (2,) * length, sample=sample)
        for sample, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]
    rollouts = [
        Rollout(group_id="g", sample=sample, row=sample, prompt="", completion="", reward=0.0)
        for sample in range(len(sequences))
    ]
    return plan_rows(sequences, rollouts, DAPO)


@pytest.mark.parametrize(("num_groups", "batch_tokens"), [(1, 16), (2, None)])
@pytest.mark.parametrize(("name", "lora"), TYPICAL)
def test_gram_equals_one_float64_backward_per_rollout(name, lora, num_groups, batch_tokens):
    policy, groups = tiny_policy(name, lora=lora), long_prompts(tiny_groups(num_groups, 4))
    with waiting_gradients(policy):
        step = measured_step(policy, groups, DAPO, batch_tokens=batch_tokens, engine="prompt")
    assert score_error(step, policy, groups) < 1e-5
    assert (step.engine, step.coverage, step.slow_parameters) == ("prompt", 1.0, ())


def test_experts_are_exact():
    policy, groups = policy_of(tiny_experts("qwen3_moe")), long_prompts(tiny_groups())
    loop, prompt = (measured_step(policy, groups, DAPO, engine=engine) for engine in ("loop", "prompt"))
    assert relative(prompt.gram, loop.gram) < 1e-5


@pytest.mark.slow
def test_every_channel_of_rows_comes_through():
    policy = policy_of(tiny_model("qwen3_gqa_norms"), reference=tiny_model("qwen3_gqa_norms").requires_grad_(False))
    with torch.no_grad():
        for parameter in policy.reference.parameters():
            parameter.mul_(0.9)
    rng = np.random.default_rng(2)
    groups = changed(
        long_prompts(tiny_groups()), logprobs=lambda rollout: tuple(-3 + rng.normal(size=len(rollout.completion_ids)))
    )
    objective = Objective(loss_type="grpo", beta=0.2, importance_ratio=True)
    loop, prompt = (measured_step(policy, groups, objective, engine=engine) for engine in ("loop", "prompt"))
    assert {row.channel for row in prompt.rows} == {"score", "kl", "logged"}
    assert relative(prompt.gram, loop.gram) < 1e-5
    for first, second in zip(loop.logprobs, prompt.logprobs, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-4)


def test_a_prompt_of_one_token_shares_nothing_and_is_still_right():
    policy, groups = tiny_policy("gpt2_tied_conv1d"), long_prompts(tiny_groups(), length=1)
    assert [len(group.rollouts[0].prompt_ids) for group in groups] == [1, 2]
    assert score_error(measured_step(policy, groups, DAPO, engine="prompt"), policy, groups) < 1e-5


def test_a_long_prefix_counts_towards_the_budget_of_a_batch():
    plan = plan_of([tuple(range(1 + 2 * PREFIX_SHARE))] * 4, [3] * 4)
    (group,) = _group_by_prompt(plan)
    sizes = [len(batch.rows) for batch in _completion_batches(plan, group, 12, torch.device("cpu"))]
    assert sizes == [2, 2]


def test_a_model_without_keys_and_values_of_all_tokens_is_refused(monkeypatch):
    class Forgetful(prompt_module.DynamicCache):
        def update(self, keys, values, layer, *rest, **named):
            super().update(keys[:, :, -3:], values[:, :, -3:], layer)
            return keys, values

    monkeypatch.setattr(prompt_module, "DynamicCache", Forgetful)
    with pytest.raises(UsageError, match="keeps the keys and values of all tokens") as caught:
        measured_step(
            tiny_policy("llama_untied_biases"), long_prompts(tiny_groups(1)), DAPO, engine="prompt", verify="all"
        )
    assert "--engine stream" in caught.value.hint


def test_auto_shares_no_prompt_of_a_model_that_keeps_another_kind_of_past(monkeypatch):
    monkeypatch.setattr(prompt_module, "MIN_PREFIX", 20)
    policy, groups = tiny_policy("llama_untied_biases"), long_prompts(tiny_groups(1, 6), length=24)
    policy.model.config.layer_types = ["full_attention", "linear_attention"]
    assert measured_step(policy, groups, DAPO).engine == "loop"
    with pytest.raises(UsageError, match="keeps the keys and values of all tokens"):
        measured_step(policy, groups, DAPO, engine="prompt")


@pytest.mark.parametrize(("token", "is_zero"), [(7, False), (22, True)])
def test_an_adapter_that_waits_for_tokens_shares_no_prompt_and_may_have_no_gradient(token: int, is_zero: bool) -> None:
    """aLoRA acts from its invocation tokens on, which may stand in the prompt; 22 does not occur."""
    model = adapt(
        tiny_model("llama_untied_biases"),
        {"alora_invocation_tokens": [token], "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"},
    )
    assert not prompt_module.can_share(model)
    groups = changed(tiny_groups(), prompt_ids=(3, 7, 4), completion_ids=(5, 6))
    step = prepared(policy_of(model, lora=True), groups, DAPO)
    gram = measure_step(step, engine="stream")
    assert batch_norm(gram.logged_gram) == pytest.approx(measure_norm(step).norm, rel=1e-4)  # they almost cancel
    assert (batch_norm(gram.logged_gram) == 0.0) == is_zero


def test_auto_shares_long_prompts_where_that_saves_enough(monkeypatch):
    policy = tiny_policy("llama_untied_biases")
    assert measured_step(policy, long_prompts(tiny_groups(1, 6), length=24), DAPO).engine == "loop"
    monkeypatch.setattr(prompt_module, "MIN_PREFIX", 20)
    assert measured_step(policy, long_prompts(tiny_groups(1, 6), length=24), DAPO).engine == "prompt"
    assert measured_step(policy, long_prompts(tiny_groups(1, 1), length=24), DAPO).engine == "loop"
    step = prepared(policy, long_prompts(tiny_groups(1, 6), length=24), DAPO)
    assert _choose("auto", replace(step, policy=replace(policy, device=torch.device("cuda")))) == "stream"


def test_rows_are_grouped_by_the_ids_of_their_prompts():
    plan = plan_of([(5, 6), (7,), (5, 6)], [2, 1, 3])
    first, second = _group_by_prompt(plan)
    assert (first.rows, first.prompt_ids, first.prefix_ids) == ((0, 2), (5, 6), (5,))
    assert (second.rows, second.prefix_ids) == ((1,), ())
    # 11 tokens, and the second run of the one-token prefix is saved
    assert _frac_shared(plan, weight_gradients=True) == pytest.approx(1 / (3 * 11))
    assert _frac_shared(plan, weight_gradients=False) == pytest.approx(1 / (2 * 11))
