from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gradscope.diagnostics.inputs import recomputed
from gradscope.diagnostics.report import tokens
from gradscope.diagnostics.report.tokens import report_tokens
from gradscope.gradients.engine_options import EngineOptions
from gradscope.gradients.tokens import rollout_tokens
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.report.sections.made_up_inputs import NOT_READ, gram_of

RUN = run_of(group_of([1, 0]))


def step(number: int, rows: list[list[float]] | None) -> Any:
    gram = None if rows is None else gram_of(rows, ["0/p"] * len(rows), step=number)
    return SimpleNamespace(step=number, gram=gram, weights=f"weights {number}", groups=RUN.groups)


def test_no_tokens_are_measured_where_none_were_asked_for() -> None:
    absent = report_tokens(RUN, [step(1, [[1.0]])], NOT_READ, 0, EngineOptions())
    assert absent.reason == "The gradients of single tokens were not computed, as asked (--max-tokens 0)."


@pytest.mark.parametrize("rows", [None, [[0.0]]])
def test_without_a_gradient_the_reason_is_that_of_the_steps(rows: list[list[float]] | None) -> None:
    assert report_tokens(RUN, [step(1, rows)], NOT_READ, 64, EngineOptions()) is NOT_READ


def test_rollouts_of_the_largest_gradient_are_measured_by_their_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 2/6, none, and 4/6 of a sum along the first axis."""
    asked: dict[str, Any] = {}

    def measure(prepared: str, gram: Any, order: list[int], *, most: int) -> tuple[()]:
        asked.update(prepared=prepared, step=gram.step, order=order, most=most)
        return ()

    monkeypatch.setattr(tokens, "loss_at", lambda run, objective, step: None)
    monkeypatch.setattr(recomputed, "prepared_of", lambda run, step, weights, loss, *_: f"{weights}, ready")
    monkeypatch.setattr(recomputed, "under", lambda prepared, assumption: f"{prepared} as {assumption}")
    monkeypatch.setattr(rollout_tokens, "measure_rollout_tokens", measure)
    steps = [step(1, [[1.0, 0.0]]), step(2, [[2.0, 0.0], [0.0, 0.0], [4.0, 0.0]])]
    steps[1].gram.batch_tokens, steps[1].gram.assumption = 128, "trained"
    assert report_tokens(RUN, steps, NOT_READ, 64, EngineOptions()) == ()
    assert asked == {"prepared": "weights 2, ready as trained", "step": 2, "order": [2, 0], "most": 64}
    assert np.allclose(steps[1].gram.policy_gram.sum(), 36.0)
