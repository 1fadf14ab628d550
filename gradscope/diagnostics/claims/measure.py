"""`gradscope claims`: what papers say, or a file of claims of your own, held against one run, a row a claim."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from gradscope.advantages.registry import named_formulation
from gradscope.catalog.lookup import CATALOG
from gradscope.copies import as_named
from gradscope.diagnostics.check.requirements import read_toml, split_metric
from gradscope.diagnostics.claims.evidence import (
    NO_NULL,
    Claim,
    ClaimOptions,
    Evidence,
    Judgement,
    cannot_tell,
    in_range,
)
from gradscope.diagnostics.claims.registry import CLAIMS
from gradscope.diagnostics.inputs.steps import missing_weights, select_steps, usable_steps
from gradscope.errors import GradscopeError, MissingDependencyError, UsageError
from gradscope.gradients.engine_options import EngineOptions
from gradscope.progress import Progress, reporter
from gradscope.results.verdicts import NOT_SHOWN, ClaimRow, ClaimsReport
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from gradscope.say import evenly

MAX_STEPS = 5
"""Steps whose gradients are recomputed where none are named: first, last, and evenly between. A trend needs three."""
_TEXTS = ("name", "source", "claim", "metric", "settle")


def measure_claims(
    path: str | Path,
    *,
    steps: Sequence[int] | None = None,
    gradients: bool = True,
    claims: Sequence[Claim] = CLAIMS,
    options: ClaimOptions | None = None,
    progress: Progress = False,
    read: ReadOptions | None = None,
    engine: EngineOptions | None = None,
) -> ClaimsReport:
    """Judge claims on a run, one row each; a claim that this run cannot decide says why.

    Args:
        steps: Steps whose gradients are recomputed; None: at most five of those whose weights are on disk.
        gradients: Whether to recompute gradients at all; without them claims about gradients stay undecided.
        claims: The claims; those of the package and any others of their kind.
        options: Held-out samples, when a rollout passes, the formulation under which ranks are measured; None: the
            defaults.
    """
    progress, options = reporter(progress), options or ClaimOptions()
    named_formulation(options.advantage)
    run = read_run(path, read, progress=progress)
    chosen, reason = _steps(run, steps, gradients=gradients)
    evidence = Evidence(
        run=run,
        steps=chosen,
        no_gradients=reason,
        samples=tuple(map(str, options.samples)),
        advantage=options.advantage,
        success_threshold=options.success_threshold,
        read=read,
        engine=engine or EngineOptions(),
        progress=progress,
    )
    return claims_of(evidence, claims)


def claims_of(evidence: Evidence, claims: Sequence[Claim] = CLAIMS) -> ClaimsReport:
    """Judge claims by evidence that may exist already; a claim that needs more than that gets no row."""
    rows = []
    for claim in claims:
        available = (None, "rollout", *(["weighed"] if "weighed_tokens" in evidence.cache else []))
        if evidence.is_restricted and claim.needs not in available:
            continue
        try:
            can_be = claim.needs in (None, "update") or evidence.steps
            judged = claim.judge(evidence) if can_be else cannot_tell(as_named(evidence.no_gradients))
            if claim.name.startswith("dead_groups.") and evidence.degeneracy().looks_filtered:
                judged = cannot_tell("A filter has probably dropped dead groups before they were logged")
        except GradscopeError as error:
            if isinstance(error, MissingDependencyError) and not evidence.no_gradients:
                raise
            judged = cannot_tell(error.message.rstrip("."))
        texts = {name: getattr(claim, name) for name in _TEXTS}
        ends, null = judged.estimate.interval, judged.null.value
        by_margin = ends is not None and null is not None and ends[0] <= null <= ends[1]  # which is ours
        rows.append(ClaimRow(**texts, **asdict(judged), ours=claim.ours or by_margin))
    collected = evidence.computed()
    words = Counter(row.words for row in rows)
    contradicted, not_shown = words["contradicted"], words[NOT_SHOWN]
    decided = words["supported"] + contradicted + not_shown
    by_us = f", does not show {not_shown} by our measure" if not_shown else ""
    sentences = [
        f"Of {len(rows)} claims this run supports {words['supported']}, contradicts {contradicted}{by_us} and cannot "
        f"tell {len(rows) - decided}."
    ]
    if decided:
        sentences.append("A verdict is about this run alone; its intervals hold claim by claim, not for all together.")
    return ClaimsReport(
        source=evidence.run.source,
        claims=tuple(rows),
        steps=tuple(step.step for step in collected.report.steps) if collected else (),
        skipped={step: str(reason) for step, reason in collected.skipped.items()} if collected else {},
        engine=collected.report.engine if collected else {},
        findings=tuple(sentences),
    )


def _steps(run: Run, steps: Sequence[int] | None, *, gradients: bool) -> tuple[tuple[int, ...], str]:
    if not gradients:
        return (), "Gradients were not recomputed, as asked (--no-gradients)"
    if steps:
        return select_steps(run, steps), ""
    if usable := usable_steps(run, run.steps):
        return tuple(evenly(usable, MAX_STEPS)), ""
    first = run.steps[0]
    reason = str(run.notes.get(first) or missing_weights(run, first))
    return (), f"No gradient was recomputed: {reason.rstrip('.')}"


_EXAMPLE = "Write [[claims]] with name, source, claim, metric, settle and between, as docs/claims.md shows."


def read_claims(path: str | Path) -> tuple[Claim, ...]:
    """The claims of a TOML file: tables ``[[claims]]`` with the texts of a claim and its range ``between``."""
    file = Path(path)
    document = read_toml(file)
    tables = document.get("claims", [])
    if not isinstance(tables, list) or not tables:
        raise UsageError(f"{file} holds no claim.", hint=_EXAMPLE)
    return tuple(_claim(table, file, number) for number, table in enumerate(tables, start=1))


def _claim(table: Any, file: Path, number: int) -> Claim:
    entries = table if isinstance(table, dict) else {}
    texts: dict[str, Any] = {key: text for key in _TEXTS if isinstance(text := entries.get(key), str) and text.strip()}
    missing = [key for key in _TEXTS if key not in texts]
    if missing:
        raise UsageError(f"Claim {number} of {file} has no text {missing[0]!r}.", hint=_EXAMPLE)
    between = entries.get("between")
    if not (isinstance(between, list) and len(between) == 2 and all(map(_is_number, between))):
        raise UsageError(f"Claim {number} of {file} has no range `between` of two numbers.", hint=_EXAMPLE)
    low, high = (float(end) for end in between)
    if low > high:
        raise UsageError(f"The range of claim {number} of {file} ends before it begins.", hint=_EXAMPLE)
    return Claim(**texts, judge=partial(_judge, texts["metric"], low, high))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)


def _judge(metric: str, low: float, high: float, evidence: Evidence) -> Judgement:
    name = split_metric(metric)[0]
    entry, is_logged = CATALOG.get(name), name in evidence.run.step_metrics.columns  # what was logged is not recomputed
    if not evidence.steps and not is_logged and entry is not None and entry.command in ("rank", "replay"):
        return cannot_tell(evidence.no_gradients)
    measured = evidence.value(metric)
    if measured.estimate.undefined is not None:
        return cannot_tell(measured.estimate.undefined)
    caveat = "" if measured.estimate.interval else "; without an interval nobody can tell"
    return Judgement(
        estimate=measured.estimate,
        null=NO_NULL,
        verdict=in_range(measured.estimate, low, high),
        why=f"{measured.subject} is said to lie in [{low:g}, {high:g}]{caveat}.",
    )
