import math

import pytest
import torch
from msgspec.structs import replace

from gradscope.errors import InputError
from gradscope.gradients.plan.losses import SamplerCorrection
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.rows import ForwardPasses, Row, high_entropy, plan_rows
from gradscope.rollouts.groups import Rollout
from gradscope.rollouts.run import TrlVersion
from tests.gradients.models import sequence_of

ROLLOUT = Rollout(group_id="g", sample=0, row=0, prompt="", completion="", reward=1.0, advantage=2.0)
SEQUENCE = sequence_of((1,), (2, 3, 4), mask=(True, False, True))
LOGPROBS = torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64)


def plan(objective=Objective(), passes=None, **changes):  # noqa: B008
    return plan_rows([SEQUENCE], [replace(ROLLOUT, **changes)], objective, passes or ForwardPasses())


def test_the_score_channel_has_the_losses_weights_and_no_advantage():
    planned = plan()
    assert [row.channel for row in planned.rows] == ["score"]
    assert planned.cotangent(planned.rows[0], LOGPROBS).tolist() == [0.5, 0.0, 0.5]
    assert planned.gradient(0, LOGPROBS).tolist() == [-1.0, 0.0, -1.0]


@pytest.mark.parametrize("corrected", [True, False])
def test_the_kl_slope_is_the_derivative_of_the_kl_term(corrected):
    reference = torch.tensor([-1.5, -2.0, -2.0], dtype=torch.float64)
    planned = plan(Objective(beta=0.3, use_bias_correction_kl=corrected), ForwardPasses(reference=[reference]))
    assert [row.channel for row in planned.rows] == ["score", "kl"]
    log_pi = LOGPROBS.clone().requires_grad_()
    behind = reference - log_pi
    kl = behind.exp() - behind - 1
    if corrected:
        kl = kl * (log_pi - log_pi.detach()).exp()
    (slope,) = torch.autograd.grad((0.3 * 0.5 * torch.tensor([1.0, 0.0, 1.0]) * kl).sum(), log_pi)
    torch.testing.assert_close(planned.cotangent(Row(sequence=0, channel="kl"), LOGPROBS), slope)


def test_token_advantages_get_a_channel_of_their_own():
    planned = plan(token_advantages=(1.0, 2.0, 3.0))
    assert planned.index("logged") == {0: 1}
    assert planned.cotangent(planned.rows[1], LOGPROBS).tolist() == [-0.5, 0.0, -1.5]
    assert planned.index("kl") == {}


@pytest.mark.parametrize(
    ("objective", "fields", "error", "message"),
    [
        (Objective(beta=0.1), {}, ValueError, "needs the reference policy"),
        (Objective(top_entropy_quantile=0.5), {}, ValueError, "needs their entropies"),
        (Objective(), {"token_advantages": (1.0, 2.0)}, InputError, "has 2 advantages and 3 completion tokens"),
        (Objective(importance_ratio=True), {"logprobs": (-1.0,)}, InputError, "has 1 log-probabilities and 3"),
        (Objective(), {"advantage": None}, InputError, "Rollout 0 of group g has no logged advantage"),
    ],
)
def test_what_a_loss_lacks_is_named(objective, fields, error, message):
    with pytest.raises(error, match=message):
        plan(objective, **fields).gradient(0, LOGPROBS)


def test_entropy_rows_weigh_the_outputs_behind_the_log_probabilities():
    planned = plan(Objective(entropy_coef=0.3))
    assert planned.has_entropies
    assert [row.channel for row in planned.rows] == ["score", "entropy"]
    outputs = torch.cat([LOGPROBS, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)])
    assert planned.logprobs(0, outputs).tolist() == LOGPROBS.tolist()
    assert planned.cotangent(planned.rows[1], outputs).tolist() == [0.0, 0.0, 0.0, -0.15, 0.0, -0.15]
    assert planned.cotangent(planned.rows[0], outputs).tolist() == [0.5, 0.0, 0.5, 0.0, 0.0, 0.0]
    assert planned.gradient(0, outputs).tolist() == [-1.0, 0.0, -1.0, -0.15, 0.0, -0.15]


@pytest.mark.parametrize(("version", "weight"), [((1, 9), -0.3 / 2), ((1, 10), -0.3)])
def test_the_bonus_of_tokens_of_high_entropy_was_averaged_otherwise_before(version, weight):
    entropies = torch.tensor([0.5, 9.0, 2.0], dtype=torch.float64)
    objective = Objective(entropy_coef=0.3, top_entropy_quantile=0.5, beta=0.1, trl=TrlVersion(version))
    planned = plan(objective, ForwardPasses(entropies=[entropies], reference=[LOGPROBS]))
    assert planned.entropy_weights[0].tolist() == [0.0, 0.0, weight]
    assert planned.weights[0].tolist() == [0.0, 0.0, 0.5]  # the masked token's entropy is no part of the quantile
    assert planned.kl_weights[0].tolist() == [0.05, 0.0, 0.05]
    assert high_entropy([torch.zeros(1)], [torch.ones(1)], 0.5) == ([torch.zeros(1)], 0)


def test_old_log_probabilities_of_a_forward_pass_come_before_logged_ones():
    objective = Objective(importance_ratio=True, epsilon_low=9.0, epsilon_high=9.0)
    planned = plan(objective, ForwardPasses(old=[LOGPROBS]), logprobs=(-5.0, -5.0, -5.0))
    assert planned.cotangent(Row(sequence=0, channel="score"), LOGPROBS).tolist() == [0.5, 0.0, 0.5]


def test_the_samplers_log_probabilities_are_no_ratio_of_the_weights():
    objective = Objective(correction=SamplerCorrection(mode="token_truncate", high=None), needs_sampler=True)
    planned = plan(objective, logprobs=tuple((LOGPROBS - math.log(2.0)).tolist()))
    assert [row.channel for row in planned.rows] == ["score"]
    assert planned.cotangent(planned.rows[0], LOGPROBS).tolist() == pytest.approx([1.0, 0.0, 1.0])
    assert planned.completions[0].old is None


def test_given_weights_stand_in_place_of_the_channels():
    weights = torch.tensor([1.0, 2.0, 3.0])
    planned = plan(Objective(entropy_coef=0.1))
    assert planned.cotangent(Row(sequence=0, channel="entropy", weights=weights), LOGPROBS).tolist() == [1.0, 2.0, 3.0]
