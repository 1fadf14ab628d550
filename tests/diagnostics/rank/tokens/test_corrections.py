"""What corrections make of a gradient, against the tokens' own rows."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradscope.diagnostics.rank.tokens.corrections import correction_effects, sequence_corrections
from gradscope.rollouts.run import Run, TrainerSettings
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.rank.tokens.made_up_parts import made_up
from tests.diagnostics.report.sections.made_up_inputs import gram_of


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
        "mis": ratio * (ratio >= 0.5) * (ratio <= 2),
        "token_mask": ratio * (ratio <= 3),
        "sequence_truncate": np.minimum(whole, 3),
        "sequence_mask": whole * (whole <= 3),
        "geometric_mask": whole ** (1 / 6) * (abs(np.log(whole)) / 6 <= np.log(1.001)),
        "sequence_ratio": whole,
    }
    plain, unbiased = tokens.plain @ made.rows, (whole * tokens.plain) @ made.rows
    effects = correction_effects(7, made.found)
    assert [effect.correction for effect in effects] == list(factors)
    for effect in effects:
        own = (factors[effect.correction] * tokens.plain) @ made.rows
        lengths = {name: np.linalg.norm(of) for name, of in (("own", own), ("plain", plain), ("unbiased", unbiased))}
        assert effect.norm_ratio.value == pytest.approx(lengths["own"] / lengths["plain"])
        if not own.any():  # no geometric mean is within one in a thousand
            assert (effect.correction, effect.kept.value) == ("geometric_mask", 0.0)
            assert effect.cosine.undefined
            continue
        assert effect.cosine.value == pytest.approx(own @ plain / lengths["own"] / lengths["plain"])
        assert effect.unbiased_cosine.value == pytest.approx(own @ unbiased / lengths["own"] / lengths["unbiased"])
        f = factors[effect.correction][:: 6 if effect.units == "sequences" else 1]
        assert effect.kept.value == pytest.approx((f > 0).mean())
        assert effect.ess.value == pytest.approx(f.sum() ** 2 / len(f) / (f**2).sum())
        assert effect.chi2.value == pytest.approx((f**2).mean() - 1)
    assert {effect.correction for effect in effects if effect.units == "sequences"} == {
        "sequence_truncate",
        "sequence_mask",
        "geometric_mask",
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


GAPS = np.array([[0.1, 0.2], [-0.4, 0.0], [0.9, 0.5], [0.0, 0.3], [-0.2, -0.1], [0.6, 0.1], [0.0, 0.0], [-1.0, 0.4]])
"""Of two tokens of eight rollouts: log-probability by the weights minus the sampler's."""
ROWS = np.random.default_rng(3).normal(size=(8, 5))


def made(**fields: Any) -> tuple[Run, Any]:
    groups = []
    for at, prompt in enumerate("abcd"):
        group = group_of([0.0, 1.0], prompt=prompt)
        rollouts = [
            replace(one, logprobs=tuple((-2.0 - GAPS[2 * at + place]).tolist()), **fields)
            for place, one in enumerate(group.rollouts)
        ]
        groups.append(replace(group, rollouts=tuple(rollouts)))
    gram = gram_of(
        ROWS.tolist(), [group.group_id for group in groups for _ in group.rollouts], logprobs=(np.full(2, -2.0),) * 8
    )
    return run_of(*groups), gram


def test_each_sequence_correction_is_the_sum_of_its_rows() -> None:
    whole = np.exp(GAPS.sum(axis=1))
    factors = {
        "none": np.ones(8),
        "sequence_truncate": np.minimum(whole, 3),
        "sequence_mask": whole * (whole <= 3),
        "geometric_mask": whole**0.5 * (abs(np.log(whole)) / 2 <= np.log(1.001)),
        "sequence_ratio": whole,
    }
    effects = sequence_corrections(*made())
    assert [effect.correction for effect in effects] == list(factors)
    plain, unbiased = ROWS.sum(axis=0), whole @ ROWS
    for effect in effects:
        f = factors[effect.correction]
        own = f @ ROWS
        assert effect.units == "sequences"
        assert effect.norm_ratio.value == pytest.approx(np.linalg.norm(own) / np.linalg.norm(plain))
        for cosine, other in ((effect.cosine, plain), (effect.unbiased_cosine, unbiased)):
            assert cosine.value == pytest.approx(own @ other / np.linalg.norm(own) / np.linalg.norm(other))
        assert effect.kept.value == pytest.approx((f > 0).mean())
        assert effect.ess.value == pytest.approx(f.sum() ** 2 / 8 / (f**2).sum())
    assert effects[-1].cosine.low is not None
    assert effects[-1].cosine.num_units == 4


def test_tokens_that_do_not_count_and_numbers_that_are_none_are_on_policy() -> None:
    run, gram = made(mask=(True, False))
    ratio = sequence_corrections(run, gram)[-1]
    first = np.exp(GAPS[:, 0])
    assert ratio.ess.value == pytest.approx(first.sum() ** 2 / 8 / (first**2).sum())
    run, gram = made()
    broken = replace(
        run.groups[0], rollouts=tuple(replace(one, logprobs=(float("nan"),) * 2) for one in run.groups[0].rollouts)
    )
    whole = np.exp(np.where(np.arange(8) < 2, 0.0, GAPS.sum(axis=1)))
    ratio = sequence_corrections(run_of(broken, *run.groups[1:]), gram)[-1]
    assert ratio.ess.value == pytest.approx(whole.sum() ** 2 / 8 / (whole**2).sum())


def test_a_sequence_ratio_that_is_too_large_is_said() -> None:
    run, gram = made()
    far = (np.full(2, 98.0), *gram.logprobs[1:])
    effects = {one.correction: one for one in sequence_corrections(run, replaced(gram, logprobs=far))}
    assert effects["sequence_ratio"].cosine.undefined == "a ratio of this step is beyond 1e30"
    assert effects["sequence_truncate"].cosine.is_defined


def replaced(gram: Any, **parts: Any) -> Any:
    return type(gram)(**{**vars(gram), **parts})


def test_without_what_it_takes_there_is_none() -> None:
    run, gram = made()
    assert sequence_corrections(without_logprobs(run), gram) == ()
    assert sequence_corrections(run, replaced(gram, policy_gram=None)) == ()
    assert sequence_corrections(run, replaced(gram, policy_gram=np.zeros((8, 8)))) == ()
    vllm = TrainerSettings(values={"use_vllm": True}, origin="args.json")
    assert sequence_corrections(replace(run, settings=vllm), gram) == ()


def without_logprobs(run: Run) -> Run:
    first, *others = run.groups
    return run_of(replace(first, rollouts=tuple(replace(one, logprobs=None) for one in first.rollouts)), *others)
