"""Held to plain lines of mathematics, which share no code with what they judge."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradscope.metrics.sampler.mismatch import NAMES, mismatch_estimates
from gradscope.metrics.sampler.sequence_sums import sequence_sums
from gradscope.metrics.uncertainty.resampling import Resampling

FEW = Resampling(num_resamples=200)


def plain(sequences: list[list[float]], advantages: list[list[float]]) -> dict[str, float]:
    tokens = [d for sequence in sequences for d in sequence]
    signs = [a for sequence in advantages for a in sequence]
    weights = [math.exp(d) for d in tokens]
    wholes = [math.exp(sum(sequence)) for sequence in sequences]
    number = len(tokens)
    return {
        "token_ess": sum(weights) ** 2 / (number * sum(w * w for w in weights)),
        "sequence_ess": sum(wholes) ** 2 / (len(wholes) * sum(w * w for w in wholes)),
        "logprob_gap": sum(abs(d) for d in tokens) / number,
        "kl_k1": -sum(tokens) / number,
        "kl_k3": sum(w - 1 - math.log(w) for w in weights) / number,
        "chi2_token": sum(w * w for w in weights) / number - 1,
        "chi2_sequence": sum(w * w for w in wholes) / len(wholes) - 1,
        "frac_beyond_2": sum(1 for w in weights if w < 0.5 or w > 2) / number,
        "frac_beyond_clip": sum(1 for w in weights if w < 0.8 or w > 1.2) / number,
        "frac_clipped": sum(
            1 for w, a in zip(weights, signs, strict=True) if (w > 1.2 and a > 0) or (w < 0.8 and a < 0)
        )
        / number,
    }


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [1e-4, 0.1, 1.0])
def test_every_number_is_that_of_plain_arithmetic(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    sequences = [rng.normal(0, scale, rng.integers(1, 9)).tolist() for _ in range(40)]
    advantages = [rng.choice([-1.0, 0.0, 1.0], len(sequence)).tolist() for sequence in sequences]
    sums = sequence_sums(np.concatenate(sequences), [len(s) for s in sequences], np.concatenate(advantages))
    found = mismatch_estimates(sums, [f"p{at // 2}" for at in range(40)], resampling=FEW)
    assert {name: found[name].value for name in NAMES} == pytest.approx(
        plain(sequences, advantages), rel=1e-9, abs=1e-12
    )
    for name in NAMES:
        low, high = found[name].ends
        assert low <= found[name].value <= high
        assert found[name].num_units == 20


def test_policies_that_agree_have_no_mismatch_and_no_interval() -> None:
    found = mismatch_estimates(sequence_sums(np.zeros(20), [2] * 10, np.ones(20)), range(10), resampling=FEW)
    wanted = dict.fromkeys(NAMES, 0.0) | {"token_ess": 1.0, "sequence_ess": 1.0}
    assert {name: found[name].value for name in NAMES} == wanted
    assert all(estimate.interval is None for estimate in found.values())


def test_one_sequence_has_numbers_without_intervals() -> None:
    found = mismatch_estimates(sequence_sums([0.1, -0.3], [2]), ["p"], resampling=FEW)
    assert found["sequence_ess"].value == 1.0
    assert found["kl_k1"].value == pytest.approx(0.1)
    assert all(estimate.interval is None for estimate in found.values())


def test_ratios_beyond_floating_point_keep_what_does_not_need_them() -> None:
    sums = sequence_sums([800.0, -800.0, 0.0] * 6, [1] * 18)
    found = mismatch_estimates(sums, [at // 3 for at in range(18)], resampling=FEW)
    assert found["token_ess"].value == pytest.approx(1 / 3)
    assert found["logprob_gap"].value == pytest.approx(1600 / 3)
    assert found["frac_beyond_2"].value == pytest.approx(2 / 3)
    for name in ("kl_k3", "chi2_token", "chi2_sequence"):
        assert found[name].undefined == "a ratio in the log is beyond floating-point numbers"


def test_a_long_sequence_loses_only_the_divergence_of_sequences() -> None:
    found = mismatch_estimates(sequence_sums([1.0] * 500 + [-1.0], [500, 1]), ["a", "b"], resampling=FEW)
    assert found["chi2_sequence"].undefined == "a ratio in the log is beyond floating-point numbers"
    assert found["chi2_token"].value == pytest.approx((500 * math.exp(2) + math.exp(-2)) / 501 - 1)
    assert found["sequence_ess"].value == pytest.approx(0.5)


def test_one_prompt_that_is_all_the_weight_breaks_no_interval() -> None:
    found = mismatch_estimates(sequence_sums([0.0] * 11 + [60.0], [1] * 12), range(12), resampling=FEW)
    low, high = found["sequence_ess"].ends
    assert 0.0 <= low <= found["sequence_ess"].value <= high <= 1.0
    assert found["sequence_ess"].value == pytest.approx(1 / 12)


def test_clipping_without_advantages_is_not_known() -> None:
    found = mismatch_estimates(sequence_sums([0.5], [1]), ["a"], resampling=FEW)
    assert found["frac_clipped"].undefined == "the log does not tell the advantage of every token"


def test_prompts_are_the_unit_that_is_resampled() -> None:
    """Sequences of a prompt that are copies of each other say no more than one of them."""
    rng = np.random.default_rng(3)
    of_prompts = rng.normal(0, 0.1, 30)
    once = mismatch_estimates(sequence_sums(of_prompts, [1] * 30), range(30), resampling=FEW)
    copies = mismatch_estimates(
        sequence_sums(np.repeat(of_prompts, 8), [1] * 240), np.repeat(np.arange(30), 8), resampling=FEW
    )
    assert copies["logprob_gap"].interval == pytest.approx(once["logprob_gap"].interval)
    alone = mismatch_estimates(sequence_sums(np.repeat(of_prompts, 8), [1] * 240), range(240), resampling=FEW)
    assert np.ptp(alone["logprob_gap"].ends) < 0.5 * np.ptp(copies["logprob_gap"].ends)
