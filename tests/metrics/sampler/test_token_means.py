from __future__ import annotations

import numpy as np
import pytest

from gradscope.metrics.sampler.token_means import token_mean


def test_tokens_not_sequences_weigh_the_same() -> None:
    assert token_mean([1.0, 9.0], [1, 3], ["a", "b"]).value == 2.5


def test_nothing_has_no_mean() -> None:
    assert token_mean([], [], []).undefined == "there is nothing to average"


def test_the_interval_covers_at_the_promised_rate() -> None:
    rng, hits = np.random.default_rng(0), 0
    for _ in range(200):
        level = rng.gamma(2.0, 1.0, 40)  # each prompt has its own
        tokens = rng.integers(1, 9, 40)
        low, high = token_mean(level * tokens, tokens, np.arange(40)).ends
        hits += low <= 2.0 <= high
    assert hits / 200 == pytest.approx(0.95, abs=0.05)
