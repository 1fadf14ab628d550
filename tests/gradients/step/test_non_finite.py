from __future__ import annotations

import pytest
import torch

from gradscope.errors import InputError
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.step.non_finite import first_non_finite
from tests.gradients.models import DAPO, tiny_groups, tiny_policy

LLAMA = "llama_untied_biases"


def prepared() -> PreparedStep:
    return prepare_step(tiny_policy(LLAMA), tiny_groups(), DAPO)


def test_a_finite_pass_has_none() -> None:
    assert first_non_finite(prepared()) is None


def test_a_token_that_overflows_is_named_with_its_rollout_and_the_first_module() -> None:
    step = prepared()
    token = step.plan.sequences[2].completion_ids[0]
    embedding = step.policy.model.get_input_embeddings()
    first = next(
        index for index, one in enumerate(step.plan.sequences) if token in (*one.prompt_ids, *one.completion_ids)
    )
    with torch.no_grad():
        embedding.weight[token] = float("inf")
    found = first_non_finite(step)
    assert found is not None
    sequence = step.plan.sequences[first]
    assert (found.rollout, found.module) == (first, "model.embed_tokens")
    assert found.token == [*sequence.prompt_ids, *sequence.completion_ids].index(token)
    assert str(found) == (
        f"the output of model.embed_tokens is not finite in rollout {sequence.sample} of group {sequence.group_id}, "
        f"at token {found.token}"
    )


def test_a_layer_that_overflows_is_named_before_what_follows_from_it() -> None:
    step = prepared()
    with torch.no_grad():
        step.policy.model.model.layers[1].mlp.up_proj.weight.mul_(1e38).mul_(1e3)
    found = first_non_finite(step)
    assert found is not None
    assert found.module == "model.layers.1.mlp.up_proj"


@pytest.mark.parametrize("engine", ["loop", "stream", "prompt"])
def test_no_gradient_is_made_of_numbers_that_are_none(engine: str) -> None:
    step = prepared()
    with torch.no_grad():
        step.policy.model.lm_head.weight.mul_(1e38).mul_(1e3)
    with pytest.raises(
        InputError, match="Step 1: the output of lm_head is not finite in rollout 0 of group g0"
    ) as error:
        measure_step(step, engine=engine)
    assert error.value.cause == "overflow"


def test_a_gradient_that_overflows_where_the_loss_does_not_is_named_by_its_rollout() -> None:
    step = prepared()
    head = step.policy.model.lm_head
    head.weight.register_hook(lambda grad: grad * float("inf"))
    with pytest.raises(InputError, match="the gradient of rollout 0 of group g0 is not finite"):
        measure_step(step, engine="loop")
