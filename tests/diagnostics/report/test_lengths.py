from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gradscope.diagnostics.report.lengths import Ends, lengths_of
from gradscope.rollouts.groups import RolloutGroup
from tests.diagnostics.made_up_runs import group_of, run_of


def with_fields(group: RolloutGroup, *fields: dict[str, Any]) -> RolloutGroup:
    rollouts = zip(group.rollouts, fields, strict=True)
    return replace(group, rollouts=tuple(replace(rollout, **some) for rollout, some in rollouts))


def ids(*tokens: int) -> dict[str, Any]:
    return {"completion": "x", "prompt_ids": (), "completion_ids": tokens}


FIRST = with_fields(group_of([1, 0], step=2, prompt="a"), ids(5, 6), ids(5))
SECOND = with_fields(group_of([0, None], step=1, prompt="b"), ids(5), {})


def test_tokens_count_where_every_rollout_that_is_judged_has_them() -> None:
    found = lengths_of(run_of(FIRST, SECOND)).whole()
    assert (found.unit, found.values.tolist(), found.rewards.tolist()) == ("tokens", [2, 1], [1, 0])
    assert (found.steps.tolist(), found.samples.tolist(), found.names) == ([2, 2], [0, 1], [FIRST.group_id])


def test_else_the_characters_do() -> None:
    text = with_fields(group_of([1, 1], step=1, prompt="a"), {"completion": "abc"}, {"completion": ""})
    found = lengths_of(run_of(FIRST, text)).whole()
    assert (found.unit, found.values.tolist(), found.steps.tolist()) == ("characters", [3, 0, 1, 1], [1, 1, 2, 2])
    assert (found.groups.tolist(), found.prompts.tolist()) == ([0, 0, 1, 1], [0, 0, 0, 0])


@pytest.mark.parametrize(
    ("advantages", "share"), [((1.0, -3.0, None), 0.75), ((1.0, None, 1.0), None), ((0.0, 0.0, 0.0), None)]
)
def test_the_part_of_those_that_were_cut_off(advantages: tuple[float | None, ...], share: float | None) -> None:
    ends = Ends()
    for status, advantage in zip(("completed", "truncated", "unknown"), advantages, strict=True):
        (rollout,) = with_fields(group_of([1]), {"status": status, "advantage": advantage}).rollouts
        ends.add(rollout)
    assert (ends.num_judged, ends.num_cut, ends.frac_advantage) == (2, 1, share)
