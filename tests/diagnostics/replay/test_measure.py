import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gradscope.diagnostics.check.requirements import split_metric
from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.diagnostics.replay.measure import (
    _replay_measured,
    equivalent_check,
    logprob_difference,
    replay_grad_norm,
    replay_run,
    replay_texts,
)
from gradscope.errors import InputError
from gradscope.findings.logged import logprob_findings
from gradscope.gradients.engine_options import EngineOptions
from gradscope.gradients.step.step_gram import StepNorm
from gradscope.gradients.trained.norms import TrainedNorms
from gradscope.reason import Reason
from gradscope.results.norms import ReplayReport, StepReplay
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.run import Run, TrainerSettings
from tests.diagnostics.made_up_runs import group_of, run_of

STATED = TrainerSettings(values={"loss_type": "dapo"}, origin="args.json")
SPREAD = TrainedNorms(dtype="bfloat16", norms=(2.0, 2.0002, 1.9998), resolution=1e-7, router_norm=None)


def run_with(logged: float | None, *, settings: TrainerSettings = STATED) -> Run:
    run = run_of(group_of([1, 0], step=1), metrics={} if logged is None else {1: {"grad_norm": logged}})
    return replace(run, settings=settings)


def step_of(norm: float | None, *, trained: TrainedNorms | None = None, num_inferred: int = 0, **options: Any) -> Any:
    step_norm = StepNorm(
        norm=norm,
        floor=1.4e-6,
        frac_kl=None,
        logprobs=(np.zeros(1), np.zeros(1)),
        num_inferred_ids=num_inferred,
        described={},
        trained=trained,
        **options,
    )
    return SimpleNamespace(step=1, recomputed=step_norm, reason=None, groups=())


def judged(logged: float | None, norm: float | None, *, settings: TrainerSettings = STATED, **options: Any) -> Any:
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
        ({"settings": replace(STATED, values={"trl_trainer": "GMPO"})}, "cannot", "loss_unknown"),
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
    [(None, 2.0, "not_logged"), (float("nan"), 2.0, "not_finite"), (2.0, None, "advantages_missing")],
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
    index = root / tokenizer if tokenizer == "checkpoint-1" else tmp_path / tokenizer
    run = replace(run, groups=(replace(group, rollouts=talked),), path=root, tokenizer=index)
    assert replay_grad_norm(run, step_of(2.4), 1e-5)[0].reason == reason


def difference_of(logged, recomputed, masks=None):
    group = group_of([1.0] * len(logged))
    rollouts = tuple(
        replace(rollout, logprobs=values, mask=mask)
        for rollout, values, mask in zip(group.rollouts, logged, masks or [None] * len(logged), strict=True)
    )
    own = [np.array(values) for values in recomputed]
    return logprob_difference([replace(group, rollouts=rollouts)], own)


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
    difference = difference_of([(-1.0, -2.0), (-0.5,)], [(-1.0, -2.4), (-0.7,)])
    assert (difference.num_tokens, difference.max) == (3, pytest.approx(0.4))
    assert difference.mean == pytest.approx(0.2)
    assert difference.frac_beyond == pytest.approx(2 / 3)


def test_tokens_that_the_policy_did_not_sample_are_left_out():
    difference = difference_of([(-1.0, -9.0)], [(-1.0, -1.0)], masks=[(True, False)])
    assert (difference.num_tokens, difference.max) == (1, 0.0)


@pytest.mark.parametrize("logged", [[None], [(-1.0, -1.0, -1.0)], [(float("-inf"), -1.0)]])
def test_without_usable_log_probabilities_there_is_none(logged):
    assert difference_of(logged, [(-1.0, -1.0)]) is None


def test_a_sentence_says_whether_these_weights_made_these_rollouts():
    same, other = difference_of([(-1.0,)], [(-1.000001,)]), difference_of([(-1.0, -1.0)], [(-1.0, -2.0)])
    assert logprob_findings([sampled_step(None)]) == ()
    assert "are those of these weights" in logprob_findings([sampled_step(same)])[0]
    (sentence,) = logprob_findings([sampled_step(same), sampled_step(other, 5)])
    assert "At step 5" in sentence
    assert "at 50.0 % of 2 tokens" in sentence


@pytest.mark.parametrize("steps", [(1,), (6,), (1, 2, 3), (1, 6, 11, 12, 13), (1, 2, 9)])
def test_the_selector_chooses_the_very_steps(steps: tuple[int, ...]) -> None:
    requirement = shlex.split(equivalent_check("run", steps, ReadOptions(), EngineOptions()))[-1]
    name, selector = split_metric(requirement.removesuffix(" == 0"))
    assert name == "frac_replay_mismatch"
    assert selector is not None
    assert selector.choose(range(1, 21)) == steps


