from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.trained.assumptions import Assumption, norm_under, other_assumptions, unchanged
from gradscope.metrics.gram.geometry import batch_norm
from tests.gradients.models import DAPO, tiny_groups, tiny_policy

FROZEN = frozenset({"model.embed_tokens.weight", "model.norm.weight"})
TOLD = Assumption(padding_row=0)


def prepared_with(*rows: int | None):
    policy = replace(tiny_policy("llama_untied_biases"), padding_rows=rows)
    policy.model.get_input_embeddings().padding_idx = 0
    return prepare_step(policy, tiny_groups(), DAPO)


def test_every_other_way_is_tried_the_fewest_changes_first() -> None:
    assert other_assumptions(prepared_with(0, None), frozenset(), TOLD) == [Assumption(padding_row=None)]
    assert other_assumptions(prepared_with(0, None), FROZEN, TOLD) == [
        Assumption(padding_row=None),
        Assumption(padding_row=0, frozen=FROZEN),
        Assumption(padding_row=None, frozen=FROZEN),
    ]
    assert other_assumptions(prepared_with(), frozenset(), TOLD) == []


def test_a_token_that_no_rollout_reads_changes_nothing() -> None:
    prepared = prepared_with(0, None)
    rows = tuple(
        replace(
            of,
            prompt_ids=tuple(token or 1 for token in of.prompt_ids),
            completion_ids=tuple(token or 1 for token in of.completion_ids),
        )
        for of in prepared.plan.sequences
    )
    unread = replace(prepared, plan=replace(prepared.plan, sequences=rows))
    assert other_assumptions(unread, frozenset(), TOLD) == []


def test_each_assumption_has_the_norm_of_its_own_gram_matrix() -> None:
    prepared = prepared_with(0, None)
    every = [TOLD, *other_assumptions(prepared, FROZEN, TOLD)]
    found = dict(norm_under(prepared, every))
    norms = set()
    for assumption in every:
        policy = assumption.holds_for(prepared.policy)
        assert set(policy.trainable) == set(prepared.policy.trainable) - assumption.frozen
        gram = measure_step(replace(prepared, policy=policy), engine="loop")
        assert found[assumption] == pytest.approx(batch_norm(gram.logged_gram), rel=1e-5)
        norms.add(round(found[assumption], 6))
    assert len(norms) == 3  # a frozen embedding has no padding row to speak of
    whole = TOLD.holds_for(prepared.policy)
    assert all(parameter.requires_grad for parameter in whole.trainable.values())


def test_what_two_checkpoints_share_may_have_been_frozen() -> None:
    first, second = tiny_policy("llama_untied_biases"), tiny_policy("llama_untied_biases")
    assert unchanged(first, second) == frozenset()  # all of it: nothing was learned
    with torch.no_grad():
        for name, parameter in second.trainable.items():
            if name not in FROZEN:
                parameter.add_(1e-6)
    assert unchanged(first, second) == FROZEN


def test_what_is_assumed_is_said() -> None:
    assert list(TOLD.describe(TOLD)) == []
    (gradient,) = Assumption(padding_row=None).describe(TOLD)
    assert gradient.startswith("The embedding of the padding token 0 had a gradient: the folder does not tell")
    (none,) = Assumption(padding_row=4).describe(Assumption(padding_row=None))
    assert "token 4 had no gradient" in none
    (one,) = Assumption(padding_row=0, frozen=frozenset({"a.weight"})).describe(TOLD)
    assert one.startswith("a.weight was frozen: the same in two checkpoints")
    (two,) = Assumption(padding_row=0, frozen=FROZEN).describe(TOLD)
    assert two.startswith("model.embed_tokens.weight and 1 more parameters were frozen")


def test_an_adapters_padding_row_is_left_alone() -> None:
    policy = tiny_policy("llama_untied_biases", lora=True)
    row = policy.model.get_input_embeddings().padding_idx
    Assumption(padding_row=5).holds_for(policy)
    assert policy.model.get_input_embeddings().padding_idx == row
