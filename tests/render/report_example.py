"""A report made by hand: every kind of chart and cell, a section without data, and hostile text everywhere."""

from __future__ import annotations

from gradscope.estimate import Estimate
from gradscope.metrics.sampler import NAMES
from gradscope.results.logged import LagShare, LoggedPolicy, MismatchNumbers, SamplerMismatch, Staleness, TokenMismatch
from gradscope.results.report import (
    Chart,
    KeyNumber,
    ReadGroup,
    ReadRollout,
    ReportColumn,
    ReportSection,
    ReportTable,
    RunReport,
    Series,
    ShadedText,
    ShadedToken,
)
from tests.render.examples import HOSTILE, source

ATTACK = (
    "<script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">"
    "\"' onmouseover='document.title=1' </style></title>{{7*7}}"
)
"""Text as a log may hold it, which must stay text."""


def run_report() -> RunReport:
    steps = tuple(float(step) for step in range(1, 13))
    falling = tuple(1 / step for step in steps)
    return RunReport(
        source=source(),
        name=f"runs/{HOSTILE}",
        sections=(
            ReportSection(
                name="signal",
                question="How much of the batch carries a gradient?",
                findings=(f"Half of it, says {ATTACK}.", "The rest does not."),
                meaning=f"A group is dead {ATTACK}.",
                next_step="Mix difficulties.",
                severity="look",
                command=f"gradscope degeneracy '{ATTACK}'",
                charts=(
                    Chart(
                        title=f"Lines {ATTACK}",
                        kind="lines",
                        places=steps,
                        series=(
                            Series(name=ATTACK, values=falling),
                            Series(name="gaps", values=(0.5, None, 0.4, *falling[3:])),
                        ),
                    ),
                    Chart(
                        title="Shares",
                        kind="stack",
                        places=steps,
                        series=tuple(Series(name=name, values=(0.2,) * 12) for name in ("fail", "pass", "tied")),
                        y_range=(0.0, 1.0),
                    ),
                    Chart(
                        title="Parts",
                        kind="bars",
                        places=(ATTACK, "second"),
                        series=(Series(name="part", values=(0.7, -0.2)),),
                        x_label="share",
                    ),
                ),
                texts=(
                    ShadedText(
                        title=f"1:1 {HOSTILE}",
                        tokens=(
                            ShadedToken(text=ATTACK, strength=1.0, is_raised=True, note=f"norm 2 {ATTACK}"),
                            ShadedToken(text="a\n", strength=0.3, is_raised=False, note="norm 0.6"),
                            ShadedToken(text="plain", strength=0.0, is_raised=True, note="norm 0"),
                            ShadedToken(text="masked", strength=None, is_raised=True, note="not measured"),
                        ),
                    ),
                ),
                tables=(
                    ReportTable(
                        caption=f"Rollouts {ATTACK}",
                        columns=(
                            ReportColumn(title="step", style="count"),
                            ReportColumn(title="share", style="share"),
                            ReportColumn(title="text"),
                        ),
                        rows=(
                            (10, Estimate(value=0.25, low=0.1, high=0.4, num_units=8), f"one\n{ATTACK}"),
                            (9, Estimate.undefined_because(f"no reward in {HOSTILE}"), "two"),
                            (100, None, None),
                        ),
                    ),
                    ReportTable(
                        caption="Each step",
                        by_step=True,
                        columns=(ReportColumn(title="step", style="count"), ReportColumn(title="kind")),
                        rows=((1, "learning"), (2, f"dead {ATTACK}")),
                    ),
                ),
            ),
            ReportSection(
                name="replay", question="Does the log replay?", findings=("It does not.",), severity="problem"
            ),
            ReportSection(name="coverage", question="Is pass@k falling?", missing=f"No samples in {ATTACK}. Log them."),
        ),
        recomputed=(1, 21),
        strip=(
            KeyNumber(
                name="signal",
                title=f"dead {ATTACK}",
                value=Estimate(value=0.25, low=0.1, high=0.4, num_units=8),
                style="share",
                note=f"of 8 {ATTACK}",
                places=(1, 2, 3),
                course=(0.5, None, 0.25),
            ),
            KeyNumber(
                name="coverage",
                title="pass@1 → pass@k",
                value=Estimate.undefined_because(f"no samples in {HOSTILE}"),
                then=Estimate.undefined_because("no samples"),
                style="share",
            ),
        ),
        rollouts=(
            ReadGroup(
                step=1,
                group_id="1:1",
                kind="mixed",
                prompt=f"Add {ATTACK}",
                rollouts=(
                    ReadRollout(sample=0, reward=1.0, advantage=0.7, share=0.4, completion=f"one {HOSTILE}"),
                    ReadRollout(sample=1, reward=None, advantage=None, share=None, completion=ATTACK),
                ),
            ),
            ReadGroup(
                step=21,
                group_id=f"21:{HOSTILE}",
                kind="all fail",
                prompt="two",
                rollouts=(ReadRollout(sample=0, reward=0.0, advantage=0.0, share=-0.1, completion="no\n  indent"),),
            ),
        ),
        logged=LoggedPolicy(
            sampler=SamplerMismatch(
                overall=MismatchNumbers(
                    step=None,
                    num_tokens=1200,
                    num_sequences=8,
                    **dict.fromkeys(NAMES, Estimate(value=0.5, low=0.4, high=0.6, num_units=8)),
                ),
                worst=(TokenMismatch(step=3, row=1, sequence=0, position=17, sampler=-0.25, trainer=-2.5),),
                set_aside={"a log-probability that is missing, NaN or infinite": 2},
            ),
            staleness=Staleness(
                by_lag=(
                    LagShare(
                        lag=1, num_rollouts=8, share=1.0, logprob_gap=Estimate.undefined_because("it was not logged")
                    ),
                )
            ),
            missing={"entropy": "the log has no entropy", "generation": f"nothing in {HOSTILE}"},
        ),
    )
