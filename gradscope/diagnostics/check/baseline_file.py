"""A baseline: the numbers of a good run in a small JSON file, and how another run compares with them.

Where both runs have the same prompts, changes are paired by prompt, so that a hard prompt is hard on both sides.
Where they have not, the interval of the difference is put together from both intervals
(:func:`~gradscope.metrics.uncertainty.difference.difference_of`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradscope.errors import InputError, OutputExistsError
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from gradscope.metrics.uncertainty.difference import difference_of
from gradscope.metrics.uncertainty.resampling import RESAMPLING, Resampling
from gradscope.outside.limits import open_file
from gradscope.outside.plain_json import read_json
from gradscope.outside.rules import is_finite
from gradscope.results.check import Baseline, BaselineMetric
from gradscope.results.envelope import render_json, to_jsonable
from gradscope.version import __version__
from gradscope.writing import atomic_write, refuse_existing

SCHEMA = "gradscope/baseline"
SCHEMA_VERSION = 1
MOST_PROMPTS = 5000
"""With more prompts a baseline would not be small; metrics are then compared as wholes."""
_START = 4096
"""Bytes in which a baseline names its schema."""
_LEAST_PAIRED = 5
_LEAST_SHARE = 0.5
"""Pairs decide only where they are at least half of both sides: a few common prompts are another population."""


def prompt_key(prompt_id: str) -> str:
    """A prompt's name in a baseline: a digest, because a prompt id may be the whole prompt.

    Returns:
        Twelve hexadecimal digits of its SHA-256.

    Example:
        >>> prompt_key("3+6=?")
        '676893b77726'
    """
    return hashlib.sha256(prompt_id.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def write_baseline(baseline: Baseline, path: Path, *, force: bool = False) -> None:
    """Write a baseline, whole or not at all; one that is there is replaced with ``force``."""
    document = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "gradscope": __version__,
        "run": baseline.run,
        "metrics": {name: _plain(metric) for name, metric in sorted(baseline.metrics.items())},
    }
    atomic_write(path, render_json(document), force=force)


def refuse_other(path: Path, *, force: bool) -> None:
    """Refuse to write a baseline over what is none, and over one unasked; before any work.

    Args:
        path: The place of the baseline.
        force: Whether a baseline in it may be replaced, one that is damaged or empty too. Nothing else ever is: the
            path may be that of the log.

    Raises:
        OutputExistsError: Something is in the way.
    """
    refuse_existing(path, force=force)
    if not path.exists():
        return
    with open_file(path) as stream:
        start = stream.read(_START)
    if start.strip() and f'"{SCHEMA}"'.encode() not in start:
        raise OutputExistsError(
            f"{path} is no baseline, and --force replaces baselines only.", hint="Name another file with --baseline."
        )


def _plain(metric: BaselineMetric) -> dict[str, Any]:
    prompts = metric.prompts if len(metric.prompts) <= MOST_PROMPTS else {}
    return {**to_jsonable(metric.estimate), "prompts": dict(sorted(prompts.items()))}


def read_baseline(path: Path) -> Baseline:
    """Reads a baseline.

    Returns:
        Its numbers.

    Raises:
        InputError: The file cannot be read, or is no baseline of this version.
    """
    try:
        document = read_json(path)
    except OSError as error:
        hint = "Write one from a good run: gradscope check RUN --baseline FILE --update-baseline"
        raise InputError(f"The baseline {path} cannot be read: {error.strerror}.", hint=hint) from error
    except ValueError as error:
        raise InputError(
            f"The baseline {path} is not JSON: {error}.", hint="Write it again: --update-baseline --force"
        ) from error
    is_baseline = isinstance(document, dict) and document.get("schema") == SCHEMA
    if not is_baseline or not _is_version(document.get("schema_version")):
        raise InputError(
            f"{path} is no baseline of version {SCHEMA_VERSION}.", hint="Write it again: --update-baseline --force"
        )
    try:
        metrics = {name: _metric(values) for name, values in document["metrics"].items()}
        return Baseline(run=str(document["run"]), metrics=metrics)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise InputError(
            f"The baseline {path} is damaged: {type(error).__name__} {error}.",
            hint="Write it again: --update-baseline --force",
        ) from error


def _is_version(value: Any) -> bool:
    return type(value) is int and value == SCHEMA_VERSION


def _metric(values: Mapping[str, Any]) -> BaselineMetric:
    value, low, high = (None if values[name] is None else _finite(values[name]) for name in ("value", "low", "high"))
    num_units, undefined = values["num_units"], values["undefined"]
    if type(num_units) is not int:
        raise ValueError(f"num_units is {num_units!r}")
    if undefined is not None and not isinstance(undefined, str):
        raise ValueError(f"undefined is {undefined!r}")
    estimate = Estimate(value=value, low=low, high=high, num_units=num_units, undefined=undefined)
    return BaselineMetric(
        estimate=estimate, prompts={prompt: _finite(mean) for prompt, mean in values["prompts"].items()}
    )


def _finite(value: Any) -> float:
    if not is_finite(value):
        raise ValueError(f"{str(value)[:40]!r} is no finite number")
    return float(value)


def change_of(
    before: BaselineMetric, after: BaselineMetric, *, resampling: Resampling = RESAMPLING
) -> tuple[Estimate, NDArray[np.float64]]:
    """After minus before, paired by prompt where enough prompts are common.

    Returns:
        The change, and the differences of the paired prompts, empty where the two are compared as wholes. Without an
        interval where a side has none.

    Example:
        >>> one, two = (BaselineMetric(estimate=Estimate(value=v, low=v - 0.1, high=v + 0.1)) for v in (0.4, 0.6))
        >>> change, paired = change_of(one, two)
        >>> round(change.low, 3), round(change.value, 3), round(change.high, 3), len(paired)
        (0.059, 0.2, 0.341, 0)
    """
    common = sorted(before.prompts.keys() & after.prompts.keys())
    enough = max(len(before.prompts), len(after.prompts)) * _LEAST_SHARE
    if len(common) >= max(_LEAST_PAIRED, enough):
        differences = np.array([after.prompts[prompt] - before.prompts[prompt] for prompt in common])
        return bootstrap_mean(differences, resampling=resampling, share=False), differences
    if (
        before.estimate.is_defined
        and after.estimate.is_defined
        and None in (before.estimate.interval, after.estimate.interval)
    ):
        return Estimate.exact((after.estimate.value or 0.0) - (before.estimate.value or 0.0)), np.zeros(0)
    return difference_of(before.estimate, after.estimate), np.zeros(0)
