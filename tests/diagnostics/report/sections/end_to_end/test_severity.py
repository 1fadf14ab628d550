"""What each answer asks of its reader: the numbers that decide, on both sides of their limits."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.diagnostics.report.metrics_alone import dead_severity
from gradscope.diagnostics.report.sections import agreement, loss, policy, signal
from gradscope.diagnostics.report.sections.gradient import contributions_section
from gradscope.diagnostics.report.sections.loss import loss_scale_section
from gradscope.diagnostics.report.sections.policy import length_section
from gradscope.diagnostics.report.sections.signal import rewards_section
from gradscope.estimate import Estimate
from gradscope.results import logged as results
from gradscope.results.passk import PassAtKComparison
from tests.diagnostics.made_up_runs import group_of, run_of, with_fields
from tests.diagnostics.report.sections.made_up_inputs import gram_of, inputs_of
from tests.render.examples import degeneracy_report, passk_report, run_report

UNDEFINED = Estimate.undefined_because("there is none")


def between(low: float, value: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, num_units=9)


SURE = Estimate.exact


def sampled(gap: Estimate, share: float) -> results.MismatchNumbers:
    overall = run_report().logged.sampler.overall
    assert overall is not None
    return replace(overall, logprob_gap=gap, sequence_ess=SURE(share))


def ended(cut: Estimate, seconds: Estimate, slowest: Estimate, at_end: float = 0.0) -> str:
    """The severity of these numbers, of ten steps of which the last two have a share ``at_end``."""
    numbers = results.GenerationNumbers(step=None, frac_truncated=cut, seconds=seconds, slowest_over_mean=slowest)
    steps = [replace(numbers, step=step, frac_truncated=SURE(at_end * (step > 8))) for step in range(1, 11)]
    generation = results.Generation(overall=numbers, by_step=tuple(steps) if at_end else (numbers,))
    return policy.generation_section(replace(UNREAD, logged=results.LoggedPolicy(generation=generation))).severity


def entropy(mean: Estimate, trend: Estimate) -> str:
    numbers = results.EntropyNumbers(step=1, mean=mean)
    logged = results.LoggedPolicy(entropy=results.PolicyEntropy(overall=numbers, by_step=(numbers,), trend=trend))
    return policy.entropy_section(replace(UNREAD, logged=logged)).severity


def ending(difference: Estimate) -> PassAtKComparison:
    comparison = passk_report().comparison
    return replace(comparison, rows=(*comparison.rows[:-1], replace(comparison.rows[-1], difference=difference)))


SAMPLER = run_report().logged.sampler
UNREAD = inputs_of(run_of(group_of([1, 0])))


@pytest.mark.parametrize(
    ("judge", "numbers", "severity"),
    [
        (dead_severity, [between(0.51, 0.6, 0.7)], "problem"),
        (dead_severity, [between(0.4, 0.6, 0.7)], "look"),
        (dead_severity, [SURE(0.25)], "look"),
        (dead_severity, [between(0.1, 0.24, 0.6)], "fine"),
        (dead_severity, [SURE(0.1), SURE(0.3)], "look"),
        (dead_severity, [SURE(0.1), between(0.45, 0.6, 0.8)], "look"),
        (dead_severity, [SURE(0.1), between(0.55, 0.6, 0.8)], "problem"),
        (dead_severity, [UNDEFINED], "unknown"),
        (loss._verdict, [Counter({"not finite": 1, "learning": 9}), (), UNREAD, ""], "problem"),
        (loss._verdict, [Counter({"suspect": 1, "learning": 9}), (), UNREAD, ""], "problem"),
        (loss._verdict, [Counter({"dead batch": 1, "learning": 9}), (), UNREAD, ""], "look"),
        (loss._verdict, [Counter({"dead batch": 1, "learning": 29}), (), UNREAD, ""], "fine"),
        (loss._verdict, [Counter({"other terms": 1, "learning": 9}), (), UNREAD, ""], "look"),
        (loss._verdict, [Counter({"on-policy": 1, "learning": 9}), (), UNREAD, ""], "fine"),
        (agreement._verdict, [SAMPLER, sampled(SURE(0.06), 1.0)], "problem"),
        (agreement._verdict, [SAMPLER, sampled(SURE(0.02), 1.0)], "look"),
        (agreement._verdict, [SAMPLER, sampled(SURE(0.001), 0.2)], "look"),
        (agreement._verdict, [SAMPLER, sampled(SURE(0.001), 0.9)], "fine"),
        (agreement._verdict, [SAMPLER, sampled(UNDEFINED, 1.0)], "unknown"),
        (agreement._verdict, [replace(SAMPLER, is_identical=True), sampled(SURE(0.02), 1.0)], "unknown"),
        (entropy, [UNDEFINED, UNDEFINED], "problem"),
        (entropy, [SURE(1.0), between(-0.9, -0.7, -0.1)], "look"),
        (entropy, [SURE(1.0), between(-0.9, -0.6, -0.1)], "fine"),
        (entropy, [SURE(1.0), between(-0.9, -0.7, 0.1)], "fine"),
        (ended, [UNDEFINED, UNDEFINED, UNDEFINED], "unknown"),
        (ended, [UNDEFINED, UNDEFINED, SURE(4.0)], "unknown"),
        (ended, [SURE(0.2), UNDEFINED, UNDEFINED], "look"),
        (ended, [UNDEFINED, SURE(1.0), SURE(4.0)], "look"),
        (ended, [SURE(0.05), SURE(1.0), SURE(2.0)], "fine"),
        (ended, [SURE(0.05), UNDEFINED, UNDEFINED, 0.2], "look"),
        (signal._verdict, [None], "unknown"),
        (signal._verdict, [ending(between(-0.3, -0.2, -0.1))], "problem"),
        (signal._verdict, [ending(between(-0.3, -0.2, 0.1))], "unknown"),
    ],
)
def test_numbers_decide(judge: Callable[..., Any], numbers: list[Any], severity: str) -> None:
    assert severity in (verdict := judge(*numbers), verdict[0])  # alone, or with its advice


@pytest.mark.parametrize(("scale", "severity"), [(1.0, "look"), (0.2, "fine")])
def test_one_rollout_that_carries_much(scale: float, severity: str) -> None:
    gram = gram_of([[scale], *[[0.2]] * 7], ["0/a"] * 8)
    assert contributions_section(inputs_of(run_of(group_of([1] * 8, prompt="a")), grams=[gram])).severity == severity


@pytest.mark.parametrize(("lengths", "severity"), [((9, 2), "look"), ((5, 5), "fine")])
def test_lengths_that_are_rewarded(lengths: tuple[int, int], severity: str) -> None:
    written = [
        with_fields(
            group_of([1, 0, 1, 0], prompt=str(n)),
            completion=["x" * (lengths[sample % 2] + sample // 2 * (n % 2)) for sample in range(4)],
        )
        for n in range(12)
    ]
    assert length_section(inputs_of(run_of(*written))).severity == severity


@pytest.mark.parametrize(("second", "severity"), [([1, 1], "look"), ([1, 0], "fine")])
def test_a_reward_function_that_adds_nothing(second: list[float], severity: str) -> None:
    total = [reward + other for reward, other in zip([1, 0], second, strict=True)]
    run = run_of(group_of(total, functions={"a": [1, 0], "b": second}))
    assert rewards_section(inputs_of(run, degeneracy=degeneracy_of_run(run))).severity == severity


@pytest.mark.parametrize(
    ("rewards", "kl", "severity"), [([0, 0], 0.0, "look"), ([1, 0], 0.6, "look"), ([1, 0], 0.4, "fine")]
)
def test_diluted_losses(rewards: list[float], kl: float, severity: str) -> None:
    run = run_of(group_of(rewards))
    gram = gram_of([[1.0], [2.0]], ["0/p"] * 2, parts={"kl": (kl, 0.0)})
    assert loss_scale_section(inputs_of(run, degeneracy=degeneracy_report(), grams=[gram])).severity == severity
