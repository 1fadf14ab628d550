"""What sections are made from, made by hand: runs, and Gram matrices of rows whose directions are known."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from gradscope.diagnostics.logged.policy import POLICY
from gradscope.diagnostics.logged.tokens import logged_part
from gradscope.diagnostics.report.sections.inputs import Lengths, ReportInputs, TokenParts, Unavailable
from gradscope.metrics.uncertainty.intervals import RESAMPLING
from gradscope.rollouts.run import Run

NOT_READ = Unavailable(reason="It was not read.", hint="Read it.")


def inputs_of(run: Run, *, grams: Sequence[Any] = (), **parts: Any) -> ReportInputs:
    """A report's inputs with nothing but these parts, and what the run's log says of its policy."""
    nothing = dict.fromkeys(("degeneracy", "replay", "no_grams", "tokens", "passk"), NOT_READ)
    empty = {"samples": (), "curve": (), "parts": TokenParts(), "options": {}}
    read = {"logged": logged_part(POLICY, run, RESAMPLING), "lengths": lengths_of(run)}
    return ReportInputs(run=run, grams=tuple(grams), **{**nothing, **empty, **read, **parts})


def lengths_of(run: Run) -> Lengths:
    """The lengths of all rollouts of a run."""
    lengths = Lengths()
    for _, groups in run.by_step():
        lengths.add_step(groups)
    return lengths


def gram_of(
    rows: Sequence[Sequence[float]],
    groups: Sequence[str],
    *,
    step: int = 0,
    rewards: Sequence[float] | None = None,
    advantages: Sequence[float] | None = None,
    **parts: Any,
) -> Any:
    """A step whose score vectors are known; each rollout's gradient is its advantage (1 each) times its row."""
    scores = np.array(rows, dtype=np.float64)
    weights = np.ones(len(scores)) if advantages is None else np.array(advantages, dtype=np.float64)
    policy = (weights[:, None] * scores) @ (weights[:, None] * scores).T
    names = list(groups)
    defaults: dict[str, Any] = {
        "step": step,
        "score_gram": scores @ scores.T,
        "policy_gram": policy,
        "logged_gram": policy,
        "group_ids": tuple(names),
        "samples": tuple(names[:index].count(name) for index, name in enumerate(names)),
        "rewards": np.array([1.0] * len(names) if rewards is None else rewards),
        "advantages": weights,
        "parts": {},
        "logprobs": tuple(np.zeros(1) for _ in names),
        "num_parameters": scores.shape[1],
        "relative_row_error": 1e-9,
    }
    return SimpleNamespace(**{**defaults, **parts})
