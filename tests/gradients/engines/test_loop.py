import pytest
import torch

from gradscope.errors import UsageError
from gradscope.gradients.engines.loop import GramAccumulator
from gradscope.gradients.layers.factors import OuterProduct, Routed, Scatter, Summed
from tests.gradients.models import DAPO, measured_step, tiny_groups, tiny_policy
from tests.gradients.other_device import REMOTE


def test_loop_refuses_rows_beyond_its_budget():
    with pytest.raises(UsageError, match="Keeping 6 gradient rows takes"):
        measured_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO, engine="loop", row_bytes=1000)


CPU = torch.device("cpu")


@pytest.mark.parametrize("slice_bytes", [1, 1000, 2**20])
def test_a_tied_table_is_one_parameter_whatever_the_slices(slice_bytes):
    torch.manual_seed(0)
    left, right = [torch.randn(4, 7) for _ in range(3)], [torch.randn(4, 5) for _ in range(3)]
    ids, grads = [torch.randint(0, 7, (4,)) for _ in range(3)], [torch.randn(4, 5) for _ in range(3)]
    dense = torch.stack([a.t() @ b for a, b in zip(left, right, strict=True)])
    for row, (seen, grad) in enumerate(zip(ids, grads, strict=True)):
        dense[row].index_add_(0, seen, grad)
    uses = [OuterProduct(left=tuple(left), right=tuple(right)), Scatter(ids=tuple(ids), grads=tuple(grads))]
    accumulator = GramAccumulator(3, CPU, slice_bytes)
    accumulator.add_parameter(torch.Size([7, 5]), torch.float32, [((0, 1, 2), uses)])
    expected = dense.flatten(1).double()
    torch.testing.assert_close(accumulator.gram, expected @ expected.t(), rtol=1e-5, atol=1e-5)


def test_an_untied_table_costs_only_the_ids_that_occur():
    accumulator = GramAccumulator(1, CPU)
    scatter = Scatter(ids=(torch.tensor([10**9, 5, 5]),), grads=(torch.tensor([[1.0], [2.0], [3.0]]),))
    accumulator.add_parameter(torch.Size([2 * 10**9, 1]), torch.float32, [((0,), [scatter])])
    assert accumulator.gram.tolist() == [[26.0]]


@pytest.mark.parametrize("num_pairs", [2, 40])
@pytest.mark.parametrize("targets", [None, (1, 0, 1, 2)])
def test_experts_meet_by_their_factors_or_by_their_matrices(num_pairs, targets, monkeypatch):
    """By the factors where few pairs of a token and an expert are fewer numbers than the matrices of all experts."""
    torch.manual_seed(0)
    add, slices = GramAccumulator.add_slices, []
    monkeypatch.setattr(
        GramAccumulator, "add_slices", lambda self, shape, *rest: (slices.append(shape), add(self, shape, *rest))
    )
    parts, rows = [], torch.zeros(4, 9, 7, 5, dtype=torch.float64)
    for batch in ((3, 0), (1, 2)):
        experts = tuple(torch.randint(0, 9, (num_pairs,)) for _ in batch)
        left, right = (tuple(torch.randn(num_pairs, width) for _ in batch) for width in (7, 5))
        parts.append((batch, [Routed(experts=experts, left=left, right=right)]))
        for row, ids, first, second in zip(batch, experts, left, right, strict=True):
            rows[row if targets is None else targets[row]].index_add_(
                0, ids, torch.einsum("po,pi->poi", first, second).double()
            )
    accumulator = GramAccumulator(4, CPU, 200, targets)
    accumulator.add_parameter(torch.Size([9, 7, 5]), torch.float32, parts)
    torch.testing.assert_close(accumulator.gram, rows.flatten(1) @ rows.flatten(1).t(), rtol=1e-5, atol=1e-4)
    assert (accumulator.num_parameters, slices) == (315, [(9, 35)] if num_pairs == 40 else [])


