"""Products of a step's score vectors with held-out answers, against plain autograd through the plain model."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch

from gradscope.errors import InputError, UsageError, VerificationError
from gradscope.gradients.model.padding import TrainerPadding
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.step.heldout_gram import measure_heldout_gram
from gradscope.gradients.step.measure import measure_step
from gradscope.rollouts.types import Rollout, RolloutGroup
from tests.gradients.models import ARCHITECTURES, DAPO, policy_of, tiny_experts, tiny_groups, tiny_policy

ANSWERS = (((7, 8, 9), ((3, 4, 1), (5, 1))), ((2, 11), ((6, 6, 12, 1),)), ((19, 20, 21, 2), ((1,), (4, 5, 6, 7, 8, 1))))
SHARES = ((0.75, 0.25), (1.0,), (0.5, 0.5))


def heldout_groups() -> list[RolloutGroup]:
    groups = []
    for prompt, (prompt_ids, answers) in enumerate(ANSWERS):
        name = f"held-out q{prompt}"
        rollouts = tuple(
            Rollout(
                group_id=name,
                sample=sample,
                row=sample,
                prompt="",
                completion="",
                prompt_ids=prompt_ids,
                completion_ids=ids,
                reward=1.0,
            )
            for sample, ids in enumerate(answers)
        )
        groups.append(RolloutGroup(step=0, group_id=name, prompt_id=f"q{prompt}", rollouts=rollouts))
    return groups


def plain(prepared: PreparedStep, prompt_ids: tuple, completion_ids: tuple, *, temperature: float = 1.0) -> np.ndarray:
    """The gradient of an answer's log-probability in float64, by autograd alone."""
    model = copy.deepcopy(prepared.policy.model).double()
    parameters = [p for name, p in model.named_parameters() if name in prepared.policy.trainable]
    ids = torch.tensor([prompt_ids + completion_ids])
    log_pi = torch.log_softmax(model(input_ids=ids).logits[0, len(prompt_ids) - 1 : -1].double() / temperature, -1)
    total = log_pi[torch.arange(len(completion_ids)), torch.tensor(completion_ids)].sum()
    grads = torch.autograd.grad(total, parameters, allow_unused=True)
    return np.concatenate(
        [np.zeros(p.numel()) if g is None else g.numpy().ravel() for g, p in zip(grads, parameters, strict=True)]
    )


def expected_of(prepared: PreparedStep, *, temperature: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of the log-probabilities of the step's rollouts, and C_k."""
    trained = [plain(prepared, r.prompt_ids, r.completion_ids, temperature=temperature) for r in prepared.rollouts]
    heldout = [
        sum(
            share * plain(prepared, prompt, ids, temperature=temperature)
            for share, ids in zip(own, answers, strict=True)
        )
        for (prompt, answers), own in zip(ANSWERS, SHARES, strict=True)
    ]
    return np.stack(trained), np.stack(heldout)


def close(found: np.ndarray, expected: np.ndarray, tolerance: float = 1e-4) -> bool:
    return bool(np.abs(found - expected).max() <= tolerance * np.abs(expected).max())


@pytest.mark.parametrize(
    ("name", "lora"), [("mixtral", False), *((name, lora) for name in ARCHITECTURES for lora in (False, True))]
)
def test_products_are_those_of_plain_gradients(name: str, lora: bool) -> None:
    experts = name == "mixtral"
    policy = policy_of(tiny_experts(name, implementation="eager")) if experts else tiny_policy(name, lora=lora)
    prepared = prepare_step(policy, tiny_groups(), dataclasses.replace(DAPO, temperature=0.7))
    step = measure_step(prepared)
    found = measure_heldout_gram(prepared, step, heldout_groups(), SHARES)
    trained, heldout = expected_of(prepared, temperature=0.7)
    weights = 1.0 / sum(len(rollout.completion_ids) for rollout in prepared.rollouts)
    assert close(found.cross, weights * trained @ heldout.T)
    assert close(found.norms, np.linalg.norm(heldout, axis=1))
    assert found.scales == pytest.approx(np.full(6, 1.0 / weights))
    assert close(step.score_gram * found.scales, weights * trained @ trained.T)
    assert (found.num_answers, found.notes) == (5, ())


@pytest.mark.parametrize("engine", ["loop", "stream", "prompt"])
def test_every_engine_finds_the_same_and_leaves_the_step_alone(engine: str) -> None:
    prepared = prepare_step(tiny_policy("qwen3_gqa_norms"), tiny_groups(), Objective(loss_type="grpo", beta=0.0))
    step = measure_step(prepared, engine=engine)
    before = step.gram.copy(), prepared.plan, prepared.groups
    found = measure_heldout_gram(prepared, step, heldout_groups(), SHARES, engine=engine, verify="all")
    assert np.array_equal(step.gram, before[0])
    assert (prepared.plan is before[1], prepared.groups is before[2]) == (True, True)
    trained, heldout = expected_of(prepared)
    weights = 1.0 / (6 * np.array([len(rollout.completion_ids) for rollout in prepared.rollouts]))
    assert close(found.cross, (weights[:, None] * trained) @ heldout.T)
    assert found.scales == pytest.approx(1 / weights)  # grpo weighs each completion by its own length


def test_a_kl_term_and_an_entropy_bonus_are_none_of_the_answers_rows() -> None:
    policy = tiny_policy("llama_untied_biases")
    reference = copy.deepcopy(policy.model)
    objective = dataclasses.replace(DAPO, beta=0.1, entropy_coef=0.05)
    prepared = prepare_step(dataclasses.replace(policy, reference=reference), tiny_groups(), objective)
    found = measure_heldout_gram(prepared, measure_step(prepared), heldout_groups(), SHARES)
    trained, heldout = expected_of(prepared)
    weight = 1.0 / sum(len(rollout.completion_ids) for rollout in prepared.rollouts)
    assert close(found.cross, weight * trained @ heldout.T)


def test_tokens_that_nobody_sampled_are_no_part_of_an_answer() -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)
    (group, *_) = heldout_groups()
    masked = dataclasses.replace(group.rollouts[0], mask=(False, False, False))
    groups = [dataclasses.replace(group, rollouts=(masked, group.rollouts[1]))]
    found = measure_heldout_gram(prepared, measure_step(prepared), groups, [(0.5, 0.5)])
    alone = plain(prepared, (7, 8, 9), (5, 1))
    assert found.norms == pytest.approx([np.linalg.norm(alone) / 2], rel=1e-4)


