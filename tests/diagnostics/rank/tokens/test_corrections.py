"""What corrections make of a gradient, against the tokens' own rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gradscope.diagnostics.rank.tokens.corrections import correction_effects
from tests.diagnostics.rank.tokens.made_up_parts import made_up


def test_each_correction_is_the_sum_of_its_rows() -> None:
    made = made_up(scale=0.8)
    tokens = made.found.tokens
    ratio = np.exp(tokens.logprobs - tokens.sampler)
    whole = np.repeat(ratio.reshape(-1, 6).prod(axis=1), 6)
    factors = {
        "none": np.ones(len(ratio)),
        "token_ratio": ratio,
        "tis": np.minimum(ratio, 2),
        "icepop": ratio * (ratio >= 0.5) * (ratio <= 5),
        "token_mask": ratio * (ratio <= 3),
        "sequence_truncate": np.minimum(whole, 3),
        "sequence_mask": whole * (whole <= 3),
        "sequence_ratio": whole,
    }
    plain, unbiased = tokens.plain @ made.rows, (whole * tokens.plain) @ made.rows
    effects = correction_effects(7, made.found)
    assert [effect.correction for effect in effects] == list(factors)
    for effect in effects:
        own = (factors[effect.correction] * tokens.plain) @ made.rows
        lengths = {name: np.linalg.norm(of) for name, of in (("own", own), ("plain", plain), ("unbiased", unbiased))}
        assert effect.norm_ratio.value == pytest.approx(lengths["own"] / lengths["plain"])
        assert effect.cosine.value == pytest.approx(own @ plain / lengths["own"] / lengths["plain"])
        assert effect.unbiased_cosine.value == pytest.approx(own @ unbiased / lengths["own"] / lengths["unbiased"])
        f = factors[effect.correction][:: 6 if effect.units == "sequences" else 1]
        assert effect.kept.value == pytest.approx((f > 0).mean())
        assert effect.ess.value == pytest.approx(f.sum() ** 2 / len(f) / (f**2).sum())
        assert effect.chi2.value == pytest.approx((f**2).mean() - 1)
    assert {effect.correction for effect in effects if effect.units == "sequences"} == {
        "sequence_truncate",
        "sequence_mask",
        "sequence_ratio",
    }


def test_without_the_samplers_log_probabilities_there_is_none() -> None:
    assert correction_effects(7, made_up(sampler=False).found) == []


def test_a_ratio_that_is_too_large_is_said() -> None:
    found = made_up().found
    left = [at for at, label in enumerate(found.labels) if label != ("correction", "sequence_ratio")]
    cut = dataclasses.replace(
        found, labels=tuple(found.labels[at] for at in left), products=found.products[:, left][:, :, left]
    )
    effects = {effect.correction: effect for effect in correction_effects(7, cut)}
    assert effects["sequence_ratio"].cosine.undefined == "a ratio of this step is beyond 1e30"
    assert effects["tis"].unbiased_cosine.undefined == "a ratio of this step is beyond 1e30"
    assert effects["tis"].cosine.is_defined
