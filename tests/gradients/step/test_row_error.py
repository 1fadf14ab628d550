from __future__ import annotations

import numpy as np
import pytest
import torch

from gradscope.gradients.step.row_error import FLOAT32_ROW_ERROR
from tests.gradients.models import (
    ARCHITECTURES,
    DAPO,
    measured_step,
    naive_rows,
    policy_of,
    relative,
    tiny_groups,
    tiny_model,
    tiny_policy,
)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_float32_rows_stay_within_the_documented_bound(name):
    """Each row against float64, one by one: float32 rows by plain backwards of the float32 model."""
    policy, groups = tiny_policy(name), tiny_groups()
    exact = naive_rows(policy, groups, 1.0)
    for rollout, truth in zip((r for group in groups for r in group.rollouts), exact, strict=True):
        ids = torch.tensor([rollout.prompt_ids + rollout.completion_ids])
        start = len(rollout.prompt_ids)
        log_pi = torch.log_softmax(policy.model(input_ids=ids).logits[0, start - 1 : -1], -1)
        total = log_pi.gather(1, ids[0, start:, None]).sum()
        grads = torch.autograd.grad(total, list(policy.trainable.values()), allow_unused=True)
        row = torch.cat([part.flatten() for part in grads]).double().numpy()
        assert relative(row, truth) < FLOAT32_ROW_ERROR
    assert measured_step(policy, groups, DAPO).relative_row_error == FLOAT32_ROW_ERROR


def test_bfloat16_rows_are_measured_against_float32_and_the_model_is_left_as_it_was():
    policy, groups = policy_of(tiny_model("llama_untied_biases", dtype=torch.bfloat16)), tiny_groups()
    before = {name: parameter.clone() for name, parameter in policy.trainable.items()}
    found = measured_step(policy, groups, DAPO, engine="stream")
    assert 1e-4 < found.relative_row_error < 0.2
    assert found.dtype == "bfloat16"
    for name, parameter in policy.model.named_parameters():
        assert parameter.dtype == torch.bfloat16
        assert torch.equal(parameter, before[name])
        assert parameter.grad is None
    exact = naive_rows(policy, groups, 1.0 / sum(len(r.completion_ids) for g in groups for r in g.rollouts))
    truth = np.linalg.svd(exact, compute_uv=False)
    singular = np.sqrt(np.clip(np.linalg.eigvalsh(found.gram)[::-1], 0, None))
    assert np.abs(singular - truth).max() < found.relative_row_error * np.linalg.norm(exact)


@pytest.mark.parametrize("engine", ["loop", "stream"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_bfloat16_singular_values_are_within_the_floor_of_float64_under_any_advantages(name, engine):
    """Weyl: no singular value moves by more than |E|; the floor must hold it, for the step and for each group."""
    policy, groups = policy_of(tiny_model(name, dtype=torch.bfloat16)), tiny_groups(2, 4)
    found = measured_step(policy, groups, DAPO, engine=engine)
    exact = naive_rows(policy, groups, 1.0 / sum(len(r.completion_ids) for g in groups for r in g.rollouts))
    rng = np.random.default_rng(0)
    for rows in (slice(None), slice(0, 4), slice(4, 8)):
        for _ in range(5):
            advantages = rng.normal(size=len(exact[rows]))
            weighted = advantages[:, None] * exact[rows]
            gram = advantages[:, None] * found.score_gram[rows, rows] * advantages
            truth = np.linalg.svd(weighted, compute_uv=False)
            singular = np.sqrt(np.clip(np.linalg.eigvalsh(gram)[::-1], 0, None))
            assert np.abs(singular - truth).max() < found.relative_row_error * np.linalg.norm(weighted)
