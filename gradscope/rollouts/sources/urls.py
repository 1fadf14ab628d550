"""Which names are URLs, which URLs are read, how one is shown, and the error message where one cannot be read.

The messages are our own: those of a library may repeat a password or a signature.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradscope.errors import GradscopeError, InputError, MissingDependencyError

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
    """``file`` or one of ``PACKAGES``; None for a path, also one with ``//`` inside; any other is an InputError."""
    match = None if isinstance(name, Path) else _SCHEME.match(name)
    if match is None:
        return None
    scheme = match[1].lower()
    if scheme not in PACKAGES and scheme != "file":
        readable = ", ".join(f"{name}://" for name in PACKAGES if name not in ("gcs", "memory"))
        raise InputError(
            f"Logs at {scheme}:// are not read; those at {readable} and in local folders are.",
            hint="Copy the log to a folder and name that.",
        )
    return scheme


def is_web(url: str) -> bool:
    """Whether the URL is of a web server, whose folders are pages of links."""
    return url.lower().startswith(("http://", "https://"))


def shown_url(url: str) -> str:
    """A URL as it may be printed: without user, password, query (which may be a signature) and final slash.

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
    """Position of the first wildcard of a glob; None without one. On the web a question mark begins a query."""
    match = re.search(r"[*\[]" if is_web(url) else r"[*?\[]", url)
    return None if match is None else match.start()


_CREDENTIALS = {
    "s3": "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; for a public bucket FSSPEC_S3_ANON=true.",
    "gs": "Run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS.",
    "hf": "Set HF_TOKEN, or run `hf auth login`, as somebody who may read it.",
    "http": "Name a URL that needs no login, or download the log and name the folder.",
}
_WHERE = {
    "s3": "Look with `aws s3 ls`; a folder is named without a wildcard.",
    "gs": "Look with `gcloud storage ls`; a folder is named without a wildcard.",
    "hf": "It reads hf://datasets/OWNER/NAME/PATH, with @REVISION after the name. A private one needs HF_TOKEN.",
    "http": "Open it in a browser; a folder is read where the server lists its files.",
    "memory": "Check the path.",
}
_NO_CREDENTIALS = ("NoCredentials", "PartialCredentials", "DefaultCredentials", "RefreshError", "TokenRetrieval")
_NO_NETWORK = ("Connect", "Connection", "Timeout", "DNS", "Resolver", "Offline", "TransportError", "ClientOSError")


def _explained(error: BaseException, url: str) -> GradscopeError:
    """The error that is shown instead, with nothing of the original's text."""
    source, scheme = shown_url(url), scheme_of(url) or ""
    family = {"https": "http", "gcs": "gs"}.get(scheme, scheme)
    chain = list(_chain(error))
    names = [type(cause).__name__ for cause in chain]
    if ours := next((cause for cause in chain if isinstance(cause, GradscopeError)), None):
        return ours  # a library wrapped our refusal
    if isinstance(error, ImportError):
        package = PACKAGES[scheme]
        return MissingDependencyError(f"{source} needs the package {package}.", hint=f"pip install {package}")
    statuses = {status for cause in chain if (status := _status(cause)) is not None}
    if statuses & {401, 403} or any(isinstance(cause, PermissionError) for cause in chain):
        return InputError(f"{source} may not be read by you.", hint=_CREDENTIALS.get(family))
    if any(part in name for name in names for part in _NO_CREDENTIALS):
        return InputError(f"{source} needs credentials, and none were found.", hint=_CREDENTIALS.get(family))
    if any(isinstance(cause, OSError) and cause.errno == errno.ENOSPC for cause in chain):
        return InputError(
            f"There is no space left for a copy of {source}.",
            hint="Set XDG_CACHE_HOME to a folder on a larger disk, or name a folder further down.",
        )
    if refused := statuses - {404}:
        return InputError(f"{source} cannot be read: the server answers {max(refused)}.", hint="Try again later.")
    if not statuses and (
        any(isinstance(cause, ConnectionError | TimeoutError) for cause in chain)
        or any(part in name for name in names for part in _NO_NETWORK)
    ):
        return InputError(
            f"{source} cannot be reached: no connection.",
            hint="Check the network and the name of the host; what was copied already is not copied again.",
        )
    if 404 in statuses or any(isinstance(cause, FileNotFoundError) for cause in chain):
        return InputError(f"There is nothing at {source}.", hint=_WHERE[family])
    return InputError(
        f"{source} cannot be read ({names[0]}).",
        hint="Try again; if it fails again, download the log and name the folder.",
    )


@contextmanager
def explaining(url: str) -> Iterator[None]:
    """Turns the errors of a file system that is asked about a URL into our own."""
    try:
        yield
    except GradscopeError:
        raise
    except Exception as error:
        raise _explained(error, url) from None  # with its cause a traceback would repeat the library's message


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _status(error: BaseException) -> int | None:
    """The HTTP status of an error, wherever its library keeps it."""
    status = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None
