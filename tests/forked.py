"""Python processes that start in a moment: forked from a server that has imported what takes seconds to import."""

import atexit
import functools
import gc
import multiprocessing
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from tests.conftest import REPOSITORY

_SERVER = multiprocessing.get_context("forkserver")
_LATE = (  # by commands
    *("cli.output.delivery", "diagnostics.inputs.recomputed", "gradients.tokens.measure"),
    *("render.figures.rank", "render.html.page", "training.run_training", "training.tasks.running_sums"),
    *(f"cli.commands.{name}" for name in ("claims", "rank", "report", "train")),
)
_DIAGNOSTICS = (f"diagnostics.{name}.measure" for name in ("rank", "replay", "report", "check", "claims", "compare"))
_OURS = (f"gradscope.{name}" for name in ("cli.app", *_LATE, *_DIAGNOSTICS))
_THEIRS = ("matplotlib.pyplot", "scipy.stats", "transformers.models.llama.modeling_llama")
_SERVER.set_forkserver_preload([*_OURS, *_THEIRS, "tests.forked"])
if any("forkserver" in argument for argument in sys.orig_argv):  # in the server, which imports this module last
    get_checkpoint_conversion_mapping("llama")  # hundreds of patterns, compiled for the first model that is loaded
    gc.freeze()  # or each collection in a child would copy all that is imported


@functools.cache
def _folder() -> str:
    """The folder of the files that have the processes' stdout and stderr."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    return folder


class ForkedPython:
    """What ``python ARGUMENTS`` would be; it is used like a :class:`subprocess.Popen` of text.

    Args:
        arguments: ``-m MODULE``, ``-c CODE`` or a script, and what comes after it.
        environment: Variables in addition to ours.
        cwd: Where it runs; by default in the repository.
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        self.arguments = tuple(arguments)
        self._streams = Path(tempfile.mkdtemp(dir=_folder()))
        variables = dict(os.environ | {"PYTHONPATH": str(REPOSITORY)} | (environment or {}))
        self._process = _SERVER.Process(
            target=_run, args=(self.arguments, variables, str(cwd or REPOSITORY), str(self._streams))
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.arguments, timeout or 0.0, *map(self._text, ("stdout", "stderr")))
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        return self._text("stdout"), self._text("stderr")

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        self._process.join()

    def _text(self, name: str) -> str:
        file = self._streams / name
        return file.read_text() if file.exists() else ""


def _run(arguments: Sequence[str], environment: Mapping[str, str], cwd: str, streams: str) -> None:
    """In the new process: become what was asked for."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(Path(streams) / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    # in the background of a shell the server inherited that Ctrl-C is ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    try:
        _start(*arguments)
    finally:
        atexit._run_exitfuncs()  # a process of this kind ends without them


def _start(first: str, *arguments: str) -> None:
    if first == "-c":
        code, *rest = arguments
        sys.argv = ["-c", *rest]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        module, *rest = arguments
        sys.argv = [module, *rest]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *arguments]
        sys.path.insert(0, str(Path(first).resolve().parent))
        runpy.run_path(first, run_name="__main__")
