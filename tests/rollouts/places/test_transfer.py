from __future__ import annotations

import socket
from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.places.listing import list_place
from gradscope.rollouts.places.transfer import AtMost, refuse_inwards, told_of, web_options

HOSTS = {
    "log.org": "93.184.215.14",
    "cdn.org": "8.8.8.8",
    "nas": "10.0.0.7",
    "disk": "192.168.1.2",
    "mapped": "::ffff:127.0.0.1",
}


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses of hosts, without asking anybody."""

    def found(host: str, *_: object, **__: object) -> list[Any]:
        if host == "nowhere":
            raise socket.gaierror
        return [(0, 0, 0, "", (HOSTS.get(host, host), 0))]

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.mark.parametrize(
    ("url", "target", "followed"),
    [
        ("http://log.org/a", "https://log.org/a", True),
        ("https://log.org/a", "https://cdn.org/b?sig=1", True),
        ("https://log.org/a", "https://nowhere/b", True),
        ("http://nas/a", "https://disk/a", True),
        ("http://127.0.0.1:8000/a", "http://127.0.0.1:8000/b", True),
        ("https://log.org/a", "http://nas/a", False),
        ("https://log.org/a", "http://127.0.0.1/a", False),
        ("https://log.org/a", "http://mapped/a", False),
        ("https://log.org/a", "http://169.254.169.254/latest", False),
        ("http://nas/a", "http://127.0.0.1/a", False),
        ("http://127.0.0.1:8000/a", "http://127.0.0.1:8888/a", False),
        ("https://log.org/a", "file:///etc/passwd", False),
        ("https://log.org/a", "ftp://log.org/a", False),
    ],
)
def test_no_redirect_leads_inwards(url: str, target: str, followed: bool) -> None:
    if followed:
        refuse_inwards(url, target)
        return
    with pytest.raises(InputError, match="which is no place for a log from there"):
        refuse_inwards(url, target)


def test_an_answer_has_an_end() -> None:
    told = told_of(AtMost(2 << 20, "http://h/a").add)
    told.relative_update(2 << 20)
    with pytest.raises(InputError, match="http://h/a sends more than 2 MiB") as caught:
        told.relative_update(1)
    assert "GRADSCOPE_LIMITS=4" in str(caught.value.hint)


def test_a_large_file_may_take_long_and_silence_may_not() -> None:
    timeout = web_options()["client_kwargs"]["timeout"]
    assert (timeout.total, timeout.sock_connect, timeout.sock_read) == (None, 60, 60)


def test_a_glob_of_the_web_goes_no_deeper_than_it_says(web: Any) -> None:
    for name in ("a.jsonl", "b.txt", "sub/c.jsonl", "sub/deep/d.jsonl"):
        (web.folder / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (web.folder / "run" / name).write_text("{}\n")
    globs = {"*.jsonl": ["a.jsonl"], "*/*.jsonl": ["sub/c.jsonl"], "**/d.jsonl": ["sub/deep/d.jsonl"]}
    for pattern, names in globs.items():
        web.seen.clear()
        assert [entry.name for entry in list_place(f"{web.url}/run/{pattern}").entries] == names
        assert ("GET /run/sub/" in web.seen, "GET /run/sub/deep/" in web.seen) == ("/" in pattern, "**" in pattern)
