"""Do sampler and trainer log-probabilities agree?

Where the log holds both, they are compared token by token without a model. Where it holds the sampler's and gradients
were recomputed, these are compared with the recomputed ones. Else what the trainer logged about them is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.logged.step_tokens import NO_SAMPLER
from gradscope.diagnostics.rank.tokens.sequence_corrections import sequence_corrections
from gradscope.diagnostics.report.sections.inputs import ReportInputs, Unavailable, missing_part, missing_section
from gradscope.diagnostics.report.sections.logged.logged_agreement import (
    LARGE_GAP,
    NAME,
    QUESTION,
    WRONG_SIDE,
    logged_agreement,
)
from gradscope.findings.rank.token_parts import correction_findings
from gradscope.results.ranks.token_parts import CorrectionEffect
from gradscope.results.report import Chart, Column, ReportSection, ReportTable, Series
from gradscope.rollouts.run import Run
from gradscope.say import number

if TYPE_CHECKING:
    from gradscope.gradients.step.step_gram import StepGram

_CORRECTED = (
    f". Cosine by sequence: the least of truncating, masking and plainly weighing whole sequences, "
    f"{metric('corrections.cosine').formula}"
)


def agreement_section(inputs: ReportInputs) -> ReportSection:
    """Sampler against logged or recomputed log-probabilities by step, or the trainer's own metrics of that."""
    gaps = {gram.step: gap for gram in inputs.grams if (gap := _gaps(inputs.run, gram)) is not None}
    if inputs.logged.sampler.overall is not None:
        section = logged_agreement(inputs.logged.sampler, inputs.logged.sampler.overall)
        more = _compared(gaps, inputs) if gaps else ReportSection(name=NAME, question=QUESTION)
        return replace(section, findings=(*section.findings, *more.findings), tables=(*section.tables, *more.tables))
    if gaps:
        return _compared(gaps, inputs)
    metrics = {step: inputs.run.metrics.get(step, {}) for step in inputs.run.steps}
    names = sorted({name for values in metrics.values() for name in values if "sampling_logp" in name})
    if names:
        return _as_logged(metrics, names)
    if inputs.logged.sampler.set_aside.keys() - {NO_SAMPLER}:
        return missing_part("sampler", QUESTION, inputs.logged.sampler, anchor=NAME)
    hint = (
        "Runs of gradscope train and logs of NeMo-RL, open-instruct and prime-rl keep them; in TRL compare them while "
        "training: use_vllm with vllm_importance_sampling_correction."
    )
    return missing_section(
        NAME, QUESTION, Unavailable(reason="The log has no log-probabilities of the sampler.", hint=hint)
    )


def _gaps(run: Run, gram: StepGram) -> NDArray[np.float64] | None:
    """Trainer minus sampler, every token of a step; None where a rollout has no log-probabilities of its own ids."""
    rollouts = {(r.group_id, r.sample): r for group in run.groups_at(gram.step) for r in group.rollouts}
    parts = []
    for group_id, sample, recomputed in zip(gram.group_ids, gram.samples, gram.logprobs, strict=True):
        logged = rollouts[group_id, sample].logprobs
        if logged is None or len(logged) != len(recomputed):
            return None
        parts.append(np.asarray(recomputed) - np.asarray(logged))
    together = np.concatenate(parts)
    return together if together.size else None


def _compared(gaps: dict[int, NDArray[np.float64]], inputs: ReportInputs) -> ReportSection:
    means = {step: float(np.abs(gap).mean()) for step, gap in gaps.items()}
    found = {gram.step: sequence_corrections(inputs.run, gram) for gram in inputs.grams if gram.step in gaps}
    least = {step: min(effects, key=_cosine).cosine for step, effects in found.items() if effects}
    turned = min(least, key=lambda step: least[step].value or 0.0) if least else None
    worst = max(means, key=lambda step: means[step])
    return ReportSection(
        name=NAME,
        question=QUESTION,
        findings=(
            f"Over {len(gaps)} recomputed steps the log-probabilities of the sampler differ from those of the weights "
            f"by {means[worst]:.2g} a token at most (mean of step {worst}).",
            *(() if turned is None else correction_findings(found[turned], " by sequence")),
        ),
        severity="problem" if means[worst] > LARGE_GAP else "fine",
        meaning=metric("logprob_gap").meaning,
        next_step=_next_step(means[worst]),
        tables=(
            ReportTable(
                caption=f"mean gap = {metric('logprob_gap').formula}{_CORRECTED if least else ''}",
                columns=(
                    Column(title="step", style="count"),
                    Column(title="tokens", style="count"),
                    *(Column(title=name, style="norm") for name in ("mean gap", "largest gap", "mean p ratio")),
                    *([Column(title="cosine by sequence", style="norm")] if least else []),
                ),
                rows=tuple(
                    (
                        *(step, gap.size, means[step], float(np.abs(gap).max()), float(np.exp(gap).mean())),
                        *([least.get(step)] if least else []),
                    )
                    for step, gap in gaps.items()
                ),
            ),
        ),
    )


def _cosine(effect: CorrectionEffect) -> float:
    return 1.0 if effect.cosine.value is None else effect.cosine.value


def _next_step(gap: float | None) -> str:
    """What to do about a mean gap; None where none was logged."""
    if gap is None:
        return "Log the mean difference as well: the largest of a step says little about the others."
    if gap <= LARGE_GAP:
        return "Nothing to do: the sampler's policy is the one that was updated."
    return WRONG_SIDE


def _as_logged(metrics: Mapping[int, Mapping[str, float]], names: Sequence[str]) -> ReportSection:
    steps = [step for step, values in metrics.items() if any(name in values for name in names)]
    last = metrics[steps[-1]]
    mean = max((last[name] for name in names if name in last and name.endswith("mean")), default=None)
    shown = ", ".join(f"{name} = {number(last[name], '.4g')}" for name in names if name in last)
    return ReportSection(
        name=NAME,
        question=QUESTION,
        findings=(f"The trainer logged at step {steps[-1]}: {shown}.",),
        severity="unknown" if mean is None else "fine" if mean <= LARGE_GAP else "problem",
        meaning=metric("logprob_gap").meaning,
        next_step=_next_step(mean),
        charts=(
            Chart(
                title="As the trainer logged it",
                kind="lines",
                places=tuple(steps),
                series=tuple(
                    Series(name=name, values=tuple(metrics[step].get(name) for step in steps)) for name in names[:4]
                ),
                y_label="nats a token",
            ),
        ),
    )