def test_rollouts_whose_tokens_weigh_unequally_have_no_scale() -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)
    uneven = [torch.linspace(1, 2, len(weights), dtype=torch.float64) * weights for weights in prepared.plan.weights]
    other = dataclasses.replace(prepared, plan=dataclasses.replace(prepared.plan, weights=tuple(uneven)))
    assert measure_heldout_gram(other, measure_step(other), heldout_groups(), SHARES).scales is None
    left_out = [torch.zeros_like(prepared.plan.weights[0]), *prepared.plan.weights[1:]]
    without = dataclasses.replace(prepared, plan=dataclasses.replace(prepared.plan, weights=tuple(left_out)))
    scales = measure_heldout_gram(without, measure_step(without), heldout_groups(), SHARES).scales
    assert (scales[0], np.count_nonzero(scales)) == (0.0, 5)


def test_learned_positions_stand_where_the_answer_begins() -> None:
    """GPT-2 sees the padding before a prompt; the step stands in the trainer's, an answer has none."""
    policy = tiny_policy("gpt2_tied_conv1d")
    plain_step = prepare_step(policy, tiny_groups(), DAPO)
    padded = prepare_step(dataclasses.replace(policy, padding=TrainerPadding()), tiny_groups(), DAPO)
    assert any(sequence.frame for sequence in padded.plan.sequences)
    found = measure_heldout_gram(padded, measure_step(padded), heldout_groups(), SHARES)
    _, heldout = expected_of(plain_step)
    assert close(found.norms, np.linalg.norm(heldout, axis=1))


def test_a_step_that_comes_out_otherwise_is_refused() -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)
    step = measure_step(prepared)
    other = dataclasses.replace(step, gram=step.gram * 1.01)
    with pytest.raises(VerificationError, match="other inner products beside held-out answers"):
        measure_heldout_gram(prepared, other, heldout_groups(), SHARES)


def test_rows_that_do_not_fit_loop_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)
    step = measure_step(prepared)
    monkeypatch.setattr(measure_step, "__kwdefaults__", {**measure_step.__kwdefaults__, "max_row_bytes": 10})
    with pytest.raises(UsageError, match="Keeping 11 gradient rows"):
        measure_heldout_gram(prepared, step, heldout_groups(), SHARES, engine="loop")


def test_an_answer_in_other_tokens_is_named() -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)
    (group, *_) = heldout_groups()
    odd = dataclasses.replace(group, rollouts=(dataclasses.replace(group.rollouts[0], completion_ids=(99,)),))
    with pytest.raises(InputError, match="held-out q0, sample 0: token id 99 is outside"):
        measure_heldout_gram(prepared, measure_step(prepared), [odd], [(1.0,)])
