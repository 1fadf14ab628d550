"""The installed transformers and TRL have what is used of them, so that a release that drops something is noticed."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradscope.training.protocols import Tokenizer, Trainer, TrainerArguments
from tests.training.stock import stock_trainer


def members(protocol: type) -> set[str]:
    """Everything that a protocol asks for."""
    return set(protocol.__annotations__) | {name for name, value in vars(protocol).items() if is_own(name, value)}


def is_own(name: str, value: object) -> bool:
    return inspect.isfunction(value) and (not name.startswith("_") or name == "__call__")


def accepts(method: Callable[..., Any], *arguments: Any, **options: Any) -> bool:
    return inspect.signature(method).bind(*arguments, **options) is not None


@pytest.mark.slow
def test_what_is_asked_of_them_is_there(tmp_path: Path) -> None:
    trainer = stock_trainer(tmp_path / "trl")
    for protocol, real in ((Tokenizer, trainer.processing_class), (TrainerArguments, trainer.args), (Trainer, trainer)):
        asked = members(protocol)
        assert len(asked) >= 7
        assert {name for name in asked if not hasattr(real, name)} == set(), protocol.__name__
    assert accepts(trainer.save_model, "folder", _internal_call=True)
    assert accepts(trainer.processing_class.decode, [1, 2], skip_special_tokens=True)
