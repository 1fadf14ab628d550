from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import GradscopeError, InputError
from gradscope.rollouts import listing
from tests.rollouts.readers.lines import refused


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("s3://bucket/run", "s3"),
        ("S3://bucket/run", "s3"),
        ("https://host/a.jsonl?x=1", "https"),
        *((name, None) for name in ("runs//7", "/runs//s3://7", "C://runs", "run", Path("s3://bucket"))),
    ],
)
def test_a_url_is_distinguished_from_a_path(name: str | Path, scheme: str | None) -> None:
    assert listing.scheme_of(name) == scheme


def test_a_url_that_is_not_read_says_which_are() -> None:
    refused(r"Logs at ftp:// are not read; those at s3://, gs://, hf://, http://", listing.scheme_of, "ftp://host/run")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://me:secret@host/run/?X-Amz-Signature=ab#x", "https://host/run"),
        ("https://host?token=ab", "https://host"),
        ("s3://key:secret@bucket/run/step_?.jsonl", "s3://bucket/run/step_?.jsonl"),
        ("hf://datasets/o/n@v1/run/", "hf://datasets/o/n@v1/run"),
    ],
)
def test_nothing_secret_of_a_url_is_shown_and_a_path_as_it_stands(url: str, text: str) -> None:
    assert listing.shown_url(url) == listing.shown(url) == text
    assert listing.shown("me:secret@host/run/?x") == "me:secret@host/run/?x"


def test_a_question_mark_is_a_wildcard_but_on_the_web() -> None:
    assert listing.glob_start("s3://b/step_?.jsonl") == len("s3://b/step_")
    assert listing.glob_start("https://h/step.jsonl?a=1") is None
    assert listing.glob_start("https://h/*.jsonl") == len("https://h/")
    assert listing.is_web("HTTP://h")
    assert not listing.is_web("s3://h")


SECRET = "https://me:secret@host/a.jsonl?sig=abc"


class NoCredentialsError(Exception):
    """As botocore names it."""


class ClientConnectorDNSError(OSError):
    """As aiohttp names it."""


