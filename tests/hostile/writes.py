"""Every command that writes, ended at each of its writes, on a full disk, beside another one, with its input gone.

Each trial is a fork of a process that has imported everything, so that hundreds take minutes. An audit hook counts what
the command does to files below its folder (opening for writing, making, renaming, removing) and ends it there.
"""

import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec import Struct

from gradscope.__main__ import main
from gradscope.machine import limit_spinning
from tests.hostile.cases import options_of, summarize, wrong_end

TRAIN = (
    "train --output run --quiet --steps 3 --num-prompts 2 --group-size 4 --checkpoint-every 1"
    " --heldout-prompts 2 --heldout-samples 2"
)
LOG = [
    {"step": step, "prompt_id": f"p{prompt}", "reward": float((prompt * sample + step) % 2), "completion": "x" * sample}
    for step in (1, 2, 3)
    for prompt in range(4)
    for sample in range(4)
]


class Writer(Struct, frozen=True):
    """A command that writes, and how the same is made after it was interrupted."""

    name: str
    command: str
    output: str  # what it writes, from its folder
    again: Callable[[Path], tuple[str, ...]] = lambda output: ("--force",) if output.exists() else ()
    """What the same command takes in addition where it was interrupted."""
    refuses: bool = True  # what is there already, and a second one beside it

    @property
    def arguments(self) -> list[str]:
        """The words of the command."""
        return self.command.split()


def _to_resume(output: Path) -> tuple[str, ...]:
    return ("--resume",) if (output / "manifest.json").exists() else ()


def nothing(_: Path) -> tuple[str, ...]:
    """What a command that goes on by itself takes in addition."""
    return ()


_CHECK = "check log.jsonl --track pass_rate --baseline base.json --update-baseline --quiet"
_FIGURES = "report log.jsonl --no-gradients --output out/page.html --figures out/charts --quiet"
_KEPT = "degeneracy log.jsonl --prompt-column prompt_id"
_EVERY = (
    Writer("degeneracy --output", "degeneracy log.jsonl --output out --quiet", "out"),
    Writer("passk --output", "passk samples.jsonl --output out --quiet", "out"),
    Writer("report", "report log.jsonl --no-gradients --output page.html --quiet", "page.html"),
    Writer("check --update-baseline", _CHECK, "base.json"),
    Writer("train", TRAIN, "run", _to_resume),
    Writer("train --lora-rank", f"{TRAIN} --lora-rank 2", "run", _to_resume),
    Writer("rank --output", "rank run --step 1,2 --output out --quiet", "out"),
    Writer("replay --output", "replay run --step 1,2 --output out --quiet", "out"),
    Writer("claims --output", "claims log.jsonl --no-gradients --output out --quiet", "out"),
    Writer("compare --output", "compare log.jsonl other.jsonl --output out --quiet", "out"),
    Writer("report of several", "report log.jsonl other.jsonl --output page.html --quiet", "page.html"),
    Writer("report --figures", _FIGURES, "out"),
    Writer("spike --output", "spike run --step 2 --output out --quiet", "out"),
    Writer("rank --keep", "rank run --step 1,2 --keep kept --quiet", "kept", nothing, refuses=False),
    Writer("reduce", "reduce log.jsonl --output parts", "parts", nothing),
    Writer("kept options", _KEPT, "gradscope.toml", nothing, refuses=False),
)
WRITERS = {writer.name: writer for writer in _EVERY}
"""By name; `demo` calls these, `config` and `explain` write nothing."""


def preload(names: Sequence[str]) -> None:
    """Import what the commands import late, so that a fork need not; with threads that share a busy machine."""
    limit_spinning()
    modules = ["cli.app", "rollouts.fetch", "render.figures.style", "render.html.page"]
    modules += [f"diagnostics.{name}.measure" for name in ("report", "check", "claims", "compare")]
    if not names or any(name.startswith(("rank", "replay", "spike", "train")) for name in names):
        modules += ["diagnostics.rank.measure", "training.run_training"]
    others = (
        "encodings.latin_1",
        "encodings.unicode_escape",
        "webbrowser",
        "aiohttp",
        "fsspec.implementations.http",
        "matplotlib.style",
    )
    for module in (*others, *(f"gradscope.{name}" for name in modules)):  # a fork as nobody may read neither
        import_module(module)


