"""A single result answers with the sections that the page has of it."""

import pytest
from msgspec.structs import replace

from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.diagnostics.passk.measure import pass_at_k_of_samples
from gradscope.diagnostics.report.of_result import sections_of
from gradscope.diagnostics.report.sections.signal import coverage_section, signal_section
from gradscope.results.report import ReportSection
from tests.diagnostics.made_up_runs import group_of, run_of, samples
from tests.diagnostics.report.sections.made_up_inputs import inputs_of
from tests.render import examples
from tests.render.examples import comparison, run_report

RUN = run_of(*(group_of([1.0, 0.0], step=step, prompt=f"p{step}") for step in (1, 2)))


def test_degeneracy_has_the_section_of_the_page_without_its_command() -> None:
    report = degeneracy_of_run(RUN)
    (section,) = sections_of(report)
    assert section.command == ""
    assert section == replace(signal_section(inputs_of(RUN, degeneracy=report)), command="")


def test_pass_at_k_says_nothing_of_single_problems_that_only_the_samples_tell() -> None:
    before, after = (
        samples("before", {"a": [1, 1, 0], "b": [1, 0, 0]}),
        samples("after", {"a": [1, 1, 1], "b": [0, 0, 0]}),
    )
    report = pass_at_k_of_samples([before, after])
    (section,) = sections_of(report)
    page = coverage_section(inputs_of(RUN, passk=report, samples=(before, after)))
    assert section.findings == page.findings[: len(section.findings)]
    assert not any("alone solved" in finding for finding in section.findings)
    assert any("alone solved" in finding for finding in page.findings)
    assert section.tables == page.tables[: len(section.tables)]


def test_a_rank_shows_the_largest_logged_groups_of_each_step() -> None:
    report = examples.rank_report()
    (section,) = sections_of(report)
    (table,) = section.tables
    logged = [point for point in report.curve if point.advantage == "logged" and point.effective_rank.is_defined]
    for step, *_, size in (row[:4] for row in table.rows):
        assert size == max(point.group_size for point in logged if point.step == step)


def test_other_results_show_their_findings() -> None:
    weights = examples.weight_report()
    assert sections_of(weights)[0].findings == weights.findings
    rollouts = examples.rank_report()
    rest = replace(rollouts, curve=tuple(point for point in rollouts.curve if point.advantage != "logged"))
    assert sections_of(rest)[0].findings == rollouts.findings
    assert sections_of(examples.replay_report())[0].headline == (
        "Replay: mismatch at 1 of 20 steps; 3 match; 16 cannot."
    )
    assert sections_of(examples.claims_report())[0].headline == examples.claims_report().findings[0]


@pytest.mark.parametrize(("outcome", "severity"), [("pass", "fine"), ("fail", "problem"), ("unknown", "unknown")])
def test_a_check_is_as_urgent_as_its_outcome(outcome: str, severity: str) -> None:
    (section,) = sections_of(replace(examples.check_report(), outcome=outcome))
    assert section.severity == severity
    first, *rest = section.findings
    assert first == f"Check: {outcome}. 1 of 3 requirements hold."
    assert [finding.split()[0] for finding in rest] == ["frac_reward_zero_std", "pass@4"]
    written = replace(examples.check_report(), verdicts=(), outcome="pass")
    assert sections_of(written)[0].headline == "Check: pass. The baseline is written."


def test_pages_and_comparisons_keep_their_own() -> None:
    report = run_report()
    assert sections_of(report) == report.by_severity
    undecided = [ReportSection(name=name, findings=("?",)) for name in ("replay", "length", "coverage", "claims")]
    ranked = replace(report, sections=(*undecided, ReportSection(name="signal", findings=("!",), severity="fine")))
    assert [section.name for section in ranked.by_severity if section.severity == "unknown"] == [
        "coverage", "replay", "length", "claims"
    ]  # fmt: skip
    assert sections_of(comparison())[0].findings == comparison().findings
    with pytest.raises(TypeError, match="no command finds a dict"):
        sections_of({})
