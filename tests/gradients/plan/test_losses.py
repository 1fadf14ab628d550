"""Each loss against its formula, written down a second time on plain numbers."""

from __future__ import annotations

import math

import pytest
import torch

from gradscope.gradients.plan.losses import LOSSES, LossParameters, Terms

INF = float("inf")


def term(name: str, ratio: float, advantage: float, *, low=0.8, high=1.2, bound=INF, correction=None, **of) -> float:
    """One token's term where the log-probability is -2 and the ratio its own."""
    one = torch.ones(1, dtype=torch.float64)
    terms = Terms(
        logprobs=-2.0 * one,
        log_ratio=math.log(ratio) * one,
        ratio=ratio * one,
        advantages=advantage * one,
        counted=one,
        low=low,
        high=high,
        bound=bound,
        correction=None if correction is None else correction * one,
        of=LossParameters(**of),
    )
    return float(LOSSES[name].term(terms))


@pytest.mark.parametrize("name", ["grpo", "bnpo", "dr_grpo", "dapo", "luspo"])
@pytest.mark.parametrize(
    ("ratio", "advantage", "bound", "expected"),
    [
        (1.0, 2.0, INF, -2.0),
        (1.5, 2.0, INF, -2.4),  # rewarded: the clip holds it
        (0.5, 2.0, INF, -1.0),
        (0.5, -2.0, INF, 1.6),  # punished: the clip holds it
        (5.0, -2.0, INF, 10.0),
        (5.0, -2.0, 3.0, 6.0),  # the second bound
    ],
)
def test_the_clipped_surrogate(name, ratio, advantage, bound, expected):
    assert term(name, ratio, advantage, bound=bound) == pytest.approx(expected)


def test_cispo_holds_the_ratio_and_weighs_log_pi_by_it():
    assert term("cispo", 1.5, 2.0, epsilon_high=5.0) == pytest.approx(1.5 * 2.0 * 2.0)
    assert term("cispo", 1.5, 2.0) == pytest.approx(0.2 * 2.0 * 2.0)


def test_sapo_is_a_gate_of_its_sign():
    for advantage, steepness in ((1.0, 1.0), (-1.0, 3.0), (0.0, 3.0)):
        gate = 4 / steepness / (1 + math.exp(-steepness * (1.3 - 1)))
        assert term("sapo", 1.3, advantage, sapo_temperature_neg=3.0) == pytest.approx(-gate * advantage)


@pytest.mark.parametrize(("advantage", "k", "decay"), [(1.0, 2.0, 3.0), (-1.0, 3.0, 2.0)])
def test_vespo_weighs_log_pi_by_a_density_of_the_sequences_ratio(advantage, k, decay):
    weight = math.exp(decay) * 1.3**k * math.exp(-decay * 1.3)
    assert term("vespo", 1.3, advantage) == pytest.approx(2.0 * weight * advantage)
    assert term("vespo", 1.0, advantage) == pytest.approx(2.0 * advantage)
    whole = 1.3 * 0.5
    assert term("vespo", 1.3, advantage, correction=0.5) == pytest.approx(
        2.0 * math.exp(decay) * whole**k * math.exp(-decay * whole) * advantage
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", [1 / 6, 1 / 2]),
        ("sapo", [1 / 6, 1 / 2]),
        ("bnpo", [1 / 4, 1 / 4]),
        ("dapo", [1 / 4, 1 / 4]),
        ("cispo", [1 / 4, 1 / 4]),
        ("vespo", [1 / 4, 1 / 4]),
        ("dr_grpo", [1 / 20, 1 / 20]),
        ("luspo", [1 / 2, 1 / 2]),
    ],
)
def test_averages_by_hand(name, expected):
    assert LOSSES[name].average([3, 1], LossParameters(max_completion_length=10), 4) == expected
    assert LOSSES[name].average([0, 0], LossParameters(max_completion_length=10), 0)[0] > 0


def test_dr_grpo_without_its_length_is_a_callers_bug():
    with pytest.raises(ValueError, match="divides by max_completion_length"):
        LOSSES["dr_grpo"].average([1], LossParameters(), 1)
