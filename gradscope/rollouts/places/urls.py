"""What is a URL, which of them are read, and how one is shown."""

from __future__ import annotations

import re
from pathlib import Path

from gradscope.errors import InputError

PACKAGES = {
    "s3": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "hf": "huggingface_hub",
    "http": "aiohttp",
    "https": "aiohttp",
    "memory": "fsspec",
}
"""Scheme -> the package that reads it."""
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+)://")  # two letters or more: one alone is a drive of Windows


def scheme_of(name: str | Path) -> str | None:
    """``file`` or one of ``PACKAGES``; None for a path, also for one with ``//`` inside. Others are an InputError."""
    match = None if isinstance(name, Path) else _SCHEME.match(name)
    if match is None:
        return None
    scheme = match[1].lower()
    if scheme not in PACKAGES and scheme != "file":
        known = ", ".join(f"{one}://" for one in PACKAGES if one not in ("gcs", "memory"))
        raise InputError(
            f"Logs at {scheme}:// are not read; those at {known} and in local folders are.",
            hint="Copy the log to a folder and name that.",
        )
    return scheme


def is_web(url: str) -> bool:
    """Whether it is of a web server, whose folders are pages of links."""
    return url.lower().startswith(("http://", "https://"))


def shown_url(url: str) -> str:
    """A URL as it may be printed: without user, password, query (which may be a signature) and final slash.

    Returns:
        The rest.

    Example:
        >>> shown_url("https://me:secret@host/runs/7/?X-Amz-Signature=ab")
        'https://host/runs/7'
    """
    scheme, _, rest = url.partition("://")
    if is_web(url):
        rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    authority, slash, path = rest.partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}".rstrip("/")


def shown(name: str | Path) -> str:
    """A path as it stands, or a URL as it may be printed."""
    return str(name) if scheme_of(name) is None else shown_url(str(name))


def glob_start(url: str) -> int | None:
    """Where the first wildcard of a glob stands; None without one. The question mark of the web begins a query."""
    match = re.search(r"[*\[]" if is_web(url) else r"[*?\[]", url)
    return None if match is None else match.start()
