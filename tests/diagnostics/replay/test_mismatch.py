"""The causes of norms that are off, by plain vectors: a gradient is P + b K, with b the coefficient of a part K."""

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.diagnostics.replay.measure import replay_report
from gradscope.diagnostics.replay.mismatch import Fit, _contradiction, fit_choice, fit_temperature, without_chance
from gradscope.gradients.engine_options import EngineOptions
from gradscope.progress import no_progress
from gradscope.results.norms import Quantity, ReplayReport, StepReplay
from gradscope.rollouts.run import Run
from tests.diagnostics.made_up_runs import group_of, run_of, with_fields

NAMES = {"kl": "beta", "entropy": "entropy_coef"}


def step_of(number: int, logged: float, gradient: np.ndarray, part: np.ndarray, channel: str) -> StepReplay:
    norm = float(np.linalg.norm(gradient))
    error = abs(norm - logged) / logged
    verdict = "match" if error <= 1e-5 else "mismatch"
    reason = None if verdict == "match" else "differs"
    of_part = float(np.linalg.norm(part)) / norm, float(part @ gradient) / norm**2
    return StepReplay(
        step=number,
        weights=None,
        verdict=verdict,
        cause=reason,
        quantities=(Quantity(name="grad_norm", verdict=verdict, cause=reason, reason=reason),),
        logged={"grad_norm": logged},
        recomputed={"grad_norm": norm},
        relative_error={"grad_norm": error},
        num_inferred_ids=0,
        frac_kl=None,
        parts={channel: of_part},
        untested=(NAMES[channel],),
    )


def steps_of(
    stated: float, true: float | list[float], *, dead: int = 1, channel: str = "kl", seed: int = 0
) -> tuple[Run, list[StepReplay]]:
    """Steps with random gradients, before some of which K is zero; ``true`` is one b or one a step."""
    draw, steps = np.random.default_rng(seed), []
    for number, value in enumerate(true if isinstance(true, list) else [true] * 4, start=1):
        policy, kl = draw.normal(size=30), draw.normal(size=30) * (number > dead)
        logged = float(np.linalg.norm(policy + value * kl))
        steps.append(step_of(number, logged, policy + stated * kl, stated * kl, channel))
    run = run_of(*(group_of([1, 0], step=step.step) for step in steps), settings={NAMES[channel]: stated})
    return run, steps


def cause_of(report: ReplayReport) -> str:
    return str(report.steps[-1].quantities[-1].cause)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("channel", NAMES)
@pytest.mark.parametrize(("stated", "true"), [(0.04, 0.05), (0.06, 0.05), (0.1, 0.05), (0.025, 0.05), (0.5, 0.0)])
def test_the_coefficient_that_fits_all_norms_is_named(stated: float, true: float, channel: str, seed: int) -> None:
    run, steps = steps_of(stated, true, channel=channel, seed=seed)
    report = replay_report(run, steps)
    name, cause = NAMES[channel], cause_of(report)
    assert f"the logged norms fit {name} = {true:g} at each of 3 steps, and the arguments say {stated:g}" in cause
    assert report.steps[-1].quantities[-1].advice == f"Give the {name} that was used with --run-config."
    assert report.steps[-1].cause == cause
    assert report.steps[0].quantities[-1].cause is None
    assert not any(name in finding for finding in report.findings)


