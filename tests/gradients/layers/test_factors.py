import pytest
import torch
from torch import nn

from gradscope.gradients.layers import factors
from gradscope.gradients.model import head as head_module
from gradscope.gradients.model.head import HeadTokens, PlainHead


def test_factors_move_together():
    for part, width in (
        (factors.OuterProduct(left=(torch.ones(2, 3),), right=(torch.ones(2, 2),)), 2),
        (factors.Scatter(ids=(torch.tensor([1, 2]),), grads=(torch.ones(2, 2),)), 2),
        (factors.Summed(rows=torch.ones(1, 3)), 1),
    ):
        local, remote = torch.zeros(2, 3, width)
        part.add_to(0, 0, local)
        factors.moved(part, torch.device("cpu")).add_to(0, 0, remote)
        assert local.any()
        assert torch.equal(local, remote)


def test_a_slice_holds_its_part_of_each_kind_of_factor():
    eye = torch.eye(2)
    outer = factors.OuterProduct(left=(torch.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]]),), right=(eye,))
    target = torch.zeros(2, 2)
    outer.add_to(0, 1, target)  # rows 1 and 2 of [[1, 0], [2, 1], [3, 0]]
    assert target.tolist() == [[2.0, 1.0], [3.0, 0.0]]
    table = factors.Scatter(ids=(torch.tensor([4, 2, 4]),), grads=(torch.tensor([[1.0], [5.0], [2.0]]),))
    target = torch.zeros(2, 1)
    table.add_to(0, 3, target)  # ids 3 and 4
    assert target.tolist() == [[0.0], [3.0]]
    assert table.renumbered(torch.tensor([2, 4])).ids[0].tolist() == [1, 0, 1]
    routed = factors.Routed(
        experts=(torch.tensor([1, 0, 1]),),
        left=(torch.tensor([[1.0], [9.0], [2.0]]),),
        right=(torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]),),
    )
    target = torch.zeros(1, 2)
    routed.add_to(0, 1, target)  # expert 1 alone
    assert target.tolist() == [[1.0, 2.0]]
    assert factors.moved(routed, torch.device("cpu")).experts[0].tolist() == [1, 0, 1]
    target = torch.ones(1, 1)
    factors.Summed(rows=torch.tensor([[7.0, 8.0]])).add_to(0, 1, target)
    assert target.tolist() == [[9.0]]


@pytest.mark.parametrize("lengths", [(4, 4, 4), (1, 5, 3)], ids=["even", "ragged"])
def test_all_rows_at_once_are_the_rows_one_by_one(lengths):
    torch.manual_seed(0)
    left, right = (tuple(torch.randn(length, width) for length in lengths) for width in (6, 5))
    product, order = factors.OuterProduct(left=left, right=right), (2, 0, 1)
    together, single = torch.full((3, 4, 5), torch.nan), torch.zeros(3, 4, 5)
    product.padded(order).write_all(1, together)
    for position, row in enumerate(order):
        product.add_to(row, 1, single[position])
    torch.testing.assert_close(together, single)
    assert product.padded_bytes == 4 * 3 * max(lengths) * 11


