"""The list of formulations, and the page that repeats it."""

from __future__ import annotations

import pytest

from gradscope.advantages.entries import ENTRIES
from gradscope.advantages.registry import ALL_FORMULATIONS
from tests.conftest import REPOSITORY


def test_no_name_is_given_twice() -> None:
    assert len(ALL_FORMULATIONS) == len(ENTRIES)


def test_every_formulation_says_where_it_is_from() -> None:
    assert all(entry.name == name and entry.formula and entry.source for name, entry in ALL_FORMULATIONS.items())
    assert not any("2606.29238" in entry.source for entry in ALL_FORMULATIONS.values())


PAGE = (REPOSITORY / "docs" / "formulations.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ALL_FORMULATIONS)
def test_the_page_says_what_the_registry_says(name: str) -> None:
    entry = ALL_FORMULATIONS[name]
    rewards = "0 and 1 only" if entry.needs_binary else "any"
    scope = "tokens" if entry.scope == "token" else entry.scope
    assert f"| `{name}` | {entry.formula} | {scope} | {rewards} | {'yes' if entry.zero_sum else 'no'} |" in PAGE
    assert f"- `{name}`: {entry.source}\n" in PAGE
