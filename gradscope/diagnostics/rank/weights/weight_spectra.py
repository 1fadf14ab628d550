"""`gradscope rank --rows weight`: the spectra of dL/dW, one per matrix of the model.

Shapes: O outputs, I inputs of a weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.rank.spectrum import ranks_of
from gradscope.metrics.gram.null_models import gaussian_matrix_values
from gradscope.metrics.gram.spectrum import effective_rank
from gradscope.results.rank import GradientSpectrum, SpectrumLabel

if TYPE_CHECKING:
    from gradscope.gradients.step.directions import WeightSpectrum
    from gradscope.gradients.step.step_gram import StepGram


def weight_spectra(step: int, spectra: Iterable[WeightSpectrum], gram: StepGram) -> Iterator[GradientSpectrum]:
    """Spectra of dL/dW as the optimizer saw it, each beside that of a matrix of independent entries."""
    size = max(np.unique(gram.group_ids, return_counts=True)[1].tolist())
    for spectrum in spectra:
        values = spectrum.singular_values
        floor = gram.relative_row_error * float(np.sqrt(np.sum(values**2)))
        yield GradientSpectrum(
            label=SpectrumLabel(
                step=step,
                rows="weight",
                advantage=LOGGED,
                group_size=size,
                tensor=spectrum.tensor,
                shape=spectrum.shape,
            ),
            singular_values=tuple(float(value) for value in values),
            noise_floor=floor,
            ranks=ranks_of(values, floor),
            nulls={"gaussian": effective_rank(gaussian_matrix_values(*spectrum.shape))},
        )
