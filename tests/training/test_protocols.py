"""The installed transformers and TRL have what is used of them, so that a release that drops something is noticed."""

import inspect
from pathlib import Path

import pytest

from gradscope.training.protocols import Tokenizer, Trainer, TrainerArguments
from tests.training.stock import stock_trainer


def members(protocol: type) -> set[str]:
    """Everything that a protocol asks for."""
    methods = {name for name, value in vars(protocol).items() if inspect.isfunction(value)}
    return set(protocol.__annotations__) | {name for name in methods if not name.startswith("_") or name == "__call__"}


@pytest.mark.slow
def test_they_have_all_that_is_asked_of_them(tmp_path: Path) -> None:
    trainer = stock_trainer(tmp_path / "trl")
    for protocol, real in ((Tokenizer, trainer.processing_class), (TrainerArguments, trainer.args), (Trainer, trainer)):
        required = members(protocol)
        assert len(required) >= 7
        assert {name for name in required if not hasattr(real, name)} == set(), protocol.__name__
    inspect.signature(trainer.save_model).bind("folder", _internal_call=True)
    inspect.signature(trainer.processing_class.decode).bind([1, 2], skip_special_tokens=True)
