"""The tokens of several steps, and what became of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from gradscope.diagnostics.rank.tokens.followed_tokens import follow
from tests.diagnostics.rank.tokens.made_up_parts import made_up
from tests.diagnostics.rank.tokens.test_token_changes import ON_CPU, run_on, tokens_of


def test_tokens_are_followed_as_far_as_there_are_weights(tmp_path: Path) -> None:
    run = run_on(tmp_path, 0, 2)
    weighed = dataclasses.replace(made_up().found, tokens=tokens_of(run))
    found = follow(run, {1: weighed, 3: weighed}, ON_CPU)
    assert found.weighed == {1: weighed, 3: weighed}
    assert (list(found.changes), found.missing) == ([1], {3: "no weights after its update are on disk"})
