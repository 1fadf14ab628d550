import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load, save

from gradscope import writing
from gradscope.errors import InputError, OutputBusyError, OutputExistsError
from tests.conftest import REPOSITORY

HOLD = """
import sys, time
from pathlib import Path
from gradscope.writing import one_writer, partial_folder
path = Path(sys.argv[1])
with one_writer(path), partial_folder(path) as aside:
    (aside / "half").write_text("half")
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def another_writer(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that writes a path until it is killed."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def test_a_file_appears_whole_and_is_not_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    writing.atomic_write(path, "é")
    assert path.read_bytes() == "é".encode()
    with pytest.raises(OutputExistsError, match=r"a\.txt already exists"):
        writing.atomic_write(path, b"other")
    assert path.read_bytes() == "é".encode()
    writing.atomic_write(path, b"other", force=True)
    assert path.read_bytes() == b"other"
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(OutputExistsError, match="new is a folder"):
        writing.atomic_write(tmp_path / "new", b"other", force=True)


def test_half_a_surrogate_pair_is_written_as_what_it_is(tmp_path: Path) -> None:
    writing.atomic_write(tmp_path / "a.csv", "é\ud800")
    assert (tmp_path / "a.csv").read_bytes() == "é\\ud800".encode()


def test_a_file_has_the_rights_that_any_new_file_has(tmp_path: Path) -> None:
    writing.atomic_write(tmp_path / "ours", "")
    (tmp_path / "plain").touch()
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_what_failed_leaves_the_old_file_and_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writing, "move_into_place", full)
    with pytest.raises(OSError, match="No space left") as caught:
        writing.atomic_write(path, "new", force=True)
    assert caught.value.filename == str(path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.txt", "old")]


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (OSError(errno.EROFS, "Read-only file system", "run/.a.json.17-0a1b2c.partial"), errno.EROFS),
        (SafetensorError("Error while serializing: I/O error: File too large (os error 27)"), 27),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"), errno.EIO),
    ],
)
def test_errors_of_libraries_are_told_as_what_they_are(error: Exception, number: int) -> None:
    with pytest.raises(OSError) as caught, writing.naming("run/a.json"):  # noqa: PT011 - its number is looked at
        raise error
    assert (caught.value.errno, caught.value.filename) == (number, "run/a.json")


@pytest.mark.parametrize("error", [RuntimeError("a bug"), OSError("no number"), InputError("bad (os error 5)")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, writing.naming("a"):
        raise error
    assert caught.value is error


def test_a_folder_takes_its_place_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / "old").touch()
    with pytest.raises(FileNotFoundError), writing.new_folder(path) as folder:
        (folder / "new" / "in no folder").touch()
    assert [file.name for file in path.iterdir()] == ["old"]
    with writing.new_folder(path) as folder:
        (folder / "new").touch()
    assert [file.name for file in path.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [path]


def test_what_the_dead_left_goes_and_what_the_living_write_stays(tmp_path: Path) -> None:
    path = tmp_path / "a[1].txt"
    for name in (".a[1].txt.17-0a1b2c.partial", ".a[1].txt.99999.partial"):
        (tmp_path / name).write_text("half")
    (tmp_path / ".a[1].txt.18-000000.partial").mkdir()
    (tmp_path / ".a[1].txt.18-000000.partial" / "half").touch()
    rest = {".a[1].txt.mine.partial", ".b.17-0a1b2c.partial", ".a[1].txt.html.17-0a1b2c.partial"}
    for name in rest:
        (tmp_path / name).touch()
    with writing.partial_file(path) as stream, writing.partial_folder(path) as folder:
        writing.remove_partials(path)
        assert Path(stream.name).exists()
        assert folder.exists()
        assert {file.name for file in tmp_path.iterdir()} == {Path(stream.name).name, folder.name, *rest}
    assert {file.name for file in tmp_path.iterdir()} == rest


@pytest.mark.slow
def test_of_two_writers_the_second_is_told_who_the_first_is(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with another_writer(path) as other:
        with (
            pytest.raises(OutputBusyError, match=f"out is being written by process {other.pid} on .* 0 minutes ago"),
            writing.one_writer(path),
        ):
            pass
        assert len(list(tmp_path.glob(".out.*.partial"))) == 1
        before = time.time() + 3600
        os.utime(writing.lock_path(path), (before, before))  # a clock that went backwards since
        with pytest.raises(OutputBusyError, match="began 0 minutes ago"), writing.one_writer(path):
            pass
    assert writing.lock_path(path).exists()  # as killed processes leave it
    with writing.one_writer(path):
        assert list(tmp_path.iterdir()) == [writing.lock_path(path)]
    assert list(tmp_path.iterdir()) == []


def test_the_same_process_is_let_in_again(tmp_path: Path) -> None:
    with writing.one_writer(tmp_path / "out"):
        with writing.one_writer(tmp_path / "out"):
            pass
        assert json.loads(writing.lock_path(tmp_path / "out").read_text())["process"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[1]", "garbage"])
def test_a_lock_that_does_not_say_whose_it_is(tmp_path: Path, text: str) -> None:
    writing.lock_path(tmp_path / "out").write_text(text)
    with writing.lock_path(tmp_path / "out").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OutputBusyError, match="written by another process"), writing.one_writer(tmp_path / "out"):
            pass


@pytest.mark.parametrize("kind", ["link", "hard link", "text", "folder", "pipe"])
def test_what_is_no_lock_of_ours_is_neither_written_nor_removed(tmp_path: Path, kind: str) -> None:
    lock, theirs = writing.lock_path(tmp_path / "out"), tmp_path / "theirs"
    theirs.write_text("theirs" if kind == "link" else "")
    plant = {"link": lock.symlink_to, "hard link": lock.hardlink_to, "text": lambda of: lock.write_text("[1]")}
    plant |= {"folder": lambda of: lock.mkdir(), "pipe": lambda of: os.mkfifo(lock)}
    plant[kind](theirs)
    before = lock.lstat()
    with (
        pytest.raises(OutputExistsError, match=r"\.out\.lock is where a lock should be"),
        writing.one_writer(tmp_path / "out"),
    ):
        pass
    after = lock.lstat()  # but for when it was last looked at
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size)
    assert theirs.read_text() == ("theirs" if kind == "link" else "")


def test_a_lock_that_another_took_the_place_of_stays(tmp_path: Path) -> None:
    with writing.one_writer(tmp_path / "out"):
        writing.lock_path(tmp_path / "out").unlink()
        writing.lock_path(tmp_path / "out").write_text("theirs")
    assert writing.lock_path(tmp_path / "out").read_text() == "theirs"


def test_what_appears_while_it_is_written_stays_without_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.symlink_to("nothing")
    with pytest.raises(OutputExistsError, match=r"a\.txt already exists"):
        writing.atomic_write(path, "ours")
    path.unlink()
    writes = writing.partial_file

    @contextmanager
    def slow(path: Path) -> Iterator[IO[bytes]]:
        with writes(path) as stream:
            path.write_text("theirs")
            yield stream

    monkeypatch.setattr(writing, "partial_file", slow)
    with pytest.raises(OutputExistsError, match=r"a\.txt already exists"):
        writing.atomic_write(path, "ours")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["theirs"]
    monkeypatch.undo()
    writing.atomic_write(path, "ours", force=True)
    assert path.read_text() == "ours"


def test_a_disk_without_hard_links_gets_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "")

    monkeypatch.setattr(os, "link", none)
    writing.atomic_write(tmp_path / "a.txt", "ours")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["ours"]


def test_what_is_ones_own_is_so_where_root_is_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert writing.is_own(tmp_path)
    assert writing.is_own(tmp_path / "link")
    monkeypatch.setattr(os, "getuid", lambda: 12_345)
    assert writing.is_own(tmp_path)
    assert not writing.is_own(tmp_path / "link")


def test_a_file_that_grows_does_so_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError, match="symbolic links"), open(tmp_path / "link", "ab", opener=writing.open_own):
        pass
    assert not (tmp_path / "theirs").exists()


def test_a_full_disk_is_no_reason_to_lock_oneself_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "ftruncate", full)
    with writing.one_writer(tmp_path / "out"), writing.one_writer(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_its_holder_just_removed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, seen = writing._lock, []

    def slow(descriptor: int) -> bool | None:
        if not seen:
            writing.lock_path(tmp_path / "out").unlink()
        seen.append(descriptor)
        return full(descriptor)

    monkeypatch.setattr(writing, "_lock", slow)
    with writing.one_writer(tmp_path / "out"):
        assert writing.lock_path(tmp_path / "out").exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_without_locks_nobody_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    class NoLocks:
        LOCK_EX = LOCK_NB = 0

        def flock(self, *_: Any) -> None:
            raise OSError(number, "")

    monkeypatch.setattr(writing, "_FLOCK", NoLocks())
    with writing.one_writer(tmp_path / "out"), writing.partial_file(tmp_path / "out") as of_somebody:
        writing.atomic_write(tmp_path / "out", "new")
        assert Path(of_somebody.name).exists()
    assert (tmp_path / "out").read_text() == "new"
    monkeypatch.setattr(writing, "_FLOCK", None)
    with writing.one_writer(tmp_path / "out"):
        writing.atomic_write(tmp_path / "out", "newer", force=True)


def test_nothing_is_written_to_the_root() -> None:
    with pytest.raises(OutputExistsError, match="Nothing can be written to"):
        writing.lock_path(Path("/"))


def test_a_file_of_tensors_has_the_same_bytes_each_time() -> None:
    about = {"b": "1", "a": 'é\x01"', "c": "[]"}
    tensors = {"x": np.arange(3.0), "y": np.zeros((2, 1), np.float32)}
    files = [writing.repeatable(save(tensors, metadata=about)) for _ in range(10)]
    assert len(set(files)) == 1
    length = int.from_bytes(files[0][:8], "little")
    header = json.loads(files[0][8 : 8 + length])
    assert (length % 8, list(header["__metadata__"].items())) == (0, sorted(about.items()))
    assert {name: array.tolist() for name, array in load(files[0]).items()} == {"x": [0, 1, 2], "y": [[0], [0]]}
