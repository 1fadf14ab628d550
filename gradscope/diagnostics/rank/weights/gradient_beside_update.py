"""The gradient of a step beside the change of the weights that followed it, matrix by matrix.

A low-rank gradient and a low-rank update are different things; only side by side are they not mistaken for each other.
An adapter's gradient is that of its factors and its change that of their product, so adapters have no such pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradscope.estimate import Estimate
from gradscope.metrics.gram.spectrum import ZERO_MATRIX, effective_rank
from gradscope.results.rank import GradientSpectrum
from gradscope.results.update import GradientAndUpdate
from gradscope.rollouts.run import Run


def gradients_and_updates(run: Run, spectra: Sequence[GradientSpectrum]) -> tuple[GradientAndUpdate, ...]:
    """Each measured gradient with the change from the weights that it was computed at to the next checkpoint.

    Returns:
        One per step and matrix; none for a step without a later checkpoint, and none of an adapter.
    """
    from gradscope.gradients.model.checkpoint import common_tensors, open_checkpoint

    pairs = []
    for step in sorted({spectrum.label.step for spectrum in spectra}):
        before, after = run.weights_before(step), run.weights_after(step)
        if before is None or before.kind == "adapter" or after is None:
            continue
        first, last = open_checkpoint(before), open_checkpoint(after)
        names = set(common_tensors([first, last]))
        for spectrum in spectra:
            if spectrum.label.step != step or spectrum.label.tensor not in names:
                continue
            change = last.matrices[spectrum.label.tensor]() - first.matrices[spectrum.label.tensor]()
            values = np.linalg.svd(change, compute_uv=False)
            pairs.append(
                GradientAndUpdate(
                    step=step,
                    tensor=spectrum.label.tensor,
                    first=first.num_updates,
                    last=last.num_updates,
                    gradient_rank=spectrum.ranks.effective_rank,
                    gradient_top_energy=_top_energy(np.array(spectrum.singular_values)),
                    update_rank=effective_rank(values),
                    update_top_energy=_top_energy(values),
                    gaussian=spectrum.nulls["gaussian"],
                )
            )
    return tuple(pairs)


def _top_energy(values: np.ndarray) -> Estimate:
    energy = float(np.sum(np.square(values)))
    return Estimate.exact(float(values[0] ** 2) / energy) if energy > 0 else Estimate.undefined_because(ZERO_MATRIX)
