from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gradscope.errors import UsageError
from gradscope.gradients.engines.loop import GramAccumulator
from gradscope.gradients.layers.factors import OuterProduct, Scatter
from gradscope.gradients.model.policy import token_sequences
from gradscope.gradients.tokens.lockstep import Part, _add_token_parameter, _require_fit, lockstep_gram
from gradscope.gradients.tokens.rows import TokenRow, chunks_of
from tests.gradients.models import naive_token_rows, plain_logprobs, relative, tiny_groups, tiny_policy


@pytest.mark.parametrize("size", [1, 2, 100])
def test_chunks_change_nothing(size):
    policy, groups = tiny_policy("qwen3_gqa_norms", dtype=torch.float64), tiny_groups(1, 3)
    sequences = token_sequences(policy, groups)
    rows = [TokenRow(sequence=i, position=t) for i, s in enumerate(sequences) for t in range(len(s.completion_ids))]
    accumulator = GramAccumulator(len(rows), policy.device)
    slow = lockstep_gram(policy.model, policy.trainable, chunks_of(rows, sequences, size), 1.0, accumulator)
    expected = naive_token_rows(policy, groups)
    assert slow == frozenset()
    assert relative(accumulator.gram.numpy(), expected @ expected.T) < 1e-12


def test_a_decomposition_by_position_is_not_the_token_rows():
    """Rows of one backward pass, position by position: their sum is the same, their matrix is another."""
    policy, groups = tiny_policy("llama_untied_biases", dtype=torch.float64), tiny_groups(1, 3)
    rollout, model = max(groups[0].rollouts, key=lambda rollout: len(rollout.completion_ids)), policy.model
    kept = {}
    module = model.model.layers[0].self_attn.k_proj
    handle = module.register_forward_hook(lambda _, given, out: kept.update(given=given[0], out=out))
    chosen = plain_logprobs(model, rollout)
    handle.remove()
    together, *alone = (
        torch.autograd.grad(loss, [kept["out"], module.weight], retain_graph=True) for loss in (chosen.sum(), *chosen)
    )
    by_position = torch.einsum("to,ti->toi", together[0][0], kept["given"][0]).flatten(1).detach()
    by_token = torch.stack([grad.flatten() for _, grad in alone])
    torch.testing.assert_close(by_position.sum(0), by_token.sum(0))
    predicting = by_position[len(rollout.prompt_ids) - 1 : -1]
    assert len(predicting) == len(by_token) > 3
    assert relative((predicting @ predicting.T).numpy(), (by_token @ by_token.T).numpy()) > 0.1


def test_too_many_rows_for_the_memory_are_refused():
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(1, 2)
    sequences = token_sequences(policy, groups)
    chunks = chunks_of([TokenRow(sequence=0, position=0)], sequences)

    with pytest.raises(UsageError, match=r"output gradients of one layer over 1 token rows take .* the budget is"):
        lockstep_gram(
            policy.model, policy.trainable, chunks, 1.0, GramAccumulator(1, policy.device), max_layer_bytes=10
        )


def test_the_head_keeps_no_output_gradients_so_its_vocabulary_need_not_fit() -> None:
    layer, head = (SimpleNamespace(extra=None, output=torch.zeros(2, size)) for size in (8, 1000))
    chunk, trace = SimpleNamespace(rows=[0, 1]), SimpleNamespace(segments=[[layer], [head]])
    line: Any = SimpleNamespace(chunk=chunk, trace=trace)
    _require_fit([line], 1, limit=128)
    _require_fit([line], 0, limit=128)
    with pytest.raises(UsageError, match="one layer over 2 token rows"):
        _require_fit([line], 0, limit=127)


CPU = torch.device("cpu")


def added(shape: tuple[int, int], parts: list[Part], num_rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """The Gram matrix by fewer columns, and by the matrices as they are."""
    found, plain = GramAccumulator(num_rows, CPU), GramAccumulator(num_rows, CPU)
    _add_token_parameter(found, torch.Size(shape), torch.float32, parts)
    plain.add_parameter(torch.Size(shape), torch.float32, parts)
    assert found.num_parameters == plain.num_parameters == shape[0] * shape[1]
    return found.gram, plain.gram


@pytest.mark.parametrize("is_transposed", [False, True], ids=["linear", "conv1d"])
@pytest.mark.parametrize("num_inputs", [3, 40], ids=["as they are", "in a common basis"])
def test_prefixes_of_shared_inputs(num_inputs: int, is_transposed: bool) -> None:
    torch.manual_seed(0)
    parts: list[Part] = []
    for rows in ((0, 1), (3, 2)):
        inputs, grads = torch.randn(5, num_inputs), torch.randn(2, 5, 6)
        own, shared = tuple(grad[:length] for grad, length in zip(grads, (4, 5), strict=True)), (inputs[:4], inputs)
        use = OuterProduct(left=shared, right=own) if is_transposed else OuterProduct(left=own, right=shared)
        parts.append((rows, [use]))
    shape = (num_inputs, 6) if is_transposed else (6, num_inputs)
    torch.testing.assert_close(*added(shape, parts), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_tied", [False, True])
def test_rows_of_one_position_have_rank_one(is_tied: bool) -> None:
    torch.manual_seed(1)
    parts: list[Part] = [
        (rows, [OuterProduct(left=tuple(torch.randn(2, 1, 9)), right=tuple(torch.randn(2, 1, 5)))])
        for rows in ((1, 0), (2, 3))
    ]
    if is_tied:
        table = Scatter(ids=(torch.tensor([3, 3, 8]), torch.tensor([0])), grads=(torch.randn(3, 5), torch.randn(1, 5)))
        parts.append(((0, 3), [table]))
    torch.testing.assert_close(*added((9, 5), parts), rtol=1e-5, atol=1e-5)


def test_a_matrix_used_twice_by_a_row_is_formed() -> None:
    torch.manual_seed(2)
    uses = [OuterProduct(left=tuple(torch.randn(4, 1, 3)), right=tuple(torch.randn(4, 1, 2))) for _ in range(2)]
    torch.testing.assert_close(*added((3, 2), [((0, 1, 2, 3), list(uses))]), rtol=1e-5, atol=1e-5)
