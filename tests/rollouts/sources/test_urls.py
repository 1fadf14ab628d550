import errno
from pathlib import Path

import pytest

from gradscope.errors import GradscopeError, InputError
from gradscope.rollouts.sources.urls import explaining, glob_start, is_web, scheme_of, shown, shown_url


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("s3://bucket/run", "s3"),
        ("S3://bucket/run", "s3"),
        ("hf://datasets/owner/name@main/runs", "hf"),
        ("https://host/a.jsonl?x=1", "https"),
        ("file:///tmp/run", "file"),
        ("runs//7", None),
        ("/runs//s3://7", None),
        ("C://runs", None),
        (r"C:\runs", None),
        ("run", None),
        (Path("s3://bucket"), None),
    ],
)
def test_a_url_is_distinguished_from_a_path(name: str | Path, scheme: str | None) -> None:
    assert scheme_of(name) == scheme


def test_a_url_that_is_not_read_says_which_are() -> None:
    with pytest.raises(InputError, match=r"Logs at ftp:// are not read; those at s3://, gs://, hf://, http://"):
        scheme_of("ftp://host/run")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://me:secret@host/run/?X-Amz-Signature=ab#x", "https://host/run"),
        ("https://host?token=ab", "https://host"),
        ("s3://key:secret@bucket/run/step_?.jsonl", "s3://bucket/run/step_?.jsonl"),
        ("hf://datasets/o/n@v1/run/", "hf://datasets/o/n@v1/run"),
    ],
)
def test_nothing_secret_is_shown(url: str, text: str) -> None:
    assert shown_url(url) == shown(url) == text


def test_a_path_is_shown_as_it_stands() -> None:
    assert shown("me:secret@host/run/?x") == "me:secret@host/run/?x"


def test_a_question_mark_is_a_wildcard_but_on_the_web() -> None:
    assert glob_start("s3://b/step_?.jsonl") == len("s3://b/step_")
    assert glob_start("https://h/step.jsonl?a=1") is None
    assert glob_start("https://h/*.jsonl") == len("https://h/")
    assert is_web("HTTP://h")
    assert not is_web("s3://h")


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
def test_an_error_of_a_library_becomes_a_sentence_without_secrets(
    error: Exception, url: str, message: str, hint: str
) -> None:
    with pytest.raises(GradscopeError, match=message) as caught, explaining(url):
        raise error
    text = f"{caught.value} {caught.value.hint}"
    assert hint in text
    assert "secret" not in text
    assert "abc" not in text
    assert caught.value.__cause__ is None


def test_an_error_of_our_own_stays_as_it_is() -> None:
    with pytest.raises(InputError, match="as it is"), explaining("s3://b"):
        raise InputError("as it is")
