from types import SimpleNamespace

import numpy as np
import pytest
import torch
from msgspec.structs import force_setattr, replace
from torch import nn

from gradscope.errors import InputError, VerificationError
from gradscope.gradients.model.batches import TrainerPadding
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.tokens import measure
from gradscope.gradients.tokens.measure import measure_rollout_tokens, measure_signals, measure_tokens
from tests.gradients import models


def measured(policy, groups, objective=models.DAPO, **options):
    prepared = prepare_step(policy, groups, objective)
    return measure_tokens(prepared, measure_step(prepared), **options)


@pytest.mark.parametrize(("name", "lora"), models.TYPICAL)
def test_token_gram_equals_one_float64_backward_per_token(name, lora):
    policy, groups = models.tiny_policy(name, lora=lora), models.tiny_groups(1, 3)
    rows = models.naive_token_rows(policy, groups)
    (gram,) = measured(policy, groups)
    assert models.relative_gram(gram.gram, rows) < 1e-5
    assert (gram.table.num_tokens, gram.num_columns, gram.slow_parameters) == (*rows.shape, ())


def test_token_gram_in_float64_is_exact_to_rounding_and_adds_up_to_score_vectors():
    policy, groups = models.tiny_policy("gpt2_tied_conv1d", dtype=torch.float64), models.tiny_groups(1, 3)
    (gram,) = measured(policy, groups)
    assert models.relative_gram(gram.gram, models.naive_token_rows(policy, groups)) < 1e-12
    mixing = (gram.table.rollouts == np.arange(3)[:, None]) * gram.table.score_weights
    assert (
        models.relative_gram(mixing @ gram.gram @ mixing.T, models.naive_rows(policy, groups, models.weight_of(groups)))
        < 1e-12
    )


@pytest.mark.slow
def test_a_sample_is_a_part_of_the_whole():
    policy, groups = models.tiny_policy("qwen3_gqa_norms"), models.tiny_groups(1, 3)
    (full,) = measured(policy, groups)
    (part,) = measured(policy, groups, max_tokens=5, seed=4)
    (repeated,) = measured(policy, groups, max_tokens=5, seed=4)
    (other,) = measured(policy, groups, max_tokens=5, seed=1)
    index = [
        int(np.flatnonzero((full.table.rollouts == i) & (full.table.positions == t))[0])
        for i, t in zip(part.table.rollouts, part.table.positions, strict=True)
    ]
    assert part.table.num_tokens == full.table.num_tokens > len(part.gram) == 5
    assert models.relative(part.gram, full.gram[np.ix_(index, index)]) < 1e-5
    assert np.all(np.linalg.eigvalsh(part.gram) <= np.linalg.eigvalsh(full.gram)[-5:] * (1 + 1e-5))
    np.testing.assert_array_equal(part.table.rows, repeated.table.rows)
    assert part.table.rows != other.table.rows


class Gained(nn.Linear):
    """A linear layer with a forward of its own, for which there is no rule."""

    def forward(self, hidden):
        return super().forward(hidden) * 1.5


def test_a_parameter_without_a_rule_goes_the_slow_way():
    policy, groups = models.tiny_policy("llama_untied_biases"), models.tiny_groups(1, 2)
    policy.model.model.layers[1].mlp.up_proj.__class__ = Gained
    (gram,) = measured(models.policy_of(policy.model), groups)
    assert gram.slow_parameters == ("model.layers.1.mlp.up_proj.bias", "model.layers.1.mlp.up_proj.weight")
    assert models.relative_gram(gram.gram, models.naive_token_rows(policy, groups)) < 1e-5


def test_wrong_and_missing_rows_are_caught(monkeypatch):
    prepared = prepare_step(models.tiny_policy("llama_untied_biases"), models.tiny_groups(1, 2), models.DAPO)
    step = measure_step(prepared, engine="loop")
    with pytest.raises(VerificationError, match="token rows disagree with the rollouts' own gradients"):
        measure_tokens(prepared, replace(step, gram=step.gram * 1.01))
    with monkeypatch.context() as patch:
        models.break_rule(patch, "linear", "weight", share=0.99)
        with pytest.raises(VerificationError, match="token rows disagree with one backward pass a token"):
            measure_tokens(prepared, step)
    monkeypatch.setattr(measure, "lockstep_gram", lambda *_: frozenset(list(prepared.policy.trainable)[:1]))
    with pytest.raises(VerificationError, match="token rows covers 368 of 5424 parameters"):
        measure_tokens(prepared, step)


@pytest.fixture(scope="module")
def step():
    policy, groups = models.tiny_policy("llama_untied_biases"), models.tiny_groups(2, 3)
    return policy, groups, models.measured_step(policy, groups, models.DAPO)


def test_shares_add_up_and_a_lone_token_has_its_rollouts_norm(step):
    policy, groups, gram = step
    tokens = measure_rollout_tokens(prepare_step(policy, groups, models.DAPO), gram, [4, 0], max_tokens=512)
    assert [(t.group_id, t.sample) for t in tokens] == [(gram.group_ids[i], gram.samples[i]) for i in (4, 0)]
    for index, first in zip((4, 0), tokens, strict=True):
        assert first.shares is not None
        assert first.shares.sum() == pytest.approx(1.0)
        assert first.is_seen.all()
        assert first.norms.sum() >= np.sqrt(gram.policy_gram[index, index]) * (1 - 1e-6)
        assert set(np.sign(first.weights)) == {-np.sign(gram.advantages[index])}


