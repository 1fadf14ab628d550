"""What kept a place from being read, in words of ours: those of a library may repeat a password or a signature."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from gradscope.errors import GradscopeError, InputError, MissingDependencyError
from gradscope.rollouts.places.urls import PACKAGES, scheme_of, shown_url

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


def explained(error: BaseException, url: str) -> GradscopeError:
    """The error that a person gets instead.

    Args:
        error: Whatever listing or copying raised.
        url: What was read, as typed.

    Returns:
        One sentence, with a hint; nothing of the original's text.
    """
    place, scheme = shown_url(url), scheme_of(url) or ""
    family = {"https": "http", "gcs": "gs"}.get(scheme, scheme)
    chain = list(_chain(error))
    names = [type(one).__name__ for one in chain]
    if ours := next((one for one in chain if isinstance(one, GradscopeError)), None):
        return ours  # what a library made of our refusal
    if isinstance(error, ImportError):
        package = PACKAGES[scheme]
        return MissingDependencyError(f"{place} needs the package {package}.", hint=f"pip install {package}")
    statuses = {status for one in chain if (status := _status(one)) is not None}
    if statuses & {401, 403} or any(isinstance(one, PermissionError) for one in chain):
        return InputError(f"{place} may not be read by you.", hint=_CREDENTIALS.get(family))
    if any(part in name for name in names for part in _NO_CREDENTIALS):
        return InputError(f"{place} needs credentials, and none were found.", hint=_CREDENTIALS.get(family))
    if any(isinstance(one, OSError) and one.errno == errno.ENOSPC for one in chain):
        return InputError(
            f"There is no space left for a copy of {place}.",
            hint="Set XDG_CACHE_HOME to a folder on a larger disk, or name a folder further down.",
        )
    if refused := statuses - {404}:
        return InputError(f"{place} cannot be read: the server answers {max(refused)}.", hint="Try again later.")
    if not statuses and (
        any(isinstance(one, ConnectionError | TimeoutError) for one in chain)
        or any(part in name for name in names for part in _NO_NETWORK)
    ):
        return InputError(
            f"{place} cannot be reached: no connection.",
            hint="Check the network and the name of the host; what was copied already is not copied again.",
        )
    if 404 in statuses or any(isinstance(one, FileNotFoundError) for one in chain):
        return InputError(f"There is nothing at {place}.", hint=_WHERE[family])
    return InputError(
        f"{place} cannot be read ({names[0]}).",
        hint="Try again; if it fails again, download the log and name the folder.",
    )


@contextmanager
def explaining(url: str) -> Iterator[None]:
    """Around whatever asks a file system about a URL: its errors become ours."""
    try:
        yield
    except GradscopeError:
        raise
    except Exception as error:
        reworded = explained(error, url)
        raise reworded from None  # with its cause a traceback would repeat what a library says


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _status(error: BaseException) -> int | None:
    """The HTTP status of an error, wherever its library keeps it."""
    found = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
    return found if isinstance(found, int) else None
