"""Spectra of dL/dW as the engine measured them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gradscope.diagnostics.rank.weights.weight_spectra import weight_spectra
from gradscope.gradients.step.directions import WeightSpectrum
from gradscope.metrics.gram.null_models import gaussian_matrix_values
from gradscope.metrics.gram.spectrum import effective_rank


def test_one_spectrum_a_matrix_beside_that_of_independent_entries() -> None:
    answer = (
        WeightSpectrum(tensor="q", shape=(2, 6), singular_values=np.array([4.0, 3.0]), entries={}),
        WeightSpectrum(tensor="k", shape=(3, 2), singular_values=np.array([0.0, 0.0]), entries={}),
    )
    gram = SimpleNamespace(group_ids=("a", "a", "a", "b"), relative_row_error=0.1)
    query, key = weight_spectra(7, answer, gram)
    assert (query.label.step, query.label.tensor, query.label.shape) == (7, "q", (2, 6))
    assert (query.label.rows, query.label.advantage, query.label.group_size) == ("weight", "logged", 3)
    assert query.singular_values == (4.0, 3.0)
    assert query.noise_floor == pytest.approx(0.1 * 5.0)
    assert query.ranks.stable_rank.value == pytest.approx(25 / 16)
    assert query.nulls["gaussian"].value == effective_rank(gaussian_matrix_values(2, 6)).value
    assert key.ranks.effective_rank.value is None
