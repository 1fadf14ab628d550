"""Web servers that send readers elsewhere, never end, or lie about what they send; all of them on this machine."""

import gzip
import json
import os
import random
import socketserver
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gradscope.rollouts import fetch, listing
from tests.hostile.cases import called, options_of, summarize

SECONDS = 15.0
MAX_BYTES = 4 << 20  # bytes that a file and a page may have in a campaign
SECRETS = ("hunter2", "sig0nature")
LOG = "".join(
    json.dumps({"prompt_id": f"p{number // 4}", "reward": float(number % 3 == 0)}) + "\n" for number in range(16)
).encode()


def _said(*heads: str, body: bytes = b"", status: str = "200 OK") -> list[bytes]:
    return ["\r\n".join([f"HTTP/1.1 {status}", *heads, "Connection: close", "", ""]).encode("latin-1"), body]


def _sized(body: bytes, *heads: str, status: str = "200 OK") -> list[bytes]:
    return _said(f"Content-Length: {len(body)}", *heads, body=body, status=status)


def _to(place: str, status: str = "302 Found") -> list[bytes]:
    return _said(f"Location: {place}", "Content-Length: 0", status=status)


def _page(*links: str) -> list[bytes]:
    page = "".join(f'<a href="{link}">x</a>' for link in (*links, "log.jsonl"))
    return _sized(page.encode("utf-8", "surrogateescape"), "Content-Type: text/html")


def _endless(*heads: str, part: bytes = LOG * 100) -> Iterator[bytes]:
    yield _said(*heads, "Transfer-Encoding: chunked")[0]
    while True:
        yield b"%x\r\n%s\r\n" % (len(part), part)


@cache
def _bomb() -> bytes:
    return gzip.compress(LOG[:40] * 2_000_000)