@pytest.mark.parametrize(
    "true",
    [
        [0.05, 0.05, 0.07, 0.05],  # one step is not of this beta
        [0.03, 0.05, 0.07, 0.09],
        [0.05, 0.06, 0.06, 0.05],  # two are met as they are stated
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_named_that_does_not_fit_every_step(true: list[float], seed: int) -> None:
    assert cause_of(replay_report(*steps_of(0.06, true, seed=seed, dead=0))) == "differs"


def test_one_number_that_fits_one_step_is_no_cause() -> None:
    report = replay_report(*steps_of(0.04, 0.05, dead=3))
    assert cause_of(report).startswith("differs; beta = ")
    assert cause_of(report).endswith("gives it, as one free number gives any single norm; another step would tell")
    assert report.steps[-1].quantities[-1].advice is None


@pytest.mark.parametrize(("weight", "told_within"), [(1.0, 2e-4), (0.1, 9e-5)])
def test_nothing_is_named_that_a_spread_lets_steps_agree_on_by_chance(weight: float, told_within: float) -> None:
    run, steps = steps_of(0.04 * weight, 0.05 * weight)
    wide = [replace(step, told_within=told_within) for step in steps]
    assert "fit beta = " in cause_of(replay_report(run, steps))
    assert cause_of(replay_report(run, wide)) == "differs"


@pytest.mark.parametrize("settings", [{}, {"use_adaptive_entropy": True, "entropy_coef": 0.04}])
def test_a_coefficient_without_one_stated_value_is_not_looked_for(settings: dict[str, Any]) -> None:
    run, steps = steps_of(0.04, 0.05, channel="entropy")
    run = replace(run, settings=replace(run.settings, values=settings))
    assert cause_of(replay_report(run, steps)) == "differs"


@pytest.mark.parametrize(
    ("logged", "settings", "text"),
    [
        ({"kl": 0.01}, {"entropy_coef": 0.1}, "the log has a kl, so that beta was not 0"),
        ({"kl": 0.01}, {"beta": 0.1}, ""),
        ({"entropy_coef": 0.3}, {}, "the log has entropy_coef = 0.3, and the arguments 0"),
        ({"entropy_coef": -0.3}, {"entropy_coef": -0.3000001}, ""),
        ({"entropy_coef": 0.3}, {"entropy_coef": 0.1, "use_adaptive_entropy": True}, ""),
    ],
)
def test_a_log_may_contradict_the_arguments(logged: dict[str, float], settings: dict[str, Any], text: str) -> None:
    run = run_of(group_of([1, 0], step=1), metrics={1: logged}, settings=settings)
    assert _contradiction(run, 1) == text
    assert _contradiction(replace(run, repeats={1: 0}), 1).startswith("the log has the rollouts of step 0 again, so")
    reused = run.settings.with_values({"num_iterations": 2})
    assert _contradiction(replace(run, repeats={1: 0}, settings=reused), 1) == text


@pytest.mark.parametrize(
    ("stated", "true", "changes", "depends", "named"),
    [
        (1.0, 0.7, {}, 0.3, 0.7),
        (0.6, 1.0, {}, 0.3, 1.0),
        (2.0, 0.333, {}, 0.3, 0.333),
        (1.0, 0.71234, {}, 0.3, None),  # no value that anyone gives
        (1.0, 0.7, {2: 1.0001}, 0.3, None),  # one step is not of it
        (1.0, 1.0, {1: 1.1, 2: 0.9, 3: 1.2}, 0.3, None),
        (1.0, 0.7, {}, 1e-5, None),  # by the same factor at all steps, as another scale
        (0.7, 0.7, {3: 1.1}, 0.3, None),  # two are met as stated
        *((1.0, 0.7, {2: scale}, 0.3, None) for scale in (-1.0, math.inf, math.nan)),
    ],
)
def test_the_temperature_of_three_digits_that_fits_all_norms_is_named(
    stated: float,
    true: float,
    changes: dict[int, float],
    depends: float,
    named: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def norm_at(step: int, temperature: float) -> float:  # exp(-E / T) / T by step
        return math.exp(-depends * step / temperature) / temperature

    def measured(run: Run, steps: list[int], *_: Any, **__: Any) -> Iterator[Any]:
        assert not any("grad_norm" in metrics for metrics in run.metrics.values())
        for step in steps:
            norm = norm_at(step, run.settings.get("temperature"))
            yield SimpleNamespace(step=step, recomputed=SimpleNamespace(norm=norm))

    steps = []
    for number in (1, 2, 3):
        logged = norm_at(number, true) * changes.get(number, 1.0)
        steps.append(step_of(number, logged, np.array([norm_at(number, stated)]), np.zeros(1), "kl"))
    logs = {step.step: dict(step.logged) for step in steps}
    run = run_of(*(group_of([1, 0], step=step) for step in logs), metrics=logs, settings={"temperature": stated})
    monkeypatch.setattr("gradscope.diagnostics.inputs.steps.measure_steps", measured)
    fit = fit_temperature(run, steps, EngineOptions(), no_progress)
    assert (fit and fit.values) == (None if named is None else (named,))
    assert fit is None or (fit.name, fit.stated, fit.num_steps) == ("temperature", stated, 3)
    assert fit is None or fit.explain(replace(steps[0], relative_error={})) == replace(steps[0], relative_error={})


CLIPPED = {"loss_type": "grpo", "epsilon": 0.2, "epsilon_high": 0.2}
REUSED = {2: 1, 3: 1}


@pytest.mark.parametrize(
    ("stated", "true", "repeats", "changes", "fit"),
    [
        ({"loss_type": "dapo"}, {"loss_type": "grpo"}, {}, {}, ("loss_type", "dapo", ("grpo",), 3)),
        ({}, {"loss_type": "grpo"}, {}, {}, ("loss_type", None, ("grpo",), 3)),
        (CLIPPED, CLIPPED | {"epsilon_high": 0.28}, REUSED, {}, ("epsilon_high", 0.2, (0.28,), 2)),
        (CLIPPED, CLIPPED | {"epsilon_high": 0.28}, {}, {}, None),  # ratios are 1
        (CLIPPED, CLIPPED | {"epsilon": 0.123}, REUSED, {}, None),  # no usual value
        ({"loss_type": "dapo"}, {"loss_type": "grpo"}, {}, {2: 1.001}, None),  # one step is not of it
        ({"loss_type": "dapo"}, {"loss_type": "grpo"}, {}, {1: 1.01, 2: 0.99, 3: 1.02}, None),
        ({"loss_type": "dapo", "trainer": "verl"}, {"loss_type": "grpo"}, {}, {}, None),
        ({"loss_type": "dapo"}, {"loss_type": "grpo"}, {2: 1}, {}, None),  # the log says what was wrong
        ({"loss_type": "grpo"}, {"loss_type": "grpo"}, {}, {2: -1.0}, None),
        ({"loss_type": "grpo"}, {"loss_type": "grpo"}, {}, {}, None),  # all are met
    ],
)
def test_a_usual_value_of_an_argument_that_fits_all_norms_is_named(
    stated: dict[str, Any],
    true: dict[str, Any],
    repeats: dict[int, int],
    changes: dict[int, float],
    fit: tuple | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def norm_at(step: int, values: dict[str, Any]) -> float:
        norm = {"grpo": 1.0, "dapo": 1.2 + 0.1 * step}.get(values.get("loss_type", "dapo"), 5.0)
        bounds = [values.get(name) or 0.0 for name in ("epsilon", "epsilon_high", "delta")]
        shift = sum(weight * bound for weight, bound in zip((1, 2, 3), bounds, strict=True))
        return math.pi * (norm + (step in repeats) * shift)

    def measured(run: Run, steps: list[int], *_: Any, **__: Any) -> Iterator[Any]:
        for step in steps:
            norm = None if run.settings.get("loss_type") == "bnpo" else norm_at(step, dict(run.settings.values))
            yield SimpleNamespace(step=step, recomputed=norm and SimpleNamespace(norm=norm))

    steps = []
    for number in (1, 2, 3):
        logged = norm_at(number, true) * changes.get(number, 1.0)
        steps.append(step_of(number, logged, np.array([norm_at(number, stated)]), np.zeros(1), "kl"))
    logs = {step.step: dict(step.logged) for step in steps}
    updates = {"num_iterations": 3} if repeats == REUSED else {}
    groups = (group_of([1, 0], step=step) for step in logs)
    run = replace(run_of(*groups, metrics=logs, settings={**stated, **updates}), repeats=repeats)
    monkeypatch.setattr("gradscope.diagnostics.inputs.steps.measure_steps", measured)
    chosen = fit_choice(run, steps, EngineOptions(), no_progress)
    assert (chosen and (chosen.name, chosen.stated, chosen.values, chosen.num_steps)) == fit
    vague = [replace(step, told_within=0.01) for step in steps]
    assert fit_choice(run, vague, EngineOptions(), no_progress) is None


@pytest.mark.parametrize(
    ("fit", "reason", "cause"),
    [
        (
            Fit("loss_type", "dapo", ("grpo", "sapo"), 3, is_solved_for=False),
            "differs",
            "the recomputed norm is 50 % off; the logged norms fit loss_type = grpo or sapo at each of 3 steps, and "
            "the arguments say dapo",
        ),
        (
            Fit("delta", None, (1.5,), 1, is_solved_for=False),
            "differs",
            "the recomputed norm is 50 % off; the logged norm fits delta = 1.5, and the arguments give none",
        ),
        (
            Fit("epsilon", 0.2, (0.1,), 2, is_solved_for=False),
            "settings_unknown",
            "off; the logged norms fit epsilon = 0.1 at each of 2 steps",
        ),
    ],
)
def test_the_value_that_fits_is_the_cause(fit: Fit, reason: str, cause: str) -> None:
    verdict = "mismatch" if reason == "differs" else "cannot"
    norm = Quantity(name="grad_norm", verdict=verdict, cause="off", reason=reason)
    step = replace(step_of(1, 2.0, np.ones(1), np.zeros(1), "kl"), quantities=(norm,))
    explained = fit.explain(step).quantities[0]
    assert (explained.cause, explained.verdict) == (cause, verdict)
    assert explained.advice == f"Give the {fit.name} that was used with --run-config."


@pytest.mark.parametrize(
    ("other_averages", "unmet"), [(["a sum", "a sum"], ""), (["a mean", "a sum"], "2"), (["", "a sum"], "2")]
)
def test_another_average_says_at_which_steps_it_does_not_fit(other_averages: list[str], unmet: str) -> None:
    _, steps = steps_of(0.04, [0.05, 0.06, 0.07], dead=0)
    explained = []
    for step, average in zip(steps, ["a sum", *other_averages], strict=True):
        cause = f"x off; with {average}, met" if average else "x off"
        explained.append(replace(step, quantities=(replace(step.quantities[0], cause=cause),)))
    causes = [step.quantities[0].cause for step in without_chance(explained)]
    assert causes[0] == f"x off; with a sum, met{f', but not at step {unmet}' * bool(unmet)}"
    assert causes[1] == {"": "x off", "a mean": "x off; with a mean, met, but not at steps 1,3"}.get(
        other_averages[0], causes[0]
    )


@pytest.mark.parametrize(
    ("factor", "length", "loss", "told_within", "is_named"),
    [
        (1.25, 10, "dr_grpo", None, True),
        (1.27, 10, "dr_grpo", None, False),
        (1.25, 10, "grpo", None, False),
        (1.25, None, "dr_grpo", None, False),
        (1.25005, 1000, "dr_grpo", 1e-3, True),  # so wide a spread holds a whole number for nearly any factor
        (1.2506, 1000, "dr_grpo", 1e-3, False),
    ],
)
def test_a_common_factor_may_be_the_length_that_dr_grpo_divides_by(
    factor: float, length: int | None, loss: str, told_within: float | None, is_named: bool
) -> None:
    steps = [step_of(number, factor * number, np.array([float(number)]), np.zeros(1), "kl") for number in (1, 2)]
    steps = [replace(step, told_within=told_within) for step in steps]
    settings = {"loss_type": loss, "max_completion_length": length}
    groups = [group_of([1, 0], step=step.step) for step in steps]
    run = run_of(*groups, settings=settings)
    named = f"steps, as max_completion_length = {round((length or 0) / factor)} makes them."
    words = named if is_named else "the loss or the advantages have another scale."
    assert words in " ".join(replay_report(run, steps).findings)
    longer = [with_fields(group, completion_ids=(3,) * 801) for group in groups]  # than any length that is named
    assert " have another scale." in " ".join(replay_report(replace(run, groups=tuple(longer)), steps).findings)
