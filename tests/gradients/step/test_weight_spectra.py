from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from gradscope.errors import InputError
from gradscope.gradients.model.budget import TokenBudget
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.weight_spectra import measure_weight_spectra
from gradscope.metrics.gram.sparsity import row_sparsity
from tests.gradients.models import DAPO, tiny_groups, tiny_policy


@pytest.mark.parametrize("batch_tokens", [None, 12])
def test_spectra_are_those_of_the_ordinary_gradient(batch_tokens):
    policy, groups = tiny_policy("gpt2_tied_conv1d"), tiny_groups()
    seen = []
    found = measure_weight_spectra(
        prepare_step(policy, groups, DAPO, batch_tokens and TokenBudget(batch_tokens)),
        progress=lambda *event: seen.append(event),
    )
    loss = torch.zeros(())
    num_tokens = sum(len(r.completion_ids) for g in groups for r in g.rollouts)
    for rollout in (r for group in groups for r in group.rollouts):
        ids = torch.tensor([rollout.prompt_ids + rollout.completion_ids])
        start = len(rollout.prompt_ids)
        log_pi = torch.log_softmax(policy.model(input_ids=ids).logits[0, start - 1 : -1], -1)
        loss = loss - rollout.advantage / num_tokens * log_pi.gather(1, ids[0, start:, None]).sum()
    loss.backward()
    matrices = {name: p for name, p in policy.trainable.items() if p.dim() == 2}
    assert [one.tensor for one in found] == list(matrices)
    assert seen[-1] == (len(matrices), len(matrices), "tensors")
    for one in found:
        expected = np.linalg.svd(matrices[one.tensor].grad.double().numpy(), compute_uv=False)
        assert one.shape == tuple(matrices[one.tensor].shape)
        np.testing.assert_allclose(one.singular_values, expected, atol=1e-5 * expected[0])
        sizes = np.abs(matrices[one.tensor].grad.double().numpy()).ravel()
        assert one.entries["gini"].value == pytest.approx(row_sparsity(sizes)["gini"].value, abs=1e-5)


def test_a_matrix_without_gradient_has_a_zero_spectrum():
    """LoRA with B = 0: nothing reaches A."""
    policy = tiny_policy("llama_untied_biases", lora=True)
    with torch.no_grad():
        for name, parameter in policy.trainable.items():
            if "lora_B" in name:
                parameter.zero_()
    for one in measure_weight_spectra(prepare_step(policy, tiny_groups(), DAPO)):
        assert bool(one.singular_values.any()) == ("lora_B" in one.tensor)


def test_spectra_need_logged_advantages():
    groups = tiny_groups(1, 1)
    rollout = groups[0].rollouts[0]
    bare = dataclasses.replace(groups[0], rollouts=(dataclasses.replace(rollout, advantage=None),))
    with pytest.raises(InputError, match="has no logged advantage"):
        measure_weight_spectra(prepare_step(tiny_policy("llama_untied_biases"), [bare], DAPO))