def test_entropy_is_that_of_the_plain_softmax(step):
    policy, groups, gram = step
    (tokens,) = measure_rollout_tokens(prepare_step(policy, groups, models.DAPO), gram, [0])
    rollout = groups[0].rollouts[0]
    with torch.no_grad():
        logits = policy.model(torch.tensor([rollout.prompt_ids + rollout.completion_ids])).logits[0].double()
    p = torch.softmax(logits[len(rollout.prompt_ids) - 1 : -1] / models.DAPO.temperature, dim=1)
    assert tokens.entropies == pytest.approx(-(p * p.log()).sum(dim=1).numpy(), abs=1e-5)


def test_rollouts_are_left_out_from_the_end_and_a_long_first_one_is_drawn_from(step):
    policy, groups, gram = step
    lengths = [len(rollout.completion_ids) for group in groups for rollout in group.rollouts]
    tokens = measure_rollout_tokens(
        prepare_step(policy, groups, models.DAPO), gram, [0, 1, 2], max_tokens=sum(lengths[:2])
    )
    assert len(tokens) == 2
    longest = int(np.argmax(lengths))
    (drawn,) = measure_rollout_tokens(prepare_step(policy, groups, models.DAPO), gram, [longest, 0], max_tokens=2)
    assert drawn.is_seen.sum() == 2
    assert drawn.shares is None
    assert (drawn.norms > 0).tolist() == drawn.is_seen.tolist()


def test_a_token_is_its_text_or_its_id(step):
    policy, groups, gram = step
    first = groups[0].rollouts[0].completion_ids[0]
    (tokens,) = measure_rollout_tokens(prepare_step(policy, groups, models.DAPO), gram, [0])
    assert tokens.texts[0] == f"[{first}]"
    force_setattr(policy, "tokenizer", SimpleNamespace(decode=lambda ids: f"<{ids[0]}>", eos_token_id=None))
    (tokens,) = measure_rollout_tokens(prepare_step(policy, groups, models.DAPO), gram, [0])
    force_setattr(policy, "tokenizer", None)
    assert tokens.texts[0] == f"<{first}>"


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
    for index in range(len(sequence.completion_ids)):
        chosen = log_pi[start - 1 + index, ids[0, start + index]]
        (grad,) = torch.autograd.grad(chosen, by, retain_graph=True)
        rest = torch.cat([grad[0, : start - 1 + index], grad[0, start + index :]])
        assert not rest.any()  # a token's row is at its own position alone
        rows.append(grad[0, start - 1 + index])
    return torch.stack(rows).double()


def require_signals(prepared: PreparedStep, kind: str) -> None:
    """The matrices of tokens and of rollouts are those of derivatives by autograd."""
    rows = [plain_rows(prepared, rollout, kind) for rollout in range(6)]
    step = measure_step(prepared)
    result = measure_signals(prepared, step, kind, max_tokens=None, seed=0)
    assert result.num_columns == rows[0].shape[1]
    size = 6 // len(prepared.groups)
    for index, gram in enumerate(result.tokens):
        expected = torch.cat(rows[size * index : size * (index + 1)])
        np.testing.assert_allclose(gram.gram, expected @ expected.T, rtol=1e-3, atol=1e-5)
    sums = torch.stack([w.double() @ row for w, row in zip(prepared.plan.weights, rows, strict=True)])
    np.testing.assert_allclose(result.score_gram, sums @ sums.T, rtol=1e-3, atol=1e-7)
    weighed = step.advantages[:, None] * result.score_gram * step.advantages
    np.testing.assert_allclose(result.logged_gram, weighed, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("kind", ["hidden", "logit"])
@pytest.mark.parametrize(("name", "lora"), models.TYPICAL)
def test_rows_are_the_derivatives_by_the_input_and_the_output_of_the_head(name: str, lora: bool, kind: str) -> None:
    objective = replace(models.DAPO, temperature=0.7)
    require_signals(prepare_step(models.tiny_policy(name, lora=lora), models.tiny_groups(2, 3), objective), kind)


@pytest.mark.parametrize("kind", ["hidden", "logit"])
@pytest.mark.parametrize("name", ["llama_untied_biases", "gemma3_scaled"])
def test_rows_are_found_in_the_trainers_padding(name: str, kind: str) -> None:
    """Where a sequence stands in the padding of its batch, its last token is not the batch's last position."""
    policy = replace(models.tiny_policy(name), padding=TrainerPadding())
    prepared = prepare_step(policy, models.tiny_groups(3, 2), models.DAPO).framed()
    assert any(sequence.frame and sequence.length > sequence.num_tokens for sequence in prepared.plan.sequences)
    require_signals(prepared, kind)


def test_signals_of_drawn_tokens_of_a_step_without_logged_advantages(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = models.changed(models.tiny_groups(1, 2), advantage=None)
    prepared = prepare_step(models.tiny_policy("llama_untied_biases"), bare, models.DAPO)
    step = measure_step(prepared)
    result = measure_signals(prepared, step, "hidden", max_tokens=3, seed=0)
    assert result.logged_gram is None
    assert result.tokens[0].gram.shape == (3, 3)
    assert result.tokens[0].table.num_tokens > 3
    monkeypatch.setattr(type(prepared.policy.model), "get_output_embeddings", lambda _: None)
    with pytest.raises(InputError, match="no output head"):
        measure_signals(prepared, step, "hidden", max_tokens=None, seed=0)
