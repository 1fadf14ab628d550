from typing import Any

import pytest

from gradscope.diagnostics.rank.options import RankOptions
from gradscope.errors import UsageError
from gradscope.results.source import RowKind


@pytest.mark.parametrize(
    ("rows", "chosen", "message", "hint"),
    [
        (
            "rollout",
            {"tokens": 8},
            "--max-tokens is a number from 2 on, and goes with rows that are",
            "Add --rows token",
        ),
        ("token", {"tokens": 1}, "--max-tokens is a number from 2 on, and goes with rows that are", "--max-tokens 64"),
        ("hidden", {"sketch": 64}, "--sketch K keeps every token, as K numbers", "--rows token --sketch 4096"),
        ("token", {"sketch": 64, "tokens": 8}, "--sketch K keeps every token", "--rows token --sketch 4096"),
        ("update", {"pair_groups": True}, "--rows update has no such matrix", "Use --rows rollout"),
        ("rollout", {"heldout_threshold": 1.0}, "--heldout-threshold is about held-out samples", "--heldout FILE"),
        ("weight", {"heldout": "x"}, "--heldout is for rows of whole rollouts", "Leave out --rows"),
    ],
)
def test_options_must_go_with_the_rows(rows: RowKind, chosen: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        RankOptions(**chosen).check(rows)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        ("token", {"tokens": 2}),
        ("token", {"sketch": 2}),
        ("logit", {"tokens": 64, "pair_groups": True}),
        ("group", {"heldout": "x", "heldout_threshold": 0.5}),
    ],
)
def test_the_smallest_combinations_are_accepted(rows: RowKind, chosen: dict[str, Any]) -> None:
    RankOptions(**chosen).check(rows)
