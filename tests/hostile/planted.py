"""Links, foreign files, pipes, folders without rights and other users at every path that a command writes.

Each trial is a fork. What strangers own lies beside the trial's folder: afterwards it has the bytes, the rights and the
names it had, whatever the command made of the rest.
"""

import os
import random
import re
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from tests.hostile.cases import options_of, summarize, wrong_end
from tests.hostile.servers import served
from tests.hostile.writes import WRITERS, Bench, Writer, at_event, end, events, forked, nothing, preload, start, state

_RANDOM = re.compile(r"\.[0-9]+-[0-9a-f]{6}\.partial|tmp[^/]*$")  # names that nobody can know beforehand
MINE = b"mine\n"
CACHE = "cache"
NOBODY, SOMEBODY = 65534, 65533  # users that commands run as where rights are taken away: root has all of them


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


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below a folder: its kind and rights, and its bytes."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


def planted(bench: Bench, writer: Writer, path: str, number: int | None, kind: str, *, replaces: bool = True) -> str:
    """Plant one of ``PLANTS`` at a path that a command writes, at that write (None: before); why it did not hold.

    ``replaces``: let the command replace its output, by ``--force`` or ``--resume``, where something lies there.
    """
    folder, stranger = bench.fresh(writer), strangers(bench.folder / "stranger")
    before, place = contents(stranger), folder / path

    def plant(real: str) -> None:
        where = Path(real)
        if where.is_dir():  # whoever may exchange folders of ours may do as he likes
            return
        where.unlink(missing_ok=True)
        PLANTS[kind](where, stranger)
        if writer.output == CACHE and kind != "a hard link":  # a link of one's own is as good as its target
            os.lchown(where, NOBODY, NOBODY)

    if number is None:
        place.parent.mkdir(parents=True, exist_ok=True)
        plant(str(place))
    had = place.lstat() if number is None else None
    hook = (lambda: None) if number is None else at_event(folder, number, plant)
    is_output = path.startswith(writer.output) and (replaces or not writer.refuses)
    force = writer.again(folder / writer.output) if is_output else ()
    code, err = forked(folder, (*writer.arguments, *force), hook)
    if contents(stranger) != before:
        return f"a stranger's files changed ({code}): {err[-300:]}"
    if had is not None and not is_output:  # not ours to replace or remove
        if not os.path.lexists(place) or not os.path.samestat(had, place.lstat()):
            return f"what lay at {path} is gone ({code})"
        if stat.S_ISREG(had.st_mode) and place.read_bytes() not in (MINE, (stranger / "file").read_bytes()):
            return f"what lay at {path} was overwritten ({code})"
        if (
            kind == "a foreign folder"
            and writer.name != "reduce"
            and contents(place) != {"mine": contents(place)["mine"]}
        ):
            return f"something was put into {path} ({code})"
    return wrong_end(code, err)


def without_rights(bench: Bench, writer: Writer, place: str) -> str:
    """Run the command as nobody where a folder that it writes into may only be read; why it did not hold."""
    folder = bench.fresh(writer)
    (folder / place).mkdir(parents=True, exist_ok=True)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    (folder / place).chmod(0o555)
    before = contents(folder)
    code, err = forked(folder, (*writer.arguments, *writer.again(folder / writer.output)), lambda: os.setuid(NOBODY))
    (folder / place).chmod(0o755)
    if writer.name == "kept options":  # which is no reason to fail a command that has answered
        if code != 0 or "are not kept" not in err:
            return f"ended with {code}: {err[-600:]}"
    elif code != 2 or "hint: " not in err:
        return f"ended with {code}: {err[-600:]}"
    changed = {name for name, entry in before.items() if name != place and contents(folder).get(name) != entry}
    return f"these changed: {changed}" if changed else ""


def _shared(bench: Bench, writer: Writer, rights: int) -> Path:
    bench.whole(writer)  # which takes the same folder
    folder = bench.fresh(writer)
    for path in folder.rglob("*"):  # a model's weights are for their owner alone
        path.chmod(path.stat().st_mode | 0o444)
    folder.chmod(rights)
    return folder


def by_two_users(bench: Bench, writer: Writer, rights: int) -> str:
    """Two users run the command at once in a folder that both may write in; why it did not hold."""
    folder = _shared(bench, writer, rights)
    both = [start(folder, writer.arguments, partial(os.setuid, user)) for user in (NOBODY, SOMEBODY)]
    ends = [end(*process) for process in both]
    if wrong := [why for code, err in ends if (why := wrong_end(code, err))]:
        return "; ".join(wrong)
    if sorted(code for code, _ in ends) not in ([0, 2], *([] if writer.refuses else [[0, 0]])):
        return f"two at once ended with {ends}"
    return "" if _is_whole(bench, writer) else "what two users left is not whole"


