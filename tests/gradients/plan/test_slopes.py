"""Weights of grad log pi against derivatives taken by differences of the loss itself."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from gradscope.gradients.plan.losses import LOSSES, LossParameters
from gradscope.gradients.plan.sampler import SamplerCorrection
from gradscope.gradients.plan.slopes import Completion, factors_out, kl_slope, reward_slope, sent

LOGPROBS = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64)
COUNTED = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
WEIGHTS = 0.25 * COUNTED
ONE = torch.ones(3, dtype=torch.float64)


def off_policy(**changes) -> Completion:
    return Completion(counted=COUNTED, old=LOGPROBS - torch.tensor([0.1, 0.4, -0.15], dtype=torch.float64), **changes)


@pytest.mark.parametrize("name", LOSSES)
def test_on_policy_every_loss_weighs_a_counted_token_by_its_average(name):
    """CISPO excepted, whose bound is on the ratio itself: 0.2 where it stands at its default."""
    own, factor = Completion(counted=COUNTED), 0.2 if name == "cispo" else 1.0
    slope = reward_slope(LOSSES[name], LossParameters(), own, LOGPROBS, WEIGHTS, -2.0 * ONE)
    torch.testing.assert_close(slope, factor * 2.0 * WEIGHTS)


def test_a_sequences_ratio_spreads_its_derivative_over_its_tokens():
    of = LossParameters(importance_sampling_level="sequence")
    completion = off_policy()
    slope = reward_slope(LOSSES["grpo"], of, completion, LOGPROBS, WEIGHTS, 2.0 * ONE)
    ratio = torch.exp(torch.tensor((0.1 - 0.15) / 2, dtype=torch.float64))
    torch.testing.assert_close(slope, -2.0 * ratio * WEIGHTS.sum() * COUNTED / 2)


def test_a_sequences_ratio_multiplies_the_kl_term_even_at_ratio_one():
    of, reference = LossParameters(importance_sampling_level="sequence"), LOGPROBS + 0.3 * ONE
    own = Completion(counted=COUNTED, reference=reference)
    plain = kl_slope(of, own, LOGPROBS, WEIGHTS, corrected=False)
    kl = torch.exp(0.3 * ONE) - 0.3 - 1
    torch.testing.assert_close(
        kl_slope(of, own, LOGPROBS, WEIGHTS, corrected=True), plain + (WEIGHTS * kl).sum() * COUNTED / 2
    )
    by_token = kl_slope(LossParameters(), own, LOGPROBS, WEIGHTS, corrected=True)
    torch.testing.assert_close(by_token, plain + WEIGHTS * kl)


def test_a_score_vector_has_no_clip():
    of = LossParameters(epsilon_low=0.01, epsilon_high=0.01)
    clipped, free = (
        reward_slope(LOSSES["grpo"], of, off_policy(), LOGPROBS, WEIGHTS, ONE, clip=clip) for clip in (True, False)
    )
    assert clipped[0] == 0.0
    assert free[0] == -0.25 * torch.exp(torch.tensor(0.1, dtype=torch.float64))


@pytest.mark.parametrize(("advantage", "threshold", "stays"), [(1.0, 0.0, True), (-1.0, 0.1, True), (-1.0, 0.0, False)])
def test_completions_of_negative_advantage_that_are_far_off_leave(advantage, threshold, stays):
    completion = dataclasses.replace(off_policy(), old=LOGPROBS + 0.05)
    slope = reward_slope(
        LOSSES["sapo"], LossParameters(), completion, LOGPROBS, WEIGHTS, advantage * ONE, off_policy_threshold=threshold
    )
    assert bool(slope.any()) == stays


def test_distance_is_to_the_sampler_where_there_is_one():
    near, far = (
        reward_slope(
            LOSSES["grpo"],
            LossParameters(),
            Completion(counted=COUNTED, sampler=LOGPROBS + gap),
            LOGPROBS,
            WEIGHTS,
            -ONE,
            off_policy_threshold=0.1,
        )
        for gap in (0.05, 0.5)
    )
    assert near.any()
    assert not far.any()


def test_the_correction_multiplies_the_reward_part():
    completion = Completion(counted=COUNTED, sampler=LOGPROBS - 0.2)
    correction = SamplerCorrection(mode="token_truncate", high=None)
    corrected = reward_slope(
        LOSSES["dapo"], LossParameters(), completion, LOGPROBS, WEIGHTS, ONE, correction=correction
    )
    torch.testing.assert_close(corrected, -WEIGHTS * torch.exp(torch.tensor(0.2, dtype=torch.float64)))


@pytest.mark.parametrize("name", LOSSES)
def test_all_losses_factor_out_on_policy_unless_a_bound_cuts_there(name):
    assert factors_out(LOSSES[name], LossParameters())
    assert factors_out(LOSSES[name], LossParameters(delta=0.5)) == (name in ("cispo", "sapo", "vespo"))


def test_everything_goes_where_the_log_probabilities_are():
    moved = off_policy(reference=LOGPROBS).to(torch.zeros(1, dtype=torch.float32))
    assert {moved.counted.dtype, moved.old.dtype, moved.reference.dtype} == {torch.float32}
    assert moved.sampler is None


def test_what_comes_back_from_a_device_is_waited_for(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, like, non_blocking: asked.append(non_blocking))
    sent(ONE, ONE)
    sent(torch.ones(1, device="meta"), ONE)
    assert asked == [True, False]
