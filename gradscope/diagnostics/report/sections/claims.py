"""Which papers' claims does this run bear out?

Claims are judged by what the report has computed already. Those about rows of tokens, about weights and about hidden
states are left to `gradscope claims`.
"""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from gradscope.copies import copy_of
from gradscope.diagnostics.claims.evidence import Evidence
from gradscope.diagnostics.claims.measure import claims_of
from gradscope.diagnostics.claims.registry import CLAIMS
from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.diagnostics.report.sections.inputs import ReportInputs, Unavailable
from gradscope.render.views.view import Column, tabulate
from gradscope.results.report import ReportSection
from gradscope.results.verdicts import ClaimsReport


def claims_section(inputs: ReportInputs) -> ReportSection:
    """A row a claim: the number, what it is held against, and the verdict."""
    run, results = inputs.run, {"degeneracy": inputs.degeneracy, "passk": inputs.passk}
    evidence = Evidence(
        run=run,
        steps=tuple(gram.step for gram in inputs.grams),
        no_gradients=inputs.no_grams.reason.rstrip("."),
        is_restricted=True,
        cache={name: result for name, result in results.items() if not isinstance(result, Unavailable)},
    )
    if inputs.parts.weighed:
        evidence.cache["weighed_tokens"] = inputs.parts.weighed
    if inputs.grams:
        from gradscope.diagnostics.rank.measure import Collected, examine_step

        of_rollouts = Collected(source=run.source, kind="rollout")
        for step, gram in zip(evidence.steps, inputs.grams, strict=True):
            groups, weights = run.groups_at(step), run.weights_before(step)
            measured = MeasuredStep(step=step, groups=groups, weights=weights, gram=gram, reason=None)
            examine_step(run, measured, evidence.request("rollout"), of_rollouts)
        evidence.cache["kinds"] = {"rollout": of_rollouts}
    report = claims_of(evidence)
    files = {samples.source.path: copy_of(samples.source.path) for samples in inputs.samples}
    outside_run = [name for name, file in files.items() if run.path not in (file, *file.parents)]
    samples = [word for name in outside_run for word in ("--samples", name)]  # those of the run itself are found anyway
    answer = claims_answer(report, inputs.command("claims", *samples))
    more = (
        f"gradscope claims measures {len(CLAIMS) - len(report.claims)} more, which need rows of tokens, weights or "
        "hidden states, or later weights of every step, that this page does not look at."
    )
    next_step = answer.next_step if inputs.grams or not inputs.no_grams.hint else inputs.no_grams.hint
    return replace(answer, findings=(*answer.findings, more), next_step=next_step)


def claims_answer(report: ClaimsReport, command: str = "") -> ReportSection:
    """The same of claims that were judged already; ``command`` looks closer."""
    next_step = "Repeat the run with another seed: a verdict is about this run alone."
    if unsettled := Counter(row.settle for row in report.claims if row.verdict == "cannot_tell"):
        (settle, number), *remaining = unsettled.most_common()
        rest = " The command says what would settle the others." if remaining else ""
        next_step = f"What would settle {number} of the {unsettled.total()} that cannot be told: {settle}{rest}"
    steps = f"gradients of steps {', '.join(map(str, report.steps))}" if report.steps else "no gradient was recomputed"
    return ReportSection(
        name="claims",
        findings=report.findings,
        severity="fine" if any(claim.verdict != "cannot_tell" for claim in report.claims) else "unknown",
        meaning="A claim is supported or contradicted where the whole 95 % interval says so. It was made about other "
        "models and tasks, and may hold there where it does not here.",
        next_step=next_step,
        command=command,
        tables=tabulate(
            f"Claims; {steps}. Beside each number: what chance gives, or what the claim compares it with",
            (
                Column("claim", lambda row: f"{row.claim} {row.source.partition(' (')[0]}"),
                Column("what is measured", "metric"),
                Column("measured", "estimate", "rank"),
                Column("beside", "null", "rank"),
                Column("verdict", "words"),
            ),
            report.claims,
        ),
    )
