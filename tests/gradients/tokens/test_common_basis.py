"""Token rows in fewer columns: the inner products are those of the whole matrices."""

from __future__ import annotations

import pytest
import torch

from gradscope.gradients.engines.accumulator import GramAccumulator
from gradscope.gradients.layers.factors import OuterProduct, Scatter
from gradscope.gradients.tokens.common_basis import Part, add_token_parameter

CPU = torch.device("cpu")


def added(shape: tuple[int, int], parts: list[Part], num_rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """The Gram matrix by fewer columns, and by the matrices as they are."""
    found, plain = GramAccumulator(num_rows, CPU), GramAccumulator(num_rows, CPU)
    add_token_parameter(found, torch.Size(shape), torch.float32, parts)
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
