from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.diagnostics.inputs import steps
from gradscope.diagnostics.inputs.recomputed import Recomputer
from gradscope.diagnostics.inputs.steps import StepCache, _missing_ids, describe_engine
from gradscope.errors import InputError
from gradscope.gradients.engine_options import EngineOptions
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.step.step_gram import StepGram
from gradscope.gradients.tokens.measure import measure_tokens
from gradscope.progress import no_progress
from gradscope.reason import Reason
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run, TrainerSettings, WeightsRef
from tests.conftest import LOGS
from tests.diagnostics.made_up_runs import run_of, with_fields
from tests.gradients.models import DAPO, measured_step, tiny_groups, tiny_policy


@pytest.fixture(scope="module")
def gram() -> StepGram:
    return measured_step(tiny_policy("gpt2_tied_conv1d"), tiny_groups(), DAPO)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run whose weights are a folder of two files; only one of them shapes a gradient."""
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "optimizer.bin").write_bytes(b"moments")
    groups = tuple(replace(group, step=1) for group in tiny_groups())
    return replace(run_of(*groups), weights=(WeightsRef(num_updates=0, path=str(folder), kind="full"),))


USED = "step 1 was finished before and is used again"
ANEW = "step 1 is computed again: what was kept is of other inputs or options"


def test_a_step_is_computed_anew_for_other_inputs_or_options(tmp_path: Path, run: Run, gram: StepGram) -> None:
    notices: list[str] = []

    def cache(run: Run, choices: object = "float32") -> StepCache:
        return StepCache(tmp_path / "kept", run, 1, DAPO, choices, notices.append)

    assert cache(run).read() is None
    assert notices == []
    cache(run).write(gram)
    assert np.array_equal(cache(run).read().gram, gram.gram)
    (tmp_path / "weights" / "optimizer.bin").write_bytes(b"other moments")
    assert cache(run).read() is not None
    assert notices == [USED, USED]
    notices.clear()
    first, *rest = run.groups
    assert cache(run, "bfloat16").read() is None
    assert cache(replace(run, groups=(with_fields(first, reward=9.0), *rest))).read() is None
    assert cache(replace(run, tokenizer=tmp_path / "tokenizer")).read() is None
    (tmp_path / "weights" / "model.safetensors").write_bytes(b"other weights")
    assert cache(run).read() is None
    assert notices == [ANEW] * 4


@pytest.mark.parametrize(
    ("log", "step", "words"),
    [("verl_v1", 1, "lost the chat template's markers"), ("prime_rl", 3, None), ("trl/minimal", 1, None)],
)
def test_only_logs_without_ids_of_other_trainers_are_refused(log: str, step: int, words: str | None) -> None:
    run = read_run(LOGS / log if (LOGS / log).exists() else next(Path(LOGS / "trl").iterdir()))
    reason = _missing_ids(run, [rollout for group in run.groups_at(step) for rollout in group.rollouts])
    assert (reason is None) == (words is None)
    if reason is not None and words is not None:
        assert words in str(reason)
        assert reason.cause == "ids_missing"
        assert "rollout_log_probs" in reason.advice


def test_rollouts_without_ids_and_texts_are_refused(run: Run) -> None:
    rollouts = [replace(rollout, completion_ids=None) for group in run.groups_at(1) for rollout in group.rollouts]
    reason = _missing_ids(run, [replace(rollout, completion="") for rollout in rollouts])
    assert reason == Reason("ids_missing", "the log has neither ids nor texts of the completions")
    rollouts[1] = replace(rollouts[1], completion="4")
    assert _missing_ids(run, rollouts) is None


ADAPTER = WeightsRef(num_updates=3, path=Path("adapter"), kind="adapter", base="base")
REASON = Reason("batch_split", "why not")


def test_notes_of_all_steps_are_listed_once():
    described: dict[str, object] = {}
    for step, notes in enumerate((("a", "b"), (), ("b", "c"))):
        described = describe_engine({"engine": step, "notes": list(notes)}, described)
    assert described == {"engine": 2, "notes": ["a", "b", "c"]}


def bare_run(notes=()):
    """Two steps with weights, or with a note against each."""
    return SimpleNamespace(
        settings=TrainerSettings(values={}),
        notes=dict(notes),
        repeats={},
        windows={},
        metrics={},
        source=SimpleNamespace(format="gradscope"),
        groups_at=lambda step: (),
        weights_before=lambda step: ADAPTER,
    )


def test_the_objective_is_read_once_a_run(monkeypatch):
    calls, read = [], Objective.from_settings
    monkeypatch.setattr(Objective, "from_settings", lambda settings: calls.append(settings) or read(settings))
    measured = list(steps.measure_steps(bare_run(notes={1: REASON, 2: REASON}), (1, 2), EngineOptions(), no_progress))
    assert [(step.step, step.reason) for step in measured] == [(1, REASON), (2, REASON)]
    assert len(calls) == 1


def test_a_question_is_never_answered_from_the_cache(monkeypatch):
    question, calls = partial(measure_tokens, num_buckets=64), []

    def measure(self, step, weights, loss, question, *, pads_left=False):
        calls.append((step, question))
        return "gram", "answer"

    def refuse(*_):
        raise AssertionError("only the rollouts' own Gram matrix is kept")

    monkeypatch.setattr(Recomputer, "measure", measure)
    monkeypatch.setattr(steps, "_reason_against", lambda *_: None)
    monkeypatch.setattr(steps, "_step_cache", refuse)
    (measured,) = steps.measure_steps(bare_run(), (3,), EngineOptions(unfinished=Path("kept")), no_progress, question)
    assert (measured.gram, measured.answer) == ("gram", "answer")
    assert calls == [(3, question)]


def test_a_cached_step_is_returned_as_it_is(monkeypatch):
    monkeypatch.setattr(steps, "_reason_against", lambda *_: None)
    monkeypatch.setattr(steps, "_step_cache", lambda *_: SimpleNamespace(read=lambda: "kept gram"))
    (measured,) = steps.measure_steps(bare_run(), (3,), EngineOptions(), no_progress)
    assert (measured.gram, measured.answer, measured.weights) == ("kept gram", None, ADAPTER)


def test_a_step_that_cannot_be_measured_leaves_the_others_alone(monkeypatch):
    def measure(self, step, weights, loss, question, *, pads_left=False):
        if step == 1:
            raise InputError("It is cut off.", hint="Copy it again.", cause="weights_unreadable")
        if step == 2:
            raise InputError("Something else.")
        return "gram", None

    monkeypatch.setattr(Recomputer, "measure", measure)
    monkeypatch.setattr(steps, "_reason_against", lambda *_: None)
    first, second, third = steps.measure_steps(bare_run(), (1, 2, 3), EngineOptions(), no_progress)
    assert first.reason == Reason("weights_unreadable", "It is cut off", "Copy it again.")
    assert second.reason == Reason("unusable", "Something else")
    assert (third.gram, third.reason) == ("gram", None)


@pytest.mark.parametrize(
    ("step", "cause", "words"),
    [
        (0, "step_unknown", "counted from 1"),
        (1, "first_weights_missing", "pass them with --initial"),
        (2, "weights_unreadable", "is cut off"),
        (3, "weights_missing", "the weights after 2 updates, which made step 3, are not on disk"),
    ],
)
def test_weights_that_cannot_be_used_have_their_own_cause(step, cause, words):
    run = SimpleNamespace(weights=(), unmerged_weights={}, damaged_weights={1: "model.safetensors is cut off"})
    reason = steps.missing_weights(run, step)
    assert reason.cause == cause
    assert words in reason.text
