from __future__ import annotations

import math

import pytest
import torch

from gradscope.gradients.plan.sampler import SamplerCorrection

COUNTED = torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
OLD = torch.zeros(4, dtype=torch.float64)
SAMPLER = -torch.tensor([math.log(2.0), math.log(0.5), 7.0, math.nan], dtype=torch.float64)


def ratio(mode: str, low: float | None = None, high: float | None = None) -> list[float]:
    return SamplerCorrection(mode=mode, low=low, high=high).ratio(SAMPLER, OLD, COUNTED).tolist()


def test_ratios_by_token_and_of_the_sequence():
    """Tokens that do not count, and those without a number, count as on policy."""
    assert ratio("token_truncate") == pytest.approx([2.0, 0.5, 1.0, 1.0])
    assert ratio("sequence_truncate") == pytest.approx([1.0])


def test_beyond_its_bounds_a_ratio_is_cut_or_dropped():
    assert ratio("token_truncate", 0.7, 1.5) == pytest.approx([1.5, 0.7, 1.0, 1.0])
    assert ratio("token_mask", 0.7, 1.5) == pytest.approx([0.0, 0.0, 1.0, 1.0])
    assert ratio("sequence_mask", 1.5) == [0.0]
    assert ratio("sequence_mask", 0.5, 1.5) == pytest.approx([1.0])


def test_the_arguments_of_old_and_new_versions():
    assert SamplerCorrection.from_values({}) is None
    assert SamplerCorrection.from_values({"use_vllm": True, "vllm_importance_sampling_correction": False}) is None
    assert SamplerCorrection.from_values({"use_vllm": True}) == SamplerCorrection(mode="sequence_mask", high=3.0)
    old = SamplerCorrection.from_values({"use_vllm": True, "vllm_importance_sampling_cap": 2.0})
    new = SamplerCorrection.from_values({"use_vllm": True, "vllm_importance_sampling_clip_max": 2.0})
    assert old == new == SamplerCorrection(high=2.0)
    given = {"vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_min": 0.5}
    both = SamplerCorrection.from_values({"use_vllm": True, "vllm_importance_sampling_clip_max": None, **given})
    assert both == SamplerCorrection(mode="token_mask", low=0.5, high=None)


def test_a_mode_that_trl_does_not_have_is_a_callers_bug():
    with pytest.raises(ValueError, match="'odd' is none of token_truncate, token_mask"):
        SamplerCorrection.from_values({"use_vllm": True, "vllm_importance_sampling_mode": "odd"})
