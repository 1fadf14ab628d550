"""A case: a log or a model folder that is damaged, a command that is asked about it, and whether it held.

One case of five is a log of the oracle, with rows that are none in between, whose counts the command has to reach.
"""

import argparse
import io
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from gradscope.__main__ import main
from gradscope.rollouts.readers.reduction import log
from tests.conftest import LOGS
from tests.hostile.mutate import damaged
from tests.hostile.oracle import difference, write_log

EVALUATIONS = ("evalplus", "lm_eval", "lighteval", "inspect", "verifiers", "skyrl", "samples", "trials")
GATE = ("--require", "frac_reward_zero_std <= 1", "--require", "grad_norm@max < 1e9")
ON_LOGS: tuple[tuple[str, ...], ...] = (
    ("degeneracy", "--json"),
    ("degeneracy",),
    ("check", *GATE, "--json"),
    ("check", *GATE, "--format", "junit"),
    ("report", "--no-gradients", "--output", "page.html"),
    ("degeneracy", "--output", "out"),
    ("replay", "--json"),
    ("claims", "--no-gradients", "--json"),
    ("spike",),
)
ON_SAMPLES: tuple[tuple[str, ...], ...] = (("passk", "--json"), ("passk",), ("degeneracy", "--json"))
ON_MODELS: tuple[tuple[str, ...], ...] = (
    ("rank", "--step", "2", "--json"),
    ("rank", "--step", "2", "--rows", "token"),
    ("rank", "--rows", "update", "--json"),
    ("replay", "--step", "2"),
    ("claims", "--step", "2", "--json"),
    ("spike", "--step", "2"),
)
SECONDS = 30.0  # of processor time
BYTES = 2 << 30


class Outcome(Struct, frozen=True, kw_only=True):
    """What one case came to."""

    case: int
    code: int
    seconds: float
    subject: str = ""
    damage: str = ""
    command: str = ""
    wrong: str  # why it did not hold; empty where it did
    bytes: int = 0  # the most that the process had meanwhile


def subjects() -> list[Path]:
    """Every log of the fixtures: a folder, or a file; those of metrics alone each by itself."""
    paths = [*LOGS.iterdir(), *(LOGS / "metrics").iterdir()]
    return sorted(path for path in paths if path.name not in ("README.md", "metrics"))


def run_case(seed: int, case: int, folder: Path, model: Path | None) -> Outcome:
    """Make a case of a campaign in a folder, made anew, and run it; one of 25 is of a model, if there is one."""
    chance = random.Random(f"{seed}/{case}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if chance.random() < 0.2:
        return _counted_case(case, chance, folder)
    of_model = model is not None and chance.random() < 0.05
    subject = model if model is not None and of_model else chance.choice(subjects())
    place = folder / subject.name
    if subject.is_file():
        shutil.copy(subject, place)
    else:
        shutil.copytree(subject, place)
    where = chance.choice(sorted((place / "checkpoints").iterdir())) if of_model and chance.random() < 0.8 else place
    damage = damaged(where, chance)
    is_samples = subject.name.startswith(EVALUATIONS)
    name, *options = chance.choice(ON_MODELS if of_model else ON_SAMPLES if is_samples else ON_LOGS)
    arguments = [name, place.name if place.exists() else ".", *options]
    if place.is_dir() and chance.random() < 0.1:
        arguments[1] = "."
    return _judged(case, arguments, place, is_large=chance.random() < 0.5, subject=subject.name, damage=damage)


def _counted_case(case: int, chance: random.Random, folder: Path) -> Outcome:
    """A log of the oracle: what is used and set aside are its rows, and the groups and dead ones are as it counts."""
    place = folder / "log.jsonl"
    write_log(place, chance.getrandbits(64))

    def counts(code: int, out: str) -> str:
        return difference(place, json.loads(out)["result"] if code == 0 else None)

    is_large = chance.random() < 0.5
    damage = "large" if is_large else "small"
    arguments = ["degeneracy", place.name, "--json"]
    return _judged(case, arguments, place, is_large=is_large, subject="oracle", damage=damage, further=counts)


def _judged(
    case: int,
    arguments: list[str],
    place: Path,
    *,
    is_large: bool,
    subject: str,
    damage: str,
    further: Callable[[int, str], str] = lambda code, out: "",
) -> Outcome:
    """Run a command on what lies at a place, and see whether it held; large: read as large logs are."""
    before = _digest(place)
    start = time.process_time()
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(place.parent)
        patched.setenv("GRADSCOPE_DEBUG", "1")
        if is_large:
            patched.setattr(log, "MAX_WITH_TEXTS", 0)
        code, out, err = called(arguments)
    seconds = time.process_time() - start
    wrong = _wrong(arguments, code, out, err, seconds)
    if not wrong and _digest(place) != before:
        wrong = "the input was changed"
    if not wrong and list(place.parent.rglob(".*.partial")):
        wrong = "a partial file was left"
    return Outcome(
        case=case,
        code=code,
        seconds=seconds,
        subject=subject,
        damage=damage,
        command=" ".join(arguments),
        wrong=wrong or further(code, out),
    )


def called(arguments: list[str]) -> tuple[int, str, str]:
    """A command's exit code, stdout and stderr."""
    with _text() as out, _text() as err:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(arguments)
        if code == 130:  # the campaign is interrupted, not the command
            raise KeyboardInterrupt
        out.flush(), err.flush()
        return code, *(stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err))  # type: ignore[attr-defined]


