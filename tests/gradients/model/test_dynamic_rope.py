"""Frequencies that follow the longest batch."""

from __future__ import annotations

import torch

from gradscope.gradients.model.dynamic_rope import pretrained_length, see_batch
from tests.diagnostics.inputs.test_longest_batch import scaled_model


def test_other_models_keep_nothing() -> None:
    assert pretrained_length(scaled_model()) == 8
    assert pretrained_length(scaled_model("linear")) is None


def test_a_model_keeps_the_frequencies_of_the_longest_batch() -> None:
    ids, fresh, model = torch.arange(12)[None] % 16, scaled_model(), scaled_model()
    see_batch(model, 20)
    with torch.no_grad():
        assert not torch.allclose(fresh(input_ids=ids).logits, model(input_ids=ids).logits, atol=1e-5)
