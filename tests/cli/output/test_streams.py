import os
import pty
import re
import select
import shlex
import sys
from collections.abc import Callable, Iterator

import pytest

from gradscope import machine
from gradscope.cli.output import streams
from gradscope.progress import no_progress


def test_a_line_of_talk_is_one_escaped_line(capsys: pytest.CaptureFixture[str]) -> None:
    streams.say("note: [b]\n\x1b[31m" + "x" * 200)
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
            reported = b""
            while select.select([master], [], [], 0.05)[0]:
                reported += os.read(master, 4096)
            return re.sub(r"\x1b\[[\d;]*m", "", reported.decode().replace("\r", ""))

        yield shown
    os.close(master)


def test_a_terminal_breaks_talk_between_words_and_what_is_quoted_never(
    on_a_terminal: Callable[[Callable[[], None]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")

    def work() -> None:
        streams.say(f"note: {'word ' * 4}end")
        streams.say("hint: word `gradscope rank run --step 1`, word word word --require 'a <= 1'")
        streams.pause()

    reported = "hint: word\n`gradscope rank run --step 1`,\nword word word\n--require 'a <= 1'\n\n"
    assert on_a_terminal(work) == f"note: word word word\nword end\n{reported}"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_command_on_a_terminal_is_broken_as_a_shell_reads_it(
    on_a_terminal: Callable[[Callable[[], None]], str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    words = ["gradscope", "check", "my run", "--require", "pass@8 >= 0.5", "--quiet", "--step", "1,2", "-o", "x" * 30]
    shown = on_a_terminal(lambda: streams.show_command(words))
    assert shlex.split(shown.replace("\\\n", "")) == ["$", *words]
    lines = shown.splitlines()
    assert all(len(line) <= width for line in lines if "x" * 30 not in line)
    assert not [line for line in lines if line.removesuffix(" \\").endswith(("--require", "--step", "-o"))]
    assert (len(lines) == 1) == (width == 200)


def test_a_command_in_a_pipe_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    streams.pause()
    streams.show_command(["gradscope", "--word", "a b"] * 20)
    streams.show_line("--word " * 40 + "[end]", style="bold")
    command = " ".join(["gradscope --word 'a b'"] * 20)
    assert capsys.readouterr().out == f"$ {command}\n{'--word ' * 40}[end]\n"


@pytest.mark.parametrize(("rank", "prints"), [("0", True), ("1", False)])
def test_of_several_processes_the_main_one_prints(
    rank: str, prints: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "_reports", [])
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    streams.say("note: a")
    streams.show("b")
    streams.show_line("c")
    streams.write_data("d")
    streams.show_next(["explain"])  # needs the launcher
    assert capsys.readouterr() == (("b\nc\nd", "note: a\n") if prints else ("", ""))


@pytest.mark.parametrize(
    ("typed", "remaining"),
    [
        ("my-run --output out --force", "my-run"),
        ("-oout my-run --output=out -q", "my-run -q"),
        ("--json my-run --show a --show=b --step 1", "my-run --step 1"),
        ("my-run --follow --every 2 --idle=5 --by window", "my-run --by window"),
        ("my-run --baseline b.json --update-baseline", "my-run --baseline b.json"),
        ("my-run --initial W0 --run-config args.json -o", "my-run --initial W0 --run-config args.json"),
    ],
)
def test_files_and_forms_of_output_are_left_out(typed: str, remaining: str) -> None:
    assert streams.typed_again(typed.split()) == remaining.split()


def test_a_command_is_one_line_that_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    streams.show_next(["rank", "a run", "--step", "1" * 100], ["explain", "effective_rank"])
    assert capsys.readouterr().out == (
        f"\n$ gradscope rank 'a run' --step {'1' * 100}\n$ gradscope explain effective_rank\n"
    )


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(streams.time, "monotonic", lambda: now[0])
    return now


def test_quiet_reports_no_progress() -> None:
    with streams.progress_bar(quiet=True) as progress:
        assert progress is no_progress


def test_a_terminal_shows_a_bar_and_ends_clean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with streams.progress_bar(quiet=False) as progress:
        progress(1, 4, "[steps]")
    out, err = capsys.readouterr()
    assert out == ""
    assert "[steps]" in err
    assert "1/4" in err


def test_a_file_gets_progress_lines_now_and_then(seconds: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with streams.progress_bar(quiet=False) as progress:
        for done in range(0, 101, 10):
            progress(done, 100, "MB read")
            seconds[0] += 10
        # other work begins, and nothing is known of its pace yet
        progress(0, 3, "steps")
        seconds[0] += 4000
        progress(1, 3, "steps")
        seconds[0] += 31
        progress(1, 7, "steps")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "about 80 s left: 20 of 100 MB read",
        "about 50 s left: 50 of 100 MB read",
        "about 20 s left: 80 of 100 MB read",
        "0 of 3 steps",
        "about 2 h 13 min left: 1 of 3 steps",
        "1 of 7 steps",
    ]


def test_the_first_part_of_a_step_tells_how_long_a_model_loads(
    seconds: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with streams.progress_bar(quiet=False) as progress:
        for done in (0, 1 / 64, 8 / 64, 16 / 64):
            progress(done, 1, "steps")
            seconds[0] += 31
    assert capsys.readouterr().err.splitlines() == [
        "0 of 1 steps",
        "about 4 min left: 0 of 1 steps",
        "about 3 min left: 0 of 1 steps",
    ]


@pytest.mark.parametrize(
    ("done", "total", "left"), [(1, 10, "about 9 min left: "), (9_999, 10_000, ""), (10**9 - 1, 10**9, "")]
)
def test_an_hour_is_in_minutes_and_under_a_second_is_no_estimate(
    done: int, total: int, left: str, seconds: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    """Work that has only begun, or is all but done, after a wait: neither is said to take no time."""
    with streams.progress_bar(quiet=False) as progress:
        progress(0, total, "groups")
        seconds[0] += 60
        progress(done, total, "groups")
    assert capsys.readouterr().err == f"{left}{done} of {total} groups\n"