def test_options_of_reading_and_of_the_engine_are_carried() -> None:
    read = ReadOptions(initial_weights="init model", trainer_args="args.json")
    line = equivalent_check("my run", None, read, EngineOptions(device="cpu", batch_tokens=64, engine="loop"))
    assert shlex.split(line)[:3] == ["gradscope", "check", "my run"]
    assert "--initial 'init model' --run-config args.json --device cpu --batch-tokens 64 --require" in line
    assert "--engine" not in line
    assert line.endswith("'frac_replay_mismatch == 0'")


pytestmark = pytest.mark.slow  # the runs of shared/data, recomputed


def grad_norm_verdict(step: StepReplay) -> tuple[str, str | None]:
    (quantity,) = [quantity for quantity in step.quantities if quantity.name == "grad_norm"]
    return quantity.verdict, quantity.cause


def replay_full(shared_data: Path, *, completion_ids: Path | None = None, **options: object) -> ReplayReport:
    folder = shared_data / "runs" / "trl_full"
    read = ReadOptions(
        initial_weights=options.pop("initial", folder / "init_model"),
        trainer_args=folder / "RUN.json",
        completion_ids=completion_ids,
    )
    return replay_run(folder / "run", read=read, **options)


@pytest.fixture(scope="module")
def exact(shared_data: Path) -> ReplayReport:
    ids = shared_data / "runs" / "trl_full" / "true_completion_ids.parquet"
    return replay_full(shared_data, completion_ids=ids)


def test_grad_norm_of_a_full_run_is_reproduced(exact: ReplayReport) -> None:
    errors = {step.step: step.relative_error.get("grad_norm") for step in exact.steps}
    done = {step: error for step, error in errors.items() if error is not None}
    assert sorted(done) == [1, 6, 11, 16]
    assert max(done.values()) < 1e-5
    assert exact.verdict == "match"


def test_steps_without_weights_say_cannot(exact: ReplayReport) -> None:
    verdict, cause = grad_norm_verdict(exact.steps[1])
    assert verdict == "cannot"
    assert "the weights after 1 update, which made step 2, are not on disk" in str(cause)
    assert exact.steps[1].recomputed["frac_reward_zero_std"] == exact.steps[1].logged["frac_reward_zero_std"]


def test_the_log_itself_agrees_at_every_step(exact: ReplayReport) -> None:
    for step in exact.steps:
        assert step.relative_error["reward"] < 1e-6
        assert step.relative_error["advantage"] < 1e-6
        assert step.relative_error["frac_reward_zero_std"] == 0.0
    assert any("agree with the log at all 20 steps" in finding for finding in exact.findings)


def test_text_in_place_of_ids_is_named_as_the_cause(shared_data: Path) -> None:
    report = replay_full(shared_data, steps=[1, 6])
    lost, same = report.steps
    verdict, cause = grad_norm_verdict(lost)
    assert verdict == "cannot"
    assert "the trainer counted 1623 sampled tokens, and the log has" in str(cause)
    assert "inferred from their text" in str(cause)
    # at step 6 the text happens to give back every id: a match, and the inference is still said
    assert grad_norm_verdict(same) == ("match", "the token ids of 64 of 64 completions were inferred from their text")


def test_a_missing_first_checkpoint_asks_for_initial(shared_data: Path) -> None:
    report = replay_run(shared_data / "runs" / "trl_full" / "run", steps=[1])
    assert grad_norm_verdict(report.steps[0])[0] == "cannot"
    assert "--initial" in str(grad_norm_verdict(report.steps[0])[1])


def test_unknown_loss_settings_are_no_mismatch(shared_data: Path) -> None:
    folder = shared_data / "runs" / "trl_lora"
    (step,) = replay_run(folder / "run", steps=[6], read=ReadOptions(initial_weights=folder / "init_adapter")).steps
    verdict, cause = grad_norm_verdict(step)
    assert verdict == "cannot"
    assert "the loss settings are not in the folder" in str(cause)
    assert any("--run-config" in str(quantity.advice) for quantity in step.quantities)


def test_grad_norm_of_a_lora_run_with_kl_is_reproduced(shared_data: Path) -> None:
    folder = shared_data / "runs" / "trl_lora"
    report = replay_run(
        folder / "run",
        steps=[1, 6, 11, 16],
        read=ReadOptions(initial_weights=folder / "init_adapter", trainer_args=folder / "RUN.json"),
    )
    assert report.verdict == "match"
    assert max(step.relative_error["grad_norm"] for step in report.steps) < 1e-5
    assert all(step.num_inferred_ids == 0 for step in report.steps)
    assert report.steps[0].frac_kl < 1e-6  # the adapter starts as the identity
    later = report.steps[1].frac_kl
    assert later is not None
    assert later > 0


