"""Two questions about the loss: whether zero is healthy, and how much of its gradient is KL or diluted by dead groups.

At the first update after sampling the ratio is 1 and group-mean advantages sum to zero, so the loss is (near) zero
while its gradient is not: a loss of zero says nothing. A gradient of zero is right where every group is dead and
nothing else is in the loss, and wrong where a group is live.

A loss that is a mean over the batch divides by dead groups too. By rollouts (loss types ``grpo`` and ``dr_grpo``) a
live gradient is multiplied by the share of live rollouts, by tokens (``dapo``, ``bnpo``) by the share of live tokens.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.logged.metrics import metric_series
from gradscope.diagnostics.report.sections.inputs import ReportInputs, Unavailable, missing_section, visible
from gradscope.diagnostics.spike.measure import spike_sentences
from gradscope.findings.degeneracy import dead_group_advice
from gradscope.findings.logged import CLIP_ADVICE, NEVER_LEARNS, clip_sentence, spike_advice
from gradscope.findings.rank_parts import kl_findings
from gradscope.render.views.view import Column, lines_over, tabulate
from gradscope.results.rank import TokenKl
from gradscope.results.report import ReportSection, ReportTable, Severity
from gradscope.rollouts.groups import reward_table
from gradscope.rollouts.run import Run
from gradscope.say import percent

_TINY_LOSS = 1e-6
_TINY_NORM = 1e-12
_MANY_STEPS = 0.1  # share of steps without a gradient that is worth a look

_KINDS = {
    "not finite": "the trainer logged NaN or infinity as loss or grad_norm, so what that update did is not known",
    "learning": "a gradient from live groups",
    "on-policy": "loss near zero with a gradient: healthy, the usual picture of on-policy training",
    "dead batch": "no gradient, and none was due: every group has equal rewards",
    "other terms": "a gradient although every group is dead: it comes from KL, entropy or another term",
    "suspect": "no gradient although a group has unequal rewards: masked completions, clipping, or a bug",
}
"""Kinds of steps, and what each means."""


def zero_loss_section(inputs: ReportInputs) -> ReportSection:
    """Loss and gradient norm of each step with its live groups, and how many steps are of each kind."""
    run = inputs.run
    norms, losses = (run.step_metrics.by_step(name) for name in ("grad_norm", "loss"))
    steps = [step for step in run.steps if step in norms and step not in run.notes]
    if not steps:
        hint = "Log each step (logging_steps=1 in TRL) and keep trainer_state.json of the last checkpoint."
        return missing_section("zero-loss", "The log has no grad_norm that belongs to one step.", hint)
    table = run.judged_rewards
    is_judged = table.is_complete & (table.size > 1)
    groups, live = Counter(table.step.tolist()), Counter(table.step[is_judged & ~table.is_dead].tolist())
    perhaps_live = live + Counter(table.step[~is_judged].tolist())
    kinds = {step: _kind(norms[step], losses.get(step, 1.0), live[step], perhaps_live[step]) for step in steps}
    counts, spike = Counter(kinds.values()), spike_sentences(run)
    clipped = clip_sentence(metric_series(run))
    commands = ["replay"] * (counts["suspect"] > 0) + ["spike"] * len(spike)
    severity, advice = _verdict(counts, spike, inputs, clipped)
    return ReportSection(
        name="zero-loss",
        findings=_findings(counts, kinds, [*spike, *filter(None, [clipped])]),
        severity=severity,
        meaning="At the first update after sampling, the advantages of a group sum to zero and the ratio is 1, so the "
        "loss is near zero even while the policy learns. Look at grad_norm, and at whether a group is live.",
        next_step=advice,
        command=inputs.command(commands[0]) if commands else "",
        charts=tuple(
            chart
            for name, values, title in (
                ("grad_norm", norms, "Gradient norm, as logged"),
                ("loss", losses, "Loss, as logged"),
            )
            if not values.keys().isdisjoint(steps)
            for chart in lines_over(steps, title, {name: map(values.get, steps)}, y_label=name, kinds={name: "logged"})
        ),
        tables=tabulate(
            "Loss and gradient norm as logged, with the groups of unequal rewards",
            (
                Column("step", lambda step: step, "count"),
                Column("loss", losses.get, "norm"),
                Column("grad_norm", norms.get, "norm"),
                Column("live groups", lambda step: live[step], "count"),
                Column("groups", lambda step: groups[step], "count"),
                Column("kind", kinds.get),
            ),
            steps,
            by_step=True,
        ),
    )


def _kind(norm: float, loss: float, num_live: int, num_perhaps_live: int) -> str:
    if not (math.isfinite(norm) and math.isfinite(loss)):
        return "not finite"
    if norm <= _TINY_NORM:
        return "suspect" if num_live else "dead batch"
    if not num_perhaps_live:
        return "other terms"
    return "on-policy" if abs(loss) <= _TINY_LOSS else "learning"


def _findings(counts: Counter[str], kinds: dict[int, str], outstanding: Sequence[str]) -> tuple[str, ...]:
    first: dict[str, int] = {}
    for step, kind in kinds.items():
        first.setdefault(kind, step)

    def sentences(*names: str) -> list[str]:
        start = {name: f"{counts[name]} of {len(kinds)} steps (first: step {first[name]})" for name in first}
        return [f"{start[name]}: {_KINDS[name]}." for name in names if name in first]

    good = counts["learning"] + counts["on-policy"]
    remarks = (*sentences("not finite", "suspect"), *outstanding, *sentences("dead batch", "other terms"))
    return (*remarks, f"{good} of {len(kinds)} steps have a gradient from live groups.", *sentences("on-policy"))


def _verdict(counts: Counter[str], spike: Sequence[str], inputs: ReportInputs, clipped: str) -> tuple[Severity, str]:
    if counts["not finite"]:
        return "problem", (
            "Look at the first step that is not finite: its log-probabilities, its rewards and the precision. The "
            "weights after it are damaged unless the trainer skipped the update."
        )
    if counts["suspect"]:
        return "problem", (
            "Look at a suspect step: are its completions masked (mask_truncated_completions), is the learning rate "
            "zero, do the weights train? A replay recomputes its gradient."
        )
    if any(NEVER_LEARNS in text for text in spike):
        return "problem", spike_advice([text for text in spike if NEVER_LEARNS in text])
    many = counts["dead batch"] >= _MANY_STEPS * counts.total()
    severity: Severity = "look" if spike or clipped or many or counts["other terms"] else "fine"
    if counts["dead batch"] or counts["other terms"]:
        advice = "" if isinstance(inputs.degeneracy, Unavailable) else f" {dead_group_advice(inputs.degeneracy)}"
        return severity, f"Steps without a live group cost rollouts and teach nothing.{advice}"
    if spike or clipped:
        return severity, spike_advice(spike) if spike else CLIP_ADVICE
    return severity, "Nothing to do here: judge progress by the reward and by grad_norm, not by the loss."


BY_TOKEN = ("dapo", "bnpo")  # TRL's loss types that are a mean over the tokens of the batch

_HALF = 0.5  # below this the learning rate that live groups see is less than half of the one that was set
_LARGE_KL = 0.5  # with half of the gradient's norm the KL part is as large as what the rewards ask for


def loss_scale_section(inputs: ReportInputs) -> ReportSection:
    """The KL part of recomputed gradients, and the share of the loss that is live, by step."""
    run = inputs.run
    if isinstance(inputs.degeneracy, Unavailable):
        return missing_section("dilution", inputs.degeneracy)
    table = run.judged_rewards
    is_judged = table.is_complete & (table.size > 1)
    table, sampled = table.select(is_judged), reward_table(run.groups).select(is_judged)  # and averaged over
    tokens = table.tokens if run.settings.get("loss_type") in BY_TOKEN else None
    unit, weights = ("rollouts", table.size) if tokens is None else ("tokens", tokens)
    all_weights = sampled.size if tokens is None or sampled.tokens is None else sampled.tokens
    is_dead = table.is_dead & (not inputs.degeneracy.has_other_baseline)
    shares = table.mean_by_step(np.where(is_dead, 0, weights), all_weights)
    live = {step: 0.0 if math.isnan(share) else share for step, share in shares.items()}
    kl = {gram.step: parts["kl"][0] for gram in inputs.grams if "kl" in (parts := gram.parts)}
    largest = max(kl.values(), default=0.0)
    mean = sum(live.values()) / len(live)
    low, high = min(live.values()), max(live.values())
    advice = []
    if low < 1:
        advice.append(
            f"Dead groups act like a learning rate scaled by {low:.2f} to {high:.2f} from step to step: resample them, "
            "or divide by live rollouts only."
        )
    if largest > _LARGE_KL:
        advice.append("The KL part nears the whole gradient and holds the policy where it is: lower beta.")
    columns = [Column("step", lambda step: step, "count"), Column("live share", live.get, "share")]
    if kl:
        columns.append(Column("KL part", kl.get, "share"))
    if logged := inputs.run.step_metrics.by_step("kl"):
        columns.append(Column("logged kl", logged.get, "norm"))
    sentence = f"None of the {unit} that the loss averages over is live: there is no gradient to dilute."
    if mean:
        sentence = (
            f"On average {percent(mean)} of the {unit} that the loss averages over are live, so a live gradient is "
            f"multiplied by {mean:.2f}."
        )
    leading, token_findings = (sentence, _kl(run, kl)), kl_findings(inputs.parts.kl)
    caption = f"live share by {unit} = {metric('live_share').formula}; KL part = |KL part| / |whole gradient|"
    return ReportSection(
        name="dilution",
        findings=(*(reversed(leading) if largest > _LARGE_KL and mean >= _HALF else leading), *token_findings),
        severity="look" if mean < _HALF or largest > _LARGE_KL else "fine",
        meaning=metric("live_share").meaning,
        next_step=" ".join(advice)
        or "Nothing to do: every group is live, and no KL part that was recomputed is large.",
        charts=lines_over(
            live,
            "Share of the loss that is live",
            {"live share": live.values()},
            y_label=f"share of {unit}",
            y_range=(0.0, 1.0),
        ),
        tables=(
            *tabulate(caption, columns, live, by_step=True),
            *(table for last in inputs.parts.kl[-1:] for table in _furthest_tokens(last)),
        ),
    )


def _kl(run: Run, kl: dict[int, float]) -> str:
    if kl:
        worst = max(kl, key=kl.__getitem__)
        return (
            f"The KL part has {percent(kl[worst])} of the gradient's norm at step {worst}, the most of the {len(kl)} "
            "steps recomputed."
        )
    beta, is_set = run.settings.get("beta"), run.settings.origin is not None
    if beta == 0 or (beta is None and run.trained_by_trl and is_set):  # TRL's default
        return "The loss has no KL term (beta = 0)."
    if any(map(_LOGGED_KL.search, run.step_metrics.columns)):
        return "The trainer logged a KL term; how much of the gradient it makes needs recomputed gradients."
    if is_set and (beta or run.settings.get("trainer")):
        return "How much of the gradient a KL term makes needs recomputed gradients."
    return "Whether the loss has a KL term is not in the log: name beta, or all arguments, with --run-config."


_LOGGED_KL = re.compile(r"(^|/)kl(_loss|_penalty|_avg)?$")  # TRL's, verl's, NeMo-RL's and open-instruct's names


def _furthest_tokens(last: TokenKl) -> tuple[ReportTable, ...]:
    columns = (
        Column("rollout", lambda token: f"{token.group_id} #{token.sample}"),
        Column("token", lambda token: token.position + 1, "count"),
        Column("text", lambda token: visible(token.text)),
        Column("log p", "logprob", "gap"),
        Column("log p of the reference", "reference", "gap"),
        Column("k1", "k1", "gap"),
        Column("k3", "k3", "norm"),
    )
    caption = f"The {len(last.top)} tokens of step {last.step} that are furthest from the reference by k3"
    return tabulate(caption, columns, last.top)
