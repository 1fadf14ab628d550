import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.diagnostics.check.requirements import split_metric
from gradscope.diagnostics.inputs.step_loss import StepLoss
from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.diagnostics.replay import measure as replay
from gradscope.errors import InputError
from gradscope.gradients.engine_options import EngineOptions
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.step.step_gram import StepNorm
from gradscope.gradients.trained.norms import TrainedNorms
from gradscope.progress import no_progress
from gradscope.reason import Reason
from gradscope.results.norms import ReplayReport, StepReplay
from gradscope.rollouts.groups import RolloutGroup
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.run import Run, TrainerSettings, WeightsRef
from tests.diagnostics.made_up_runs import group_of, run_of, with_fields

STATED = TrainerSettings(values={"loss_type": "dapo"}, origin="args.json")
SPREAD = TrainedNorms(dtype="bfloat16", norms=(2.0, 2.0002, 1.9998), resolution=1e-7)


def run_with(logged: float | None, *, settings: TrainerSettings = STATED) -> Run:
    run = run_of(group_of([1, 0], step=1), metrics={} if logged is None else {1: {"grad_norm": logged}})
    return replace(run, settings=settings)


def step_of(
    norm: float | None,
    *,
    trained: TrainedNorms | None = None,
    num_inferred: int = 0,
    loss: StepLoss | None = None,
    **options: Any,
) -> Any:
    step_norm = StepNorm(
        norm=norm,
        floor=1.4e-6,
        logprobs=(np.zeros(1), np.zeros(1)),
        num_inferred_ids=num_inferred,
        described={},
        trained=trained,
        **options,
    )
    groups = (group_of([1, 0], step=1),)
    return SimpleNamespace(step=1, recomputed=step_norm, reason=None, groups=groups, loss=loss, gram=None, weights=None)


IN_FLOAT32 = TrainedNorms(dtype="float32", norms=(2.0, 2.00002, 1.99998, 2.00001, 1.99999, 2.0), resolution=1e-7)
"""A spread of 6.9 sd * sqrt(7 / 6) = 7e-5 of the norm."""
TIES = replace(SPREAD, dtype="float32", num_ties=4)
WIDE = TrainedNorms(dtype="bfloat16", norms=(1.9, 2.0, 2.1), resolution=1e-7)  # told within 360 %
UNNAMED = StepLoss(objective=Objective(assumed=("loss_type", "beta")))
OTHER_LOSS = replace(STATED, values={"trl_trainer": "GMPO"})


def judged(logged: float | None, norm: float | None, *, settings: TrainerSettings = STATED, **options: Any) -> Any:
    return replay.replay_grad_norm(run_with(logged, settings=settings), step_of(norm, **options), 1e-5)


@pytest.mark.parametrize(
    ("logged", "norm", "options", "verdict", "reason", "words"),
    [
        (2.0, 2.00001, {}, "match", None, ""),
        (2.0, 2.0004, {}, "mismatch", "differs", "Check that weights, arguments and log are of one run."),
        (2.0, 2.4, {}, "mismatch", "differs", "other weights, ids, masks, loss or advantages, or a norm logged"),
        (2.0, 2.4, {"settings": TrainerSettings()}, "cannot", "settings_unknown", "--run-config"),
        (2.0, 2.4, {"num_inferred": 1}, "cannot", "ids_inferred", ""),
        (2.0, 2.4, {"loss": UNNAMED}, "cannot", "settings_unknown", "Give loss_type, beta with --run-config."),
        (2.0, 2.4, {"settings": OTHER_LOSS}, "cannot", "loss_unknown", ""),
        (1.2e-8, 0.0, {}, "no_gradient", "no_gradient", ""),
        (0.0, 1e-6, {}, "no_gradient", "no_gradient", ""),
        (1.5e-5, 0.0, {}, "mismatch", "differs", ""),
        (2.00003, 2.0, {"trained": IN_FLOAT32}, "match", None, ""),
        (2.0003, 2.0, {"trained": IN_FLOAT32}, "cannot", "precision", "Replay on the device that trained"),
        (2.01, 2.0, {"trained": IN_FLOAT32}, "mismatch", "differs", ""),
        (2.0003, 1.99, {"trained": SPREAD}, "match", None, "within the spread of bfloat16"),
        (2.015, 1.99, {"trained": SPREAD}, "cannot", "precision", "beyond the spread of bfloat16"),
        (2.015, 1.99, {"trained": SPREAD, "num_inferred": 1}, "cannot", "ids_inferred", "beyond the spread"),
        (2.1, 1.99, {"trained": SPREAD}, "mismatch", "differs", "beyond the spread of bfloat16"),
        (2.1, 1.99, {"trained": WIDE}, "cannot", "precision", "so wide that other weights or ids may give"),
        (2.0, 1e-6, {"trained": replace(WIDE, norms=(1e-6, 9e-6, 2e-6))}, "mismatch", "differs", "beyond the spread"),
        (2.0001, 2.0, {"trained": TIES}, "cannot", "entropy_ties", "the entropies of 4 tokens lie within rounding"),
        (2.5, 2.0, {"trained": TIES}, "mismatch", "differs", ""),
        (None, 2.0, {}, "cannot", "not_logged", ""),
        (float("nan"), 2.0, {}, "mismatch", "not_finite", ""),
        (2.0, None, {}, "cannot", "advantages_missing", ""),
    ],
)
def test_a_norm_is_met_within_its_precision_or_the_likeliest_cause_is_named(
    logged: float | None, norm: float | None, options: dict, verdict: str, reason: str | None, words: str
) -> None:
    quantity, _, _ = judged(logged, norm, **options)
    assert (quantity.verdict, quantity.reason) == (verdict, reason)
    assert words in f"{quantity.cause} {quantity.advice}"


