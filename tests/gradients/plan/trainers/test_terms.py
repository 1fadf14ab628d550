from __future__ import annotations

import math

import pytest
import torch

from gradscope.gradients.plan.losses import LossParameters, Terms
from gradscope.gradients.plan.trainers.terms import (
    by_factor,
    counted_completions_alike,
    dual_clipped,
    held_ratio,
    log_likelihood,
    sequence_clipped,
    summed,
    within_both_bounds,
    within_one_bound,
)

NOTHING = LossParameters()


def terms(old: list[float], advantages: list[float], **of: float) -> Terms:
    """Three tokens of log-probability -1, whose ratio to the old ones is given."""
    logprobs = torch.full((len(old),), -1.0)
    log_ratio = torch.tensor(old).log()
    return Terms(
        logprobs=logprobs,
        log_ratio=log_ratio,
        ratio=log_ratio.exp(),
        advantages=torch.tensor(advantages),
        counted=torch.ones(len(old)),
        low=0.8,
        high=1.2,
        bound=3.0,
        correction=None,
        of=LossParameters(**of),
    )


def test_the_second_bound_holds_where_the_advantage_is_negative() -> None:
    given = terms([0.5, 1.1, 2.0, 5.0, 0.5, 2.0], [-1.0, -1.0, -1.0, -1.0, 1.0, 1.0])
    assert dual_clipped(given).tolist() == pytest.approx([0.8, 1.1, 2.0, 3.0, -0.5, -1.2])


def test_a_sequence_has_the_geometric_mean_of_its_ratios() -> None:
    assert sequence_clipped(terms([1.0, 4.0], [1.0, -1.0])).tolist() == pytest.approx([-1.2, 2.0])


def test_log_pi_is_weighed_by_the_held_ratio_or_by_none() -> None:
    given = terms([0.5, 2.0], [1.0, 1.0])
    assert held_ratio(given).tolist() == pytest.approx([0.8, 1.2])
    assert log_likelihood(given).tolist() == [1.0, 1.0]


def test_tokens_whose_probability_moved_too_far_are_left_out() -> None:
    """At probability 1/e a ratio of 3 is a move of 0.25, one of 0.6 a move of -0.25."""
    given = terms([3.0, 3.0, 0.6, 0.6], [1.0, -1.0, 1.0, -1.0], advantage_scale=2.0)
    assert math.exp(-1) * (1 - 1 / 3) > 0.2
    assert within_one_bound(given).tolist() == pytest.approx([0.0, 6.0, -1.2, 0.0])
    assert within_both_bounds(given).tolist() == [0.0, 0.0, 0.0, 0.0]


def test_averages_by_hand() -> None:
    assert summed([2, 3], NOTHING, 5) == [1.0, 1.0]
    assert by_factor([2, 3], LossParameters(loss_scale_factor=10.0), 5) == [0.05, 0.05]
    assert counted_completions_alike([2, 0, 5], NOTHING, 7) == [0.25, 0.5, 0.1]
    with pytest.raises(ValueError, match="constant"):
        by_factor([1], NOTHING, 1)
