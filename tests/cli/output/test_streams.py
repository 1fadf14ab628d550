import os
import pty
import re
import select
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gradscope.cli.output.streams import pause, say, show, show_command, show_line, write_data
from gradscope.machine import processes
from tests.cli.conftest import Cli


def test_a_line_of_talk_is_one_escaped_line(capsys: pytest.CaptureFixture[str]) -> None:
    say("note: [b]\n\x1b[31m" + "x" * 200)
    out, err = capsys.readouterr()
    assert (out, err) == ("", r"note: [b]\x0a\x1b[31m" + "x" * 200 + "\n")


@pytest.fixture
def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], None]], str]]:
    """What is shown where one terminal has both streams, without its colors."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:

        def shown(work: Callable[[], None]) -> str:
            with monkeypatch.context() as patch:
                patch.setattr(sys, "stdout", terminal)
                patch.setattr(sys, "stderr", terminal)
                work()
                terminal.flush()
            told = b""
            while select.select([master], [], [], 0.05)[0]:
                told += os.read(master, 4096)
            return re.sub(r"\x1b\[[\d;]*m", "", told.decode().replace("\r", ""))

        yield shown
    os.close(master)


def test_a_terminal_breaks_talk_between_words_and_what_is_quoted_never(
    on_a_terminal: Callable[[Callable[[], None]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")

    def work() -> None:
        say(f"note: {'word ' * 4}end")
        say("hint: word `gradscope rank run --step 1`, word word word --require 'a <= 1'")
        pause()

    told = "hint: word\n`gradscope rank run --step 1`,\nword word word\n--require 'a <= 1'\n\n"
    assert on_a_terminal(work) == f"note: word word word\nword end\n{told}"


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_command_on_a_terminal_is_broken_as_a_shell_reads_it(
    on_a_terminal: Callable[[Callable[[], None]], str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    words = ["gradscope", "check", "my run", "--require", "pass@8 >= 0.5", "--quiet", "--step", "1,2", "-o", "x" * 30]
    shown = on_a_terminal(lambda: show_command(words))
    assert shlex.split(shown.replace("\\\n", "")) == ["$", *words]
    lines = shown.splitlines()
    assert all(len(line) <= width for line in lines if "x" * 30 not in line)
    assert not [line for line in lines if line.removesuffix(" \\").endswith(("--require", "--step", "-o"))]
    assert (len(lines) == 1) == (width == 200)


def test_a_command_in_a_pipe_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    show_command(["gradscope", "--word", "a b"] * 20)
    assert capsys.readouterr().out == "$ " + " ".join(["gradscope --word 'a b'"] * 20) + "\n"


def test_no_empty_line_stands_where_the_streams_are_apart(capsys: pytest.CaptureFixture[str]) -> None:
    pause()
    assert capsys.readouterr() == ("", "")


def test_a_line_is_one_line_whatever_its_length(capsys: pytest.CaptureFixture[str]) -> None:
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
