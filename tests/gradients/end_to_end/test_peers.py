"""Other people's per-sample gradients as a second oracle."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch

from gradscope.gradients.model.precision import without_tf32
from gradscope.gradients.step.row_error import FLOAT32_ROW_ERROR
from tests.gradients.models import DAPO, measured_step, policy_of, relative, tiny_groups, tiny_policy


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
        whole, start = rollout.prompt_ids + rollout.completion_ids, len(rollout.prompt_ids)
        ids[row, : len(whole)] = torch.tensor(whole)
        weights[row, start - 1 : len(whole) - 1] = 1.0 / sum(len(r.completion_ids) for r in rollouts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = grad_sample.GradSampleModule(copy.deepcopy(policy.model).train(), loss_reduction="sum")
        positions = torch.arange(length).expand(len(rollouts), -1)
        log_pi = torch.log_softmax(model(input_ids=ids, position_ids=positions, use_cache=False).logits[:, :-1], -1)
        (log_pi.gather(2, ids[:, 1:, None]).squeeze(2) * weights).sum().backward()
        rows = torch.cat([p.grad_sample.flatten(1) for p in model.parameters()], 1).double().numpy()
    found = measured_step(policy, groups, DAPO, engine="stream")
    assert rows.shape[1] == found.num_parameters
    assert relative(found.gram, rows @ rows.T) < 1e-5
    assert np.trace(found.gram) > 0


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("batch_tokens", [None, 24], ids=["auto", "24"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("engine", ["loop", "stream"])
@pytest.mark.parametrize("name", ["qwen3_gqa_norms", "gpt2_tied_conv1d"])
def test_cuda_gives_what_the_cpu_gives(name, engine, dtype, batch_tokens):
    """In float32 to 1e-4; in bfloat16 within what both say of their own rows."""
    groups = tiny_groups()
    on_cpu = measured_step(tiny_policy(name), groups, DAPO, engine=engine)
    model = tiny_policy(name, dtype=dtype).model.cuda()
    on_cuda = measured_step(policy_of(model), groups, DAPO, batch_tokens=batch_tokens, engine=engine, verify="all")
    limit = 1e-4 if dtype == torch.float32 else 3 * on_cuda.relative_row_error
    assert relative(on_cuda.gram, on_cpu.gram) < limit
    assert (on_cuda.coverage, on_cuda.engine) == (1.0, engine)
    assert on_cuda.batch_tokens == (batch_tokens or on_cuda.batch_tokens) > 0


@pytest.mark.gpu
@needs_cuda
def test_tf32_raises_the_noise_floor_and_is_said():
    torch.set_float32_matmul_precision("high")
    try:
        found = measured_step(policy_of(tiny_policy("qwen3_gqa_norms").model.cuda()), tiny_groups(), DAPO)
        with without_tf32():
            exact = measured_step(policy_of(tiny_policy("qwen3_gqa_norms").model.cuda()), tiny_groups(), DAPO)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert (found.precision, exact.precision) == ("reduced", "high")
    assert relative(found.gram, exact.gram) < 3 * max(found.relative_row_error, FLOAT32_ROW_ERROR)


@pytest.mark.gpu
@needs_cuda
def test_memory_that_runs_out_on_cuda_is_halved():
    policy = policy_of(tiny_policy("qwen3_gqa_norms").model.cuda())
    whole = measured_step(policy, tiny_groups(), DAPO, engine="stream")

    def refuse(module, arguments, keywords):
        if keywords["input_ids"].numel() > 24:
            torch.empty(2**50, device="cuda", dtype=torch.uint8)

    policy.model.register_forward_pre_hook(refuse, with_kwargs=True)
    found = measured_step(policy, tiny_groups(), DAPO, engine="stream")
    assert found.notes
    assert relative(found.gram, whole.gram) < 1e-5
