from dataclasses import replace

import pytest

from gradscope.estimate import Estimate
from gradscope.findings.spike import spike_findings
from gradscope.results.norms import SpikeReport
from tests.render.examples import spike_report


def said(report: SpikeReport) -> tuple[str, ...]:
    return spike_findings(report).findings


def test_a_step_that_stands_out_is_said_with_what_makes_it() -> None:
    sentences = said(spike_report())
    assert sentences[0] == (
        "Step 37 stands out: grad_norm 14.2, 11.8 times the 1.2 of the 50 steps around it, 6.1 standard deviations, "
        "where chance reaches 3.7 in one run of twenty."
    )
    assert sentences[1].startswith("Without rollout 3 of group ")
    assert "the norm would be 5.3 instead of 14.2, with the other 3 weighted as before." in sentences[1]
    assert sentences[2] == ("A few rollouts do not make it: without 1 of 4 the norm is 5.3, the steps around have 1.2.")
    assert "(83.0 %) mostly repeat runs of four tokens; the median of the step is 4.0 %." in sentences[3]
    assert sentences[4] == "Of the squared norm, lm_head.weight 61.0 % (of the parameters 6.0 %)."


def test_a_norm_that_comes_down_is_said_to() -> None:
    report = spike_report()
    gone = (replace(report.removals[0], grad_norm=1.1),)
    assert "Without 1 of 4 rollouts it is at most that of the steps around it." in said(replace(report, removals=gone))


def test_nothing_is_made_of_a_step_that_is_as_the_others() -> None:
    report = spike_report()
    quiet = replace(report.metrics[0], value=Estimate.exact(1.1), deviation=Estimate.exact(-0.2), is_unusual=False)
    calm = replace(report, metrics=(quiet,), grad_norm=Estimate.exact(1.1), tensors=())
    assert said(calm)[0].startswith("No step stands out. The furthest is step 37: grad_norm 1.1")
    assert said(replace(calm, was_named=True))[0].startswith("Step 37 does not stand out: ")
    assert not any("A few rollouts" in sentence for sentence in said(calm))


def test_what_cannot_be_told_has_its_reason() -> None:
    report = replace(spike_report(), removals=(), tensors=(), rollouts=())
    none = Estimate.undefined_because("3 other steps have the number, and a spread needs 8")
    alone = replace(report.metrics[0], typical=none, deviation=none, by_chance=none, is_unusual=False)
    assert said(replace(report, metrics=(alone,)))[0] == (
        "It is unknown whether step 37 stands out: 3 other steps have the number, and a spread needs 8."
    )
    assert "no gradient norm, KL or loss was logged at it" in said(replace(report, metrics=()))[0]
    broken = replace(report.metrics[0], value=Estimate.undefined_because("it was logged as no finite number"))
    assert said(replace(report, metrics=(broken,)))[0] == (
        "Step 37 is broken: grad_norm was logged as NaN or infinity."
    )
    gone = replace(report, grad_norm=Estimate.undefined_because("the weights are gone"))
    assert said(gone)[1] == "Its gradient could not be recomputed: the weights are gone."


@pytest.mark.parametrize(("norm", "is_other"), [(14.2, False), (14.21, False), (14.3, True)])
def test_another_gradient_than_the_trainers_is_said(norm: float, is_other: bool) -> None:
    sentences = said(replace(spike_report(), grad_norm=Estimate.exact(norm)))
    assert any("another gradient than the trainer's" in sentence for sentence in sentences) == is_other


def test_a_gradient_of_zero_is_said() -> None:
    report = replace(spike_report(), grad_norm=Estimate.exact(0.0), removals=(), tensors=())
    assert "Its gradient is zero: none of 4 rollouts moves anything." in said(report)
