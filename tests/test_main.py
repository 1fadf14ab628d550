import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from gradscope import __main__, __version__, errors

ROOT = Path(__file__).resolve().parent.parent


def raising(error: BaseException) -> Callable[[list[str]], int]:
    def command(arguments: list[str]) -> int:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InputError("No run at x.", hint="Check the path."), 2),
        (errors.UsageError("No metric x."), 2),
        (errors.OutputExistsError("x is there.", hint="Add --force."), 2),
        (errors.MissingDependencyError("trl is absent.", hint="pip install 'gradscope[train]'"), 2),
        (errors.VerificationError("The norms differ by 3 %."), 3),
        (KeyError("x"), 3),
        (ValueError("wrong array"), 3),
        (PermissionError(13, "Permission denied", "/locked"), 2),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
        (SystemExit(1), 141),
    ],
)
def test_every_exception_has_its_exit_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(__main__, "_run_command", raising(error))
    monkeypatch.setattr(__main__, "_drop_stdout", lambda: None)
    assert __main__.main([]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err


def test_typers_abort_is_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def aborted(**_: object) -> None:
        raise typer.Abort

    monkeypatch.setattr("gradscope.cli.app.command", lambda: SimpleNamespace(main=aborted))
    assert __main__.main([]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_an_error_says_what_and_what_next(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    error = errors.GradscopeError(
        "no run log at `runs/a[b]`\x1b[31m" + " word" * 100, hint="[bold]gradscope demo[/bold]"
    )
    monkeypatch.setattr(__main__, "_run_command", raising(error))
    assert __main__.main([]) == 2
    error_line, hint = capsys.readouterr().err.splitlines()
    assert error_line == r"error: no run log at `runs/a[b]`\x1b[31m" + " word" * 100
    assert hint == "hint: [bold]gradscope demo[/bold]"


@pytest.mark.parametrize(
    ("command", "error", "offered"),
    [
        ("report", errors.MissingDependencyError("no torch", hint="pip install 'gradscope[gradients]'"), True),
        ("rank", errors.MissingDependencyError("no torch", hint="pip install 'gradscope[gradients]'"), False),
        ("report", errors.MissingDependencyError("no pyarrow", hint="pip install 'gradscope[parquet]'"), False),
        ("claims", errors.InputError("no log", hint="pip install 'gradscope[gradients]'"), False),
    ],
)
def test_where_gradients_can_be_left_out_a_missing_library_for_them_is_no_end(
    command: str,
    error: errors.GradscopeError,
    offered: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(__main__, "_run_command", raising(error))
    assert __main__.main([command, "run"]) == 2
    assert ("look at the log alone: --no-gradients" in capsys.readouterr().err) == offered


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "out/a.json"), "Free some space"),
        (OSError(errno.EROFS, "Read-only file system", "out/a.json"), "Ask for permission"),
        (OSError(errno.ENOENT, "No such file or directory", "out/a.json"), "was moved or removed meanwhile"),
        (OSError(errno.EIO, "Input/output error", "out/a.json"), "Look at the path"),
        (OSError("said by a library, about out/a.json"), "Look at the path"),
    ],
)
def test_an_error_of_the_disk_names_the_file_and_hints(
    error: OSError, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(__main__, "_run_command", raising(error))
    assert __main__.main([]) == 2
    message, hint = capsys.readouterr().err.splitlines()
    assert message.startswith("error: ")
    assert "out/a.json" in message
    assert hint.startswith("hint: ")
    assert words in hint


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full")
def test_a_full_disk_below_stdout_is_named() -> None:
    code = "from gradscope.__main__ import main; print(main(['--version']), file=__import__('sys').stderr)"
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert "(stdout)" in done.stderr
    assert "hint: Free some space" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full")
@pytest.mark.parametrize(("limit", "code"), [("> -1", 0), ("> 2", 1), ("?", 2)])
def test_a_full_disk_below_stderr_changes_no_outcome(limit: str, code: int) -> None:
    """A check that passed exited 1, as if it had failed."""
    log = ROOT / "fixtures" / "logs" / "trl"
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "gradscope", "check", str(log), "--require", f"frac_reward_zero_std {limit}"]
        assert subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=full).returncode == code


def test_a_bug_says_how_to_report_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("GRADSCOPE_DEBUG", raising=False)
    monkeypatch.setattr(__main__, "_run_command", raising(KeyError("x")))
    assert __main__.main([]) == 3
    first, second = capsys.readouterr().err.splitlines()
    assert first == "error: gradscope stopped at a bug of its own: KeyError: 'x'"
    assert second.startswith("hint: Please report it")
    assert "GRADSCOPE_DEBUG=1" in second
    monkeypatch.setenv("GRADSCOPE_DEBUG", "1")
    assert __main__.main([]) == 3
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["--version"]) == 0
    assert capsys.readouterr().out == f"gradscope {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rnk"], "Did you mean 'rank'?"),
        (["rank"], "Missing argument 'RUN'"),
        (["passk"], "Missing argument 'FILE...'"),
        (["reduce", "x"], "Missing option '--output'"),
        (["rank", "x", "--devise", "cpu"], "--device"),
        (["rank", "x", "--rows", "tokens"], "Invalid value for '--rows': 'tokens' is not one of 'rollout', 'group'"),
    ],
)
def test_a_typo_gets_a_suggestion(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert "hint: " in err


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "code"), [(["explain", "effective_rank"], 0), (["nonsense"], 2)])
def test_the_console_script_exits_with_the_code_when_all_is_said_and_done(arguments: list[str], code: int) -> None:
    script = """
import atexit, sys
from gradscope.__main__ import run
atexit.register(print, "at exit")
run()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert done.stdout.endswith("at exit\n")
    assert bool(done.stderr) == bool(code)


def test_ctrl_c_is_answered_from_the_start_to_the_end() -> None:
    script = """
import sys
from gradscope import __main__
late = {"typer", "socket", "ctypes", "concurrent", "logging", "inspect", "dataclasses"}
print(late & sys.modules.keys() - at_start)  # imports that take long have no answer to it
def pressed_again():
    raise KeyboardInterrupt
__main__.main = pressed_again
__main__.run()
"""
    # without site, which in some environments has imported a part of them
    command = [sys.executable, "-S", "-c", f"import sys; at_start = set(sys.modules)\n{script}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "set()\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["true", "head -1"])
def test_a_reader_that_goes_away_is_met_with_silence(reader: str) -> None:
    command = f"'{sys.executable}' -m gradscope explain | {reader} >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("141", "")


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-"])
def test_a_stream_that_was_closed_is_met_with_silence(closed: str) -> None:
    command = f"'{sys.executable}' -m gradscope explain effective_rank {closed}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (closed == "2>&-")


def test_courses_bullets_and_footnotes_have_a_likeness_in_every_encoding() -> None:
    """Courses were rows of ``\\u2583\\u2581`` where the terminal knows ASCII or Latin-1 only."""
    assert __main__.main(["--version"]) == 0  # which registers it
    assert "▁▄█· • 0.5¹² ü a…".encode("ascii", "gradscope.likened") == rb".=@? - 0.5^1^2 \xfc a~"
    assert "▁▄█· • 0.5¹⁴ ü —".encode("latin-1", "gradscope.likened") == ".=@· - 0.5¹^4 ü -".encode("latin-1")


@pytest.mark.slow
def test_a_terminal_that_knows_ascii_only_gets_escapes_and_no_crash() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gradscope", "explain", "effective_rank"],
        cwd=ROOT,
        env={"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    )
    assert done.stdout.isascii()
    assert done.stderr == b""
