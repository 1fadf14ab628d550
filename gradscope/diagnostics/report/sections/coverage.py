"""Is pass@k falling while pass@1 rises, and on which problems was coverage lost?"""

from __future__ import annotations

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.passk.measure import MARGIN, Samples
from gradscope.diagnostics.report.sections.inputs import ReportInputs, Unavailable, missing_section
from gradscope.render.views.view import Column, table_of_cells, tabulate
from gradscope.results.passk import PassAtKComparison, PassAtKReport
from gradscope.results.report import Chart, ReportSection, Series, Severity

MAX_PROBLEMS = 25  # problems listed by name; the finding counts all of them
_PAIRED = (
    Column("k", "k", "count"),
    Column("difference", "difference", "gap"),
    Column("first ahead", "first_wins", "count"),
    Column("second ahead", "second_wins", "count"),
    Column("ties", "ties", "count"),
)


def coverage_section(inputs: ReportInputs) -> ReportSection:
    """pass@k before and after, the paired difference, and the problems that only the first samples solve."""
    report = inputs.passk
    if isinstance(report, Unavailable):
        return missing_section("coverage", report)
    return coverage_answer(report, inputs.samples)


def coverage_answer(report: PassAtKReport, samples: tuple[Samples, ...] = ()) -> ReportSection:
    """The same for an existing estimate; only the samples themselves show which problems were lost."""
    comparison, lost = report.comparison, _lost(samples)
    of_problems: tuple[str, ...] = ()
    tables = tabulate(
        f"pass@k = {metric('pass_at_k').formula}; pass^k = {metric('pass_hat_k').formula}",
        (
            Column("samples", lambda row: row[0].name),
            Column("k", lambda row: row[1].k, "count"),
            Column("pass@k", lambda row: row[1].pass_at_k, "share"),
            Column("pass^k", lambda row: row[1].pass_hat_k, "share"),
        ),
        [(table, row) for table in report.tables for row in table.rows],
    )
    if comparison is not None:
        tables += tabulate(f"{comparison.second} minus {comparison.first}, paired by prompt", _PAIRED, comparison.rows)
    if comparison is not None and samples:
        of_problems = (
            f"Of {comparison.num_prompts} prompts the samples of {comparison.first} alone solved {len(lost)}, those of "
            f"{comparison.second} alone {comparison.solved.second_only}.",
        )
    if lost:
        shown = f", the first {MAX_PROBLEMS}" if len(lost) > MAX_PROBLEMS else ""
        which = f"Problems of which {samples[0].name} has a correct sample and {samples[1].name} none"
        caption = f"{which} ({len(lost)}{shown}), also by chance where few were correct; correct samples in each"
        titles = ("problem", samples[0].name, samples[1].name)
        tables += table_of_cells(caption, [(title, "text") for title in titles], lost[:MAX_PROBLEMS])
    severity, advice = _verdict(comparison)
    budgets = tuple(sorted({row.k for table in report.tables for row in table.rows}))
    curves = [(table.name, {row.k: row.pass_at_k.value for row in table.rows}) for table in report.tables]
    return ReportSection(
        name="coverage",
        findings=(*report.findings, *of_problems),
        severity=severity,
        meaning=metric("pass_at_k").meaning,
        next_step=advice,
        charts=(
            Chart(
                title="pass@k",
                kind="lines",
                places=budgets,
                series=tuple(Series(name=name, values=tuple(map(values.get, budgets))) for name, values in curves),
                x_label="k",
                y_label="share of prompts solved",
                y_range=(0.0, 1.0),
            ),
        ),
        tables=tables,
    )


def _lost(samples: tuple[Samples, ...]) -> list[tuple[str, str, str]]:
    """Problems with a correct sample in the first file and none in the second, with both counts."""
    if len(samples) < 2:
        return []
    before, after = (
        dict(zip(of.prompts, zip(of.num_correct.tolist(), of.num_samples.tolist(), strict=True), strict=True))
        for of in samples[:2]
    )
    return [
        (prompt, f"{correct}/{number}", f"0/{after[prompt][1]}")
        for prompt, (correct, number) in before.items()
        if correct > 0 and prompt in after and after[prompt][0] == 0
    ]


def _verdict(comparison: PassAtKComparison | None) -> tuple[Severity, str]:
    """Whether coverage surely falls at the largest k; samples of one time have no direction."""
    if comparison is None:
        return "unknown", (
            "Sample the same prompts before and after training, and pass both files with --samples: one file alone has "
            "no direction."
        )
    differences = [row.difference for row in comparison.rows if row.difference.value is not None]
    if len(differences) > 1 and differences[-1].side_of_zero < 0:
        return "problem", (
            "Coverage fell at the largest k: train with more exploration (temperature, entropy, larger groups) or on "
            "harder prompts, and stop before pass@1 saturates."
        )
    excluded = bool(differences) and differences[-1].interval is not None and differences[-1].ends[0] > -MARGIN
    return "fine" if excluded else "unknown", (
        f"No loss of coverage is certain at the largest k, and one of {MARGIN:g} is "
        f"{'excluded' if excluded else 'possible'}; more prompts or samples would narrow the interval."
    )
