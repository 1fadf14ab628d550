"""loss = 0 or grad_norm = 0: healthy on-policy, a batch without signal, or a bug?

At the first update after sampling the ratio is 1 and group-mean advantages sum to zero, so the loss is (near) zero
while its gradient is not: a loss of zero says nothing. A gradient of zero is right where every group is dead and
nothing else is in the loss, and wrong where a group is live.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from gradscope.diagnostics.report.sections.inputs import ReportInputs, Unavailable, missing_section
from gradscope.diagnostics.report.sections.signal import dead_groups
from gradscope.diagnostics.spike.logged_course import courses_of, metric_at, outstanding_step
from gradscope.errors import InputError
from gradscope.findings.degeneracy import dead_group_advice
from gradscope.findings.spike import spike_headline
from gradscope.results.report import Chart, Column, ReportSection, ReportTable, Series, Severity
from gradscope.rollouts.groups import reward_table
from gradscope.rollouts.run import Run

NAME = "zero-loss"
QUESTION = "Is a loss or gradient norm of zero healthy, a dead batch, or a bug?"

_TINY_LOSS = 1e-6
_TINY_NORM = 1e-12

_KINDS = {
    "not finite": "the trainer logged NaN or infinity as loss or grad_norm, so what that update did is not known",
    "learning": "a gradient from live groups",
    "on-policy": "loss near zero with a gradient: healthy, the usual picture of on-policy training",
    "dead batch": "no gradient, and none was due: every group has equal rewards",
    "other terms": "a gradient although every group is dead: it comes from KL, entropy or another term",
    "suspect": "no gradient although a group has unequal rewards: masked completions, clipping, or a bug",
}
"""What a step can be, and what that says."""


def zero_loss_section(inputs: ReportInputs) -> ReportSection:
    """Loss and gradient norm of each step beside its live groups, and how many steps are of which kind."""
    run = inputs.run
    steps = [step for step in run.steps if "grad_norm" in run.metrics.get(step, {}) and step not in run.notes]
    if not steps:
        hint = "Log each step (logging_steps=1 in TRL) and keep trainer_state.json of the last checkpoint."
        return missing_section(
            NAME, QUESTION, Unavailable(reason="The log has no grad_norm that belongs to one step.", hint=hint)
        )
    table = reward_table(run.groups)
    live = Counter(table.step[~dead_groups(table)].tolist())
    kinds = {step: _kind(run.metrics[step], live[step]) for step in steps}
    counts, spike = Counter(kinds.values()), _spike(run)
    commands = ["replay"] * (counts["suspect"] > 0) + ["spike"] * len(spike)
    return ReportSection(
        name=NAME,
        question=QUESTION,
        findings=(*_findings(counts, kinds), *spike),
        severity=_severity(counts),
        meaning="At the first update after sampling, the advantages of a group sum to zero and the ratio is 1, so the "
        "loss is near zero even while the policy learns. Look at grad_norm, and at whether a group is live.",
        next_step=_next_step(counts, inputs),
        command=inputs.command(commands[0]) if commands else "",
        charts=tuple(
            Chart(
                title=title,
                kind="lines",
                places=tuple(steps),
                series=(Series(name=name, values=tuple(run.metrics[step].get(name) for step in steps), kind="logged"),),
                y_label=name,
            )
            for name, title in (("grad_norm", "Gradient norm, as logged"), ("loss", "Loss, as logged"))
            if any(name in run.metrics[step] for step in steps)
        ),
        tables=(_table(run, steps, live, Counter(table.step.tolist()), kinds),),
    )


def _spike(run: Run) -> tuple[str, ...]:
    """The step whose norm stands out, in one sentence; none where none does or one is none, which is said anyway."""
    courses = {name: course for name, course in courses_of(run).items() if name.rpartition("/")[2] == "grad_norm"}
    try:
        step = outstanding_step(courses)
    except InputError:
        return ()
    told = [metric_at(name, course, step, was_named=False) for name, course in courses.items()]
    is_told = all(one.value.is_defined and one.is_unusual for one in told)
    return (spike_headline(step, told, was_named=False),) if is_told else ()


def _kind(values: Mapping[str, float], num_live: int) -> str:
    if not all(math.isfinite(values[name]) for name in ("grad_norm", "loss") if name in values):
        return "not finite"
    if values["grad_norm"] <= _TINY_NORM:
        return "suspect" if num_live else "dead batch"
    if not num_live:
        return "other terms"
    return "on-policy" if abs(values.get("loss", 1.0)) <= _TINY_LOSS else "learning"


def _severity(counts: Counter[str]) -> Severity:
    if counts["not finite"] or counts["suspect"]:
        return "problem"
    return "look" if counts["dead batch"] or counts["other terms"] else "fine"


def _findings(counts: Counter[str], kinds: dict[int, str]) -> tuple[str, ...]:
    total = len(kinds)
    good = counts["learning"] + counts["on-policy"]
    odd, healthy = ("not finite", "suspect", "dead batch", "other terms"), ("on-policy",)

    def told(names: Sequence[str]) -> list[str]:
        first = {name: next((step for step, kind in kinds.items() if kind == name), None) for name in names}
        return [
            f"{counts[name]} of {total} steps (first: step {first[name]}): {_KINDS[name]}."
            for name in names
            if counts[name]
        ]

    return (*told(odd), f"{good} of {total} steps have a gradient from live groups.", *told(healthy))


def _next_step(counts: Counter[str], inputs: ReportInputs) -> str:
    if counts["not finite"]:
        return (
            "Look at the first step that is not finite: its log-probabilities, its rewards and the precision. The "
            "weights after it are damaged unless the trainer skipped the update."
        )
    if counts["suspect"]:
        return (
            "Look at a suspect step: are its completions masked (mask_truncated_completions), is the learning rate "
            "zero, do the weights train? A replay recomputes its gradient."
        )
    if counts["dead batch"] or counts["other terms"]:
        advice = "" if isinstance(inputs.degeneracy, Unavailable) else f" {dead_group_advice(inputs.degeneracy)}"
        return f"Steps without a live group cost rollouts and teach nothing.{advice}"
    return "Nothing to do here: judge progress by the reward and by grad_norm, not by the loss."


def _table(run: Run, steps: list[int], live: Counter[int], groups: Counter[int], kinds: dict[int, str]) -> ReportTable:
    return ReportTable(
        caption="Loss and gradient norm as logged, beside the groups with unequal rewards",
        by_step=True,
        columns=(
            Column(title="step", style="count"),
            Column(title="loss", style="norm"),
            Column(title="grad_norm", style="norm"),
            Column(title="live groups", style="count"),
            Column(title="groups", style="count"),
            Column(title="kind"),
        ),
        rows=tuple(
            (
                step,
                run.metrics[step].get("loss"),
                run.metrics[step]["grad_norm"],
                live[step],
                groups[step],
                kinds[step],
            )
            for step in steps
        ),
    )
