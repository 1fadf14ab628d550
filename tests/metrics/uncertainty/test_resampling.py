from __future__ import annotations

import numpy as np
import pytest

from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from gradscope.metrics.uncertainty.resampling import RESAMPLING, Resampling


def test_what_is_not_asked_for_is_usual() -> None:
    values = np.random.default_rng(0).random(40)
    assert Resampling() == RESAMPLING
    assert bootstrap_mean(values) == bootstrap_mean(values, resampling=Resampling(num_resamples=2000, seed=0))


def test_the_noise_of_the_usual_number_is_a_twentieth_of_the_width() -> None:
    values = np.random.default_rng(1).normal(size=60)
    intervals = np.array(
        [bootstrap_mean(values, resampling=Resampling(seed=seed), share=False).interval for seed in range(40)]
    )
    width = np.ptp(intervals.mean(axis=0))
    assert intervals.std(axis=0).max() < width / 20
    assert intervals.std(axis=0).max() == pytest.approx(width / 40, rel=0.6)