@contextmanager
def _text() -> Iterator[io.TextIOWrapper]:
    with io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace") as stream:
        yield stream


def wrong_end(code: int, err: str) -> str:
    """Why a command did not end as it may: well, with an open question, or with an error and a hint."""
    if code not in (0, 1, 2) or (code == 2 and not ("error: " in err and "hint: " in err)):
        return f"ended with {code}: {err[-700:]}"
    return ""


def _wrong(arguments: list[str], code: int, out: str, err: str, seconds: float) -> str:
    if code not in (0, 1, 2):
        return f"exit {code}: {err[-2500:]}"
    if seconds > SECONDS:
        return f"{seconds:.0f} s"
    lines = err.splitlines()
    if code == 2 and not (any(line.startswith("error: ") for line in lines) and lines[-1].startswith("hint: ")):
        return f"exit 2 without an error and a hint: {err[-500:]}"
    if code == 0 and not out.strip():
        return "exit 0 without a word"
    if "\x1b" in out + err:
        return "an escape of the input reached the terminal"
    if "--json" in arguments and out:
        return _wrong_json(json.loads(out, parse_constant=_no_constant))
    return ""


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _wrong_json(document: Any) -> str:
    """A share is one, whatever was read."""
    texts = [document["result"]]
    while texts:
        text = texts.pop()
        if isinstance(text, dict):
            texts.extend(text.values())
            share = text.get("frac_reward_zero_std")
            value = share.get("value") if isinstance(share, dict) else None
            if value is not None and not 0 <= value <= 1:
                return f"a share of {value}"
        elif isinstance(text, list):
            texts.extend(text)
    return ""


def _digest(place: Path) -> str:
    digest = sha256()
    below = [] if place.is_symlink() else place.rglob("*")
    for path in sorted([place, *below]) if place.exists() or place.is_symlink() else ():
        digest.update(os.fsencode(path))
        if path.is_symlink():
            digest.update(os.fsencode(os.readlink(path)))
        elif path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def options_of(module: str, about: str | None, **defaults: Any) -> argparse.Namespace:
    """The options of a campaign's command line.

    Args:
        module: What ``python -m`` starts.
        about: Its docstring.
        defaults: Name -> the default; a type where there is none, or a tuple of choices, of which all are the default.
    """
    parser = argparse.ArgumentParser(prog=f"python -m tests.hostile.{module}".rstrip("."), description=about)
    for name, default in defaults.items():
        if isinstance(default, tuple):
            parser.add_argument(f"--{name}", action="append", choices=default)
        elif default is False:
            parser.add_argument(f"--{name}", action="store_true")
        elif isinstance(default, type):
            parser.add_argument(f"--{name}", type=default)
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default)
    options = parser.parse_args()
    for name, choices in defaults.items():
        if isinstance(choices, tuple):
            setattr(options, name, getattr(options, name) or choices)
    return options


def summarize(outcomes: Iterable[tuple[str, str]], about: str = "") -> int:
    """Print which cases did not hold, and at the end how many of each kind, the part before a ``|``; the exit code."""
    held, fell = Counter[str](), Counter[str]()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):  # what was run until then is told
        for name, why in outcomes:
            (fell if why else held)[name.partition("|")[0]] += 1
            if why:
                sys.stderr.write(f"{name}: {why}\n")
    for kind in sorted(held | fell):
        sys.stdout.write(f"{kind}: {held[kind]} held, {fell[kind]} fell\n")
    sys.stdout.write(f"{about}{(held + fell).total():,} cases, {fell.total()} did not hold\n")
    return int(bool(fell))
