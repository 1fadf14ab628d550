from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gradscope.diagnostics.replay.grad_norm import logprob_difference, replay_grad_norm, replay_texts
from gradscope.findings.logged import logprob_findings
from gradscope.gradients.step.step_gram import StepNorm
from gradscope.gradients.trained.norms import TrainedNorms
from gradscope.reason import Reason
from gradscope.results.norms import StepReplay
from gradscope.rollouts.run import Run, TrainerSettings
from tests.diagnostics.made_up_runs import group_of, run_of

GIVEN = TrainerSettings(values={"loss_type": "dapo"}, origin="args.json")
SPREAD = TrainedNorms(dtype="bfloat16", norms=(2.0, 2.0002, 1.9998), resolution=1e-7, router_norm=None)


def run_with(logged: float | None, *, settings: TrainerSettings = GIVEN) -> Run:
    run = run_of(group_of([1, 0], step=1), metrics={} if logged is None else {1: {"grad_norm": logged}})
    return replace(run, settings=settings)


def step_of(norm: float | None, *, trained: TrainedNorms | None = None, num_inferred: int = 0, **options: Any) -> Any:
    found = StepNorm(
        norm=norm,
        floor=1.4e-6,
        frac_kl=None,
        logprobs=(np.zeros(1), np.zeros(1)),
        num_inferred_ids=num_inferred,
        described={},
        trained=trained,
        **options,
    )
    return SimpleNamespace(step=1, recomputed=found, reason=None, groups=())


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


def test_norms_at_rounding_level_are_zero_and_prove_nothing() -> None:
    for logged, norm in ((1.2e-8, 0.0), (0.0, 1e-6), (0.0, 0.0)):
        quantity, value, error = judged(logged, norm)
        assert (quantity.verdict, quantity.reason) == ("no_gradient", "no_gradient")
        assert (value, error) == (norm, pytest.approx(abs(norm - logged) / logged if logged else norm))
    assert judged(1.5e-5, 0.0)[0].verdict == "mismatch"


@pytest.mark.parametrize(
    ("advantage", "words"), [(0.0, "every advantage is 0"), (0.5, "invocation tokens of an aLoRA")]
)
def test_why_there_is_no_gradient(advantage: float, words: str) -> None:
    step, (group,) = step_of(0.0), run_with(0.0).groups
    step.groups = (replace(group, rollouts=tuple(replace(one, advantage=advantage) for one in group.rollouts)),)
    assert words in replay_grad_norm(run_with(0.0), step, 1e-5)[0].cause


@pytest.mark.parametrize(
    ("logged", "verdict", "reason"),
    [(2.00003, "match", None), (2.0003, "cannot", "precision"), (2.01, "mismatch", "differs")],
)
def test_a_norm_in_float32_that_is_a_little_off_is_told_within_its_own_spread(
    logged: float, verdict: str, reason: str | None
) -> None:
    """A spread of 6.9 sd * sqrt(7 / 6) = 7e-5 of the norm."""
    norms = (2.0, 2.00002, 1.99998, 2.00001, 1.99999, 2.0)
    trained = TrainedNorms(dtype="float32", norms=norms, resolution=1e-7, router_norm=None)
    quantity, _, _ = judged(logged, 2.0, trained=trained)
    assert (quantity.verdict, quantity.reason) == (verdict, reason)
    if reason == "precision":
        assert quantity.advice == "Replay on the device that trained to settle it."


@pytest.mark.parametrize(("logged", "verdict"), [(2.0001, "cannot"), (2.5, "mismatch")])
def test_tokens_that_tie_at_the_entropy_quantile(logged: float, verdict: str) -> None:
    quantity, _, _ = judged(logged, 2.0, trained=replace(SPREAD, dtype="float32", num_ties=4))
    assert quantity.verdict == verdict
    if verdict == "cannot":
        assert quantity.reason == "entropy_ties"
        assert "the entropies of 4 tokens lie within rounding" in quantity.cause


def test_texts_that_are_not_of_their_ids() -> None:
    quantity, _, _ = replay_texts(step_of(1.0, other_texts=(0,)).recomputed)
    assert (quantity.name, quantity.verdict, quantity.reason) == ("completion", "mismatch", "texts_differ")
    assert "the texts of 1 of 2 completions are not those of their ids, row 0" in quantity.cause


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
        ({"settings": replace(GIVEN, values={"trl_trainer": "GMPO"})}, "cannot", "loss_unknown"),
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
    step: Any = SimpleNamespace(step=1, recomputed=None, reason=Reason("weights_missing", "not on disk"))
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


def difference_of(logged, recomputed, masks=None):
    group = group_of([1.0] * len(logged))
    rollouts = tuple(
        dataclasses.replace(rollout, logprobs=values, mask=mask)
        for rollout, values, mask in zip(group.rollouts, logged, masks or [None] * len(logged), strict=True)
    )
    own = [np.array(values) for values in recomputed]
    return logprob_difference([dataclasses.replace(group, rollouts=rollouts)], own)


def sampled_step(difference, step=3):
    return StepReplay(
        step=step,
        weights="w",
        verdict="match",
        cause=None,
        quantities=(),
        logged={},
        recomputed={},
        relative_error={},
        num_inferred_ids=0,
        frac_kl=None,
        logprob_difference=difference,
    )


def test_differences_are_counted_over_tokens():
    found = difference_of([(-1.0, -2.0), (-0.5,)], [(-1.0, -2.4), (-0.7,)])
    assert (found.num_tokens, found.max) == (3, pytest.approx(0.4))
    assert found.mean == pytest.approx(0.2)
    assert found.frac_beyond == pytest.approx(2 / 3)


def test_tokens_that_the_policy_did_not_sample_are_left_out():
    found = difference_of([(-1.0, -9.0)], [(-1.0, -1.0)], masks=[(True, False)])
    assert (found.num_tokens, found.max) == (1, 0.0)


@pytest.mark.parametrize("logged", [[None], [(-1.0, -1.0, -1.0)], [(float("-inf"), -1.0)]])
def test_without_usable_log_probabilities_there_is_none(logged):
    assert difference_of(logged, [(-1.0, -1.0)]) is None


def test_a_sentence_says_whether_these_weights_made_these_rollouts():
    same, other = difference_of([(-1.0,)], [(-1.000001,)]), difference_of([(-1.0, -1.0)], [(-1.0, -2.0)])
    assert logprob_findings([sampled_step(None)]) == ()
    assert "are those of these weights" in logprob_findings([sampled_step(same)])[0]
    (sentence,) = logprob_findings([sampled_step(same), sampled_step(other, 5)])
    assert "At step 5" in sentence
    assert "at 50.0% of 2 tokens" in sentence