def test_an_output_layer_forms_the_gradient_of_its_output_slice_by_slice(monkeypatch):
    torch.manual_seed(0)
    module = nn.Linear(4, 11).double()
    hidden, ids = torch.randn(3, 4, dtype=torch.float64), torch.tensor([10, 0, 6])
    logs = torch.log_softmax(module(hidden), dim=1)
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    expected = torch.autograd.grad(weights @ logs[range(3), ids], list(module.parameters()))
    logprobs = logs.detach()[range(3), ids]
    tokens = HeadTokens(
        hidden=hidden,
        ids=ids,
        log_total=module(hidden).detach().logsumexp(1),
        rest=-logprobs.expm1(),
        entropy=torch.zeros_like(logprobs),
        weights=weights,
    )
    monkeypatch.setattr(head_module, "SLICE_BYTES", 4 * 3 * 2)  # two columns at a time
    head = PlainHead(module=module, scale=1.0, cap=None)
    for is_bias, grad in zip((False, True), expected, strict=True):
        product = factors.HeadProduct(head=head, tokens=(tokens, tokens), is_bias=is_bias)
        factor = factors.moved(product, torch.device("cpu"))
        target = torch.zeros(7, grad.numel() // 11, dtype=torch.float64)
        factor.add_to(1, 3, target)
        torch.testing.assert_close(target, grad.view(11, -1)[3:10])


def products(tokens: int, dtype=torch.float32, rows: int = 2) -> factors.OuterProduct:
    """Of rows with as many tokens, into a matrix of 3 by 4."""
    left, right = (tuple(torch.randn(tokens, width).to(dtype) for _ in range(rows)) for width in (3, 4))
    return factors.OuterProduct(left=left, right=right)


@pytest.mark.parametrize(
    ("dtype", "longest"), [(torch.float32, 1), (torch.float64, 1), (torch.bfloat16, 3)], ids=["32", "64", "16"]
)
def test_the_matrix_is_kept_where_it_takes_fewer_bytes_than_its_pairs(dtype, longest):
    for tokens in range(1, 6):
        first = products(tokens, dtype)
        (stored,) = factors.compact([first])
        assert isinstance(stored, factors.Summed) == (tokens > longest)  # 12 numbers of the matrix, 7 a token
        if isinstance(stored, factors.Summed):
            assert stored.rows.dtype == torch.promote_types(dtype, torch.float32)
            for row, (left, right) in enumerate(zip(first.left, first.right, strict=True)):
                expected = left.double().t() @ right.double()
                torch.testing.assert_close(stored.rows[row].double(), expected, rtol=1e-6, atol=1e-6)


def test_all_calls_with_a_parameter_are_one_matrix_and_looked_up_ids_stay():
    first, other = products(1), products(2)
    table = factors.Scatter(ids=(torch.tensor([2]), torch.tensor([0])), grads=(torch.ones(1, 4), torch.ones(1, 4)))
    assert factors.compact([table]) == [table]
    assert factors.compact([first, table]) == [first, table]
    stored = factors.compact([first, table, other])  # 3 tokens a row, where one of them alone has 1
    assert stored[0] is table
    assert len(stored) == 2
    expected, result = torch.zeros(2, 4), torch.zeros(2, 4)
    for factor in (first, table, other):
        factor.add_to(1, 1, expected)
    for factor in stored:
        factor.add_to(1, 1, result)
    torch.testing.assert_close(result, expected)


def test_a_head_given_only_the_last_positions_is_aligned_at_its_end():
    call = factors.LayerCall(
        module=nn.Linear(1, 1), input=torch.zeros(1), grad=torch.zeros(1), spans=((0, 5), (0, 3)), length=5
    )
    first, second = call.tokens(torch.arange(6.0).reshape(2, 3, 1))
    assert first.flatten().tolist() == [0.0, 1.0, 2.0]
    assert second.flatten().tolist() == [3.0]


def test_a_gradient_is_summed_over_tokens_and_heads_in_float32():
    call = factors.LayerCall(
        module=nn.Linear(1, 1), input=torch.zeros(1), grad=torch.zeros(1), spans=((0, 2),), length=2
    )
    summed = call.summed(torch.ones(1, 2, 3, 4, dtype=torch.bfloat16))
    assert summed.rows.tolist() == [[6.0] * 4]
    assert summed.rows.dtype == torch.float32


def test_the_padding_id_is_looked_up_without_a_gradient():
    ids, grads = torch.tensor([[0, 3, 0, 1]]), torch.arange(8.0).view(1, 4, 2)
    call = factors.LayerCall(module=nn.Embedding(5, 2), input=ids, grad=grads, spans=((0, 3),), length=4)
    assert call.lookup(grads, None).ids[0].tolist() == [0, 3, 0]
    rows = call.lookup(grads, 0)
    assert (rows.ids[0].tolist(), rows.grads[0].tolist()) == ([0, 3, 0], [[0.0, 0.0], [2.0, 3.0], [0.0, 0.0]])
    assert grads.flatten().tolist() == list(range(8))


def test_a_graph_starts_at_a_copy_that_may_be_written_to_or_goes_on():
    output = torch.ones(2)
    copy = factors.begin_graph(output, output)
    copy *= 3
    (copy**2).sum().backward()
    assert output.tolist() == [1.0, 1.0]
    assert output.grad.tolist() == [18.0, 18.0]
    output = torch.ones(2)
    assert factors.begin_graph(output, (output, output)) is None
    assert output.requires_grad
    assert factors.begin_graph(output, output) is None


def test_a_row_that_was_expanded_is_computed_once():
    seen = []

    def doubled(rows):
        seen.append(len(rows))
        return 2 * rows

    first = torch.tensor([[1.0, 2.0]])
    assert factors.once(first.expand(3, 2), doubled).tolist() == [[2.0, 4.0]] * 3
    assert factors.once(first.repeat(3, 1), doubled).tolist() == [[2.0, 4.0]] * 3
    assert seen == [1, 3]


def test_close_is_within_the_rounding_of_the_largest_entry():
    expected = torch.tensor([100.0, 1e-3])
    assert factors.is_close(expected + 100 * 60 * torch.finfo(torch.float32).eps, expected)
    assert not factors.is_close(expected + 100 * 80 * torch.finfo(torch.float32).eps, expected)
    assert not factors.is_close(expected[:1], expected)
