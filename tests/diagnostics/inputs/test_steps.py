"""What the disk cannot tell of the trainer's forward pass is said."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from gradscope.diagnostics.inputs.steps import _what_the_disk_cannot_tell, describe_engine
from gradscope.rollouts.run import TrainerSettings, WeightsRef
from gradscope.rollouts.types import Rollout, RolloutGroup

ADAPTER = WeightsRef(num_updates=3, path=Path("adapter"), kind="adapter", base="base")
HIGH = SimpleNamespace(step=1, precision="high", dtype="float32")
ROLLOUT = Rollout(
    group_id="g", sample=0, row=0, prompt="", completion="", prompt_ids=(5, 6), completion_ids=(7, 2), reward=1.0
)


def notes_of(*, kind="adapter", padding=None, beta=0.0, first=None, gram=HIGH, **settings):
    groups = (RolloutGroup(step=1, group_id="g", prompt_id="p", rollouts=(ROLLOUT,)),)
    run = SimpleNamespace(
        weights_before=lambda step: first,
        settings=TrainerSettings(values=settings),
        groups_at=lambda step: groups,
    )
    table = SimpleNamespace(padding_idx=padding)
    policy = SimpleNamespace(kind=kind, model=SimpleNamespace(get_input_embeddings=lambda: table))
    return list(_what_the_disk_cannot_tell(run, policy, SimpleNamespace(beta=beta), gram))


def test_a_padding_token_among_the_rollouts_is_said_where_the_first_weights_are_not_known():
    (note,) = notes_of(kind="full", padding=6)
    assert note.startswith("Token 6 is the padding token and occurs in the rollouts")
    assert notes_of(kind="full", padding=6, first=ADAPTER) == []
    assert notes_of(kind="full", padding=2) == []  # the last token of a rollout is predicted and never read
    assert notes_of(kind="full", padding=None) == []
    assert notes_of(kind="adapter", padding=6) == []


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
    assert notes_of(gram=SimpleNamespace(step=1, precision="reduced", dtype="bfloat16"), bf16=True) == []


def test_notes_of_all_steps_are_kept_once():
    described: dict[str, object] = {}
    for step, notes in enumerate((("a", "b"), (), ("b", "c"))):
        gram = SimpleNamespace(describe=lambda step=step: {"engine": step, "notes": "replaced"}, notes=notes)
        described = describe_engine(gram, described)
    assert described == {"engine": 2, "notes": ["a", "b", "c"]}
