"""From a Gram matrix to singular values, noise floor and ranks, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gradscope.diagnostics.rank.spectrum import ranks_of, spectrum_of
from gradscope.estimate import Estimate
from gradscope.metrics.gram.spectrum import ZERO_MATRIX
from gradscope.results.rank import SpectrumLabel

GRAM = np.diag([9.0, 16.0])  # of two orthogonal rows of norm 3 and 4


def label(*, centered: bool = False) -> SpectrumLabel:
    return SpectrumLabel(step=1, rows="rollout", advantage="rloo", group_size=2, shape=(2, 50), centered=centered)


def test_the_floor_is_the_row_error_times_the_frobenius_norm() -> None:
    spectrum = spectrum_of(GRAM, label(), relative_row_error=0.7)
    assert spectrum.singular_values == (4.0, 3.0)
    assert spectrum.noise_floor == pytest.approx(0.7 * 5.0)
    assert spectrum.ranks.numerical_rank.value == 1
    assert spectrum.ranks.frac_energy_below_floor.value == pytest.approx(9 / 25)
    assert spectrum.label == label()


def test_without_an_error_of_rows_float64_sets_the_floor() -> None:
    spectrum = spectrum_of(GRAM, label(), relative_row_error=0.0)
    assert spectrum.noise_floor == pytest.approx((2 * np.finfo(np.float64).eps) ** 0.5 * 4.0)
    assert spectrum.ranks.numerical_rank.value == 2


def test_the_mean_row_is_subtracted_only_where_the_label_says_so() -> None:
    same = np.full((2, 2), 4.0)
    assert spectrum_of(same, label(), relative_row_error=0.0).singular_values[0] == pytest.approx(8**0.5)
    centered = spectrum_of(same, label(centered=True), relative_row_error=0.0)
    assert centered.singular_values == (0.0, 0.0)
    assert centered.ranks.effective_rank.undefined == ZERO_MATRIX


def test_values_and_nulls_that_are_known_are_taken_as_they_are() -> None:
    nulls = {"gaussian": Estimate.exact(2.0)}
    spectrum = spectrum_of(GRAM, label(), relative_row_error=0.0, values=np.array([2.0, 2.0]), nulls=nulls)
    assert spectrum.ranks.stable_rank.value == pytest.approx(2.0)
    assert spectrum.nulls == nulls


def test_every_rank_of_two_values_by_hand() -> None:
    ranks = ranks_of(np.array([3.0, 1.0]), 0.5)
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert ranks.effective_rank.value == pytest.approx(np.exp(entropy))
    assert ranks.spectral_entropy_rank.value == pytest.approx(np.exp(-(0.9 * np.log(0.9) + 0.1 * np.log(0.1))))
    assert ranks.stable_rank.value == pytest.approx(10 / 9)
    assert ranks.participation_ratio.value == pytest.approx(100 / 82)
    assert (ranks.numerical_rank.value, ranks.energy_rank_90.value, ranks.energy_rank_99.value) == (2, 1, 2)
    assert ranks.frac_energy_below_floor.value == 0
