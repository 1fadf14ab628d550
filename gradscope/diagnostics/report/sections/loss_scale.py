"""How much of the gradient is KL rather than reward, and how much do dead groups dilute live ones?

A loss that is a mean over the batch divides by dead groups too. By rollouts (loss types ``grpo`` and ``dr_grpo``) a
live gradient is multiplied by the share of live rollouts, by tokens (``dapo``, ``bnpo``) by the share of live tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.report.sections.inputs import ReportInputs, Unavailable, missing_section
from gradscope.diagnostics.report.sections.signal import dead_groups
from gradscope.findings.rank.token_parts import kl_findings
from gradscope.results.ranks.token_parts import TokenKl
from gradscope.results.report import Cell, Chart, Column, ReportSection, ReportTable, Series
from gradscope.rollouts.groups import reward_table
from gradscope.rollouts.reward_table import UNKNOWN, RewardTable
from gradscope.rollouts.run import Run
from gradscope.say import percent

NAME = "dilution"
QUESTION = "How much of the gradient is KL, and how much do dead groups dilute live ones?"
BY_TOKEN = ("dapo", "bnpo")
"""TRL's loss types that are a mean over the tokens of the batch."""

_HALF = 0.5
"""Below this the learning rate that live groups see is less than half of the one that was set."""
_LARGE_KL = 0.5
"""With half of the gradient's norm the KL part is as large as what the rewards ask for."""


def loss_scale_section(inputs: ReportInputs) -> ReportSection:
    """The KL part of recomputed gradients, and the share of the loss that is live, by step."""
    run = inputs.run
    if isinstance(inputs.degeneracy, Unavailable):
        return missing_section(NAME, QUESTION, inputs.degeneracy)
    table = reward_table(run.groups)
    unit = "tokens" if run.settings.get("loss_type") in BY_TOKEN and _has_tokens(table) else "rollouts"
    live = _live_shares(table, unit)
    kl = {gram.step: gram.frac_kl for gram in inputs.grams}
    mean = sum(live.values()) / len(live)
    return ReportSection(
        name=NAME,
        question=QUESTION,
        findings=(
            f"On average {percent(mean)} of the {unit} that the loss averages over are live, so a live gradient is "
            f"multiplied by {mean:.2f}.",
            _kl(run, kl),
            *kl_findings(inputs.parts.kl),
        ),
        severity="look" if mean < _HALF or _largest(kl) > _LARGE_KL else "fine",
        meaning=metric("live_share").meaning,
        next_step=_next_step(live, kl),
        charts=_charts(live, unit),
        tables=(_table(live, kl, inputs, unit), *_furthest_tokens(inputs.parts.kl)),
    )


def _next_step(live: dict[int, float], kl: dict[int, float | None]) -> str:
    """One sentence for each of the two that the numbers show; nothing to do where they show neither."""
    low, high = min(live.values()), max(live.values())
    largest = _largest(kl)
    advice = []
    if low < 1:
        advice.append(
            f"Dead groups act like a learning rate scaled by {low:.2f} to {high:.2f} from step to step: resample them, "
            "or divide by live rollouts only."
        )
    if largest > _LARGE_KL:
        advice.append("The KL part nears the whole gradient and holds the policy where it is: lower beta.")
    return " ".join(advice) or "Nothing to do: every group is live, and no KL part that was recomputed is large."


def _largest(kl: dict[int, float | None]) -> float:
    return max((part for part in kl.values() if part is not None), default=0.0)


def _has_tokens(table: RewardTable) -> bool:
    return table.num_tokens is not None and bool(np.all(table.num_tokens != UNKNOWN))


def _live_shares(table: RewardTable, unit: str) -> dict[int, float]:
    weights = table.size if unit == "rollouts" or table.num_tokens is None else table.sums(table.num_tokens)
    steps, of_group = np.unique(table.step, return_inverse=True)
    total = np.bincount(of_group, weights=weights)
    live = np.bincount(of_group, weights=np.where(dead_groups(table), 0, weights))
    shares = np.divide(live, total, out=np.zeros(len(steps)), where=total > 0)
    return dict(zip(steps.tolist(), shares.tolist(), strict=True))


def _kl(run: Run, kl: dict[int, float | None]) -> str:
    recomputed = {step: part for step, part in kl.items() if part is not None}
    if recomputed:
        worst = max(recomputed, key=lambda step: recomputed[step])
        return (
            f"The KL part has {percent(recomputed[worst])} of the gradient's norm at step {worst}, the most of the "
            f"{len(recomputed)} steps recomputed."
        )
    beta = run.settings.get("beta")
    if beta == 0 or (beta is None and run.settings.origin is not None):
        return "The loss has no KL term (beta = 0)."
    if any("kl" in values for values in run.metrics.values()):
        return "The trainer logged a KL term; how much of the gradient it makes needs recomputed gradients."
    return "Whether the loss has a KL term is not in the log: pass the trainer's arguments with --run-config."


def _charts(live: dict[int, float], unit: str) -> tuple[Chart, ...]:
    if len(live) < 2:
        return ()
    series = Series(name="live share", values=tuple(live.values()))
    return (
        Chart(
            title="Share of the loss that is live",
            kind="lines",
            places=tuple(live),
            series=(series,),
            y_label=f"share of {unit}",
            y_range=(0.0, 1.0),
        ),
    )


def _table(live: dict[int, float], kl: dict[int, float | None], inputs: ReportInputs, unit: str) -> ReportTable:
    columns = [Column(title="step", style="count"), Column(title="live share", style="share")]
    rows: list[tuple[Cell, ...]] = list(live.items())
    if any(part is not None for part in kl.values()):
        columns.append(Column(title="KL part", style="share"))
        rows = [(*row, kl.get(step)) for row, step in zip(rows, live, strict=True)]
    if any("kl" in values for values in inputs.run.metrics.values()):
        columns.append(Column(title="logged kl", style="norm"))
        rows = [(*row, inputs.run.metrics.get(step, {}).get("kl")) for row, step in zip(rows, live, strict=True)]
    return ReportTable(
        caption=f"live share by {unit} = {metric('live_share').formula}; KL part = |KL part| / |whole gradient|",
        by_step=True,
        columns=tuple(columns),
        rows=tuple(rows),
    )


def _furthest_tokens(steps: Sequence[TokenKl]) -> tuple[ReportTable, ...]:
    """The tokens of the last step that are furthest from the reference; none without one."""
    if not steps:
        return ()
    last = steps[-1]
    rows: list[tuple[Cell, ...]] = [
        (
            f"{token.group_id} #{token.sample}",
            token.position + 1,
            token.text if token.text.strip() else repr(token.text),
            token.logprob,
            token.reference,
            token.k1,
            token.k3,
        )
        for token in last.top
    ]
    return (
        ReportTable(
            caption=f"The {len(rows)} tokens of step {last.step} that are furthest from the reference by k3",
            columns=(
                Column(title="rollout"),
                Column(title="token", style="count"),
                Column(title="text"),
                Column(title="log p", style="gap"),
                Column(title="log p of the reference", style="gap"),
                Column(title="k1", style="gap"),
                Column(title="k3", style="norm"),
            ),
            rows=tuple(rows),
        ),
    )
