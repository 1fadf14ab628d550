"""Steps are measured, kept and asked; what the disk cannot tell of the trainer's forward pass is said."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from gradscope.diagnostics.inputs import steps
from gradscope.diagnostics.inputs.row_questions import TokenQuestion
from gradscope.diagnostics.inputs.steps import _what_the_disk_cannot_tell, describe_engine
from gradscope.gradients.engine_options import EngineOptions
from gradscope.gradients.plan.objective import Objective
from gradscope.progress import no_progress
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


def run_of(**options):
    """Two steps with weights, or with a note against each."""
    return SimpleNamespace(
        settings=TrainerSettings(values={}),
        notes=options.get("notes", {}),
        groups_at=lambda step: (),
        weights_before=lambda step: ADAPTER,
    )


def test_the_objective_is_read_once_a_run(monkeypatch):
    asked, read = [], Objective.from_settings
    monkeypatch.setattr(Objective, "from_settings", lambda settings: asked.append(settings) or read(settings))
    run = run_of(notes={1: "why not", 2: "nor here"})
    measured = list(steps.measure_steps(run, (1, 2), EngineOptions(), no_progress))
    assert [(step.step, step.reason, step.gram, step.answer) for step in measured] == [
        (1, "why not", None, ()),
        (2, "nor here", None, ()),
    ]
    assert len(asked) == 1


def test_a_question_is_put_to_the_model_and_never_answered_from_what_was_kept(monkeypatch):
    question, put = TokenQuestion(most=None, num_buckets=64), []

    def compute(run, step, weights, objective, options, asked):
        put.append((step, asked))
        return "gram", ("answer",) if asked else ()

    def kept(*_):
        raise AssertionError("only the rollouts' own Gram matrix is kept")

    monkeypatch.setattr(steps, "_compute", compute)
    monkeypatch.setattr(steps, "_reason_against", lambda *_: None)
    monkeypatch.setattr(steps, "_kept", kept)
    (measured,) = steps.measure_steps(run_of(), (3,), EngineOptions(unfinished=Path("kept")), no_progress, question)
    assert (measured.gram, measured.answer) == ("gram", ("answer",))
    assert put == [(3, question)]


def test_a_kept_step_is_taken_as_it_is(monkeypatch):
    monkeypatch.setattr(steps, "_reason_against", lambda *_: None)
    monkeypatch.setattr(steps, "_kept", lambda *_: SimpleNamespace(read=lambda: "kept gram"))
    (measured,) = steps.measure_steps(run_of(), (3,), EngineOptions(), no_progress)
    assert (measured.gram, measured.answer, measured.weights) == ("kept gram", (), ADAPTER)
