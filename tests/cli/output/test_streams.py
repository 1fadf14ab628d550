from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gradscope.cli.output.progress import progress_bar
from gradscope.cli.output.streams import say, show_line
from gradscope.progress import no_progress
from tests.cli.conftest import Cli


def test_a_line_of_talk_is_one_escaped_line(capsys: pytest.CaptureFixture[str]) -> None:
    say("note: [b]\n\x1b[31m" + "x" * 200)
    out, err = capsys.readouterr()
    assert (out, err) == ("", r"note: [b]\x0a\x1b[31m" + "x" * 200 + "\n")


def test_a_command_is_one_line_whatever_its_length(capsys: pytest.CaptureFixture[str]) -> None:
    show_line("$ gradscope " + "--word " * 40 + "[end]", style="bold")
    assert capsys.readouterr().out == "$ gradscope " + "--word " * 40 + "[end]\n"


@pytest.mark.parametrize("quiet", [False, True])
def test_nobody_is_told_how_far_it_is_where_nobody_watches(quiet: bool) -> None:
    with progress_bar(quiet=quiet) as progress:
        assert progress is no_progress


def test_a_terminal_shows_a_bar_and_is_clean_afterwards(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar(quiet=False) as progress:
        progress(1, 4, "[steps]")
    out, err = capsys.readouterr()
    assert out == ""
    assert "[steps]" in err
    assert "1/4" in err


def test_quiet_says_errors_only(cli: Cli, log: Path) -> None:
    assert cli("degeneracy", log, "--quiet").err == ""
    assert cli("degeneracy", log.parent / "absent", "--quiet").err.startswith("error: ")
