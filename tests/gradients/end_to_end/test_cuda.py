"""On a GPU, where there is one: the numbers of the CPU, by every engine, in every precision, and how often it waits.

What can be seen without one is in ``test_other_device.py``; figures are made by ``benchmarks/gpu.py``.
"""

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from gradscope.gradients.model.calls import exact_products, without_tf32
from gradscope.gradients.model.policy import load_measured_policy
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.directions import measure_group_weights
from gradscope.gradients.step.heldout import measure_heldout_gram
from gradscope.gradients.step.measure import FLOAT32_ROW_ERROR, measure_step
from gradscope.gradients.step.verify import tolerance
from gradscope.rollouts.run import WeightsRef
from tests.gradients.end_to_end.test_other_device import CASES, OBJECTIVES, logged_groups
from tests.gradients.models import (
    ARCHITECTURES,
    DAPO,
    changed,
    measured_step,
    policy_of,
    relative,
    tiny_experts,
    tiny_groups,
    tiny_model,
    tiny_policy,
)
from tests.gradients.step.test_directions import combinations
from tests.gradients.step.test_heldout import SHARES, heldout_groups

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
SAME = 1e-4  # relative distance of two Gram matrices in float32 whose sums went in different orders


def made(name: str, **options: Any) -> Any:
    return tiny_experts(name) if "mixtral" in name or "moe" in name else tiny_model(name, **options)


