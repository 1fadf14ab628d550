"""The one module where an exception becomes an exit code.

0 done · 1 a check failed or could not be decided, and a replay is one · 2 usage or unusable input, also where a part
of it is damaged and the rest is shown · 3 a bug in gradscope · 130 interrupted by Ctrl-C · 141 the reader of a pipe
went away, as a shell reports it of other programs.

Slow imports are in `_run_command`, where Ctrl-C is handled.
"""

from __future__ import annotations

import atexit
import codecs
import errno
import gc
import io
import os
import re
import select
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from gradscope.errors import GradscopeError, LaunchError, MissingDependencyError, VerificationError
from gradscope.machine import limit_spinning, num_processes, report_own_error

DEBUG_VARIABLE = "GRADSCOPE_DEBUG"
INTERRUPTED = 130
CLOSED_PIPE = 141
_COMPLETE = "_GRADSCOPE_COMPLETE"  # typer's variable where a shell asks for the ends of a word, and a person waits
_MOMENT = 100  # milliseconds that a reader of a pipe has to go: one that reads to the end is waited for in vain
_SELDOM = (10_000, 10, 10)
"""Python's thresholds of garbage collection, the first 14 times the usual: imports of PyTorch and transformers leave a
million objects that stay, and passes over all of them took a tenth of `rank`'s time."""
_FULL = "Free some space, or write to another path."
_NO_RIGHT = "Ask for permission, or write to another path."
_HINTS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _FULL),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _NO_RIGHT),
    errno.ENOENT: "Run the same command again: the file was moved or removed meanwhile.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.EMFILE: "Raise the number of open files: ulimit -n 4096",
}
_LIKENED = "gradscope.likened"
_LIKENESSES = str.maketrans("▁▂▃▄▅▆▇█·•—…→│", ".:-=+*#@?--~>|") | {
    ord(raised): f"^{digit}"  # a footnote's mark is no further digit
    for digit, raised in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")
}
_LOGS_ALONE = ("claims", "report")
_ANY_OTHER = "Look at the path and at the space on its disk, and run the same command again."


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: The arguments after the program's name; None: those of the process.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    _print_anything()
    limit_spinning()
    try:
        return _run_command(arguments)
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code in (0, 2):
            return error.code  # 0: typer's shell completion; 2: one of several processes, and another has reported why
        _drop_stdout()  # typer answers a closed pipe with exit(1), which would read as a failed check
        return CLOSED_PIPE
    except GradscopeError as error:
        lacks_torch = isinstance(error, MissingDependencyError) and "[gradients]" in (error.hint or "")
        other = " (or look at the log alone: --no-gradients)" if lacks_torch and arguments[0] in _LOGS_ALONE else ""
        _say_error(error.message, _fitting(f"{error.hint}{other}" if error.hint else None, arguments))
        return 3 if isinstance(error, VerificationError) else 2
    except LaunchError as error:
        _say_error(error.message, error.hint)
        return 2
    except OSError as error:
        location = f" ({error.filename})" if error.filename else ""
        _say_error(f"{error.strerror or error}{location}", _HINTS.get(error.errno or 0, _ANY_OTHER))
        return 2
    except Exception as error:
        return _say_bug(error)


def run() -> NoReturn:
    """The console script."""
    gc.set_threshold(*_SELDOM)
    try:
        code = main()
    except KeyboardInterrupt:  # pressed again while the first was reported
        code = INTERRUPTED
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all messages are out
    if not code or num_processes() == 1:  # of several, open connections may wait for the others, or abort
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a failure to write has been reported
            stream.flush()
    if not code and _COMPLETE not in os.environ and _reader_went():
        code = CLOSED_PIPE
    # Python would free every object first, up to a second's work.
    os._exit(code)


def _reader_went() -> bool:
    """Whether a pipe's reader goes before its end, as ``head -1`` does, also where all of a short answer fitted in."""
    with suppress(OSError, ValueError, AttributeError):  # no such file, or a system without poll
        watched = select.poll()
        watched.register(sys.stdout.fileno(), 0)  # errors are reported in any case
        return stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode) and bool(watched.poll(_MOMENT))
    return False


