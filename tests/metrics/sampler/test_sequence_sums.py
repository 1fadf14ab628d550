from __future__ import annotations

import math

import numpy as np
import pytest

from gradscope.metrics.sampler.sequence_sums import joined_sums, sequence_sums


def test_sums_are_those_of_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    lengths = [3, 1, 7, 2]
    ratios = rng.normal(0, 0.6, sum(lengths)).tolist()
    advantages = rng.choice([-1.0, 0.0, 2.0], sum(lengths)).tolist()
    sums = sequence_sums(ratios, lengths, advantages)
    start = 0
    for at, length in enumerate(lengths):
        tokens = list(zip(ratios, advantages, strict=True))[start : start + length]
        weights = [math.exp(d) for d, _ in tokens]
        assert sums.num_tokens[at] == length
        assert math.exp(sums.log_weight[at]) == pytest.approx(sum(weights))
        assert math.exp(sums.log_square[at]) == pytest.approx(sum(w * w for w in weights))
        assert sums.log_ratio[at] == pytest.approx(sum(d for d, _ in tokens))
        assert sums.distance[at] == pytest.approx(sum(abs(d) for d, _ in tokens))
        assert sums.k3[at] == pytest.approx(sum(math.exp(d) - 1 - d for d, _ in tokens))
        assert sums.excess[at] == pytest.approx(sum(w * w - 1 for w in weights))
        assert sums.num_wide[at] == sum(w < 0.5 or w > 2 for w in weights)
        assert sums.num_beyond[at] == sum(w < 0.8 or w > 1.2 for w in weights)
        assert sums.num_clipped[at] == sum(
            (a > 0 and math.exp(d) > 1.2) or (a < 0 and math.exp(d) < 0.8) for d, a in tokens
        )
        start += length


def test_ratios_beyond_floating_point_leave_their_logarithms() -> None:
    sums = sequence_sums([2000.0, -2000.0], [1, 1])
    assert sums.log_weight.tolist() == [2000.0, -2000.0]
    assert sums.log_square.tolist() == [4000.0, -4000.0]
    assert sums.k3.tolist() == [math.inf, 1999.0]
    assert sums.excess.tolist() == [math.inf, -1.0]


def test_an_advantage_that_is_not_known_leaves_clipping_unknown() -> None:
    assert np.isnan(sequence_sums([0.5, 0.5], [2], [1.0, math.nan]).num_clipped).all()
    assert np.isnan(sequence_sums([0.5, 0.5], [2]).num_clipped).all()


def test_parts_join_in_order_and_nothing_joins_to_nothing() -> None:
    first, second = sequence_sums([0.1, 0.2], [2]), sequence_sums([0.3], [1])
    assert joined_sums([first, second]).num_tokens.tolist() == [2.0, 1.0]
    assert joined_sums([]).num_tokens.shape == (0,)


@pytest.mark.parametrize(("ratios", "lengths"), [([0.1], [2]), ([0.1], [1, 0]), ([math.nan], [1]), ([math.inf], [1])])
def test_what_is_no_table_of_tokens_is_refused(ratios: list[float], lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="need as many finite log-ratios"):
        sequence_sums(ratios, lengths)
