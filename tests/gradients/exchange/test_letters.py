from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from gradscope.gradients.exchange.letters import Letter, exchange_letters
from gradscope.gradients.layers.factors import HeadProduct
from gradscope.gradients.model.head.sliced import HeadTokens, PlainHead
from tests.gradients.exchange.test_pieces import CASES
from tests.launched import group_of_one


@pytest.fixture(name="group_of_one")
def of_one() -> Iterator[None]:
    with group_of_one():
        yield


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_letter_comes_as_it_was_sent(name: str, dtype: torch.dtype) -> None:
    shape, factors = CASES[name]

    def cast(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(cast(part) for part in value)
        assert isinstance(value, torch.Tensor)
        return value.to(dtype) if value.is_floating_point() else value

    factors = [
        type(factor)(**{field: cast(getattr(factor, field)) for field in factor.__slots__})  # type: ignore[attr-defined]
        for factor in factors
    ]
    (came,) = exchange_letters([Letter(shape=shape, parts=(((4, 2), factors),))], torch.device("cpu"))
    ((rows, got),) = came.parts
    assert (came.shape, rows) == (shape, (4, 2))
    for sent, received in zip(factors, got, strict=True):
        assert type(sent) is type(received)
        for field in sent.__slots__:  # type: ignore[attr-defined]
            torch.testing.assert_close(getattr(sent, field), getattr(received, field), rtol=0, atol=0)


@pytest.mark.usefixtures("group_of_one")
def test_an_empty_letter_comes_empty() -> None:
    assert exchange_letters([Letter(shape=(3, 4), parts=())], torch.device("cpu")) == [Letter(shape=(3, 4), parts=())]


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("entropies", [False, True])
@pytest.mark.parametrize("shape", [(9, 3), (9,)])
def test_of_an_output_layer_only_tokens_are_sent(shape: tuple[int, ...], entropies: bool) -> None:
    kept, other = (PlainHead(module=nn.Linear(3, 9), scale=2.0, cap=None) for _ in range(2))
    numbers = dict(zip(("log_total", "rest", "entropy", "weights"), torch.randn(4, 7), strict=True))
    tokens = HeadTokens(
        hidden=torch.randn(7, 3).bfloat16(),
        ids=torch.arange(7) - 2,
        entropy_weights=torch.randn(7) if entropies else None,
        **numbers,
    ).split([3, 4])
    factor = HeadProduct(head=kept, tokens=tokens, is_bias=len(shape) == 1)
    (came,) = exchange_letters([Letter(shape=shape, parts=(((4, 2), [factor]),))], torch.device("cpu"), other)
    ((rows, (got,)),) = came.parts
    assert isinstance(got, HeadProduct)
    assert (rows, got.head, got.is_bias) == ((4, 2), other, factor.is_bias)
    for sent, received in zip(tokens, got.tokens, strict=True):
        assert sent.tensors().keys() == received.tensors().keys()
        for name, tensor in sent.tensors().items():
            torch.testing.assert_close(received.tensors()[name], tensor, rtol=0, atol=0)
