from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gradscope.diagnostics.replay.grad_norm import replay_grad_norm
from gradscope.gradients.trained.norms import TrainedNorms
from gradscope.reason import Reason
from gradscope.rollouts.run import Run, TrainerSettings
from tests.diagnostics.made_up_runs import group_of, run_of

GIVEN = TrainerSettings(values={"loss_type": "dapo"}, origin="args.json")
SPREAD = TrainedNorms(dtype="bfloat16", norms=(2.0, 2.0002, 1.9998), resolution=1e-7, router_norm=None)


def run_with(logged: float | None, *, settings: TrainerSettings = GIVEN) -> Run:
    run = run_of(group_of([1, 0], step=1), metrics={} if logged is None else {1: {"grad_norm": logged}})
    return replace(run, settings=settings)


def step_of(norm: float | None, *, trained: TrainedNorms | None = None, num_inferred: int = 0) -> Any:
    gram = SimpleNamespace(
        step=1,
        logged_gram=None if norm is None else np.array([[norm**2]]),
        score_gram=np.eye(2),
        trained=trained,
        num_inferred_ids=num_inferred,
        num_rollouts=2,
    )
    return SimpleNamespace(step=1, gram=gram, reason=None)


def judged(logged: float | None, norm: float | None, *, settings: TrainerSettings = GIVEN, **options: Any) -> Any:
    quantity, value, error = replay_grad_norm(run_with(logged, settings=settings), step_of(norm, **options), 1e-5)
    return quantity, value, error


def test_a_norm_in_float32_is_met_to_rounding_or_not_at_all() -> None:
    quantity, value, error = judged(2.0, 2.00001)
    assert (quantity.verdict, quantity.cause, quantity.reason) == ("match", None, None)
    assert (value, error) == (pytest.approx(2.00001), pytest.approx(5e-6))
    quantity, _, error = judged(2.0, 2.0004)
    assert (quantity.verdict, quantity.reason) == ("mismatch", "differs")
    assert quantity.advice == "Check that weights, arguments and log are of one run."
    assert error == pytest.approx(2e-4)


def test_norms_at_rounding_level_are_zero() -> None:
    """The score vectors' Frobenius norm is sqrt 2 here, so what is below 1.4e-6 is rounding."""
    assert judged(1.5e-8, 0.0)[0].verdict == "match"
    assert judged(0.0, 1e-6)[0].verdict == "match"
    assert judged(1.5e-5, 0.0)[0].verdict == "mismatch"


@pytest.mark.parametrize(
    ("logged", "verdict", "words"),
    [
        (2.0003, "match", "within the spread of bfloat16"),
        (2.015, "cannot", "beyond the spread of bfloat16"),
        (2.1, "mismatch", "beyond the spread of bfloat16"),
    ],
)
def test_a_norm_in_reduced_precision_is_told_within_its_spread(logged: float, verdict: str, words: str) -> None:
    quantity, value, _ = judged(logged, 1.99, trained=SPREAD)
    assert quantity.verdict == verdict
    assert words in quantity.cause
    assert value == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("options", "verdict", "reason"),
    [
        ({"settings": TrainerSettings()}, "cannot", "settings_unknown"),
        ({"num_inferred": 1}, "cannot", "ids_inferred"),
        ({}, "mismatch", "differs"),
    ],
)
def test_the_likeliest_cause_is_named_first(options: dict, verdict: str, reason: str) -> None:
    quantity, _, _ = judged(2.0, 2.4, **options)
    assert (quantity.verdict, quantity.reason) == (verdict, reason)


def test_a_match_says_what_it_rests_on() -> None:
    quantity, _, _ = judged(2.0, 2.0, settings=TrainerSettings(), num_inferred=1)
    assert quantity.verdict == "match"
    assert "1 of 2 completions were inferred" in quantity.cause
    assert "the trainer's defaults fit" in quantity.cause


@pytest.mark.parametrize(
    ("logged", "norm", "reason"),
    [
        (None, 2.0, "not_logged"),
        (float("nan"), 2.0, "not_finite"),
        (2.0, None, "advantages_missing"),
    ],
)
def test_what_has_no_number_has_a_reason(logged: float | None, norm: float | None, reason: str) -> None:
    assert judged(logged, norm)[0].reason == reason


def test_a_step_that_was_not_recomputed_keeps_its_reason() -> None:
    step: Any = SimpleNamespace(step=1, gram=None, reason=Reason("weights_missing", "not on disk"))
    quantity, value, error = replay_grad_norm(run_with(2.0), step, 1e-5)
    assert (quantity.verdict, quantity.cause, quantity.reason) == ("cannot", "not on disk", "weights_missing")
    assert (value, error) == (None, None)


@pytest.mark.parametrize(("tokenizer", "reason"), [("elsewhere", "prompt_unknown"), ("checkpoint-1", "differs")])
def test_conversations_that_another_tokenizer_rendered_are_in_doubt(
    tmp_path: Path, tokenizer: str, reason: str
) -> None:
    run = run_with(2.0)
    (group,) = run.groups
    talked = tuple(replace(one, messages=({"role": "user", "content": "hi"},)) for one in group.rollouts)
    root = tmp_path / "run"
    (root / "checkpoint-1").mkdir(parents=True)
    place = root / tokenizer if tokenizer == "checkpoint-1" else tmp_path / tokenizer
    run = replace(run, groups=(replace(group, rollouts=talked),), path=root, tokenizer=place)
    assert replay_grad_norm(run, step_of(2.4), 1e-5)[0].reason == reason
