from __future__ import annotations

import pytest

from gradscope.cli.arguments.renamed import with_new_names
from tests.cli.conftest import Cli


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["degeneracy", "run", "--format", "trl"], ["degeneracy", "run", "--reader", "trl"]),
        (["report", "run", "--tokens", "0"], ["report", "run", "--max-tokens", "0"]),
        (["compare", "grid", "--only=seed"], ["compare", "grid", "--vary=seed"]),
        (["check", "run", "--rule", "value"], ["check", "run", "--decide-by", "value"]),
    ],
)
def test_an_old_spelling_works_and_is_named(old: list[str], new: list[str]) -> None:
    renamed, (note,) = with_new_names(old)
    assert renamed == new
    assert (
        note == f"{old[2].partition('=')[0]} is now {new[2].partition('=')[0]}; the next release drops the old spelling"
    )


def test_what_is_no_old_option_stays_as_it_is() -> None:
    for arguments in ([], ["check", "run", "--format", "junit"], ["passk", "--", "--format"], ["explain", "--format"]):
        assert with_new_names(arguments) == (arguments, [])


def test_the_note_is_talk_and_quiet_leaves_it_out(cli: Cli, log: object) -> None:
    done = cli("degeneracy", log, "--format", "generic")
    assert done.code == 0
    assert done.err.startswith("note: --format is now --reader; the next release drops the old spelling\n")
    assert cli("degeneracy", log, "--format", "generic", "--quiet").err == ""