@pytest.mark.parametrize(
    ("logged", "loss_type", "words"),
    [
        (
            (1 + 1 / 9 + 1 / 25 + 1 / 49) ** 0.5 / 4,
            "dapo",
            "with a mean over tokens, then over completions, the logged",
        ),
        (0.5, "dapo", "with a sum over tokens, then a mean over completions, the logged norm is met"),
        (
            (2 / 64 + 2 / 576) ** 0.5,
            "dapo",
            "with a mean over tokens within each micro-batch of 2, the logged norm is met",
        ),
        (
            0.15,
            "dapo",
            "or a mean over tokens within each micro-batch of 2, which gives 0.125 to 0.186339 in random orders",
        ),
        (0.2, "dapo", "loss or advantages, or a norm logged after clipping"),
        (0.125, "grpo", "with a mean over all tokens of the update, the logged norm is met"),
        (0.15, "grpo", "loss or advantages, or a norm logged after clipping"),
    ],
)
def test_another_average_over_tokens_is_named(logged: float, loss_type: str, words: str) -> None:
    """Four completions, whose tokens' gradients have sums of length 1 at right angles."""
    num_tokens = (1, 3, 5, 7)
    loss = Objective(loss_type=loss_type)
    weights = np.array(loss.token_weights([[True] * number for number in num_tokens]))
    matrix, logprobs = np.diag(weights**2), tuple(map(np.zeros, num_tokens))
    step = step_of(float(np.linalg.norm(weights)), loss=StepLoss(objective=loss))
    step.gram, step.groups = SimpleNamespace(logged_gram=matrix, logprobs=logprobs), (group_of([1, 0, 1, 0], step=1),)
    quantity, _, _ = replay.replay_grad_norm(run_with(logged), step, 1e-5)
    assert (quantity.verdict, quantity.reason) == ("mismatch", "differs")
    assert words in quantity.cause


def test_the_error_is_relative_to_the_logged_norm_and_absolute_at_zero() -> None:
    assert judged(2.0, 2.00001)[1:] == (pytest.approx(2.00001), pytest.approx(5e-6))
    assert judged(0.0, 0.5)[1:] == (0.5, 0.5)
    assert judged(0.0, 1e-6)[1:] == (1e-6, None)  # no gradient, and so no agreement
    assert judged(2.0003, 1.99, trained=SPREAD)[1] == pytest.approx(2.0)  # the mean of the spread


@pytest.mark.parametrize(
    ("advantage", "ids", "words"),
    [
        (0.0, (7,), "every advantage is 0"),
        (0.5, [(7,), (8,)], "invocation tokens of an aLoRA"),
        ([0.5, -0.5], (7,), "the completions of a group are all the same, so that their gradients cancel"),
    ],
)
def test_why_there_is_no_gradient(advantage: Any, ids: Any, words: str) -> None:
    step, (group,) = step_of(0.0), run_with(0.0).groups
    dead = with_fields(group, advantage=0.0, completion_ids=[(7,), (8,)])
    step.groups = (with_fields(group, advantage=advantage, completion_ids=ids), dead)
    assert words in replay.replay_grad_norm(run_with(0.0), step, 1e-5)[0].cause


