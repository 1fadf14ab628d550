from __future__ import annotations

from dataclasses import replace

from gradscope.findings.logprobs import logprob_findings
from gradscope.results.replay import LogprobDifference, StepReplay
from tests.render.examples import replay_report

STEPS = replay_report().steps


def step(index: int, *, frac_beyond: float, largest: float) -> StepReplay:
    difference = LogprobDifference(num_tokens=1500, mean=0.01, max=largest, frac_beyond=frac_beyond, bound=0.1)
    return replace(STEPS[index], logprob_difference=difference)


def test_small_differences_are_of_these_weights() -> None:
    (sentence,) = logprob_findings([step(0, frac_beyond=0.0, largest=0.02), step(1, frac_beyond=0.0, largest=0.05)])
    assert sentence.endswith("the largest difference of a token is 0.05 at 2 steps.")
    assert logprob_findings([step(0, frac_beyond=0.0, largest=0.02)])[0].endswith("0.02 at 1 step.")


def test_the_step_with_most_tokens_beyond_the_bound_is_named() -> None:
    steps = [step(0, frac_beyond=0.01, largest=9.0), step(4, frac_beyond=0.25, largest=2.0)]
    assert logprob_findings(steps) == (
        "At step 5 the sampler's logged log-probabilities differ from these weights' by more than 0.1 at 25.0% of "
        "1,500 tokens (mean 0.01, largest 2): other weights, another temperature or other kernels sampled them.",
    )


def test_without_logged_probabilities_nothing_is_said() -> None:
    assert logprob_findings(STEPS) == ()
