from __future__ import annotations

import numpy as np
import pytest

from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.step.tensor_norms import measure_tensor_norms
from tests.gradients.models import DAPO, tiny_groups, tiny_policy


@pytest.mark.parametrize("name", ["gpt2_tied_conv1d", "llama_untied_biases"])
def test_their_squares_add_up_to_the_gram_matrix(name: str) -> None:
    policy = tiny_policy(name)
    prepared = prepare_step(policy, tiny_groups(), DAPO)
    found, gram = measure_tensor_norms(prepared), measure_step(prepared).logged_gram
    assert gram is not None
    assert [one.tensor for one in found] == list(policy.trainable)
    assert sum(one.norm**2 for one in found) == pytest.approx(float(gram.sum()), rel=1e-4)
    assert sum(one.num_entries for one in found) == policy.num_parameters


def test_what_has_no_gradient_has_none() -> None:
    """LoRA with B = 0: nothing reaches A."""
    policy = tiny_policy("llama_untied_biases", lora=True)
    for name, parameter in policy.trainable.items():
        if "lora_B" in name:
            parameter.data.zero_()
    norms = {one.tensor: one.norm for one in measure_tensor_norms(prepare_step(policy, tiny_groups(), DAPO))}
    assert {name for name, norm in norms.items() if norm > 0} == {name for name in norms if "lora_B" in name}
    assert np.isfinite(list(norms.values())).all()