@pytest.mark.parametrize(
    ("sampled", "values", "repeats", "verdict"),
    [
        (1e-6, {}, {}, "cannot"),
        (1e-2, {}, {}, "match"),
        (None, {}, {}, "match"),
        (1e-6, {"bf16": True}, {}, "match"),
        (1e-6, {}, {1: 0}, "match"),  # they are of other weights
    ],
)
def test_log_probabilities_of_float32_speak_against_a_guess_of_bfloat16(
    sampled: float | None, values: dict[str, Any], repeats: dict[int, int], verdict: str
) -> None:
    step = step_of(1.99, trained=SPREAD)
    step.groups = tuple(
        with_fields(group, completion_ids=(3,), logprobs=None if sampled is None else (sampled,))
        for group in step.groups
    )
    settings = TrainerSettings(values={"loss_type": "dapo", **values}, origin="args.json")
    run = replace(run_with(2.0001, settings=settings), repeats=repeats)
    quantity = replay.replay_grad_norm(run, step, 1e-5)[0]
    assert quantity.verdict == verdict
    if verdict == "cannot":
        assert quantity.advice == "Give bf16 with --run-config."
        assert quantity.cause.endswith("and the logged log-probabilities are those of float32")


@pytest.mark.parametrize(
    ("logged", "values", "verdict"),
    [
        ((2.0002, 2.0, 2.0), {}, "mismatch"),  # two steps tell that it was float32
        ((2.0002, 2.0), {}, "match"),
        ((2.0002, 2.0, 2.0), {"bf16": True}, "match"),
        ((2.0002, 2.00001, 2.00001), {}, "match"),  # as any precision may do
    ],
)
def test_a_guess_of_the_precision_gives_way_to_norms_that_are_exact(
    logged: tuple[float, ...], values: dict[str, Any], verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = replayed(*((norm, 2.0) for norm in logged))
    guessed = replace(replayed((logged[0], 2.0), trained=SPREAD).steps[0], told_within=2e-4)
    steps = [guessed, *report.steps[1:]]
    measured = step_of(2.0)
    run = run_of(*measured.groups, settings={"beta": 0.0, **values}, metrics={1: {"grad_norm": logged[0]}})
    monkeypatch.setattr("gradscope.diagnostics.inputs.steps.measure_steps", lambda *_, **__: iter([measured]))
    in_float32 = replay._in_one_precision(run, steps, EngineOptions(), 1e-5, no_progress)
    assert [step.verdict_on("grad_norm") for step in in_float32] == [verdict, *["match"] * (len(logged) - 1)]


@pytest.mark.parametrize(
    ("logged", "values", "is_guess"),
    [
        (2.5, {"beta": 0.0}, True),  # neither float32 nor what TRL's default guesses gives it
        (2.0015, {"beta": 0.0}, False),  # near what is guessed
        (2.5, {"bf16": True}, False),
        (2.5, {"fp16": False}, False),
        (2.5, {"trainer": "verl"}, False),  # its default is known
        (None, {"beta": 0.0}, False),
    ],
)
def test_a_norm_that_no_precision_gives_is_told_in_float32_unless_one_is_named(
    logged: float | None, values: dict[str, Any], is_guess: bool
) -> None:
    run = run_with(logged, settings=TrainerSettings(values=values, origin="args.json"))
    gram: Any = step_of(2.0, trained=SPREAD).recomputed
    measured = MeasuredStep(step=1, groups=(), weights=None, gram=gram, reason=None)
    gram = replay._without_guess(run, measured).gram
    assert gram is not None
    assert gram.trained == (None if is_guess else SPREAD)


def test_the_share_of_dead_groups_of_rloo_is_that_of_rewards_less_their_kl() -> None:
    run = run_with(2.0, settings=replace(STATED, values={"reward_clip_range": None}))
    step = MeasuredStep(step=1, groups=run.groups_at(1), weights=None, gram=None, reason=Reason("unusable", "a reason"))
    quantities = replay.replay_step(run, step, 1e-5).quantities
    assert [quantity.name for quantity in quantities] == ["reward", "advantage", "grad_norm"]


def test_texts_that_are_not_of_their_ids() -> None:
    quantity, _, _ = replay.replay_texts(step_of(1.0, other_texts=(0,)).recomputed)
    assert (quantity.name, quantity.verdict, quantity.reason) == ("completion", "mismatch", "texts_differ")
    assert "the texts of 1 of 2 completions are not those of their ids, row 0" in quantity.cause


def test_a_match_says_what_it_rests_on_and_a_step_keeps_its_reason() -> None:
    quantity, _, _ = judged(2.0, 2.0, settings=TrainerSettings(), num_inferred=1)
    assert quantity.verdict == "match"
    assert "1 of 2 rollouts were inferred" in quantity.cause
    assert "TRL's defaults fit" in quantity.cause
    step: Any = SimpleNamespace(step=1, recomputed=None, reason=Reason("weights_missing", "not on disk"))
    quantity, value, error = replay.replay_grad_norm(run_with(2.0), step, 1e-5)
    assert (quantity.verdict, quantity.cause, quantity.reason) == ("cannot", "not on disk", "weights_missing")
    assert (value, error) == (None, None)


@pytest.mark.parametrize(("tokenizer", "reason"), [("elsewhere", "prompt_unknown"), ("checkpoint-1", "differs")])
def test_conversations_of_another_tokenizer_are_in_doubt(tmp_path: Path, tokenizer: str, reason: str) -> None:
    run = run_with(2.0)
    (group,) = run.groups
    talked = tuple(replace(rollout, messages=({"role": "user", "content": "hi"},)) for rollout in group.rollouts)
    root = tmp_path / "run"
    (root / "checkpoint-1").mkdir(parents=True)
    index = root / tokenizer if tokenizer == "checkpoint-1" else tmp_path / tokenizer
    run = replace(run, groups=(replace(group, rollouts=talked),), path=root, tokenizer=index)
    assert replay.replay_grad_norm(run, step_of(2.4), 1e-5)[0].reason == reason


@pytest.mark.parametrize(
    ("kl", "changes", "reason"),
    [
        (6e-3, {}, "reference_missing"),
        (1e-9, {}, "differs"),
        (math.nan, {}, "differs"),
        (6e-3, {"weights": (WeightsRef(num_updates=0, path=Path("W0"), kind="adapter"),)}, "differs"),
        (6e-3, {"windows": {1: 2}}, "differs"),
    ],
)
def test_a_kl_before_any_update_is_of_a_reference_that_is_another_model(kl: float, changes: Any, reason: str) -> None:
    run = replace(run_with(2.0), metrics={1: {"grad_norm": 2.0, "kl": kl}})
    first = WeightsRef(num_updates=0, path=Path("W0"), kind="full")
    run = replace(run, **{"source": replace(run.source, format="trl"), "weights": (first,), **changes})
    quantity, _, _ = replay.replay_grad_norm(run, step_of(2.4), 1e-5)
    assert (quantity.reason, "a kl of 0.006 at step 1" in quantity.cause) == (reason, reason != "differs")


def difference_of(logged, recomputed, masks=None):
    group = with_fields(group_of([1.0] * len(logged)), logprobs=logged, mask=masks)
    return replay.logprob_difference([group], [np.array(values) for values in recomputed])


def test_differences_are_counted_over_the_tokens_that_the_policy_sampled():
    difference = difference_of([(-1.0, -2.0), (-0.5,)], [(-1.0, -2.4), (-0.7,)])
    assert (difference.num_tokens, difference.max) == (3, pytest.approx(0.4))
    assert difference.mean == pytest.approx(0.2)
    assert difference.frac_beyond == pytest.approx(2 / 3)
    masked = difference_of([(-1.0, -9.0)], [(-1.0, -1.0)], masks=[(True, False)])
    assert (masked.num_tokens, masked.max) == (1, 0.0)
    for unusable in ([None], [(-1.0, -1.0, -1.0)], [(float("-inf"), -1.0)]):
        assert difference_of(unusable, [(-1.0, -1.0)]) is None


@pytest.mark.parametrize("steps", [(1,), (6,), (1, 2, 3), (1, 6, 11, 12, 13), (1, 2, 9)])
def test_the_selector_chooses_the_very_steps(steps: tuple[int, ...]) -> None:
    requirement = shlex.split(replay.equivalent_check("run", steps, ReadOptions(), EngineOptions()))[-1]
    name, selector = split_metric(requirement.removesuffix(" == 0"))
    assert name == "frac_replay_mismatch"
    assert selector.choose(range(1, 21)) == steps


def test_options_of_reading_and_of_the_engine_are_carried() -> None:
    read = ReadOptions(initial_weights="init model", trainer_args="args.json")
    line = replay.equivalent_check("my run", None, read, EngineOptions(device="cpu", batch_tokens=64, engine="loop"))
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
        initial_weights=folder / "init_model", trainer_args=folder / "RUN.json", completion_ids=completion_ids
    )
    return replay.replay_run(folder / "run", read=read, **options)