def test_planted_small_directions_survive_the_sum():
    """Singular values down to 1e-6 of the largest are right: products are added in float64."""
    torch.manual_seed(1)
    directions = torch.linalg.qr(torch.randn(40_000, 4, dtype=torch.float64)).Q.t()
    turn = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64)).Q
    planted = torch.tensor([1.0, 1e-2, 1e-4, 1e-6], dtype=torch.float64)
    accumulator = GramAccumulator(4, CPU, slice_bytes=2**16)
    accumulator.add_rows((turn * planted) @ directions)
    result = torch.linalg.eigvalsh(accumulator.gram).flip(0).clamp(min=0).sqrt()
    torch.testing.assert_close(result, planted, rtol=1e-2, atol=0)


@pytest.mark.parametrize("columns", [1, 4096, 3 * 4096 + 5])
def test_products_of_coarse_rows_are_exact_to_single_precision(columns):
    torch.manual_seed(1)
    rows = torch.randn(5, columns)
    accumulator = GramAccumulator(5, CPU, is_coarse=True)
    accumulator.add_rows(rows)
    exact = rows.double() @ rows.double().t()
    assert float((accumulator.gram - exact).abs().max()) < 1e-6 * float(exact.max())


@pytest.mark.parametrize("slice_bytes", [200, 2**20])
def test_rows_of_one_product_are_formed_at_once(slice_bytes, monkeypatch):
    """Elsewhere than on a CPU; rows of a batch come in any order, and too many for the memory are formed one by one."""
    torch.manual_seed(0)
    empty = torch.empty
    left, right = (tuple(torch.randn(length, width) for length in (4, 2, 3)) for width in (7, 5))
    dense = torch.stack([a.t() @ b for a, b in zip(left, right, strict=True)])[[1, 2, 0]].flatten(1)
    rows, product = (2, 0, 1), OuterProduct(left=left, right=right)
    shared_input = OuterProduct(left=left, right=tuple(right[0][: len(part)] for part in left))
    later = torch.stack([a.t() @ right[0][: len(a)] for a in left])[[1, 2, 0]].flatten(1)
    summed = Summed(rows=torch.ones(3, 7, 5))
    assert shared_input.padded_bytes == 4 * 3 * 4 * 7
    for parts, at_once, expected in (
        ([(rows, [product])], [range(3)], dense),
        ([(rows, [product]), ((5, 3, 4), [shared_input])], [range(3), range(3, 6)], torch.cat([dense, later])),
        ([(rows, [product]), (rows, [shared_input])], [range(3)], dense + later),  # the same rows again are added
        ([(rows, [product, product])], [], 2 * dense),
        ([(rows, [product]), (rows, [summed])], [range(3)], dense + 1),
        ([((3, 0, 1), [product])], [], torch.stack([dense[0], dense[1], 0 * dense[2], dense[2]])),
    ):
        accumulator = GramAccumulator(len(expected), CPU, slice_bytes)
        accumulator.device = REMOTE
        if slice_bytes > 200:
            assert [span for span, _ in accumulator._padded_products(parts)[0]] == at_once
        with monkeypatch.context() as patched:
            patched.setattr(torch, "empty", lambda *shape, device, **options: empty(*shape, device=CPU, **options))
            accumulator.add_slices((7, 5), torch.float32, parts)
        gram = expected.double() @ expected.double().t()
        torch.testing.assert_close(accumulator.gram, gram, rtol=1e-5, atol=1e-5)


def test_tiles_below_the_diagonal_give_the_whole():
    torch.manual_seed(2)
    rows = torch.randn(300, 50)  # more rows than two tiles hold
    accumulator = GramAccumulator(300, CPU, slice_bytes=2**14)
    accumulator.add_rows(rows)
    torch.testing.assert_close(accumulator.gram, rows.double() @ rows.double().t())
    assert torch.equal(accumulator.gram, accumulator.gram.t())


def test_rows_of_one_place_are_summed():
    accumulator = GramAccumulator(2, CPU, row_targets=[1, 0, 1])
    parts = [((0, 1), [Summed(rows=torch.tensor([[1.0, 2.0], [3.0, 0.0]]))]), ((2,), [Summed(rows=torch.ones(1, 2))])]
    accumulator.add_parameter(torch.Size([2]), torch.float32, parts)
    assert accumulator.gram.tolist() == [[9.0, 6.0], [6.0, 13.0]]
