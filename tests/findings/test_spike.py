"""Sentences about steps that stand out."""

import pytest
from msgspec.structs import replace

from gradscope.estimate import Estimate
from gradscope.findings.spike import spike_findings
from gradscope.results.norms import SpikeReport
from tests.render.examples import spike_report


def findings_of(report: SpikeReport) -> tuple[str, ...]:
    return spike_findings(report).findings


def test_a_step_that_stands_out_is_said_with_what_makes_it() -> None:
    sentences = findings_of(spike_report())
    assert sentences[0] == (
        "Step 37 stands out: grad_norm 14.2, 11.8 times the 1.2 of the 50 steps around it, 6.1 standard deviations, "
        "where chance reaches 3.7 in one run of twenty."
    )
    assert sentences[1].startswith("Without rollout 3 of group ")
    assert "the norm would be 5.3 instead of 14.2, with the other 3 weighted as before." in sentences[1]
    assert sentences[2] == ("A few rollouts do not make it: without 1 of 4 the norm is 5.3, the steps around have 1.2.")
    assert "(83.0 %) mostly repeat runs of four tokens; the median of the step is 4.0 %." in sentences[3]
    assert sentences[4] == "Of the squared norm, lm_head.weight 61.0 % (of the parameters 6.0 %)."
    # a norm that comes down is said to
    report = spike_report()
    gone = (replace(report.removals[0], grad_norm=1.1),)
    assert "Without 1 of 4 rollouts it is at most that of the steps around it." in findings_of(
        replace(report, removals=gone)
    )


def test_nothing_is_made_of_a_step_that_is_as_the_others() -> None:
    report = spike_report()
    quiet = replace(report.metrics[0], value=Estimate.exact(1.1), deviation=Estimate.exact(-0.2), is_unusual=False)
    calm = replace(report, metrics=(quiet,), grad_norm=Estimate.exact(1.1), tensors=())
    assert findings_of(calm)[0].startswith("No step stands out. The furthest is step 37: grad_norm 1.1")
    assert findings_of(replace(calm, was_named=True))[0].startswith("Step 37 does not stand out: ")
    assert not any("A few rollouts" in sentence for sentence in findings_of(calm))


@pytest.mark.parametrize(("value", "deviation", "may_be"), [(33.0, 10.2, True), (33.0, 5.0, False), (5.0, 10.2, False)])
def test_many_times_the_level_is_not_called_calm(value: float, deviation: float, may_be: bool) -> None:
    """A norm of 33 times its neighbors was "No step stands out", below the bound of a heavy tail."""
    exact = Estimate.exact
    estimates = {"deviation": exact(deviation), "by_chance": exact(12.3), "is_unusual": False}
    metric = replace(spike_report().metrics[0], value=exact(value), typical=exact(1.0, num_units=50), **estimates)
    report = replace(spike_report(), metrics=(metric,), grad_norm=exact(value))
    for named in (report, replace(report, was_named=True)):
        assert findings_of(named)[0].startswith("Step 37 may stand out: ") == may_be


def test_what_cannot_be_told_has_its_reason() -> None:
    report = replace(spike_report(), removals=(), tensors=(), rollouts=())
    unknown = Estimate.undefined_because("3 other steps have the number, and a spread needs 8")
    metric = replace(report.metrics[0], typical=unknown, deviation=unknown, by_chance=unknown, is_unusual=False)
    assert findings_of(replace(report, metrics=(metric,)))[0] == (
        "It is unknown whether step 37 stands out: 3 other steps have the number, and a spread needs 8."
    )
    assert "no gradient norm, KL or loss was logged at it" in findings_of(replace(report, metrics=()))[0]
    broken = replace(report.metrics[0], value=Estimate.undefined_because("it was logged as no finite number"))
    assert findings_of(replace(report, metrics=(broken,)))[0] == (
        "Step 37 is broken: grad_norm was logged as NaN or infinity."
    )
    assert "grad_norm and grad_norm were logged" in findings_of(replace(report, metrics=(broken, broken)))[0]
    gone = replace(report, grad_norm=Estimate.undefined_because("the weights are gone"))
    assert findings_of(gone)[1] == "Its gradient could not be recomputed: the weights are gone."


@pytest.mark.parametrize(("norm", "is_other"), [(14.2, False), (14.21, False), (14.3, True)])
def test_another_gradient_than_the_trainers_is_said(norm: float, is_other: bool) -> None:
    sentences = findings_of(replace(spike_report(), grad_norm=Estimate.exact(norm)))
    assert any("another gradient than the trainer's" in sentence for sentence in sentences) == is_other


def test_a_gradient_of_zero_is_said() -> None:
    report = replace(spike_report(), grad_norm=Estimate.exact(0.0), removals=(), tensors=())
    assert "Its gradient is zero: none of 4 rollouts moves anything." in findings_of(report)