class ClientResponseError(Exception):
    """As aiohttp has it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"{status} for {SECRET}")
        self.status = status


class HfHubHTTPError(Exception):
    """As huggingface_hub has it."""

    def __init__(self, status: int) -> None:
        super().__init__(SECRET)
        self.response = type("Response", (), {"status_code": status})()


def caused(cause: BaseException) -> FileNotFoundError:
    """What fsspec makes of any failed request to the web."""
    error = FileNotFoundError(SECRET)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "url", "message", "hint"),
    [
        (ImportError("no"), "s3://b/x", "needs the package s3fs", "pip install s3fs"),
        (ImportError("no"), "gs://b/x", "needs the package gcsfs", "pip install gcsfs"),
        (ImportError("no"), SECRET, "needs the package aiohttp", "pip install aiohttp"),
        (PermissionError("no"), "s3://b/x", "may not be read by you", "AWS_PROFILE"),
        (caused(ClientResponseError(403)), SECRET, "may not be read by you", "needs no login"),
        (HfHubHTTPError(401), "hf://datasets/o/n", "may not be read by you", "HF_TOKEN"),
        (NoCredentialsError(), "s3://b/x", "none were found", "FSSPEC_S3_ANON"),
        (NoCredentialsError(), "gcs://b/x", "none were found", "gcloud auth"),
        (caused(ClientConnectorDNSError(SECRET)), SECRET, "no connection", "network"),
        (TimeoutError(), "s3://b/x", "no connection", "network"),
        (FileNotFoundError(SECRET), SECRET, "There is nothing at", "browser"),
        (caused(ClientResponseError(404)), SECRET, "There is nothing at", "browser"),
        (HfHubHTTPError(404), "hf://datasets/o/n", "There is nothing at", "OWNER/NAME"),
        (HfHubHTTPError(500), "hf://datasets/o/n", "the server answers 500", "Try again later"),
        (RuntimeError(SECRET), "hf://datasets/o/n", r"cannot be read \(RuntimeError\)", "Try again"),
        (OSError(errno.ENOSPC, "full"), "s3://b/x", "no space left", "XDG_CACHE_HOME"),
    ],
)
def test_library_errors_become_sentences_without_secrets(error: Exception, url: str, message: str, hint: str) -> None:
    with pytest.raises(GradscopeError, match=message) as caught, listing.explaining(url):
        raise error
    text = f"{caught.value} {caught.value.hint}"
    assert hint in text
    assert "secret" not in text
    assert "abc" not in text
    assert caught.value.__cause__ is None


def test_an_error_of_our_own_stays_as_it_is() -> None:
    with pytest.raises(InputError, match="as it is"), listing.explaining("s3://b"):
        raise InputError("as it is")


@pytest.mark.parametrize(
    ("name", "when"),
    [
        ("step_1/train/all/traces.jsonl.zst", "now"),
        ("logs/events.out.tfevents.1.host", "now"),
        ("rollout_data/3.pt", "now"),
        ("checkpoint-5/trainer_state.json", "now"),
        ("checkpoint-5/tokenizer_config.json", "now"),
        ("checkpoint-5/model.safetensors.index.json", "now"),
        ("checkpoint-5/model-00001-of-00002.safetensors", "awaited"),
        ("checkpoint-5/tokenizer.json", "awaited"),
        ("checkpoint-5/optimizer.pt", "never"),
        ("checkpoint-5/pytorch_model.bin", "never"),
        ("train_data/3.pt", "never"),
        ("wandb/run-1/run-1.wandb", "now"),
        ("trackio/project.db", "now"),
    ],
)
def test_logs_are_copied_at_once_and_weights_when_asked_for(name: str, when: str) -> None:
    assert listing.when_copied(name) == when


@pytest.mark.parametrize(("name", "copied"), [("rollouts.log", True), ("3.pt", True), ("a.pkl", False)])
def test_what_was_named_by_itself_is_copied_unless_it_is_known_to_be_no_log(name: str, copied: bool) -> None:
    assert listing.is_of_use(name) == copied


def test_a_file_that_can_be_had_is_not_there_yet(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    listing.awaited_mark(file).touch()
    assert listing.is_awaited(file)
    assert listing.awaited_in(tmp_path) == (file,)
    assert not list(tmp_path.glob("*.safetensors"))


HOSTS = {
    "log.org": "93.184.215.14",
    "cdn.org": "8.8.8.8",
    "nas": "10.0.0.7",
    "disk": "192.168.1.2",
    "mapped": "::ffff:127.0.0.1",
}


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses of hosts, without asking anybody."""

    def resolved(host: str, *_: object, **__: object) -> list[Any]:
        if host == "nowhere":
            raise socket.gaierror
        return [(0, 0, 0, "", (HOSTS.get(host, host), 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


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
@pytest.mark.usefixtures("addresses")
def test_no_redirect_leads_inwards(url: str, target: str, followed: bool) -> None:
    if followed:
        listing.refuse_private(url, target)
        return
    refused("which is no place for a log from there", listing.refuse_private, url, target)


def test_an_answer_has_an_end() -> None:
    callback = listing.byte_callback(listing.SizeLimit(2 << 20, "http://h/a").add)
    callback.relative_update(2 << 20)
    assert "GRADSCOPE_LIMITS=4" in refused("http://h/a sends more than 2 MiB", callback.relative_update, 1)


def test_a_large_file_may_take_long_and_silence_may_not() -> None:
    timeout = listing.web_options()["client_kwargs"]["timeout"]
    assert (timeout.total, timeout.sock_connect, timeout.sock_read) == (None, 60, 60)


def test_a_glob_of_the_web_goes_no_deeper_than_it_says(web: Any) -> None:
    for name in ("a.jsonl", "b.txt", "sub/c.jsonl", "sub/deep/d.jsonl"):
        (web.folder / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (web.folder / "run" / name).write_text("{}\n")
    globs = {"*.jsonl": ["a.jsonl"], "*/*.jsonl": ["sub/c.jsonl"], "**/d.jsonl": ["sub/deep/d.jsonl"]}
    for pattern, names in globs.items():
        web.seen.clear()
        assert [entry.name for entry in listing.list_source(f"{web.url}/run/{pattern}").entries] == names
        assert ("GET /run/sub/" in web.seen, "GET /run/sub/deep/" in web.seen) == ("/" in pattern, "**" in pattern)


def names(url: str) -> list[str]:
    return [entry.name for entry in listing.list_source(url).entries]


def test_a_folder_is_listed_with_all_below_it(memory: Any) -> None:
    memory.pipe({"/run/a.jsonl": b"{}\n", "/run/sub/deep/b.jsonl": b"{}\n", "/running/c.jsonl": b"{}\n"})
    listed = listing.list_source("memory://run/")
    assert [entry.name for entry in listed.entries] == ["a.jsonl", "sub/deep/b.jsonl"]
    assert [entry.size for entry in listed.entries] == [3, 3]
    assert all(entry.mark for entry in listed.entries)
    assert (listed.root, listed.pattern, listed.is_file) == ("memory://run", "", False)
    assert listing.list_source("memory://run/a.jsonl").is_file


def test_a_glob_lists_what_fits(memory: Any) -> None:
    memory.pipe({"/run/a1.jsonl": b"{}\n", "/run/b1.jsonl": b"{}\n", "/run/sub/a2.jsonl": b"{}\n"})
    listed = listing.list_source("memory://run/a*.jsonl")
    assert [entry.name for entry in listed.entries] == ["a1.jsonl"]
    assert (listed.root, listed.pattern) == ("memory://run", "a*.jsonl")


@pytest.mark.parametrize("url", ["memory://gone", "memory://gone/*.jsonl"])
def test_an_empty_url_is_an_error(memory: Any, url: str) -> None:
    with pytest.raises(FileNotFoundError):
        listing.list_source(url)


def test_a_name_that_would_leave_its_folder_is_refused(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pipe({"/run/a.jsonl": b"{}\n"})
    files = {"/run/../../x.jsonl": {"name": "/run/../../x.jsonl", "type": "file", "size": 1}}
    monkeypatch.setattr(type(memory), "find", lambda *_, **__: files)
    refused("has a name that no folder can hold", listing.list_source, "memory://run")


def test_links_are_followed_downwards_only(web: Any) -> None:
    (web.folder / "run" / "sub").mkdir(parents=True)
    (web.folder / "run" / "a.jsonl").write_text("{}\n")
    (web.folder / "run" / "sub" / "b c.jsonl").write_text("{}\n")
    (web.folder / "run" / "notes.txt").write_text("x")
    (web.folder / "page").mkdir()
    links = ("../run/a.jsonl", "?C=N;O=D", "https://elsewhere/x.jsonl", "/run/a.jsonl", "a.jsonl#top", "x/../../y")
    page = "".join(f'<a href="{link}">x</a>' for link in (*links, "own.jsonl"))
    (web.folder / "page" / "index.html").write_text(page)
    (web.folder / "page" / "own.jsonl").write_text("{}\n")
    listed = listing.list_source(f"{web.url}/run")
    assert [entry.name for entry in listed.entries] == ["a.jsonl", "notes.txt", "sub/b%20c.jsonl"]
    assert [entry.size for entry in listed.entries] == [3, None, 3]
    assert names(f"{web.url}/page/") == ["own.jsonl"]


def test_a_web_without_end_is_not_walked(web: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (web.folder / "run" / "sub").mkdir(parents=True)
    monkeypatch.setattr(listing, "_MAX_PAGES", 1)
    refused("has more than 1 folders", listing.list_source, f"{web.url}/run")
