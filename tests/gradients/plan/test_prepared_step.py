"""A step is made ready once, whatever is asked of it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from gradscope.diagnostics.inputs.row_questions import SignalQuestion, TokenQuestion
from gradscope.errors import InputError
from gradscope.gradients.model.budget import TokenBudget
from gradscope.gradients.model.head.plain import plain_head
from gradscope.gradients.model.padding import TrainerPadding
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.tokens.rollout_tokens import measure_rollout_tokens
from gradscope.reason import Reason
from tests.gradients.models import DAPO, policy_of, prepared, tiny_groups, tiny_model, tiny_policy

WITH_KL = dataclasses.replace(DAPO, beta=0.1)


@pytest.mark.parametrize("question", [TokenQuestion(most=512), SignalQuestion(signal="hidden", most=512)])
def test_the_reference_runs_once_for_all_that_is_asked_of_a_step(question):
    reference, passes = tiny_model("gpt2_tied_conv1d"), []
    plain_head(reference)  # it runs the model, once and for all
    reference.register_forward_hook(lambda *_: passes.append(1))
    prepared = prepare_step(policy_of(tiny_model("gpt2_tied_conv1d"), reference=reference), tiny_groups(), WITH_KL)
    gram = measure_step(prepared)
    assert question.measure(prepared, gram)
    assert measure_rollout_tokens(prepared, gram, [0])
    assert len(passes) == 1  # six short rollouts are one batch


def test_the_reference_holds_its_own_log_probabilities():
    reference, groups = tiny_model("llama_untied_biases"), tiny_groups(1, 2)
    reference.lm_head.weight.data.mul_(0.5)
    prepared = prepare_step(policy_of(tiny_model("llama_untied_biases"), reference=reference), groups, WITH_KL)
    for rollout, found in zip(groups[0].rollouts, [of.reference for of in prepared.plan.completions], strict=True):
        ids = torch.tensor([rollout.prompt_ids + rollout.completion_ids])
        start = len(rollout.prompt_ids)
        log_pi = torch.log_softmax(reference(input_ids=ids).logits[0, start - 1 : -1].detach(), -1)
        np.testing.assert_allclose(found, log_pi.gather(1, ids[0, start:, None]).squeeze(1), rtol=1e-5)


def test_without_a_kl_term_there_is_no_reference():
    plan = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO).plan
    assert all(completion.reference is None for completion in plan.completions)


def test_batches_hold_the_rows_that_are_asked_for_within_the_budget():
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(2, 3), DAPO, TokenBudget(7))
    batches = prepared.batches([4, 1, 2], 16)
    assert sorted(row for batch in batches for row in batch.rows) == [1, 2, 4]
    assert all(len(batch.rows) == 1 or batch.input_ids.numel() <= 16 for batch in batches)
    assert prepared.budget.tokens == 7


def test_groups_of_several_steps_are_refused():
    policy = tiny_policy("llama_untied_biases")
    with pytest.raises(ValueError, match=r"expected the groups of one step, got steps \[1, 2\]"):
        prepare_step(policy, [*tiny_groups(), *tiny_groups(step=2)], DAPO)
    with pytest.raises(ValueError, match=r"got steps \[\]"):
        prepare_step(policy, [], DAPO)


def test_a_loss_that_cannot_be_formed_is_refused_with_its_reason():
    reason = Reason("loss_unknown", "why not")
    with pytest.raises(InputError, match="Step 1: the trainer's gradient cannot be formed: why not") as caught:
        prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), Objective(cannot=reason))
    assert caught.value.hint == reason.advice


def test_a_batch_apart_has_another_order_and_another_length_than_any_of_an_engine():
    step = prepared(tiny_policy("qwen3_gqa_norms"), tiny_groups(), DAPO)
    lengths = step.plan.lengths
    (whole,) = step.batches(range(6), 4096)
    apart = step.batch_apart(whole.rows)
    assert apart.rows == whole.rows[::-1]
    assert apart.length == max(lengths) + 1
    shortest = int(np.argmin(lengths))
    assert step.batch_apart([shortest]).length not in lengths
    assert step.batch_apart([shortest]).spans == ((0, lengths[shortest]),)


def test_a_batch_apart_stays_in_the_trainers_frame():
    policy = dataclasses.replace(tiny_policy("gpt2_tied_conv1d"), padding=TrainerPadding())
    step = prepared(policy, tiny_groups(), DAPO).framed()
    assert step.batch_apart([0, 1]).length == step.batch([0, 1]).length
    assert step.batch_apart([0, 1]).rows == (1, 0)