def test_a_full_run_is_reproduced_where_its_weights_are_on_disk(shared_data: Path) -> None:
    report = replay_full(shared_data, completion_ids=shared_data / "runs" / "trl_full" / "true_completion_ids.parquet")
    errors = {step.step: step.relative_error.get("grad_norm") for step in report.steps}
    assert [step for step, error in errors.items() if error is not None and error < 1e-5] == [1, 6, 11, 16]
    assert report.verdict == "match"
    verdict, cause = grad_norm_verdict(report.steps[1])
    assert verdict == "cannot"
    assert "the weights after 1 update, which made step 2, are not on disk" in str(cause)
    for step in report.steps:
        assert step.relative_error["reward"] < 1e-6
        assert step.relative_error["advantage"] < 1e-6
        assert step.relative_error["frac_reward_zero_std"] == 0.0
    assert any("agree with the log at all 20 steps" in finding for finding in report.findings)
    with pytest.raises(InputError, match="has no rollouts of step 99"):
        replay_full(shared_data, steps=[99])


def test_text_in_place_of_ids_is_named_as_the_cause(shared_data: Path) -> None:
    lost, same = replay_full(shared_data, steps=[1, 6]).steps
    verdict, cause = grad_norm_verdict(lost)
    assert verdict == "cannot"
    assert "the trainer counted 1623 sampled tokens, and the log has" in str(cause)
    assert "inferred from their text" in str(cause)
    # at step 6 the text happens to give back every id: a match, and the inference is still said
    assert grad_norm_verdict(same) == ("match", "the token ids of 64 of 64 rollouts were inferred from their text")


