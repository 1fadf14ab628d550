"""How far ranks can be believed: what lies under the noise floor, and whether these weights made these rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gradscope.findings.logprobs import logprob_findings
from gradscope.results.rank import GradientSpectrum, StepGeometry

NEAR_FLOOR = 0.01
"""Share of sum s under the floor from which an effective rank, the entropy of s / sum s, is doubted."""


def reliability_findings(
    spectra: Sequence[GradientSpectrum], steps: Sequence[StepGeometry], engine: Mapping[str, object]
) -> tuple[str, ...]:
    """What reduced precision leaves in doubt, and how the sampler's log-probabilities fit: at most two sentences."""
    return (*_near_floor(spectra, engine), *logprob_findings(steps))


def _near_floor(spectra: Sequence[GradientSpectrum], engine: Mapping[str, object]) -> tuple[str, ...]:
    """Whether float32 would tell more than the arithmetic that was used."""
    if engine.get("precision") != "reduced":
        return ()
    defined = [spectrum for spectrum in spectra if spectrum.ranks.effective_rank.value is not None]
    shares = [_share_below(spectrum) for spectrum in defined]
    doubted = [share for share in shares if share > NEAR_FLOOR]
    if not doubted:
        return ()
    arithmetic = "TF32" if engine.get("tf32") else str(engine.get("dtype"))
    return (
        f"At {len(doubted)} of {len(defined)} spectra singular values lie under the noise floor of {arithmetic}, up to "
        f"{max(doubted):.0%} of their sum: before these effective ranks are believed, use --precision high.",
    )


def _share_below(spectrum: GradientSpectrum) -> float:
    """Share of sum s in singular values up to the floor."""
    values = np.asarray(spectrum.singular_values)
    return float(values[values <= spectrum.noise_floor].sum() / values.sum())
