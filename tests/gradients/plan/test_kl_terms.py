from __future__ import annotations

import math

import pytest
import torch

from gradscope.gradients.plan.kl_terms import KL_TERMS

LOGPROBS, REFERENCE = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0])
BY_HAND = {
    "k1": [0.5, -1.0],
    "k2": [0.125, 0.5],
    "square": [0.25, 1.0],
    "abs": [0.5, 1.0],
    "k3": [math.exp(-0.5) - 0.5, math.e - 2],
    "k3 bounded": [math.exp(-0.5) - 0.5, math.e - 2],
}


@pytest.mark.parametrize("name", KL_TERMS)
def test_estimators_by_hand(name: str) -> None:
    assert KL_TERMS[name](LOGPROBS, REFERENCE).tolist() == pytest.approx(BY_HAND[name])


def test_the_bounded_one_ends_at_ten() -> None:
    assert KL_TERMS["k3 bounded"](torch.tensor([-9.0]), torch.tensor([0.0])).tolist() == [10.0]
