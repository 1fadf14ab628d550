from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import distributed

from gradscope.gradients.exchange.letters import Letter, exchange_letters
from tests.gradients.exchange.test_pieces import CASES


@pytest.fixture
def group_of_one() -> Iterator[None]:
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    yield
    distributed.destroy_process_group()


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
