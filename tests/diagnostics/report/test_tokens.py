from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gradscope.diagnostics.inputs import recomputed
from gradscope.diagnostics.inputs.steps import measure_steps
from gradscope.diagnostics.report import tokens
from gradscope.diagnostics.report.sections.inputs import TokenParts
from gradscope.diagnostics.report.tokens import report_tokens
from gradscope.gradients.engine_options import EngineOptions
from gradscope.gradients.processes import group
from gradscope.gradients.tokens import rollout_tokens
from gradscope.progress import no_progress
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.rank.tokens.made_up_parts import made_up
from tests.diagnostics.rank.tokens.test_token_changes import ON_CPU, plain_outputs, run_on, tokens_of
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


def test_all_tokens_of_a_step_are_those_of_plain_forward_passes(tmp_path: Path) -> None:
    run = run_on(tmp_path, 0, 2)
    run = replace(run, metrics={1: {"entropy": 0.5}})
    measured = tuple(measure_steps(run, (1,), ON_CPU, no_progress))
    parts = tokens.token_parts(run, measured, ON_CPU)
    before, after = (plain_outputs(run, tmp_path / name) for name in ("0", "2"))
    (change,), (moved,) = parts.entropy, parts.logprobs
    assert change.entropy.value == pytest.approx(before[1].mean(), abs=1e-5)
    assert change.measured.value == pytest.approx((after - before)[1].mean(), abs=1e-5)
    advantages = tokens_of(run).advantages
    assert change.covariance.value == pytest.approx(np.cov(before[0], advantages, bias=True)[0, 1], abs=1e-5)
    assert (change.logged, change.last) == (0.5, 2)
    assert moved.positive.value == pytest.approx((after - before)[0][advantages > 0].mean(), abs=1e-5)
    assert (list(parts.weighed), parts.kl, parts.turns) == ([1], (), ())


def test_only_the_last_step_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_prepared", lambda run, step, options: step)
    monkeypatch.setattr(tokens, "weigh_step", lambda prepared, gram: made_up(num_turns=2).found if gram.step else None)
    groups = tuple(group_of([0.0] * 3, prompt=f"p{number}") for number in range(4))
    live = [SimpleNamespace(step=n, gram=gram_of([[1.0]], ["a"], step=n), groups=groups) for n in (0, 1, 6)]
    parts = tokens.token_parts(RUN, [*live, step(9, None), step(10, [[0.0]])], EngineOptions())
    assert list(parts.weighed) == [1, 6]
    assert [one.measured.undefined for one in parts.entropy] == [
        "only step 6 is followed on this page",
        "no weights after its update are on disk",
    ]
    assert [one.step for one in parts.kl] == [1, 6]
    assert [(one.step, one.turn) for one in parts.turns] == [(1, 1), (1, 2), (6, 1), (6, 2)]
    assert tokens.token_parts(RUN, [step(9, None)], EngineOptions()) == TokenParts()


def test_of_several_processes_none_looks_at_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "num_connected", lambda: 2)
    assert tokens.token_parts(RUN, [step(1, [[1.0]])], EngineOptions()) == TokenParts()
