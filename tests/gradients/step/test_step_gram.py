import json
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import asdict, replace

from gradscope.errors import InputError
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.step.step_gram import measure_norm, read_step, write_step
from gradscope.metrics.gram.geometry import batch_norm
from tests.gradients.models import (
    DAPO,
    changed,
    measured_step,
    policy_of,
    prepared,
    tiny_groups,
    tiny_model,
    tiny_policy,
    waiting_gradients,
)


@pytest.fixture(scope="module")
def gram_step():
    return measured_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)


def test_any_advantage_is_a_product_of_small_matrices(gram_step):
    advantages = np.array([1.0, -1.0, 0.0, 2.0, 0.5, -0.5])
    expected = np.diag(advantages) @ gram_step.score_gram @ np.diag(advantages)
    np.testing.assert_allclose(gram_step.gradient_gram(advantages), expected)
    np.testing.assert_allclose(gram_step.gradient_gram(list(advantages)), expected)
    np.testing.assert_allclose(gram_step.logged_gram, gram_step.gradient_gram(gram_step.advantages))
    np.testing.assert_allclose(gram_step.policy_gram, gram_step.logged_gram)
    assert not gram_step.gradient_gram(np.zeros(6)).any()


def test_the_kl_part_is_in_every_gradient_and_not_in_the_policy_part():
    model, reference = tiny_model("gpt2_tied_conv1d"), tiny_model("gpt2_tied_conv1d")
    reference.lm_head.weight.data.mul_(0.5)
    step = measured_step(policy_of(model, reference=reference), tiny_groups(1, 3), replace(DAPO, beta=0.1))
    np.testing.assert_allclose(step.gradient_gram(np.zeros(3)), step.kl_gram)
    np.testing.assert_allclose(step.policy_gram, np.diag(step.advantages) @ step.score_gram @ np.diag(step.advantages))
    assert step.parts["kl"][0] == pytest.approx(np.sqrt(step.kl_gram.sum()) / np.sqrt(step.logged_gram.sum()))


def test_without_logged_advantages_there_is_no_logged_gradient(gram_step):
    bare = changed(tiny_groups(1, 2), advantage=None, reward=None)
    step = measured_step(tiny_policy("llama_untied_biases"), bare, DAPO)
    assert [step.logged_gram, step.policy_gram, step.advantages, *step.parts] == [None] * 3
    assert np.isnan(step.rewards).all()
    with pytest.raises(InputError, match="not every rollout has a logged advantage"):
        step.gradient_gram("logged")
    with pytest.raises(ValueError, match=r"expected 6 advantages, got an array of shape \(2,\)"):
        gram_step.gradient_gram([1.0, 2.0])


def test_the_description_is_plain_json(gram_step):
    described = json.loads(json.dumps(gram_step.describe(), allow_nan=False))
    assert described["engine"] == "loop"
    assert described["coverage"] == 1.0
    assert described["verification"]["passed"] is True
    assert not gram_step.parts


def test_a_step_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    groups = tiny_groups()
    logged = measured_step(tiny_policy("gpt2_tied_conv1d"), groups, DAPO)
    bare = changed(groups, advantage=None)
    norm = measure_norm(prepared(tiny_policy("gpt2_tied_conv1d"), groups, DAPO))
    for step in (logged, measured_step(tiny_policy("gpt2_tied_conv1d"), bare, DAPO), replace(norm, other_texts=(1, 2))):
        write_step(tmp_path / "step", step, "key")
        assert read_step(tmp_path / "step", "another key") is None
        restored = read_step(tmp_path / "step", "key")
        assert restored is not None
        assert type(restored) is type(step)
        for name, first in asdict(step).items():
            other = getattr(restored, name)
            if name == "logprobs":
                assert all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
            else:
                assert type(first) is type(other)
                assert np.array_equal(first, other) if isinstance(first, np.ndarray) else first == other
    assert read_step(tmp_path / "absent", "key") is None


KL = Objective(loss_type="grpo", beta=0.5)
BONUS = replace(DAPO, entropy_coef=0.3)


@pytest.mark.parametrize(("objective", "lora"), [(DAPO, False), (KL, False), (KL, True), (BONUS, False)])
@pytest.mark.parametrize("batch_tokens", [1, 999])
def test_norm_and_kl_part_are_those_of_the_gram_matrix(objective: Objective, lora: bool, batch_tokens: int) -> None:
    model, reference = tiny_model("qwen3_gqa_norms", lora=lora), tiny_model("qwen3_gqa_norms").requires_grad_(False)
    with torch.no_grad():
        reference.lm_head.weight.mul_(1.3)
    policy = policy_of(model, lora=lora, reference=reference)
    step = prepared(policy, tiny_groups(), objective, batch_tokens=batch_tokens)
    gram, reported = measure_step(step, engine="stream"), []
    with waiting_gradients(step.policy):
        result = measure_norm(step, lambda *progress: reported.append(progress))
    assert result.norm == pytest.approx(batch_norm(gram.logged_gram), rel=1e-6)
    assert result.parts == ({"kl": pytest.approx(gram.parts["kl"], rel=1e-5)} if objective is KL else {})
    for row, expected in zip(result.logprobs, gram.logprobs, strict=True):
        np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-6)
    assert (result.num_rollouts, result.num_inferred_ids, result.described["engine"]) == (6, 0, "backward")
    assert reported[-1] == (6, 6, "rollouts")
