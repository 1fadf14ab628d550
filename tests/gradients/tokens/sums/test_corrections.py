"""What corrections multiply tokens by, on numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradscope.gradients.tokens.sums.corrections import CORRECTIONS, corrected, sequence_factors
from gradscope.gradients.tokens.sums.counted_tokens import CountedTokens


def table(logprobs: list[float], rollouts: list[int], **others: object) -> CountedTokens:
    count = len(logprobs)
    zeros = np.zeros(count, dtype=np.int64)
    return CountedTokens(
        **{
            "rollouts": np.array(rollouts),
            "groups": zeros,
            "positions": zeros,
            "turns": zeros,
            "logprobs": np.array(logprobs),
            "entropies": np.zeros(count),
            "sampler": None,
            "reference": None,
            "advantages": np.ones(count),
            "weights": np.ones(count),
            "plain": np.ones(count),
            "lengths": (count,),
            **others,
        }
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", [1, 1, 1, 1]),
        ("token_ratio", [4, 0.25, 6, 1]),
        ("tis", [2, 0.25, 2, 1]),
        ("icepop", [4, 0, 0, 1]),
        ("token_mask", [0, 0.25, 0, 1]),
        ("sequence_truncate", [1, 1, 3, 3]),
        ("sequence_mask", [1, 1, 0, 0]),
        ("sequence_ratio", [1, 1, 6, 6]),
    ],
)
def test_each_correction_does_what_its_source_says(name: str, expected: list[float]) -> None:
    ratios = [4.0, 0.25, 6.0, 1.0]  # two rollouts of two tokens, whose ratios multiply to 1 and to 6
    tokens = table([math.log(ratio) - 2.0 for ratio in ratios], [0, 0, 1, 1])
    np.testing.assert_allclose(corrected(tokens, np.full(4, -2.0), CORRECTIONS[name]), expected, rtol=1e-12)


def test_a_ratio_beyond_floating_point_is_infinite() -> None:
    tokens = table([0.0], [0])
    assert np.isinf(corrected(tokens, np.array([-1000.0]), CORRECTIONS["token_ratio"])).all()


def test_whole_sequences_have_one_number_each() -> None:
    factors = sequence_factors([np.log([4.0, 0.25]), np.log([6.0]), np.array([1000.0])])
    assert list(factors) == ["none", "sequence_truncate", "sequence_mask", "sequence_ratio"]
    np.testing.assert_allclose(factors["none"], [1, 1, 1])
    np.testing.assert_allclose(factors["sequence_truncate"], [1, 3, 3])
    np.testing.assert_allclose(factors["sequence_mask"], [1, 0, 0])
    np.testing.assert_allclose(factors["sequence_ratio"], [1, 6, np.inf])