_OTHER = "{other}"  # stands for the port of a server that nobody may be sent to
_ELSEWHERE = (
    *(f"http://{host}:{_OTHER}/" for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0", "2130706433")),
    *("file:///etc/passwd", "ftp://127.0.0.1/", "data:,x", "http://", "//", "http://[", "\x80"),
    "http://169.254.169.254/latest",
)
_LINKS = (
    *("../../../tmp/x.jsonl", "%2e%2e/x.jsonl", "a%2f..%2f..%2fx.jsonl", "a%5cx.jsonl", "%00.jsonl", "/etc/passwd"),
    *("x" * 5000, "\x1b[31m.jsonl", "\u202e.jsonl", "\udc9b31m.jsonl", "deeper/", "http://[/x.jsonl"),
)
_STATUS = (100, 204, 206, 304, 401, 403, 404, 407, 418, 500, 999)
ANSWERS: dict[str, list[bytes] | Callable[[], Iterator[bytes]]] = {
    "sound": _sized(LOG, 'ETag: "1"'),
    "sound, elsewhere on the same server": _to("/sound/log.jsonl"),
    "to itself": _to(""),
    **{f"to {place}": _to(place) for place in _ELSEWHERE},
    **{f"{code} to inside": _to(f"http://127.0.0.1:{_OTHER}/", f"{code} x") for code in (301, 303, 307, 308)},
    "endless": lambda: _endless(),
    "endless page": lambda: _endless("Content-Type: text/html", part=b"<a href='log.jsonl'>x</a>" * 1000),
    "endless, packed": lambda: _endless("Content-Encoding: gzip", part=_bomb()),
    "a bomb": lambda: iter(_sized(_bomb(), "Content-Encoding: gzip")),
    "packed that is not": _sized(LOG, "Content-Encoding: gzip"),
    "less than said": _said(f"Content-Length: {len(LOG) + 1}", body=LOG),
    **{f"length {size}": _said(f"Content-Length: {size}", body=LOG) for size in (40, 10**30, -1, "x", "1e9", "")},
    "silence": [b""],
    "a head without end": _said(*[f"X-{number}: {'y' * 500}" for number in range(10_000)]),
    "no http": [b"SSH-2.0-OpenSSH_9.6\r\n" + b"\x1b[2J" * 500],
    "a tag with an escape": _sized(LOG, "ETag: \x1b[31m\x9b" + "e" * 4000),
    **{f"status {code}": _sized(SECRETS[0].encode(), "WWW-Authenticate: \x1b", status=f"{code} x") for code in _STATUS},
    **{f"page with {link[:24]!a}": _page(link) for link in _LINKS},
    "a page of 1,000 links": _page(*[f"{number}.txt" for number in range(1000)]),
    **{
        f"a page of {text!r}": _sized(text.encode() * (MAX_BYTES // 8 // len(text)), "Content-Type: text/html")
        for text in ("<a ", "<a href='", "<a  \t", "<!--", "<a href=")
    },
}
"""What is answered to everything that is asked for below the number of an entry."""


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads, allow_reuse_address, request_queue_size = True, True, 64
    other, chance = 0, random.Random()  # the port of the server that nobody may be sent to, and what draws mutations

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that hangs up is what most cases end in."""


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        request = self.rfile.readline(65_537).decode("latin-1").split(" ")
        heads = [line for line in iter(self.rfile.readline, b"\r\n") if line]
        self.server.seen += [request[1], *(line.decode("latin-1") for line in heads)]
        name = request[1].strip("/").partition("/")[0]
        answer = _NAMED.get(name, ANSWERS["sound"])
        if name == "mutated":
            answer = [_mutated(b"".join(_sized(LOG, 'ETag: "1"')), self.server.chance)]
        for part in answer() if callable(answer) else answer:
            part = part.replace(_OTHER.encode(), str(self.server.other).encode())
            if request[0] == "HEAD":
                part = part.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
            self.wfile.write(part)
            if request[0] == "HEAD":
                return
        if answer == [b""]:
            time.sleep(SECONDS)


_NAMED = {f"{number}": answer for number, answer in enumerate(ANSWERS.values())} | {"sound": ANSWERS["sound"]}


def _mutated(answer: bytes, chance: random.Random) -> bytes:
    """An answer with some of its bytes lost, doubled or exchanged."""
    data = bytearray(answer)
    for _ in range(chance.randint(1, 8)):
        number = chance.randrange(min(len(data), 200) or 1)
        if (kind := chance.randrange(3)) == 0:
            data[number : number + chance.randint(1, 9)] = b""
        elif kind == 1:
            data[number:number] = data[number : number + 20]
        else:
            data[number : number + 1] = bytes([chance.randrange(256)])
    return bytes(data)


@contextmanager
def served(seed: int) -> Iterator[tuple[_Server, _Server]]:
    """A hostile server, and one that nobody may be sent to; limits that a campaign can reach."""
    of_pages = patch.multiple(listing, _MAX_PAGE=MAX_BYTES, _MAX_PAGES=20, _TIMEOUT=2)
    with (
        patch.multiple(fetch, _MAX_BYTES_OF_UNKNOWN_SIZE=MAX_BYTES, _MAX_GROWTH=MAX_BYTES),
        of_pages,
        _Server() as hostile,
        _Server() as other,
    ):
        hostile.other, hostile.chance = other.server_address[1], random.Random(seed)
        yield hostile, other
        hostile.shutdown(), other.shutdown()


def ask(folder: Path, servers: tuple[_Server, _Server], name: str, *, is_folder: bool, is_secret: bool) -> str:
    """Read one of ``ANSWERS``, or a mutated one, into a cache in a folder; why it did not hold."""
    hostile, other = servers
    place = name if name == "mutated" else str(list(ANSWERS).index(name))
    login = f"me:{SECRETS[0]}@" if is_secret else ""
    query = f"?X-Signature={SECRETS[1]}" if is_secret and not is_folder else ""
    url = f"http://{login}127.0.0.1:{hostile.server_address[1]}/{place}/{'' if is_folder else 'log.jsonl'}{query}"
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    other.seen.clear()
    before, start = {path.name for path in folder.iterdir()} | {"cache"}, time.monotonic()
    code, out, err = called(["degeneracy", url, "--json"])
    seconds = time.monotonic() - start
    files = [path for path in folder.rglob("*") if path.is_file()]
    indices = [path.read_text("utf-8", "replace") for path in files if path.name == "index.json"]
    output = " ".join([out, err, *map(str, files), *indices])
    if code not in (0, 2) or (code == 2 and not err.splitlines()[-1].startswith("hint: ")):
        return f"exit {code}: {err[-800:]}"
    if code == 0 and name != "mutated" and json.loads(out)["result"]["num_rollouts"] != 16:
        return "another log was read"
    if other.seen:
        return f"the other server was asked for {other.seen[:2]}"
    if any(secret in output for secret in SECRETS):
        return f"a secret is told: {[err]}"
    if any(ord(letter) < 32 and letter != "\n" for letter in out + err):
        return "an escape reached the terminal"
    if {path.name for path in folder.iterdir()} - before:
        return "something was written elsewhere"
    if sum(path.stat().st_size for path in files) > 4 * MAX_BYTES:
        return "the disk fills"
    return f"{seconds:.0f} s" if seconds > SECONDS else ""


def campaign(folder: Path, cases: int, seed: int) -> Iterator[tuple[str, str]]:
    """Each answer as a file and as a folder, with and without a password, then mutated ones; name and why not held."""
    with served(seed) as servers:
        tries = [(name, bool(kind & 1), bool(kind & 2)) for name in ANSWERS for kind in range(4)]
        random.Random(seed).shuffle(tries)
        tries += [("mutated", bool(number & 1), bool(number & 2)) for number in range(max(0, cases - len(tries)))]
        for number, (name, is_folder, is_secret) in enumerate(tries[:cases]):
            (folder / str(number)).mkdir()
            yield name, ask(folder / str(number), servers, name, is_folder=is_folder, is_secret=is_secret)


if __name__ == "__main__":
    options = options_of("servers", __doc__, cases=4 * len(ANSWERS) + 500, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(summarize(campaign(Path(folder), options.cases, options.seed), f"seed {options.seed}: "))
