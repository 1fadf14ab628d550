"""Gradients by the last hidden state and by the logits, against autograd and the closed form."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from gradscope.errors import InputError
from gradscope.gradients.model.padding import TrainerPadding
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.tokens.signals import StepSignals, measure_signals
from tests.gradients.models import ARCHITECTURES, DAPO, VOCAB, tiny_groups, tiny_policy


def signals_of(prepared: PreparedStep, kind: str, **options: object) -> StepSignals:
    return measure_signals(prepared, measure_step(prepared), kind, **{"most": None, "seed": 0, **options})


def plain_rows(prepared: PreparedStep, rollout: int, kind: str) -> torch.Tensor:
    """One derivative a token, by autograd through the head alone."""
    sequence, model = prepared.plan.sequences[rollout], prepared.policy.model
    ids, start = torch.tensor([sequence.prompt_ids + sequence.completion_ids]), len(sequence.prompt_ids)
    seen: list[torch.Tensor] = []
    head = model.get_output_embeddings()
    hook = head.register_forward_hook(lambda _, inputs, output: seen.extend([inputs[0], output]))
    logits = model(input_ids=ids).logits[0]
    hook.remove()
    by = seen[0 if kind == "hidden" else 1]
    log_pi = torch.log_softmax(logits / prepared.plan.objective.temperature, -1)
    rows = []
    for place in range(len(sequence.completion_ids)):
        chosen = log_pi[start - 1 + place, ids[0, start + place]]
        (grad,) = torch.autograd.grad(chosen, by, retain_graph=True)
        others = torch.cat([grad[0, : start - 1 + place], grad[0, start + place :]])
        assert not others.any()  # a token's row is at its own position alone
        rows.append(grad[0, start - 1 + place])
    return torch.stack(rows).double()


@pytest.mark.parametrize("kind", ["hidden", "logit"])
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rows_are_the_derivatives_by_what_the_head_sees_and_makes(name: str, lora: bool, kind: str) -> None:
    objective = dataclasses.replace(DAPO, temperature=0.7)
    prepared = prepare_step(tiny_policy(name, lora=lora), tiny_groups(2, 2), objective)
    found = signals_of(prepared, kind)
    rows = [plain_rows(prepared, rollout, kind) for rollout in range(4)]
    assert found.num_columns == rows[0].shape[1]
    for place, gram in enumerate(found.tokens):
        expected = torch.cat(rows[2 * place : 2 * place + 2])
        np.testing.assert_allclose(gram.gram, expected @ expected.T, rtol=1e-3, atol=1e-5)
    sums = torch.stack([w.double() @ own for w, own in zip(prepared.plan.weights, rows, strict=True)])
    np.testing.assert_allclose(found.score_gram, sums @ sums.T, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("kind", ["hidden", "logit"])
@pytest.mark.parametrize("name", ["llama_untied_biases", "qwen3_gqa_norms", "gemma3_scaled"])
def test_rows_are_found_in_the_trainers_padding(name: str, kind: str) -> None:
    """Where a sequence stands in the padding of its batch, its last token is not the batch's last place."""
    policy = dataclasses.replace(tiny_policy(name), padding=TrainerPadding())
    prepared = prepare_step(policy, tiny_groups(3, 2), DAPO).framed()
    assert any(sequence.frame and sequence.length > sequence.num_tokens for sequence in prepared.plan.sequences)
    found = signals_of(prepared, kind)
    rows = [plain_rows(prepared, rollout, kind) for rollout in range(6)]
    sums = torch.stack([w.double() @ own for w, own in zip(prepared.plan.weights, rows, strict=True)])
    np.testing.assert_allclose(found.score_gram, sums @ sums.T, rtol=1e-3, atol=1e-7)
    for place, gram in enumerate(found.tokens):
        expected = torch.cat(rows[2 * place : 2 * place + 2])
        np.testing.assert_allclose(gram.gram, expected @ expected.T, rtol=1e-3, atol=1e-5)


def test_the_logit_rows_are_one_hot_minus_probabilities() -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(1, 2), DAPO)
    gram = signals_of(prepared, "logit").tokens[0]
    assert gram.num_columns == VOCAB
    sequence = prepared.plan.sequences[0]
    prompt, completion = sequence.prompt_ids, sequence.completion_ids
    probabilities = torch.softmax(prepared.policy.model(torch.tensor([prompt + completion])).logits[0], -1)
    row = -probabilities[len(prompt) - 1]
    row[completion[0]] += 1
    assert gram.gram[0, 0] == pytest.approx(float((row @ row).detach()), rel=1e-4)


def test_logged_advantages_weigh_the_rollouts_rows() -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(2, 2), DAPO)
    found, step = signals_of(prepared, "hidden"), measure_step(prepared)
    weighed = step.advantages[:, None] * found.score_gram * step.advantages
    np.testing.assert_allclose(found.logged_gram, weighed, rtol=1e-5, atol=1e-12)


def test_of_many_tokens_some_are_drawn() -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(1, 2), DAPO)
    gram = signals_of(prepared, "hidden", most=3).tokens[0]
    assert gram.gram.shape == (3, 3)
    assert gram.table.num_tokens > 3


def test_without_logged_advantages_there_is_no_logged_matrix() -> None:
    groups = tiny_groups(1, 2)
    bare = dataclasses.replace(
        groups[0], rollouts=tuple(dataclasses.replace(rollout, advantage=None) for rollout in groups[0].rollouts)
    )
    prepared = prepare_step(tiny_policy("llama_untied_biases"), [bare], DAPO)
    assert signals_of(prepared, "hidden").logged_gram is None


def test_a_model_without_an_output_head_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(1, 2), DAPO)
    step = measure_step(prepared)
    monkeypatch.setattr(type(prepared.policy.model), "get_output_embeddings", lambda _: None)
    with pytest.raises(InputError, match="no output head"):
        measure_signals(prepared, step, "hidden", most=None, seed=0)