@pytest.mark.parametrize("batch_tokens", [None, 24], ids=["one batch", "several"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("engine", ["loop", "stream", "prompt"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_engine_gives_what_the_cpu_gives(name, engine, lora, batch_tokens):
    on_cpu = measured_step(tiny_policy(name, lora=lora), tiny_groups(), DAPO, engine=engine)
    policy = policy_of(tiny_model(name, lora=lora).cuda(), lora=lora)
    step = measured_step(policy, tiny_groups(), DAPO, engine=engine, batch_tokens=batch_tokens, verify="all")
    assert relative(step.gram, on_cpu.gram) < SAME
    assert (step.coverage, step.engine, step.device) == (1.0, engine, str(policy.device))
    assert step.batch_tokens == (batch_tokens or step.batch_tokens) > 0
    for first, other in zip(step.logprobs, on_cpu.logprobs, strict=True):
        np.testing.assert_allclose(first, other, rtol=SAME, atol=SAME)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("engine", ["loop", "stream", "prompt"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_half_precision_is_within_what_it_says_of_its_rows(name, engine, dtype):
    rounded = tiny_model(name, dtype=dtype)
    exact = measured_step(policy_of(copy.deepcopy(rounded).float()), tiny_groups(), DAPO, engine=engine)
    step = measured_step(policy_of(rounded.cuda()), tiny_groups(), DAPO, engine=engine)
    assert 0 < step.relative_row_error < tolerance(dtype) * 5
    assert relative(step.gram, exact.gram) < max(3 * step.relative_row_error, tolerance(dtype))


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "qwen3_moe_normalized"])
def test_experts(name):
    on_cpu = measured_step(policy_of(made(name)), tiny_groups(), DAPO, engine="stream")
    step = measured_step(policy_of(made(name).cuda()), tiny_groups(), DAPO, engine="stream")
    assert relative(step.gram, on_cpu.gram) < SAME
    assert step.slow_parameters == on_cpu.slow_parameters


@pytest.mark.parametrize("stored", [2**30, 2000], ids=["memory", "disk"])
def test_pairs_that_wait_come_back_as_they_were(stored):
    policy = policy_of(tiny_model("qwen3_gqa_norms").cuda())
    full = measured_step(policy, tiny_groups(), DAPO, engine="stream")
    step = measured_step(policy, tiny_groups(), DAPO, engine="stream", batch_tokens=12, pending_bytes=stored)
    assert relative(step.gram, full.gram) < 1e-5


@pytest.mark.parametrize("case", OBJECTIVES)
def test_every_weight_of_a_loss(case):
    grams = []
    for device in ("cpu", "cuda"):
        reference = tiny_model("qwen3_gqa_norms").requires_grad_(False)
        reference.lm_head.weight.data.mul_(1.3)
        policy = policy_of(tiny_model("qwen3_gqa_norms").to(device), reference=reference.to(device))
        grams.append(measured_step(policy, logged_groups(num_groups=2), OBJECTIVES[case], engine="stream").gram)
    assert relative(*grams) < SAME


@pytest.mark.parametrize("case", CASES)
def test_tokens_weights_signals_and_norms(case):
    name, run = CASES[case]
    expected, result = run(made(name)), run(made(name).cuda())
    assert relative(np.asarray(result), np.asarray(expected)) < SAME


@pytest.mark.parametrize("certainty", [1.0, 20.0])
def test_weights_and_heldout_answers_agree_with_the_step_of_a_certain_policy(certainty):
    """Where the policy is certain of its tokens, most of a row cancels, and rows alone have fewer digits."""
    model = tiny_model("qwen3_gqa_norms").cuda()
    model.lm_head.weight.data.mul_(certainty)

    def likeliest(rollout):
        ids = torch.tensor([rollout.prompt_ids], device="cuda")
        for _ in rollout.completion_ids:
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
        return tuple(ids[0, len(rollout.prompt_ids) :].tolist())

    groups = changed(tiny_groups(), completion_ids=likeliest)
    prepared = prepare_step(policy_of(model), groups, DAPO)
    step = measure_step(prepared)
    combined = combinations("g0", tuple(range(len(groups[0].rollouts))))
    assert measure_group_weights(prepared, step, [combined])
    assert np.isfinite(measure_heldout_gram(prepared, step, heldout_groups(), SHARES).cross).all()


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_weights_are_loaded_onto_the_device_in_their_own_precision(device, tmp_path):
    tiny_model("qwen3_gqa_norms", dtype=torch.bfloat16).save_pretrained(tmp_path)
    policy = load_measured_policy(WeightsRef(num_updates=0, path=tmp_path, kind="full"), device=device)
    assert (policy.device.type, policy.dtype) == ("cuda", torch.bfloat16)
    high = load_measured_policy(WeightsRef(num_updates=0, path=tmp_path, kind="full"), device=device, dtype="float32")
    assert measured_step(high, tiny_groups(), DAPO).precision == "high"


def test_an_adapter_on_a_base_in_bfloat16(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tiny_model("qwen3_gqa_norms", lora=True).save_pretrained(tmp_path / "adapter")
    tiny_model("qwen3_gqa_norms", dtype=torch.bfloat16).save_pretrained(tmp_path / "base")
    weights = WeightsRef(num_updates=0, path=tmp_path / "adapter", kind="adapter", base=str(tmp_path / "base"))
    rough, exact = (load_measured_policy(weights, dtype=dtype) for dtype in ("auto", "float32"))
    assert (rough.dtype, exact.dtype) == (torch.bfloat16, torch.float32)
    steps, expected = (measured_step(policy, tiny_groups(), DAPO) for policy in (rough, exact))
    assert relative(steps.gram, expected.gram) < max(3 * steps.relative_row_error, tolerance(torch.bfloat16))


def test_tf32_raises_the_noise_floor_and_is_said():
    torch.set_float32_matmul_precision("high")
    try:
        step = measured_step(policy_of(tiny_policy("qwen3_gqa_norms").model.cuda()), tiny_groups(), DAPO)
        with without_tf32():
            exact = measured_step(policy_of(tiny_policy("qwen3_gqa_norms").model.cuda()), tiny_groups(), DAPO)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert (step.precision, exact.precision) == ("reduced", "high")
    assert relative(step.gram, exact.gram) < 3 * max(step.relative_row_error, FLOAT32_ROW_ERROR)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_tensor_cores_multiply_half_precision_as_exactly_as_float32(dtype):
    torch.manual_seed(0)
    first, second = (torch.randn(512, 512, device="cuda").to(dtype) for _ in "ab")
    exact = first.double() @ second.double()
    with exact_products(dtype, dtype):
        result = first.float() @ second.float()
    assert float((result - exact).norm() / exact.norm()) < 2e-6
    unlike = torch.randn(512, 512, device="cuda")
    torch.set_float32_matmul_precision("high")
    try:
        rounded = unlike @ unlike
    finally:
        torch.set_float32_matmul_precision("highest")
    exact = unlike.double() @ unlike.double()
    assert float((rounded - exact).norm() / exact.norm()) > 1e-5  # numbers that TF32 does not hold


def test_memory_that_runs_out_on_cuda_is_halved():
    policy = policy_of(tiny_policy("qwen3_gqa_norms").model.cuda())
    full = measured_step(policy, tiny_groups(), DAPO, engine="stream")

    def refuse(module, arguments, keywords):
        if keywords["input_ids"].numel() > 24:
            torch.empty(2**50, device="cuda", dtype=torch.uint8)

    policy.model.register_forward_pre_hook(refuse, with_kwargs=True)
    step = measured_step(policy, tiny_groups(), DAPO, engine="stream")
    assert step.notes
    assert relative(step.gram, full.gram) < 1e-5


def test_what_is_waited_for_does_not_grow_with_the_rollouts():
    """PyTorch warns of every wait; a step of four groups has as many as one of two, where all fit one batch."""
    policy, seen = policy_of(tiny_model("qwen3_gqa_norms").cuda()), []
    for num_groups in (2, 2, 4):
        with warnings.catch_warnings(record=True) as result:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                measured_step(policy, tiny_groups(num_groups), DAPO, engine="stream")
            finally:
                torch.cuda.set_sync_debug_mode("default")
        seen.append(sum("synchroniz" in str(warning.message) for warning in result))
    assert 0 < seen[1] == seen[2], "the first step of all loads kernels, which is no wait of ours"
