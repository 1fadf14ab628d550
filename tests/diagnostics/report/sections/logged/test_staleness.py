from __future__ import annotations

import pytest

from gradscope.diagnostics.report.sections.logged.staleness import staleness_section
from tests.diagnostics.logged.made_up_tokens import drifting_run, tokens_of
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.report.sections.made_up_inputs import inputs_of


def test_lags_are_said_drawn_and_listed() -> None:
    section = staleness_section(inputs_of(drifting_run()))
    assert section.findings[0].startswith("The weights that sampled 36 rollouts were 0.33")
    assert "and 1 at most; 0.0 %" in section.findings[0]
    assert section.charts[0].series[1].values == (0.0, 1.0, 1.0)
    lags = section.tables[0].rows
    assert [row[:2] for row in lags] == [(0, 24), (1, 12)]
    assert lags[1][3].value == pytest.approx(0.025)  # type: ignore[union-attr]
    assert section.next_step.startswith("Where the gap grows with the lag")


def test_a_lag_without_log_probabilities_asks_for_them() -> None:
    section = staleness_section(inputs_of(run_of(tokens_of({"policy_versions": (0, 0)}, step=4))))
    assert section.next_step.startswith("Log the log-probabilities of sampler and trainer as well")
    assert section.tables[0].caption == "Rollouts by lag"
    assert section.tables[0].rows == ((3, 1, 1.0),)
    assert section.charts == ()


def test_no_lag_needs_nothing() -> None:
    section = staleness_section(inputs_of(run_of(tokens_of({"policy_versions": (3, 3)}, step=4))))
    assert section.next_step.startswith("Nothing to do")


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({}, "The log does not say which weights sampled a rollout."),
        ({"policy_versions": (9, 9)}, "The log names weights that are newer than its steps"),
    ],
)
def test_what_the_log_lacks_is_said(fields: dict[str, object], missing: str) -> None:
    section = staleness_section(inputs_of(run_of(tokens_of(fields))))
    assert section.missing is not None
    assert section.missing.startswith(missing)
    assert staleness_section(inputs_of(run_of(group_of([1, 0])))).missing is not None