def _run_command(arguments: list[str]) -> int:
    import typer

    from gradscope.cli.app import command
    from gradscope.writing import naming

    renamed, notes = with_new_names(arguments)
    if not {"--quiet", "-q"} & set(arguments):
        for note in notes:
            _say(f"note: {note}")
    try:
        code = command().main(
            args=renamed,
            prog_name="gradscope",
            standalone_mode=False,
            obj=main,  # the demo runs other commands as a person would
        )
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        hint = f"See `{context.command_path if context else 'gradscope'} --help`."
        _say_error(error.format_message().replace("Value error, ", ""), hint)
        return 2
    with naming("stdout"):
        sys.stdout.flush()
    if code == INTERRUPTED:  # typer's own translation of Ctrl-C, without a word
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _print_anything() -> None:
    """Lets a terminal of any encoding show any text, likened or escaped; a closed stream leads nowhere."""
    codecs.register_error(_LIKENED, _likened)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_LIKENED)


def _likened(error: Any) -> tuple[str, int]:
    """Our own signs as others that every encoding has; any other character is escaped."""
    text = error.object[error.start : error.end].translate(_LIKENESSES)
    return text.encode("ascii", "backslashreplace").decode("ascii"), error.end


def _drop_stdout() -> None:
    """Points stdout at nothing, so that Python's own flush at exit stays quiet."""
    try:
        descriptor = sys.stdout.fileno()
    except io.UnsupportedOperation:
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _fitting(hint: str | None, arguments: Sequence[str]) -> str | None:
    from gradscope.cli.app import options_by_command

    return fitting_hint(hint, arguments, options_by_command()) if hint and "--" in hint else hint


def _say_bug(error: Exception) -> int:
    report_own_error()
    if os.environ.get(DEBUG_VARIABLE) == "1":
        import traceback

        traceback.print_exc()
    _say_error(
        f"gradscope stopped at a bug of its own: {type(error).__name__}: {error}",
        f"Please report it with the command and the traceback, which {DEBUG_VARIABLE}=1 shows.",
    )
    return 3


def _say_error(message: str, hint: str | None) -> None:
    _say(f"error: {message}")
    if hint:
        _say(f"hint: {hint}")


def _say(line: str) -> None:
    from gradscope.cli.output.streams import say

    say(line)


_RENAMED = {
    **{(command, "--format"): "--reader" for command in ("degeneracy", "passk", "rank", "replay", "report")},
    ("rank", "--tokens"): "--max-tokens",
    ("report", "--tokens"): "--max-tokens",
    ("compare", "--only"): "--vary",
    ("check", "--rule"): "--decide-by",
}
"""Command and old flag -> new flag. In `check`, ``--format`` is the format of stdout, and stays."""


def with_new_names(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command line with every old flag replaced, and one sentence for each that was."""
    command = next(iter(arguments), "")
    renamed, notes = list(arguments), []
    for index, word in enumerate(arguments):
        if word == "--":
            break
        old, equals, value = word.partition("=")
        new = _RENAMED.get((command, old))
        if new is not None:
            renamed[index] = f"{new}{equals}{value}"
            notes.append(f"{old} is now {new}; the next release drops the old spelling")
    return renamed, notes


_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]*")
_NAMED = re.compile(r"gradscope ([a-z]+)")


def fitting_hint(hint: str, arguments: Sequence[str], options: Mapping[str, frozenset[str]]) -> str:
    """A hint that says whose its options are, where neither the running command nor one that it names has them.

    >>> options = {"passk": frozenset({"--k"}), "compare": frozenset()}
    >>> fitting_hint("Use --k 1.", ["compare", "runs"], options)
    'Use --k 1. (--k is an option of `gradscope passk`, not of `gradscope compare`.)'
    """
    running = next((argument for argument in arguments if argument in options), None)
    if running is None:
        return hint
    available = options[running].union(*(options.get(name, frozenset()) for name in _NAMED.findall(hint)))
    elsewhere: dict[str, list[str]] = {}
    for option in dict.fromkeys(_OPTION.findall(hint)):
        owner = next((name for name, names in options.items() if option in names), None)
        if owner is not None and option not in available:
            elsewhere.setdefault(owner, []).append(option)
    for owner, foreign in elsewhere.items():
        are = "is an option" if len(foreign) == 1 else "are options"
        hint = f"{hint} ({', '.join(foreign)} {are} of `gradscope {owner}`, not of `gradscope {running}`.)"
    return hint


if __name__ == "__main__":
    run()