def test_grad_norm_of_a_lora_run_with_kl_is_reproduced(shared_data: Path) -> None:
    folder = shared_data / "runs" / "trl_lora"
    report = replay.replay_run(
        folder / "run",
        steps=[1, 6],
        read=ReadOptions(initial_weights=folder / "init_adapter", trainer_args=folder / "RUN.json"),
    )
    assert report.verdict == "match"
    assert max(step.relative_error["grad_norm"] for step in report.steps) < 1e-5
    assert all(step.num_inferred_ids == 0 for step in report.steps)
    assert report.steps[0].frac_kl < 1e-6  # the adapter starts as the identity
    assert report.steps[1].frac_kl > 0


@pytest.mark.parametrize("quirk", ["logging_steps_3", "num_iterations_2", "steps_per_generation_2"])
def test_batches_that_do_not_stand_for_their_step_say_cannot(shared_data: Path, quirk: str) -> None:
    report = replay.replay_run(shared_data / "runs" / "quirks" / quirk)
    assert all(grad_norm_verdict(step)[0] == "cannot" for step in report.steps)
    assert report.verdict != "mismatch"


def replayed(
    *norms: tuple[float, float],
    provided: bool = True,
    groups: Sequence[RolloutGroup] = (),
    floor: float = 1e-6,
    trained: TrainedNorms | None = None,
    format: str = "made-up",
    **logged_too: float,
) -> ReplayReport:
    """Steps from their logged and recomputed norms."""
    groups = groups or [group_of([1, 0], step=step) for step in range(1, len(norms) + 1)]
    metrics = {step: {"grad_norm": logged, **logged_too} for step, (logged, _) in enumerate(norms, start=1)}
    run = run_of(*groups, metrics=metrics, settings={"max_grad_norm": 0.5} if provided else None)
    run = replace(run, source=replace(run.source, format=format))
    steps = [
        MeasuredStep(
            step=group.step,
            groups=(group,),
            weights=None,
            gram=None,
            reason=None,
            norm=StepNorm(
                norm=norm,
                floor=floor,
                logprobs=(np.zeros(1), np.zeros(1)),
                num_inferred_ids=0,
                described={"engine": "backward"},
                trained=trained,
                other_texts=(1,) if norm == TEXTS else (),
            ),
        )
        for group, (_, norm) in zip(groups, norms, strict=True)
    ]
    replayed = [replay.replay_step(run, step, replay.GRAD_NORM_TOLERANCE) for step in steps]
    return replay.replay_report(run, replayed)


TEXTS = 3.0  # a norm of which a step's texts are of other ids


@pytest.mark.parametrize(
    ("norms", "headline", "share"),
    [
        ([(0.0, 0.0), (0.0, 0.0)], "cannot: 2 of 2 steps without a gradient", None),
        ([(0.0, 0.0), (2.0, 2.0)], "match at 1 of 2 steps; 1 without a gradient; advantages as logged", 0.0),
        ([(0.0, 0.0), (2.0, 2.4)], "mismatch at 1 of 2 steps; 1 without a gradient", 1.0),
        ([(2.0, 2.0), (TEXTS, TEXTS)], "mismatch at 1 of 2 steps; 1 match", 0.5),
    ],
)
def test_a_norm_of_zero_is_no_proof(norms: list, headline: str, share: float | None) -> None:
    report = replayed(*norms)
    assert (report.headline, report.verdict) == (headline, headline.split()[0].rstrip(":"))
    assert report.frac_replay_mismatch.value == share
    if norms[0] == (0.0, 0.0):
        assert (report.steps[0].verdict, "grad_norm" in report.steps[0].relative_error) == ("no_gradient", False)
        assert "grad_norm is zero in the log and here at step" in report.findings[0]


