from __future__ import annotations

import os
import pty
import re
import sys
from pathlib import Path

import pytest

from gradscope import processes
from gradscope.cli.output.streams import pause, say, show, show_line, write_data
from tests.cli.conftest import Cli


def test_a_line_of_talk_is_one_escaped_line(capsys: pytest.CaptureFixture[str]) -> None:
    say("note: [b]\n\x1b[31m" + "x" * 200)
    out, err = capsys.readouterr()
    assert (out, err) == ("", r"note: [b]\x0a\x1b[31m" + "x" * 200 + "\n")


def test_a_terminal_shows_talk_between_words_and_hints_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    monkeypatch.setenv("COLUMNS", "20")
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        for kind in ("note", "hint"):
            say(f"{kind}: {'word ' * 4}end")
        pause()
        terminal.flush()
        shown = re.sub(r"\x1b\[[\d;]*m", "", os.read(master, 4096).decode().replace("\r", ""))
    os.close(master)
    assert shown == "note: word word word\nword end\nhint: word word word word end\n\n"


def test_no_empty_line_stands_where_the_streams_are_apart(capsys: pytest.CaptureFixture[str]) -> None:
    pause()
    assert capsys.readouterr() == ("", "")


def test_a_command_is_one_line_whatever_its_length(capsys: pytest.CaptureFixture[str]) -> None:
    show_line("$ gradscope " + "--word " * 40 + "[end]", style="bold")
    assert capsys.readouterr().out == "$ gradscope " + "--word " * 40 + "[end]\n"


def test_quiet_says_errors_only(cli: Cli, log: Path) -> None:
    assert cli("degeneracy", log, "--quiet").err == ""
    assert cli("degeneracy", log.parent / "absent", "--quiet").err.startswith("error: ")


@pytest.mark.parametrize(("rank", "prints"), [("0", True), ("1", False)])
def test_of_several_processes_the_main_one_prints(
    rank: str, prints: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "_told", [])
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    say("note: a")
    show("b")
    show_line("c")
    write_data("d")
    assert capsys.readouterr() == (("b\nc\nd", "note: a\n") if prints else ("", ""))
