"""Other people's per-sample gradients as a second oracle."""

import copy
import warnings

import numpy as np
import pytest
import torch

from tests.gradients.models import DAPO, measured_step, relative, tiny_groups, tiny_policy


@pytest.mark.parametrize("name", ["llama_untied_biases", "qwen3_gqa_norms"])
def test_gram_equals_that_of_opacus(name):
    grad_sample = pytest.importorskip("opacus.grad_sample", reason="needs opacus, an oracle that is not required")
    policy, groups = tiny_policy(name), tiny_groups(1, 4)
    policy.model.get_input_embeddings().padding_idx = None  # opacus gives its row the gradient that PyTorch withholds
    rollouts = groups[0].rollouts
    length = max(len(r.prompt_ids) + len(r.completion_ids) for r in rollouts)
    ids = torch.zeros(len(rollouts), length, dtype=torch.long)
    weights = torch.zeros(len(rollouts), length - 1)
    for row, rollout in enumerate(rollouts):
        full, start = rollout.prompt_ids + rollout.completion_ids, len(rollout.prompt_ids)
        ids[row, : len(full)] = torch.tensor(full)
        weights[row, start - 1 : len(full) - 1] = 1.0 / sum(len(r.completion_ids) for r in rollouts)
    with warnings.catch_warnings(action="ignore"):
        model = grad_sample.GradSampleModule(copy.deepcopy(policy.model).train(), loss_reduction="sum")
        positions = torch.arange(length).expand(len(rollouts), -1)
        log_pi = torch.log_softmax(model(input_ids=ids, position_ids=positions, use_cache=False).logits[:, :-1], -1)
        (log_pi.gather(2, ids[:, 1:, None]).squeeze(2) * weights).sum().backward()
        rows = torch.cat([p.grad_sample.flatten(1) for p in model.parameters()], 1).double().numpy()
    step = measured_step(policy, groups, DAPO, engine="stream")
    assert rows.shape[1] == step.num_parameters
    assert relative(step.gram, rows @ rows.T) < 1e-5
    assert np.trace(step.gram) > 0