def test_what_a_match_says_nothing_of_is_named_once() -> None:
    run = run_of(settings={"reward_clip_range": None, "beta": 0.05, "num_iterations": 2})
    steps = [
        replace(step, untested=("epsilon", "delta")[: step.step]) for step in replayed((2.0, 2.0), (2.0, 2.0)).steps
    ]
    *_, of_norm, of_advantages = replay.replay_report(run, steps).findings
    assert of_norm == "Not tested, as the norms would be the same with other values: epsilon, num_iterations."
    unmet = replace(replayed((2.0, 2.5)).steps[0], step=3, untested=("epsilon",))
    for repeats, may_be in (({}, "num_iterations"), ({3: 2}, "each")):
        of_norm = replay.replay_report(replace(run, repeats=repeats), [*steps, unmet]).findings[-2]
        assert of_norm.startswith("Not tested, as the norms that match would be the same with other values: epsilon")
        assert of_norm.endswith(f" Of these, {may_be} may be why others are off.")
    assert of_advantages == "Not tested, as advantages were taken from the log at steps 1,2: their formula, with beta."


@pytest.mark.parametrize(
    ("logged", "headline", "words"),
    [
        ((2.0, 2.0, 2.0003), "match at 2 of 3 steps; 1 cannot; advantages as logged", ""),
        ((2.0, 2.0003), "match at 1 of 2 steps; 1 cannot; advantages as logged", ""),
        ((2.0, 2.0, 2.0, 2.0003, 2.0003), "match at 3 of 5 steps; 2 cannot; advantages as logged", "at steps 4,5"),
        ((2.0, 2.0, 2.0003, 2.0003), "cannot at 2 of 4 steps; 2 match", "at steps 3,4"),
        ((2.0, 2.0003, 2.0003, 2.02), "mismatch at 1 of 4 steps; 1 match; 2 cannot", "at steps 2,3"),
    ],
)
def test_norms_beyond_their_spread_at_as_many_steps_as_match_settle_nothing(
    logged: tuple[float, ...], headline: str, words: str
) -> None:
    report = replayed(*((norm, 2.0) for norm in logged), trained=IN_FLOAT32)
    assert (report.headline, report.verdict) == (headline, headline.split()[0])
    assert ("beyond its own spread" in report.findings[0] and words in report.findings[0]) == bool(words)
    assert report.frac_replay_mismatch.is_defined == (report.verdict != "cannot")


@pytest.mark.parametrize(
    ("steps", "values", "reason"),
    [((0, 1), {}, "step_unknown"), ((1, 2), {"num_iterations": 2}, "several_updates"), ((1, 2), {}, "differs")],
)
def test_a_scripts_steps_may_be_no_single_updates(steps: tuple, values: dict, reason: str) -> None:
    run = run_of(*(group_of([1, 0], step=step) for step in steps), metrics={1: {"grad_norm": 2.0}}, settings=values)
    for format, cause in (("generic", reason), ("made-up", "differs")):
        of_format = replace(run, source=replace(run.source, format=format))
        assert replay.replay_grad_norm(of_format, step_of(2.4), 1e-5)[0].reason == cause


def test_steps_from_0_differ_where_the_checkpoints_of_both_counts_were_tried() -> None:
    run = run_of(*(group_of([1, 0], step=step) for step in (0, 1)), metrics={1: {"grad_norm": 2.0}}, settings={})
    run = replace(run, source=replace(run.source, format="generic"))
    saved = tuple(WeightsRef(num_updates=number, path=Path("W"), kind="full") for number in (0, 1))
    for weights, reason in ((saved, "differs"), (saved[:1], "step_unknown"), (saved[1:], "step_unknown")):
        of_these = replace(run, weights=weights)
        assert replay.replay_grad_norm(of_these, step_of(2.4), 1e-5)[0].reason == reason


def test_norms_without_rollouts_are_counted_in_a_script() -> None:
    run = run_of(group_of([1, 0], step=1), metrics={step: {"grad_norm": 1.0} for step in (1, 2, 3)}, settings={})
    assert not replay.replay_report(run, []).findings[1:]
    script = replace(run, source=replace(run.source, format="generic"))
    assert "grad_norm at 2 further steps without rollouts; if their" in replay.replay_report(script, []).findings[-1]
    quantity = replay.replay_grad_norm(script, step_of(2.4), 1e-5)[0]
    assert "2 steps of the log without rollouts may have used parts of these" in quantity.cause
    (unmet, met) = replayed((1.0, 2.4), (1.0, 1.0)).steps
    step = replace(unmet, quantities=(*unmet.quantities[:-1], quantity), verdict="cannot")
    verdicts = [replay.replay_report(script, steps).steps[0].verdict for steps in ((step,), (step, met))]
    assert verdicts == ["cannot", "mismatch"]


