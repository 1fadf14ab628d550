import io
import os
import resource
import signal
import socket
import struct
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gradscope.errors import InputError, UsageError
from gradscope.outside import limits
from gradscope.outside import limits as outside


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def bound_socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))
    return path


def link_to_a_device(path: Path) -> Path:
    path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize(
    ("make", "kind"), [(pipe, "a pipe"), (bound_socket, "a socket"), (link_to_a_device, "a device")]
)
def test_only_files_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: object, kind: str) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's name may have 108 letters
    path = make(tmp_path / "a.json")  # type: ignore[operator]
    for read in (outside.require_regular, outside.open_file, outside.read_limited):
        with pytest.raises(InputError, match=f"is {kind}, and only files are read"):
            read(path)


def test_files_folders_and_what_is_not_there_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    outside.require_regular(tmp_path / "a")
    outside.require_regular(tmp_path)
    outside.require_regular(tmp_path / "absent")
    outside.require_regular(Path("a\0b"))
    assert outside.read_limited(tmp_path / "a") == b"abc"


def test_a_file_is_read_up_to_a_limit_that_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ROW", 2 << 20)
    (tmp_path / "a").write_bytes(bytes((2 << 20) + 1))
    with pytest.raises(InputError, match="a is larger than 2 MiB") as caught:
        outside.read_limited(tmp_path / "a")
    assert caught.value.hint == "Where a is meant to be so large, set GRADSCOPE_LIMITS=4 to allow four times as much."
    monkeypatch.setenv(outside.VARIABLE, "1.5")
    assert len(outside.read_limited(tmp_path / "a")) == (2 << 20) + 1


@pytest.mark.parametrize("text", ["0.5", "nan", "inf", "four", "1_0"])
def test_a_limit_is_never_lowered(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(outside.VARIABLE, "")
    assert outside.allowed(7) == 7
    monkeypatch.setenv(outside.VARIABLE, text)
    with pytest.raises(UsageError, match="which is no number from 1 on"):
        outside.allowed(1)


def test_a_stream_gives_as_much_as_its_file_may_unpack_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_UNPACKED", 1 << 20)
    file = tmp_path / "a.gz"
    file.write_bytes(bytes(10_000))
    assert outside.max_unpacked(file) == 200 * 10_000
    assert len(io.BufferedReader(outside.Unpacked(io.BytesIO(bytes(2_000_000)), file)).read()) == 2_000_000
    beyond = io.BufferedReader(outside.Unpacked(io.BytesIO(bytes(2_000_001)), file))
    with pytest.raises(InputError, match="unpacks to more than 1 MiB, which is 200 times its size"):
        beyond.read()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"


def test_a_pointer_of_git_lfs_says_how_the_file_is_had(tmp_path: Path) -> None:
    file = tmp_path / "my logs" / "a.json"
    file.parent.mkdir()
    file.write_bytes(POINTER)
    for read in (outside.require_regular, outside.open_file, outside.read_limited):
        with pytest.raises(InputError, match="is a pointer of Git LFS") as caught:
            read(file)
        assert caught.value.hint == f"Download it: git -C '{file.parent}' lfs pull"
    file.write_bytes(POINTER[:40] + b"x" * 2000)
    outside.require_regular(file)


def endless() -> None:
    while True:
        pass


def test_what_a_stranger_wrote_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_MAX_CPU_SECONDS", 0.2)
    monkeypatch.setattr(limits, "_MAX_MEMORY", 256 << 20)
    before = resource.getrlimit(resource.RLIMIT_AS), signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(InputError, match=r"It takes more than 0\.2 s or 256 MiB"), outside.ending("It"):
        endless()
    with pytest.raises(InputError, match=r"It takes more than 0\.2 s or 256 MiB"), outside.ending("It"):
        bytes(8 << 30)  # more than earlier tests may have left free in the heap
    with pytest.raises(KeyError), outside.ending("It"):
        raise KeyError
    assert (resource.getrlimit(resource.RLIMIT_AS), signal.getsignal(signal.SIGVTALRM)) == before
    assert len(bytes(300 << 20)) == 300 << 20


def test_beside_the_main_thread_nothing_is_limited() -> None:
    def run() -> bool:
        with outside.ending("It"):
            return signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run).result()


def packed() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("a", "b")
    return sink.getvalue()


def test_only_zips_are_zips_and_one_over_several_disks_is() -> None:
    assert outside.is_zip(io.BytesIO(packed()))
    assert not outside.is_zip(io.BytesIO(b"nothing"))
    end = packed()[-22:]
    assert outside.is_zip(io.BytesIO(packed()[:-22] + struct.pack("<4sLQL", b"PK\x06\x07", 1, 0, 2) + end))
