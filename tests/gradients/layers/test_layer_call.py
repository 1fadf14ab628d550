"""One call of a module, as a layer rule sees it."""

from __future__ import annotations

import torch
from torch import nn

from gradscope.gradients.layers.layer_call import LayerCall, begin_graph, is_close, once


def test_a_head_given_only_the_last_positions_is_aligned_at_its_end():
    call = LayerCall(
        module=nn.Linear(1, 1), input=torch.zeros(1), grad=torch.zeros(1), spans=((0, 5), (0, 3)), length=5
    )
    last_three = torch.arange(6.0).reshape(2, 3, 1)
    first, second = call.tokens(last_three)
    assert first.flatten().tolist() == [0.0, 1.0, 2.0]
    assert second.flatten().tolist() == [3.0]


def test_a_gradient_is_summed_over_tokens_and_heads_in_float32():
    call = LayerCall(module=nn.Linear(1, 1), input=torch.zeros(1), grad=torch.zeros(1), spans=((0, 2),), length=2)
    summed = call.summed(torch.ones(1, 2, 3, 4, dtype=torch.bfloat16))
    assert summed.rows.tolist() == [[6.0] * 4]
    assert summed.rows.dtype == torch.float32


def test_the_padding_id_is_looked_up_without_a_gradient():
    ids, grads = torch.tensor([[0, 3, 0, 1]]), torch.arange(8.0).view(1, 4, 2)
    call = LayerCall(module=nn.Embedding(5, 2), input=ids, grad=grads, spans=((0, 3),), length=4)
    assert call.lookup(grads, None).ids[0].tolist() == [0, 3, 0]
    found = call.lookup(grads, 0)
    assert (found.ids[0].tolist(), found.grads[0].tolist()) == ([0, 3, 0], [[0.0, 0.0], [2.0, 3.0], [0.0, 0.0]])
    assert grads.flatten().tolist() == list(range(8))


def test_a_graph_starts_at_a_copy_that_may_be_written_to():
    output = torch.ones(2)
    copy = begin_graph(output, output)
    copy *= 3
    (copy**2).sum().backward()
    assert output.tolist() == [1.0, 1.0]
    assert output.grad.tolist() == [18.0, 18.0]


def test_a_graph_goes_on_where_there_is_one_or_several_things_are_returned():
    output = torch.ones(2)
    assert begin_graph(output, (output, output)) is None
    assert output.requires_grad
    assert begin_graph(output, output) is None


def test_a_row_that_was_expanded_is_computed_once():
    seen = []

    def doubled(rows):
        seen.append(len(rows))
        return 2 * rows

    one = torch.tensor([[1.0, 2.0]])
    assert once(one.expand(3, 2), doubled).tolist() == [[2.0, 4.0]] * 3
    assert once(one.repeat(3, 1), doubled).tolist() == [[2.0, 4.0]] * 3
    assert seen == [1, 3]


def test_close_is_within_the_rounding_of_the_largest_entry():
    expected = torch.tensor([100.0, 1e-3])
    assert is_close(expected + 100 * 60 * torch.finfo(torch.float32).eps, expected)
    assert not is_close(expected + 100 * 80 * torch.finfo(torch.float32).eps, expected)
    assert not is_close(expected[:1], expected)