@pytest.mark.parametrize(
    ("norms", "finding"),
    [
        ([(3.0, 2.0), (6.0, 4.0)], "The logged norms are 1.5 times the recomputed ones at all 2 steps"),
        ([(1.0, 2.0), (1.0, 4.0)], "The log has 1 at all 2 steps, below every recomputed norm, as after clipping."),
        ([(math.nan, 2.0)], "grad_norm was recomputed at 1 of them, none with a number in the log."),
        ([(0.4999995, 2.0), (0.4999994, 4.0)], "as after clipping to max_grad_norm."),  # x 0.5 / (x + 1e-6)
        *(([(3.0, 2.0), (other, 4.0)], None) for other in (7.0, 6.003, 3.003)),
        ([(3.0, 2.0)], None),
        *((norms, None) for norms in ([(0.0, 2.0), (0.0, 4.0)], [(2.0, 0.0), (4.0, 0.0)])),
    ],
)
def test_what_norms_that_are_off_have_in_common(norms: list, finding: str | None) -> None:
    findings = " ".join(replayed(*norms).findings)
    assert (finding in findings) if finding else not {"times", "clipping"} & set(re.findall(r"\w+", findings))


def test_norms_that_their_spread_lets_look_alike_have_no_factor_in_common() -> None:
    for factor, is_named in ((0.98, False), (3.0, True)):
        norms = [(factor * norm, norm) for norm in (1.999, 2.001)]
        findings = " ".join(replayed(*norms, trained=SPREAD).findings)
        assert ("times the recomputed ones" in findings) == is_named


@pytest.mark.parametrize(
    ("norms", "verdicts"),
    [
        ([(1.9025, 1.90252), (0.353, 0.35304)], ["match", "match"]),
        ([(1.9025, 1.90258), (0.353, 0.353)], ["mismatch", "match"]),
        ([(0.353, 0.3527), (0.41, 0.412)], ["cannot", "mismatch"]),
        ([(1.9, 1.92), (0.6, 0.68)], ["cannot", "mismatch"]),
        ([(2.0, 1.9), (4.0, 4.0)], ["mismatch", "match"]),
        ([(1.9025, 1.90252), (0.353, 0.353), (0.12345678, 0.12346)], ["mismatch", "match", "mismatch"]),
    ],
)
def test_a_norm_that_was_rounded_for_the_log_is_met_to_its_digits(norms: list, verdicts: list) -> None:
    report = replayed(*norms)
    assert [step.verdict for step in report.steps] == verdicts
    assert verdicts[0] == "mismatch" or "as it was rounded" in str(report.steps[0].cause)


@pytest.mark.parametrize(
    ("advantages", "norm", "reason"),
    [
        ([0.7071, -0.7071], 2.00008, "precision"),
        ([0.7071, -0.7071], 2.0004, "differs"),
        ([0.70710678, -0.70710678], 2.00008, "differs"),
        ([0.75, -0.75], 2.00008, "differs"),
    ],
)
def test_advantages_that_were_rounded_for_the_log_move_the_norm(advantages: list, norm: float, reason: str) -> None:
    step = replayed((2.0, norm), groups=[group_of([1, 0], step=1, advantages=advantages)], floor=3e-6).steps[0]
    assert step.quantities[-1].reason == reason


def test_defaults_are_proved_by_another_step_unless_the_log_contradicts_them() -> None:
    (unproved, _) = replayed((2.0, 2.4), (3.1, 3.1), provided=False).steps  # of a script with an unknown beta
    assert unproved.verdict == "cannot"
    (unmet, _) = replayed((2.0, 2.4), (3.1, 3.1), provided=False, format="trl").steps
    (quantity,) = [row for row in unmet.quantities if row.name == "grad_norm"]
    assert (unmet.verdict, quantity.reason) == ("mismatch", "differs")
    assert "computed in the same way step 2 matches" in str(unmet.cause)
    (single,) = replayed((2.0, 2.4), provided=False).steps
    assert (single.verdict, single.quantities[-1].reason) == ("cannot", "settings_unknown")
    # The first step of a run has no KL gradient, so that it fits whatever beta is.
    (unmet, first) = replayed((2.0, 2.4), (3.1, 3.1), provided=False, format="trl", kl=0.01).steps
    assert (unmet.verdict, first.verdict) == ("cannot", "match")
    assert "the log has a kl, so that beta was not 0" in str(unmet.cause)


