from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.places.urls import glob_start, is_web, scheme_of, shown, shown_url


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
def test_a_url_is_told_from_a_path(name: str | Path, scheme: str | None) -> None:
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
