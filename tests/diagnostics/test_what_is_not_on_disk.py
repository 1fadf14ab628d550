"""What the disk cannot tell of the trainer's forward pass is said."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from gradscope.diagnostics.steps import EngineOptions, _what_the_disk_cannot_tell, describe_engine
from gradscope.errors import UsageError
from gradscope.rollouts.run import TrainerSettings, WeightsRef

ADAPTER = WeightsRef(num_updates=3, path=Path("adapter"), kind="adapter", base="base")
HIGH = SimpleNamespace(precision="high", dtype="float32")


def notes_of(*, weights=ADAPTER, beta=0.0, first=None, gram=HIGH, **settings):
    run = SimpleNamespace(weights_before=lambda step: first, settings=TrainerSettings(values=settings))
    return list(_what_the_disk_cannot_tell(run, weights, SimpleNamespace(beta=beta), gram))


def test_the_reference_of_an_adapter_is_taken_to_be_its_base():
    (note,) = notes_of(beta=0.1)
    assert note.startswith("The KL reference is the base model alone")
    assert notes_of(beta=0.1, first=ADAPTER) == []
    assert notes_of(beta=0.0) == []


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_mixed_precision_of_the_trainer_is_said(dtype):
    (note,) = notes_of(**{dtype: True})
    assert note == f"The trainer computed in {dtype}, this is float32: grad_norm need not agree to the tolerance."
    assert notes_of(**{dtype: False}) == []
    assert notes_of(gram=SimpleNamespace(precision="reduced", dtype="bfloat16"), bf16=True) == []


def test_notes_of_all_steps_are_kept_once():
    described: dict[str, object] = {}
    for step, notes in enumerate((("a", "b"), (), ("b", "c"))):
        gram = SimpleNamespace(describe=lambda step=step: {"engine": step, "notes": "replaced"}, notes=notes)
        described = describe_engine(gram, described)
    assert described == {"engine": 2, "notes": ["a", "b", "c"]}


def test_a_precision_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match="There is no precision 'low'"):
        EngineOptions(precision="low")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--precision high computes in float32"):
        EngineOptions(precision="high", dtype="bfloat16")
    assert EngineOptions(precision="high", dtype="float32").dtype == "float32"