EQUAL: Any = {"completion_ids": (7, 7)}
TWO_LENGTHS: Any = {"completion_ids": [(7, 7), (7,)]}
CUT_OFF: Any = {**TWO_LENGTHS, "status": ["truncated", "completed"]}


@pytest.mark.parametrize(
    ("matching", "unmet", "verdict"),
    [
        (EQUAL, EQUAL, "mismatch"),
        (EQUAL, TWO_LENGTHS, "cannot"),  # every loss weighs tokens alike where all completions are of one length
        (TWO_LENGTHS, TWO_LENGTHS, "mismatch"),
        (TWO_LENGTHS, CUT_OFF, "cannot"),  # mask_truncated_completions does nothing where none is truncated
        (CUT_OFF, TWO_LENGTHS, "mismatch"),
    ],
)
def test_a_step_proves_defaults_only_of_what_moves_its_norm(matching: Any, unmet: Any, verdict: str) -> None:
    groups = [with_fields(group_of([1, 0], step=step), **fields) for step, fields in ((1, matching), (2, unmet))]
    report = replayed((3.1, 3.1), (2.0, 2.4), provided=False, format="trl", groups=groups)
    assert report.steps[1].verdict == verdict


def test_settings_that_matter_at_a_step_alone_are_named_there() -> None:
    run = replace(run_with(2.0), repeats={2: 1}, metrics={step: {"grad_norm": 2.0} for step in (1, 2)})
    for step, status, names in (
        (2, "completed", "epsilon, importance_sampling_level"),
        (1, "truncated", "mask_truncat"),
    ):
        measured = step_of(2.4)
        measured.step, measured.groups = step, (with_fields(group_of([1, 0]), status=status),)
        assert names in str(replay.replay_grad_norm(run, measured, 1e-5)[0].cause)
        named = {"epsilon": 0.2, "importance_sampling_level": "token", "mask_truncated_completions": False}
        stated = replace(run, settings=replace(STATED, values=named))
        assert replay.replay_grad_norm(stated, measured, 1e-5)[0].reason == "differs"


def test_log_probabilities_of_a_batch_that_is_used_again_are_of_other_weights() -> None:
    sampled = with_fields(group_of([1, 0], step=1), logprobs=[(-1.0,), (-2.0,)])
    run = replace(run_of(sampled, settings={}), repeats={2: 1})
    for step, is_compared in ((1, True), (2, False)):
        measured = step_of(2.0)
        measured.step, measured.groups, measured.weights = step, run.groups_at(step), None
        assert (replay.replay_step(run, measured, 1e-5).logprob_difference is not None) == is_compared


@pytest.mark.parametrize("format", ["trl", "generic"])
def test_a_script_is_not_asked_for_what_only_trl_logs(format: str) -> None:
    names = {quantity.name for quantity in replayed((2.0, 2.0), format=format).steps[0].quantities}
    assert ("frac_reward_zero_std" in names) == (format == "trl")
    named = replayed((2.0, 2.0), format=format, frac_reward_zero_std=0.0).steps[0]
    assert named.verdict_on("frac_reward_zero_std") == "match"
    reward = next(quantity for quantity in named.quantities if quantity.name == "reward")
    assert ("logging_steps" in reward.advice) == (format == "trl")
    quantity = replayed((2.0, 2.4), provided=False, format=format).steps[0].quantities[-1]
    assert "with TRL's defaults the recomputed norm is 20 % off" in quantity.cause
    assert ("in TRL's names or in verl's" in quantity.advice) == (format == "generic")


OF_DEFAULT = 0.5 / (0.5**0.5 + 1e-4)


@pytest.mark.parametrize(
    ("advantages", "verdict"),
    [
        ((0.6, OF_DEFAULT, OF_DEFAULT), "mismatch"),
        ((OF_DEFAULT + 1e-4, OF_DEFAULT, OF_DEFAULT), "match"),  # 1e-4: another constant in the formula
        ((0.6, OF_DEFAULT, 0.7), "match"),  # another formula, which agrees at one step
    ],
)
def test_the_formula_of_most_steps_is_that_of_all(advantages: tuple[float, ...], verdict: str) -> None:
    groups = [group_of([1, 0], step=step, advantages=[a, -a]) for step, a in enumerate(advantages, start=1)]
    first, *_ = replayed((2.0, 2.0), (3.0, 3.0), (4.0, 4.0), groups=groups).steps
    assert (first.verdict, "step 2 matches" in str(first.cause)) == (verdict, verdict == "mismatch")
