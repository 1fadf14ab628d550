"""Links, foreign files, pipes and folders without rights at every path that a command writes, before it or just then.

Each trial is a fork. What strangers own lies beside the trial's folder: afterwards it has the bytes, the rights and the
names it had, whatever the command made of the rest.
"""

import argparse
import os
import random
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from tests.hostile.cases import told
from tests.hostile.writes import WRITERS, Bench, Writer, at_event, events, forked, preload

_RANDOM = re.compile(r"\.[0-9]+-[0-9a-f]{6}\.partial|tmp[^/]*$")  # names that nobody can know beforehand
MINE = b"mine\n"
NOBODY = 65534  # the user that commands run as where rights are taken away: root has all of them


def _linked(target: str) -> Callable[[Path, Path], None]:
    return lambda place, stranger: place.symlink_to(stranger / target)


def _foreign_folder(place: Path, _: Path) -> None:
    place.mkdir()
    (place / "mine").write_bytes(MINE)


PLANTS: dict[str, Callable[[Path, Path], None]] = {
    "a link to a file": _linked("file"),
    "a link to a page": _linked("page.html"),
    "a link to a folder": _linked("folder"),
    "a link to nothing": _linked("folder/nothing"),
    "a hard link": lambda place, stranger: os.link(stranger / "file", place),
    "a foreign file": lambda place, _: place.write_bytes(MINE) and None,
    "a foreign folder": _foreign_folder,
    "a pipe": lambda place, _: os.mkfifo(place),
}
"""What a stranger, or the same user in another shell, puts in the way."""


def strangers(folder: Path) -> Path:
    """Files of somebody else."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "folder").mkdir(parents=True)
    for name in ("file", "page.html", "folder/inside"):
        (folder / name).write_bytes(b"<!doctype html>not yours\n")
    return folder


def seen(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below a folder: its kind and rights, and its bytes."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


def planted(bench: Bench, writer: Writer, path: str, number: int | None, kind: str) -> str:
    """Plant one of ``PLANTS`` at a path that a command writes, at that write (None: before); why it did not hold."""
    folder, stranger = bench.fresh(writer), strangers(bench.folder / "stranger")
    before, place = seen(stranger), folder / path

    def plant(real: str) -> None:
        where = Path(real)
        if where.is_dir():  # whoever may exchange folders of ours may do as he likes
            return
        where.unlink(missing_ok=True)
        PLANTS[kind](where, stranger)

    if number is None:
        place.parent.mkdir(parents=True, exist_ok=True)
        plant(str(place))
    had = place.lstat() if number is None else None
    hook = (lambda: None) if number is None else at_event(folder, number, plant)
    force = writer.again(folder / writer.place) if path.startswith(writer.place) else ()
    code, err = forked(folder, (*writer.arguments, *force), hook)
    if seen(stranger) != before:
        return f"a stranger's files changed ({code}): {err[-300:]}"
    if code not in (0, 1, 2) or (code == 2 and "error: " not in err):
        return f"ended with {code}: {err[-600:]}"
    if had is not None and not path.startswith(writer.place):  # no output, so not ours to replace or remove
        if not os.path.lexists(place) or not os.path.samestat(had, place.lstat()):
            return f"what lay at {path} is gone ({code})"
        if stat.S_ISREG(had.st_mode) and place.read_bytes() not in (MINE, (stranger / "file").read_bytes()):
            return f"what lay at {path} was overwritten ({code})"
        if kind == "a foreign folder" and seen(place) != {"mine": seen(place)["mine"]}:
            return f"something was put into {path} ({code})"
    return ""


def without_rights(bench: Bench, writer: Writer, place: str) -> str:
    """Run the command as nobody where a folder that it writes into may only be read; why it did not hold."""
    folder = bench.fresh(writer)
    (folder / place).mkdir(parents=True, exist_ok=True)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    (folder / place).chmod(0o555)
    before = seen(folder)
    code, err = forked(folder, (*writer.arguments, *writer.again(folder / writer.place)), lambda: os.setuid(NOBODY))
    (folder / place).chmod(0o755)
    if code != 2 or "hint: " not in err:
        return f"ended with {code}: {err[-600:]}"
    changed = {name for name, entry in before.items() if name != place and seen(folder).get(name) != entry}
    return f"these changed: {changed}" if changed else ""


def trials(bench: Bench, writers: Sequence[Writer], chance: random.Random) -> Iterator[tuple[str, Callable[[], str]]]:
    """Every trial of some commands in an order drawn by chance: its name and what runs it."""
    found: list[tuple[str, Callable[[], str]]] = []
    for writer in writers:
        paths = events(bench.fresh(writer), writer.arguments)
        known = sorted({path for path in paths if not _RANDOM.search(path)} | {f".{writer.place}.unfinished"})
        for kind in PLANTS:
            for number, path in [*((None, path) for path in known), *enumerate(paths, 1)]:
                is_asked = path == writer.place and kind == "a link to a folder"  # named as output, it is followed
                if (
                    path == "." or is_asked or (number and "/checkpoints/" in path)
                ):  # a trainer's own, in our own folder
                    continue
                when = "before" if number is None else "just then"
                run = partial(planted, bench, writer, path, number, kind)
                found.append((f"{when}: {kind}|{writer.name}, write {number}, {path}", run))
        if os.getuid() == 0 and writer.arguments[0] != "check":
            for place in (".", writer.place) if "." not in writer.place else (".",):
                found.append((f"no rights|{writer.name}, {place}", partial(without_rights, bench, writer, place)))
    chance.shuffle(found)
    yield from found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.planted", description=__doc__)
    parser.add_argument("--most", type=int, help="trials; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--writer", action="append", default=[], choices=[writer.name for writer in WRITERS])
    asked = parser.parse_args()
    preload(asked.writer)
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        bench = Bench(Path(place) / "bench")
        chosen = [writer for writer in WRITERS if not asked.writer or writer.name in asked.writer]
        every = islice(trials(bench, chosen, random.Random(asked.seed)), asked.most)
        sys.exit(told((name, run()) for name, run in every))
