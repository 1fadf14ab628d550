"""What each answer asks of its reader: the numbers that decide, on both sides of their limits."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.diagnostics.report.sections import agreement, courses, coverage, loss, signal
from gradscope.diagnostics.report.sections.agreement import replay_section
from gradscope.diagnostics.report.sections.courses import length_section
from gradscope.diagnostics.report.sections.gradient import contributions_section
from gradscope.diagnostics.report.sections.loss import loss_scale_section
from gradscope.diagnostics.report.sections.signal import rewards_section
from gradscope.estimate import Estimate
from gradscope.results.logged import EntropyNumbers, GenerationNumbers
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.report.sections.made_up_inputs import gram_of, inputs_of
from tests.render.examples import degeneracy_report, passk_report, replay_report, run_report

NONE = Estimate.undefined_because("there is none")


def between(low: float, value: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, num_units=9)


@pytest.mark.parametrize(
    ("dead", "severity"),
    [
        (between(0.51, 0.6, 0.7), "problem"),
        (between(0.4, 0.6, 0.7), "look"),
        (Estimate.exact(0.25), "look"),
        (between(0.1, 0.24, 0.6), "fine"),
        (NONE, "unknown"),
    ],
)
def test_dead_groups(dead: Estimate, severity: str) -> None:
    assert signal._severity(dead) == severity


@pytest.mark.parametrize(
    ("kind", "severity"),
    [
        ("not finite", "problem"),
        ("suspect", "problem"),
        ("dead batch", "look"),
        ("other terms", "look"),
        ("on-policy", "fine"),
        ("learning", "fine"),
    ],
)
def test_kinds_of_steps(kind: str, severity: str) -> None:
    assert loss._severity(Counter({kind: 1, "learning": 9})) == severity
    assert loss._severity(Counter({"dead batch": 1, "learning": 29})) == "fine"


@pytest.mark.parametrize(("verdict", "severity"), [("mismatch", "problem"), ("match", "fine"), ("cannot", "unknown")])
def test_replays(verdict: Any, severity: str) -> None:
    section = replay_section(inputs_of(run_of(group_of([1, 0])), replay=replace(replay_report(), verdict=verdict)))
    assert section.severity == severity


@pytest.mark.parametrize(("scale", "severity"), [(1.0, "look"), (0.2, "fine")])
def test_one_rollout_that_carries_much(scale: float, severity: str) -> None:
    gram = gram_of([[scale], *[[0.2]] * 7], ["0/a"] * 8)
    assert contributions_section(inputs_of(run_of(group_of([1] * 8, prompt="a")), grams=[gram])).severity == severity


@pytest.mark.parametrize(("lengths", "severity"), [((9, 2), "look"), ((5, 5), "fine")])
def test_lengths_that_are_rewarded(lengths: tuple[int, int], severity: str) -> None:
    groups = [group_of([1, 0, 1, 0], prompt=str(n)) for n in range(12)]
    written = [
        replace(
            group,
            rollouts=tuple(
                replace(r, completion="x" * (lengths[r.sample % 2] + r.sample // 2 * (n % 2))) for r in group.rollouts
            ),
        )
        for n, group in enumerate(groups)
    ]
    assert length_section(inputs_of(run_of(*written))).severity == severity


@pytest.mark.parametrize(("second", "severity"), [([1, 1], "look"), ([1, 0], "fine")])
def test_a_reward_function_that_adds_nothing(second: list[float], severity: str) -> None:
    total = [one + other for one, other in zip([1, 0], second, strict=True)]
    run = run_of(group_of(total, functions={"a": [1, 0], "b": second}))
    assert rewards_section(inputs_of(run, degeneracy=degeneracy_of_run(run))).severity == severity


@pytest.mark.parametrize(
    ("rewards", "kl", "severity"), [([0, 0], 0.0, "look"), ([1, 0], 0.6, "look"), ([1, 0], 0.4, "fine")]
)
def test_diluted_losses(rewards: list[float], kl: float, severity: str) -> None:
    run = run_of(group_of(rewards))
    gram = gram_of([[1.0], [2.0]], ["0/p"] * 2, frac_kl=kl)
    assert loss_scale_section(inputs_of(run, degeneracy=degeneracy_report(), grams=[gram])).severity == severity


@pytest.mark.parametrize(
    ("gap", "share", "severity"),
    [(0.02, 1.0, "problem"), (0.001, 0.2, "look"), (0.001, 0.9, "fine"), (None, 1.0, "unknown")],
)
def test_samplers_that_differ(gap: float | None, share: float, severity: str) -> None:
    sampler = run_report().logged.sampler
    assert sampler.overall is not None
    gap_of = NONE if gap is None else Estimate.exact(gap)
    overall = replace(sampler.overall, logprob_gap=gap_of, sequence_ess=Estimate.exact(share))
    assert agreement._severity(sampler, overall) == severity
    assert agreement._severity(replace(sampler, is_identical=True), overall) == "unknown"


@pytest.mark.parametrize(
    ("mean", "trend", "severity"),
    [
        (NONE, NONE, "problem"),
        (Estimate.exact(1.0), between(-3, -2, -1), "look"),
        (Estimate.exact(1.0), between(1, 2, 3), "look"),
        (Estimate.exact(1.0), between(-1, 0, 1), "fine"),
    ],
)
def test_entropies(mean: Estimate, trend: Estimate, severity: str) -> None:
    assert courses._entropy_severity(EntropyNumbers(step=None, mean=mean), trend) == severity


@pytest.mark.parametrize(
    ("cut", "seconds", "slowest", "severity"),
    [
        (NONE, NONE, NONE, "unknown"),
        (Estimate.exact(0.2), NONE, NONE, "look"),
        (NONE, Estimate.exact(1.0), Estimate.exact(4.0), "look"),
        (Estimate.exact(0.05), Estimate.exact(1.0), Estimate.exact(2.0), "fine"),
    ],
)
def test_generation(cut: Estimate, seconds: Estimate, slowest: Estimate, severity: str) -> None:
    numbers = GenerationNumbers(step=None, frac_truncated=cut, seconds=seconds, slowest_over_mean=slowest)
    assert courses._generation_severity(numbers) == severity


def test_coverage() -> None:
    comparison = passk_report().comparison
    assert comparison is not None
    assert coverage._severity(None) == "unknown"

    def ending(difference: Estimate) -> str:
        rows = (*comparison.rows[:-1], replace(comparison.rows[-1], difference=difference))
        return coverage._severity(replace(comparison, rows=rows))

    assert ending(between(-0.3, -0.2, -0.1)) == "problem"
    assert ending(between(-0.3, -0.2, 0.1)) == "fine"
