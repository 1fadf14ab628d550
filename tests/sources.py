"""Places without a network: fsspec's memory, and a web server on this machine alone."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest

from gradscope import copies


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, and nothing known from other tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(copies, "_NAMES", {})
    monkeypatch.setattr("gradscope.rollouts.fetch._MIRRORS", {})
    return tmp_path / "cache"


@pytest.fixture
def memory(cache: Path) -> Iterator[Any]:
    """fsspec's file system in memory, empty."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()


class _Handler(SimpleHTTPRequestHandler):
    """Lists folders; some names stand for answers that go wrong."""

    def send_head(self) -> Any:
        for code in (401, 403, 500):
            if self.path.startswith(f"/{code}"):
                return self.send_error(code)
        return super().send_head()

    def log_message(self, format: str, *args: Any) -> None:
        self.server.seen.append(f"{self.command} {self.path}")  # type: ignore[attr-defined]


@pytest.fixture
def web(tmp_path: Path, cache: Path) -> Iterator[Any]:
    """A web server of the folder ``web``; ``url`` is its address, ``seen`` what it was asked for."""
    pytest.importorskip("aiohttp", reason="needs aiohttp (the extra http), with which fsspec reads http://")
    folder = tmp_path / "web"
    folder.mkdir()
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
    server.seen, server.folder = [], folder
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))  # seconds until it sees that it is to end
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
