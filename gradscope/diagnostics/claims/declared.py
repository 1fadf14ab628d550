"""A user's own claims, from a TOML file: a metric that `gradscope check` knows, and the range it is said to have."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

from gradscope.catalog.lookup import CATALOG
from gradscope.diagnostics.check.metric_values import MetricValues
from gradscope.diagnostics.check.requirements import read_toml, split_metric
from gradscope.diagnostics.claims.claim import Claim, Judgement, cannot_tell, in_range
from gradscope.diagnostics.claims.evidence import Evidence
from gradscope.errors import UsageError
from gradscope.rollouts.run import Run

_TEXTS = ("name", "source", "claim", "metric", "settle")
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
    given = table if isinstance(table, dict) else {}
    texts: dict[str, Any] = {key: text for key in _TEXTS if isinstance(text := given.get(key), str) and text.strip()}
    missing = [key for key in _TEXTS if key not in texts]
    if missing:
        raise UsageError(f"Claim {number} of {file} has no text {missing[0]!r}.", hint=_EXAMPLE)
    between = given.get("between")
    if not (isinstance(between, list) and len(between) == 2 and all(map(_is_number, between))):
        raise UsageError(f"Claim {number} of {file} has no range `between` of two numbers.", hint=_EXAMPLE)
    low, high = (float(end) for end in between)
    if low > high:
        raise UsageError(f"The range of claim {number} of {file} ends before it begins.", hint=_EXAMPLE)
    return Claim(**texts, judge=partial(_judge, texts["metric"], low, high))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)


def _needs_gradients(metric: str, run: Run) -> bool:
    """Whether a metric is recomputed from weights; what the trainer logged goes before."""
    name = split_metric(metric)[0]
    entry = CATALOG.get(name)
    logged = any(name in values for values in run.metrics.values())
    return entry is not None and entry.command in ("rank", "replay") and not logged


def _judge(metric: str, low: float, high: float, evidence: Evidence) -> Judgement:
    if not evidence.steps and _needs_gradients(metric, evidence.run):
        return cannot_tell(evidence.no_gradients)
    values = MetricValues(
        run=evidence.run,
        success_threshold=evidence.success_threshold,
        read=evidence.read,
        resampling=evidence.resampling,
        engine=evidence.engine,
    )
    found = values.value(metric)
    if found.estimate.undefined is not None:
        return cannot_tell(found.estimate.undefined)
    without = "" if found.estimate.interval else "; without an interval nobody can tell"
    return Judgement(
        estimate=found.estimate,
        verdict=in_range(found.estimate, low, high),
        why=f"{found.subject} is said to lie in [{low:g}, {high:g}]{without}.",
    )
