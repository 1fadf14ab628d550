"""The norm by one pass, held to the Gram matrix of the same step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.step.step_norm import measure_norm
from gradscope.metrics.gram.geometry import batch_norm
from tests.gradients.models import DAPO, policy_of, prepared, tiny_groups, tiny_model

KL = Objective(loss_type="grpo", beta=0.5)
BONUS = replace(DAPO, entropy_coef=0.3)


@pytest.mark.parametrize(("objective", "lora"), [(DAPO, False), (KL, False), (KL, True), (BONUS, False)])
@pytest.mark.parametrize("batch_tokens", [1, 999])
def test_norm_and_kl_part_are_those_of_the_gram_matrix(objective: Objective, lora: bool, batch_tokens: int) -> None:
    model, reference = tiny_model("qwen3_gqa_norms", lora=lora), tiny_model("qwen3_gqa_norms").requires_grad_(False)
    with torch.no_grad():
        reference.lm_head.weight.mul_(1.3)
    step = prepared(
        policy_of(model, lora=lora, reference=reference), tiny_groups(), objective, batch_tokens=batch_tokens
    )
    gram, told = measure_step(step, engine="stream"), []
    found = measure_norm(step, lambda *progress: told.append(progress))
    assert found.norm == pytest.approx(batch_norm(gram.logged_gram), rel=1e-6)
    assert found.frac_kl == (None if gram.frac_kl is None else pytest.approx(gram.frac_kl, rel=1e-5))
    for own, expected in zip(found.logprobs, gram.logprobs, strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)
    assert (found.num_rollouts, found.num_inferred_ids, found.described["engine"]) == (6, 0, "backward")
    assert told[-1] == (6, 6, "rollouts")


def test_gradients_that_were_there_come_back() -> None:
    step = prepared(policy_of(tiny_model("llama_untied_biases")), tiny_groups(), DAPO)
    name, parameter = next(iter(step.policy.trainable.items()))
    parameter.grad = torch.ones_like(parameter)
    measure_norm(step)
    assert torch.equal(parameter.grad, torch.ones_like(parameter)), name
    assert sum(other.grad is not None for other in step.policy.trainable.values()) == 1