SIZES = (0, 1, 100, 1_000, 4_096, 20_000, 100_000, 400_000)  # bytes that a file may have where the disk is full
MOMENTS = (0.01, 0.03, 0.06, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 1.8, 2.5, 4.0)
"""Seconds of processor time after which Ctrl-C is pressed."""
LONGEST = 300  # seconds of one command on a busy machine: what hangs ends by a signal
_WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGING = re.compile(
    rb'"(created_at|run_id|commit|step_time|since|train_runtime|[a-z_]+_per_second)": ("[^"]*"|[-0-9.e]+)'
    rb"|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\+00:00"
)
"""What two runs of one command tell differently."""


def start(folder: Path, arguments: Sequence[str], prepare: Callable[[], None]) -> tuple[int, int]:
    """Run a command in a fork, in a folder; the process, and where its stderr is read."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            signal.alarm(LONGEST)
            os.chdir(folder)
            os.environ.pop("GRADSCOPE_REMEMBER", None)
            os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
            os.dup2(theirs, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            prepare()
            code = main(list(arguments))
            sys.stderr.flush()
        finally:
            os._exit(code)
    os.close(theirs)
    return child, ours


def end(child: int, stderr: int) -> tuple[int, str]:
    with os.fdopen(stderr, "rb") as stream:
        err = stream.read().decode("utf-8", "replace")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), err


def forked(folder: Path, arguments: Sequence[str], prepare: Callable[[], None] = lambda: None) -> tuple[int, str]:
    """The exit code of a command that a fork runs in a folder, negative where a signal ended it; and its stderr."""
    return end(*start(folder, arguments, prepare))


def trained(folder: Path) -> Path:
    """A run of three updates of the embedded model, with its checkpoints."""
    preload(["train"])
    code, err = forked(folder, TRAIN.split())
    assert code == 0, err
    return folder / "run"


def at_event(
    folder: Path, number: int | None, act: Callable[[str], None], *, reads: bool = False
) -> Callable[[], None]:
    """A hook that acts on the path of one of the things that a command does to files below a folder; None: of each."""
    root, seen = str(folder), [0]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        is_write = event in _WRITES or (event == "open" and bool((arguments[2] or 0) & _WRITING))
        if not (is_write or (reads and event == "open")) or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        for path in _paths_of(event, arguments):
            if path.startswith(root) and (not reads or not is_write):
                seen[0] += 1
                if number in (None, seen[0]):
                    act(path)

    return lambda: sys.addaudithook(hook)


def _paths_of(event: str, arguments: tuple[Any, ...]) -> list[str]:
    """What an event is about: a path, or where something comes from and goes to; of a folder that is open, too."""
    names, folders = [arguments[0]], [arguments[-1]] if event in ("os.remove", "os.rmdir", "os.mkdir") else [-1]
    if event in ("os.rename", "os.link"):
        names, folders = list(arguments[:2]), list(arguments[2:])
    return [
        os.path.abspath(os.path.join(os.readlink(f"/proc/self/fd/{at}") if at >= 0 else "", os.fsdecode(name)))
        for name, at in zip(names, folders, strict=True)
    ]


def events(folder: Path, arguments: Sequence[str], *, reads: bool = False) -> list[str]:
    """The path of each of these things that a command does, from its folder, in order."""
    journal = folder.parent / "events"
    with journal.open("wb", buffering=0) as file:
        note = at_event(folder, None, lambda path: file.write(f"{path}\n".encode()) and None, reads=reads)
        code, err = forked(folder, arguments, note)
    assert code in (0, 1), err
    return [os.path.relpath(line, folder) for line in journal.read_text().splitlines()]


def state(place: Path) -> dict[str, bytes]:
    """What lies at a place, times apart: path from its folder -> bytes."""
    files = sorted(path for path in [place, *place.rglob("*")] if path.is_file())
    return {str(path.relative_to(place.parent)): _CHANGING.sub(b"", path.read_bytes()) for path in files}


class Bench:
    """A folder with inputs, what each command makes of them undisturbed, and trials that disturb it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "inputs").mkdir(parents=True)
        samples = [{name: row[name] for name in ("prompt_id", "reward")} for row in LOG]
        for name, rows in (("log", LOG), ("other", LOG[:-4]), ("samples", samples)):
            (folder / "inputs" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self._whole: dict[str, dict[str, bytes]] = {}

    def fresh(self, writer: Writer) -> Path:
        """A folder with the inputs of a command."""
        folder = self.folder / "trial"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder / "inputs", folder)
        if "run" in writer.arguments[1:2] and not (folder / "run").exists():
            shutil.copytree(trained(folder), self.folder / "inputs" / "run")
        if writer.output == "run":
            shutil.rmtree(folder / "run", ignore_errors=True)
        return folder

    def whole(self, writer: Writer) -> dict[str, bytes]:
        """What the command makes undisturbed, the same twice."""
        if writer.name not in self._whole:
            made = []
            for _ in range(2):
                folder = self.fresh(writer)
                code, err = forked(folder, writer.arguments)
                assert code == 0, err
                made.append(state(folder / writer.output))
            different = [name for name in made[0] if made[0][name] != made[1].get(name)]
            assert not different, f"two runs of {writer.name} differ in {different}"
            self._whole[writer.name] = made[0]
        return self._whole[writer.name]

    def finished(self, writer: Writer, folder: Path) -> str:
        """Run the command again where it was disturbed; why what it then leaves is not what it should be."""
        code, err = forked(folder, (*writer.arguments, *writer.again(folder / writer.output)))
        if code != 0 and "the same files were reduced before" not in err:
            return f"the second call ended with {code}: {err[-800:]}"
        present, whole = state(folder / writer.output), self.whole(writer)
        different = sorted(name for name in present.keys() | whole.keys() if present.get(name) != whole.get(name))
        if different:
            return f"after the second call these differ: {different[:5]}"
        left = [path.name for path in folder.rglob(".*") if path.name.endswith((".partial", ".lock", ".unfinished"))]
        return f"these are left: {left}" if left else self._inputs(folder, writer)

    def _inputs(self, folder: Path, writer: Writer) -> str:
        names = [path.name for path in (self.folder / "inputs").iterdir() if path.name != writer.output]
        changed = [name for name in names if state(folder / name) != state(self.folder / "inputs" / name)]
        return f"the inputs {changed} changed" if changed else ""

    def half(self, writer: Writer, folder: Path) -> str:
        """Whether an interrupted command left something that is taken for whole; a run says itself what it holds."""
        present, whole = state(folder / writer.output), self.whole(writer)
        finished = "rollouts/step_" if writer.output == "run" else ""
        wrong = [name for name in present if finished in name and "/." not in name and present[name] != whole.get(name)]
        return f"half a file: {wrong}" if wrong else ""

    def killed(self, writer: Writer, number: int) -> str:
        """Kill the command at one of its writes, and go on."""
        folder = self.fresh(writer)

        def kill(_: str) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        code, err = forked(folder, writer.arguments, at_event(folder, number, kill))
        if code not in (0, -signal.SIGKILL):
            return f"ended with {code}: {err[-800:]}"
        return self.half(writer, folder) or self.finished(writer, folder)

    def interrupted(self, writer: Writer, seconds: float) -> str:
        """Press Ctrl-C after some processor time, and go on."""
        folder = self.fresh(writer)

        def press() -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), signal.SIGINT))
            signal.setitimer(signal.ITIMER_PROF, seconds)

        code, err = forked(folder, writer.arguments, press)
        if code not in (0, 130) or "Traceback" in err:
            return f"ended with {code}: {err[-800:]}"
        return self.half(writer, folder) or self.finished(writer, folder)

    def full(self, writer: Writer, size: int) -> str:
        """Let no file become larger than a size, and go on with space."""
        folder = self.fresh(writer)
        limit = (size, size)
        code, err = forked(folder, writer.arguments, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
        if code not in (0, 2):
            return f"ended with {code}: {err[-800:]}"
        if code == 2 and not ("(" in err.split("error: ")[-1] and "hint: " in err):
            return f"no file or no hint: {err[-500:]}"
        return self.half(writer, folder) or self.finished(writer, folder)

    def beside(self, writer: Writer) -> str:
        """Two at once: one writes, the other is refused, or finds the same."""
        folder = self.fresh(writer)
        both = [start(folder, writer.arguments, lambda: None) for _ in range(2)]
        codes = sorted(end(*process)[0] for process in both)
        if codes != [0, 2] and (writer.refuses or codes != [0, 0]):
            return f"two at once ended with {codes}"
        return "" if state(folder / writer.output) == self.whole(writer) else "what two at once left is not whole"

    def vanished(self, writer: Writer, number: int) -> str:
        """Take a file away just before it is read."""
        folder = self.fresh(writer)

        def take(path: str) -> None:
            if os.path.isfile(path):
                os.unlink(path)

        code, err = forked(folder, writer.arguments, at_event(folder, number, take, reads=True))
        return wrong_end(code, err)

    def clock(self, writer: Writer) -> str:
        """Let the clock go backwards at each look."""
        folder = self.fresh(writer)
        now = [2_000_000_000.0]

        def back() -> None:
            def earlier() -> float:
                now[0] -= 3600
                return now[0]

            time.time = earlier

        code, err = forked(folder, writer.arguments, back)
        if code != 0:
            return f"ended with {code}: {err[-800:]}"
        return "" if state(folder / writer.output) == self.whole(writer) else "another clock gives another result"


def other_trials(bench: Bench, writer: Writer) -> list[tuple[str, Callable[[], str]]]:
    """Every trial of a command but being killed: its name and what runs it."""
    folder = bench.fresh(writer)
    num_reads = len(events(folder, writer.arguments, reads=True))
    return [
        *((f"read {at} finds nothing", partial(bench.vanished, writer, at)) for at in range(1, num_reads + 1)),
        *((f"files of {size:,} bytes", partial(bench.full, writer, size)) for size in SIZES),
        *((f"Ctrl-C after {at} s", partial(bench.interrupted, writer, at)) for at in MOMENTS),
        ("two at once", partial(bench.beside, writer)),
        ("clock backwards", partial(bench.clock, writer)),
    ]


def run_trials(
    folder: Path, writers: Sequence[Writer], kills: int | None, most: int | None, seed: int
) -> Iterator[tuple[str, str]]:
    """Run so many kills and so many other trials of each command, of all by default; each, and why it did not hold."""
    bench, chance = Bench(folder), random.Random(seed)
    for writer in writers:
        bench.whole(writer)
        writes = range(1, len(events(bench.fresh(writer), writer.arguments)) + 1)
        for number in writes if kills is None else chance.sample(writes, min(kills, len(writes))):
            yield f"killed at a write|{writer.name}, at write {number}", bench.killed(writer, number)
        every = other_trials(bench, writer)
        for name, run in every if most is None else chance.sample(every, min(most, len(every))):
            yield f"{re.sub(r'[0-9,.]+ ?', '', name).strip()}|{writer.name}, {name}", run()


if __name__ == "__main__":
    options = options_of("writes", __doc__, kills=int, most=int, seed=0, writer=tuple(WRITERS))
    preload(options.writer)
    with tempfile.TemporaryDirectory() as folder:
        writers = [WRITERS[name] for name in options.writer]
        sys.exit(summarize(run_trials(Path(folder), writers, options.kills, options.most, options.seed)))
