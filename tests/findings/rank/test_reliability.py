from __future__ import annotations

import dataclasses

import pytest

from gradscope.diagnostics.rank.spectrum import ranks_of
from gradscope.findings.rank.reliability import reliability_findings
from gradscope.results.rank import GradientSpectrum, SpectrumLabel
from gradscope.results.replay import LogprobDifference
from tests.render.examples import rank_report

REDUCED = {"precision": "reduced", "tf32": False, "dtype": "bfloat16"}


def spectrum(*values: float):
    label = SpectrumLabel(step=1, rows="rollout", advantage="logged", group_size=len(values), shape=(len(values), 100))
    return GradientSpectrum(label=label, singular_values=values, noise_floor=0.1, ranks=ranks_of(values, 0.1))


def test_a_rank_near_the_floor_is_to_be_confirmed():
    spectra = [spectrum(3.0, 0.05, 0.05), spectrum(3.0, 1.0), spectrum(0.0, 0.0)]
    assert spectra[0].ranks.numerical_rank.value == 1
    assert spectra[0].ranks.frac_energy_below_floor.value == pytest.approx(0.005 / 9.005)
    (sentence,) = reliability_findings(spectra, (), REDUCED)
    assert sentence.startswith("At 1 of 2 spectra singular values lie under the noise floor of bfloat16, up to 3% of")
    assert sentence.endswith("use --precision high.")
    (sentence,) = reliability_findings(spectra, (), {**REDUCED, "dtype": "float32", "tf32": True})
    assert "the noise floor of TF32" in sentence


def test_nothing_is_advised_where_nothing_is_hidden_or_nothing_is_left_to_do():
    assert reliability_findings([spectrum(3.0, 1.0), spectrum(3.0, 1e-3)], (), REDUCED) == ()
    assert reliability_findings([spectrum(3.0, 0.05)], (), {**REDUCED, "precision": "high"}) == ()


def test_the_samplers_log_probabilities_are_held_against_the_weights():
    difference = LogprobDifference(num_tokens=10, mean=0.3, max=1.0, frac_beyond=0.5, bound=0.1)
    steps = [dataclasses.replace(step, logprob_difference=difference) for step in rank_report().steps]
    (sentence,) = reliability_findings((), steps, REDUCED)
    assert "differ from these weights' by more than 0.1 at 50.0% of 10 tokens" in sentence
