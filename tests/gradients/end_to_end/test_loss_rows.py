"""Singular values of a step's gradient rows against one float64 backward a rollout, of losses written down plainly."""

import numpy as np
import pytest
import torch

from gradscope.gradients.plan.losses import SamplerCorrection
from gradscope.gradients.plan.objective import Objective
from tests.gradients.models import (
    changed,
    flat_gradient,
    measured_step,
    plain_logprobs,
    plain_logs,
    policy_of,
    rollouts_of,
    tiny_groups,
    tiny_model,
)

MODEL = "qwen3_gqa_norms"
OFF_POLICY = {"importance_ratio": True, "epsilon_low": 0.1, "epsilon_high": 0.1}


def clip(ratio, advantage):
    return -torch.min(ratio * advantage, ratio.clamp(0.9, 1.1) * advantage)


def sapo(ratio, advantage):
    steepness = 1.0 if advantage > 0 else 1.05
    return -torch.sigmoid(steepness * (ratio - 1)) * 4 / steepness * advantage


def cispo(log_pi, ratio, advantage):
    return -ratio.detach().clamp(max=1.05) * advantage * log_pi


CUT = SamplerCorrection(mode="sequence_truncate", high=1.1)
KL = "gspo with its kl"
CASES = {
    KL: (Objective(loss_type="grpo", importance_sampling_level="sequence", beta=0.4), None),
    "gspo, reused": (Objective(loss_type="grpo", importance_sampling_level="sequence", **OFF_POLICY), clip),
    "sapo, reused": (Objective(loss_type="sapo", **OFF_POLICY), sapo),
    "cispo, reused": (Objective(loss_type="cispo", **OFF_POLICY | {"epsilon_high": 1.05}), cispo),
    "entropy bonus": (Objective(loss_type="grpo", entropy_coef=0.3), None),
    "another sampler": (Objective(loss_type="grpo", needs_sampler=True, correction=CUT), None),
}


def rows_by_hand(objective: Objective, term, model, reference, rollouts) -> np.ndarray:
    """One backward pass a rollout through the plain model."""
    num_tokens, rows = sum(len(r.completion_ids) for r in rollouts), []
    for rollout in rollouts:
        logs = plain_logs(model, rollout)
        log_pi, log_ref = (plain_logprobs(of, rollout) for of in (model, reference))
        logged = torch.tensor(rollout.logprobs)
        log_ratio = log_pi - (logged if objective.importance_ratio else log_pi.detach())
        ratio = (log_ratio.mean() if objective.importance_sampling_level == "sequence" else log_ratio).exp()
        if term is cispo:
            loss = cispo(log_pi, ratio, rollout.advantage)
        else:
            loss = (term or (lambda r, a: -r * a))(ratio, rollout.advantage) * torch.ones_like(log_pi)
        if objective.correction is not None:
            loss = loss * (log_pi.detach() - logged).sum().exp().clamp(max=1.1)
        behind = log_ref.detach() - log_pi
        loss = loss + objective.beta * (behind.exp() - behind - 1) * ratio
        by_token = 1 / num_tokens if objective.loss_type == "cispo" else 1 / (len(rollouts) * len(log_pi))
        total = (loss * by_token).sum() + objective.entropy_coef * (logs.exp() * logs).sum() / num_tokens
        rows.append(flat_gradient(total, list(model.parameters())))
    return np.stack(rows)


@pytest.mark.parametrize(
    ("case", "engine"), [*((case, "stream") for case in CASES), *((KL, engine) for engine in ("loop", "prompt"))]
)
def test_the_rows_of_a_loss_have_the_singular_values_of_its_plain_gradients(case: str, engine: str) -> None:
    objective, term = CASES[case]
    model, reference = (tiny_model(MODEL, dtype=torch.float64) for _ in range(2))
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(0.9)
    policy, rng = policy_of(model, reference=reference), np.random.default_rng(0)
    plain = measured_step(policy, tiny_groups(), Objective(loss_type="grpo"))
    noisy = iter([tuple(logp + rng.normal(scale=0.15, size=logp.shape)) for logp in plain.logprobs])
    groups = changed(tiny_groups(), logprobs=lambda _: next(noisy))
    step = measured_step(policy, groups, objective, engine=engine)
    expected = np.linalg.svd(rows_by_hand(objective, term, model, reference, rollouts_of(groups)), compute_uv=False)
    values = np.sqrt(np.clip(np.linalg.eigvalsh(step.logged_gram), 0.0, None))[::-1]
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-7 * expected[0])
    assert any("clip" in note for note in step.notes) == objective.importance_ratio
