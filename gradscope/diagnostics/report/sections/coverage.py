"""Is pass@k falling while pass@1 rises, and on which problems was coverage lost?"""

from __future__ import annotations

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.passk.samples import Samples
from gradscope.diagnostics.report.sections.inputs import ReportInputs, Unavailable, missing_section
from gradscope.findings.passk import reach_finding
from gradscope.results.passk import PassAtKComparison, PassAtKReport
from gradscope.results.report import Cell, Chart, Column, ReportSection, ReportTable, Series, Severity

NAME = "coverage"
QUESTION = "Is pass@k falling while pass@1 rises?"
MOST_PROBLEMS = 25
"""Problems listed by name; the finding counts all of them."""


def coverage_section(inputs: ReportInputs) -> ReportSection:
    """pass@k before and after, the paired difference, and the problems that are no longer solved."""
    report = inputs.passk
    if isinstance(report, Unavailable):
        return missing_section(NAME, QUESTION, report)
    lost = _lost(inputs.samples)
    return ReportSection(
        name=NAME,
        question=QUESTION,
        findings=(*_findings(report), *_lost_findings(report, lost)),
        severity=_severity(report.comparison),
        meaning=metric("pass_at_k").meaning,
        next_step=_next_step(report.comparison),
        charts=(_chart(report),),
        tables=(_by_k(report), *_differences(report.comparison), *_problems(inputs.samples, lost)),
    )


def _findings(report: PassAtKReport) -> tuple[str, ...]:
    """The answer to the question first."""
    answer = () if report.comparison is None else (reach_finding(report.comparison),)
    return (*answer, *(finding for finding in report.findings if finding not in answer))


def _lost(samples: tuple[Samples, ...]) -> list[tuple[str, str, str]]:
    """Problems with a correct sample in the first file and none in the second, with both counts."""
    if len(samples) < 2:
        return []
    after = _counts(samples[1])
    return [
        (prompt, f"{c}/{n}", f"{after[prompt][0]}/{after[prompt][1]}")
        for prompt, (c, n) in _counts(samples[0]).items()
        if c > 0 and prompt in after and after[prompt][0] == 0
    ]


def _counts(samples: Samples) -> dict[str, tuple[int, int]]:
    counted = zip(samples.prompts, samples.num_correct.tolist(), samples.num_samples.tolist(), strict=True)
    return {prompt: (correct, num_samples) for prompt, correct, num_samples in counted}


def _lost_findings(report: PassAtKReport, lost: list[tuple[str, str, str]]) -> tuple[str, ...]:
    comparison = report.comparison
    if comparison is None:
        return ()
    solved = comparison.solved
    return (
        f"Of {comparison.num_prompts} prompts, {len(lost)} that {comparison.first} solved are no longer solved, and "
        f"{solved.second_only} are solved that were not.",
    )


def _severity(comparison: PassAtKComparison | None) -> Severity:
    """Samples of one time have no direction, which is what was asked."""
    if comparison is None:
        return "unknown"
    return "problem" if _falls(comparison) else "fine"


def _falls(comparison: PassAtKComparison) -> bool:
    """Whether coverage surely falls at the largest k."""
    differences = [row.difference for row in comparison.rows if row.difference.value is not None]
    return len(differences) > 1 and differences[-1].side_of_zero < 0


def _next_step(comparison: PassAtKComparison | None) -> str:
    if comparison is None:
        return (
            "Sample the same prompts before and after training, and pass both files with --samples: one file alone has "
            "no direction."
        )
    if _falls(comparison):
        return (
            "Coverage fell at the largest k: train with more exploration (temperature, entropy, larger groups) or on "
            "harder prompts, and stop before pass@1 saturates."
        )
    return "No loss of coverage is certain at the largest k; more prompts or samples would narrow the interval."


def _chart(report: PassAtKReport) -> Chart:
    budgets = sorted({row.k for table in report.tables for row in table.rows})
    series = []
    for table in report.tables:
        values = {row.k: row.pass_at_k.value for row in table.rows}
        series.append(Series(name=table.name, values=tuple(values.get(k) for k in budgets)))
    return Chart(
        title="pass@k",
        kind="lines",
        places=tuple(budgets),
        series=tuple(series),
        x_label="k",
        y_label="share of prompts solved",
        y_range=(0.0, 1.0),
    )


def _by_k(report: PassAtKReport) -> ReportTable:
    rows: list[tuple[Cell, ...]] = [
        (table.name, row.k, row.pass_at_k, row.pass_hat_k) for table in report.tables for row in table.rows
    ]
    return ReportTable(
        caption=f"pass@k = {metric('pass_at_k').formula}; pass^k = {metric('pass_hat_k').formula}",
        columns=(
            Column(title="samples"),
            Column(title="k", style="count"),
            Column(title="pass@k", style="share"),
            Column(title="pass^k", style="share"),
        ),
        rows=tuple(rows),
    )


def _differences(comparison: PassAtKComparison | None) -> tuple[ReportTable, ...]:
    if comparison is None:
        return ()
    return (
        ReportTable(
            caption=f"{comparison.second} minus {comparison.first}, paired by prompt",
            columns=(
                Column(title="k", style="count"),
                Column(title="difference", style="gap"),
                *(Column(title=name, style="count") for name in ("first ahead", "second ahead", "ties")),
            ),
            rows=tuple((row.k, row.difference, row.first_wins, row.second_wins, row.ties) for row in comparison.rows),
        ),
    )


def _problems(samples: tuple[Samples, ...], lost: list[tuple[str, str, str]]) -> tuple[ReportTable, ...]:
    if not lost:
        return ()
    shown = f", the first {MOST_PROBLEMS}" if len(lost) > MOST_PROBLEMS else ""
    return (
        ReportTable(
            caption=f"Problems that are no longer solved ({len(lost)}{shown}); correct samples before and after",
            columns=(Column(title="problem"), Column(title=samples[0].name), Column(title=samples[1].name)),
            rows=tuple(lost[:MOST_PROBLEMS]),
        ),
    )