def test_weights_after_the_update_are_a_mismatch(shared_data: Path) -> None:
    folder = shared_data / "runs" / "trl_full"
    report = replay_full(
        shared_data,
        initial=folder / "run" / "checkpoint-5",
        completion_ids=folder / "true_completion_ids.parquet",
        steps=[1],
    )
    verdict, cause = grad_norm_verdict(report.steps[0])
    assert verdict == "mismatch"
    assert "with exact ids: other weights, another loss, or another advantage" in str(cause)


def test_a_step_outside_the_log_is_refused(shared_data: Path) -> None:
    with pytest.raises(InputError, match="has no rollouts of step 99"):
        replay_full(shared_data, steps=[99])


@pytest.mark.parametrize("quirk", ["logging_steps_3", "num_iterations_2", "steps_per_generation_2"])
def test_batches_that_do_not_stand_for_their_step_say_cannot(shared_data: Path, quirk: str) -> None:
    report = replay_run(shared_data / "runs" / "quirks" / quirk)
    assert all(grad_norm_verdict(step)[0] == "cannot" for step in report.steps)
    assert report.verdict != "mismatch"


def replayed(*norms: tuple[float, float], provided: bool = True, **logged_too: float) -> ReplayReport:
    """Steps from their logged and recomputed norms."""
    groups = [group_of([1, 0], step=step) for step in range(1, len(norms) + 1)]
    metrics = {step: {"grad_norm": logged, **logged_too} for step, (logged, _) in enumerate(norms, start=1)}
    run = run_of(*groups, metrics=metrics, settings={} if provided else None)
    steps = [
        MeasuredStep(
            step=group.step,
            groups=(group,),
            weights=None,
            gram=None,
            reason=None,
            norm=StepNorm(
                norm=norm,
                floor=1e-6,
                frac_kl=None,
                logprobs=(np.zeros(1), np.zeros(1)),
                num_inferred_ids=0,
                described={"engine": "backward"},
                other_texts=(1,) if norm == TEXTS else (),
            ),
        )
        for group, (_, norm) in zip(groups, norms, strict=True)
    ]
    return _replay_measured(run, steps)


TEXTS = 3.0  # a norm of which a step's texts are of other ids


@pytest.mark.parametrize(
    ("norms", "headline", "share"),
    [
        ([(0.0, 0.0), (0.0, 0.0)], "cannot: 2 of 2 steps without a gradient", None),
        ([(0.0, 0.0), (2.0, 2.0)], "match at 1 of 2 steps; 1 without a gradient", 0.0),
        ([(0.0, 0.0), (2.0, 2.4)], "mismatch at 1 of 2 steps; 1 without a gradient", 1.0),
        ([(2.0, 2.0), (TEXTS, TEXTS)], "mismatch at 1 of 2 steps; 1 match", 0.5),
    ],
)
def test_a_norm_of_zero_is_no_proof(norms: list, headline: str, share: float | None) -> None:
    report = replayed(*norms)
    assert (report.headline, report.verdict) == (headline, headline.split()[0].rstrip(":"))
    assert report.frac_replay_mismatch.value == share
    if norms[0] == (0.0, 0.0):
        assert report.steps[0].verdict == "no_gradient"
        assert "grad_norm is zero in the log and here at step" in report.findings[0]


def test_a_step_that_is_off_with_defaults_that_fit_another_step_differs() -> None:
    (off, _) = replayed((2.0, 2.4), (3.1, 3.1), provided=False).steps
    (quantity,) = [one for one in off.quantities if one.name == "grad_norm"]
    assert (off.verdict, quantity.reason) == ("mismatch", "differs")
    assert "with the same defaults step 2 matches" in str(off.cause)
    (alone,) = replayed((2.0, 2.4), provided=False).steps
    assert (alone.verdict, alone.quantities[-1].reason) == ("cannot", "settings_unknown")


def test_defaults_that_the_log_contradicts_prove_nothing() -> None:
    """The first step of a run has no KL gradient, so that it fits whatever beta is."""
    (off, first) = replayed((2.0, 2.4), (3.1, 3.1), provided=False, kl=0.01).steps
    assert (off.verdict, first.verdict) == ("cannot", "match")
    assert "which the log contradicts, for it has a kl" in str(off.cause)
