"""Parts of several steps, and why some are missing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.diagnostics.rank.tokens import gathered_parts
from gradscope.diagnostics.rank.tokens.gathered_parts import GatheredParts
from gradscope.diagnostics.rank.tokens.token_changes import TokenChange
from gradscope.gradients.engine_options import EngineOptions
from gradscope.reason import Reason
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.rank.tokens.made_up_parts import made_up

GROUPS = tuple(group_of([0.0] * 3, step=7, prompt=f"p{number}") for number in range(4))
STEP = MeasuredStep(step=7, groups=GROUPS, weights=None, gram=None, reason=None)


def test_a_step_adds_its_parts_and_hands_on_its_rows() -> None:
    made, gathered = made_up(num_turns=2), GatheredParts()
    run = dataclasses.replace(run_of(*GROUPS), metrics={7: {"entropy": 0.5}, 8: {"entropy": 0.4}})
    handed = gathered.take(run, dataclasses.replace(STEP, answer=(tuple(made.grams), made.found)))
    assert handed.answer == tuple(made.grams)
    assert {one.step for part in (gathered.corrections, gathered.kinds, gathered.turns) for one in part} == {7}
    assert [(one.logged, one.logged_next) for one in gathered.entropy] == [(0.5, None)]  # step 8 has no rollouts here
    assert len(gathered.kl) == 1
    assert gathered.missing == {}


def test_what_a_step_lacks_is_missing_with_its_reason() -> None:
    made, gathered = made_up(sampler=False), GatheredParts()
    alone = dataclasses.replace(made.found, tokens=dataclasses.replace(made.found.tokens, reference=None))
    gathered.take(run_of(*GROUPS), dataclasses.replace(STEP, answer=((), alone)))
    assert set(gathered.missing) == {"corrections", "turns", "kl"}
    assert "step 7: the log does not have the sampler's log-probability" in gathered.missing["corrections"]
    assert gathered.entropy[0].logged is None


def test_a_step_without_a_gradient_has_none_of_them() -> None:
    gathered = GatheredParts()
    assert gathered.take(run_of(*GROUPS), dataclasses.replace(STEP, answer=(("rows",), None))).answer == ("rows",)
    assert set(gathered.missing) == {"corrections", "turns", "kl", "energy", "entropy", "logprobs"}


def test_a_step_that_could_not_be_recomputed_stays_as_it_is() -> None:
    refused = dataclasses.replace(STEP, reason=Reason("unusable", "no weights"))
    assert GatheredParts().take(run_of(*GROUPS), refused) is refused


def test_what_became_of_the_tokens_joins_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    made, gathered = made_up(), GatheredParts()
    gathered.take(run_of(*GROUPS), dataclasses.replace(STEP, answer=(tuple(made.grams), made.found)))
    ones = np.ones(len(made.found.tokens.groups))
    later = TokenChange(first=6, last=9, logprobs=0.5 * ones, entropies=-0.25 * ones)
    monkeypatch.setattr(gathered_parts, "token_changes", lambda run, tokens, options: ({7: later}, {}))
    gathered.look_later(run_of(*GROUPS), EngineOptions())
    assert [(one.step, one.last) for one in gathered.logprobs] == [(7, 9)]
    assert [(one.last, one.measured.value) for one in gathered.entropy] == [(9, -0.25)]


def test_tokens_are_looked_at_once_more_where_there_are_later_weights() -> None:
    made, gathered = made_up(num_turns=2), GatheredParts()
    run = run_of(*GROUPS)
    gathered.take(run, dataclasses.replace(STEP, answer=(tuple(made.grams), made.found)))
    gathered.look_later(run, EngineOptions(device="cpu"))
    assert gathered.logprobs == ()
    assert gathered.missing == {"logprobs": "step 7: no weights after its update are on disk"}
    assert gathered.tokens == {}