def _is_whole(bench: Bench, writer: Writer) -> bool:
    """Whether an output is as undisturbed, or what need not be written is not there."""
    return state(bench.folder / "trial" / writer.output) in (bench.whole(writer), {} if not writer.refuses else None)


def after_another(bench: Bench, writer: Writer, number: int, rights: int) -> str:
    """Kill the command of one user at one of its writes, and let another user run it, then the first again."""
    folder = _shared(bench, writer, rights)

    def killed() -> None:
        os.setuid(NOBODY)
        at_event(folder, number, lambda _: os.kill(os.getpid(), signal.SIGKILL))()

    forked(folder, writer.arguments, killed)
    left = {path: path.stat() for path in folder.rglob("*") if path.stat().st_uid == NOBODY}
    again = writer.again(folder / writer.output)
    code, err = forked(folder, (*writer.arguments, *again), partial(os.setuid, SOMEBODY))
    if why := wrong_end(code, err):
        return f"the other user's {why}"
    if rights & stat.S_ISVTX and (gone := [path for path in left if not path.exists()]):
        return f"another user removed {gone}"
    if code != 0 and not _is_whole(bench, writer):
        again = writer.again(folder / writer.output)
        code, err = forked(folder, (*writer.arguments, *again), partial(os.setuid, NOBODY))
        if code != 0:
            return f"going on ended with {code}: {err[-600:]}"
    return "" if _is_whole(bench, writer) else f"what is left is not whole ({code})"


def trials(bench: Bench, writers: Sequence[Writer], chance: random.Random) -> Iterator[tuple[str, Callable[[], str]]]:
    """Every trial of some commands in an order drawn by chance: its name and what runs it."""
    every: list[tuple[str, Callable[[], str]]] = []
    for writer in writers:
        paths = events(bench.fresh(writer), writer.arguments)
        known = sorted({path for path in paths if not _RANDOM.search(path)} | {f".{writer.output}.unfinished"})
        for kind in PLANTS:
            for number, path in [*((None, path) for path in known), *enumerate(paths, 1)]:
                is_named = path == writer.output and kind == "a link to a folder"  # named as output, it is followed
                is_theirs = number and "/checkpoints/" in path  # a trainer's own, in our folder
                is_private = path == CACHE or (number and path.startswith(f"{CACHE}/gradscope/places/"))
                if path == "." or is_named or is_theirs or is_private:
                    continue
                when = "before" if number is None else "just then"
                run = partial(planted, bench, writer, path, number, kind)
                every.append((f"{when}: {kind}|{writer.name}, write {number}, {path}", run))
            if kind != "a link to a folder" and writer.output != CACHE:
                run = partial(planted, bench, writer, writer.output, None, kind, replaces=False)
                every.append((f"unasked: {kind}|{writer.name}", run))
        if os.getuid() == 0:
            for place in (".", writer.output) if "." not in writer.output else (".",):
                if writer.arguments[0] != "check":
                    every.append((f"no rights|{writer.name}, {place}", partial(without_rights, bench, writer, place)))
            for rights in (0o777, 0o1777):
                every += [(f"two users|{writer.name}, {rights:o}", partial(by_two_users, bench, writer, rights))] * 3
                for number in range(1, len(paths) + 1):
                    run = partial(after_another, bench, writer, number, rights)
                    every.append((f"after another user|{writer.name}, {rights:o}, write {number}", run))
    chance.shuffle(every)
    yield from every


if __name__ == "__main__":
    options = options_of("planted", __doc__, most=int, seed=0, kind="", writer=(*WRITERS, "a URL"))
    preload(options.writer)
    with tempfile.TemporaryDirectory() as place, served(options.seed) as (server, _):
        os.chmod(place, 0o755)
        url = f"http://127.0.0.1:{server.server_address[1]}/sound/log.jsonl"
        copied = Writer("a URL", f"degeneracy {url} --quiet", CACHE, nothing, refuses=False)
        writers = [(WRITERS | {"a URL": copied})[name] for name in options.writer]
        every = trials(Bench(Path(place) / "bench"), writers, random.Random(options.seed))
        chosen = islice(((name, run) for name, run in every if options.kind in name), options.most)
        sys.exit(summarize((name, run()) for name, run in chosen))
