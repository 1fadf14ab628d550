"""The files at a URL: names, sizes, marks of change, and which of them are copied at once, later or never.

It also limits how far a server is trusted: where it may redirect to, how long it may be silent, how much it may send.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from html import unescape
from ipaddress import ip_address
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Literal
from urllib.parse import unquote, urljoin, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from gradscope.errors import GradscopeError, InputError, MissingDependencyError
from gradscope.outside.limits import VARIABLE, in_mib

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
_NOT_FOUND_HINTS = {
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
    chain = [error]
    while inner := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(inner)
    names = [type(cause).__name__ for cause in chain]
    if raised := next((cause for cause in chain if isinstance(cause, GradscopeError)), None):
        return raised  # a library wrapped our refusal
    if isinstance(error, ImportError):
        package = PACKAGES[scheme]
        return MissingDependencyError(f"{source} needs the package {package}.", hint=f"pip install {package}")
    responses = ((cause, getattr(cause, "response", None)) for cause in chain)  # wherever a library keeps the status
    codes = (getattr(cause, "status", None) or getattr(answer, "status_code", None) for cause, answer in responses)
    statuses = {status for status in codes if isinstance(status, int)}
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
        return InputError(f"There is nothing at {source}.", hint=_NOT_FOUND_HINTS[family])
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


_READ = (
    *(".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".eval", ".wandb", ".db", ".db-wal"),
    *(".yaml", ".yml", ".toml", ".md", ".parquet.sha256"),
)
"""Endings of logs, also before those of ``COMPRESSED``, and of the configurations and checksums next to them."""
COMPRESSED = (".gz", ".zst", ".xz", ".bz2")  # last suffixes of the files that are decompressed on the way
_READ_NAMES = re.compile(r"(^|/)(events\.out\.tfevents\.[^/]*|rollout_data/[^/]*\.pt)$")
"""Further logs: TensorBoard's, and slime's."""
_WEIGHTS = re.compile(r"(\.safetensors|\.jinja|^tokenizer\.(json|model)|^vocab\.(json|txt)|^merges\.txt)$")
"""Files that only a command that loads the model opens."""
_NEVER_COPIED = (".pkl", ".pickle", ".dp", ".bin", ".safetensors")
"""Endings of files that are of no use even where one is named by itself: an error says what to name instead."""
_AWAITED = ".awaited"


def when_copied(name: str) -> Literal["now", "awaited", "never"]:
    """When a file below a run is copied: ``now``, ``awaited`` (weights, tokenizers) or, but for its name, ``never``."""
    path = PurePosixPath(name)
    if _WEIGHTS.search(path.name):
        return "awaited"
    uncompressed = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    return "now" if uncompressed.name.lower().endswith(_READ) or _READ_NAMES.search(name) else "never"


def is_of_use(name: str) -> bool:
    """Whether a file that was named by itself is copied: any but those that cannot be logs."""
    return not name.lower().endswith(_NEVER_COPIED)


def awaited_mark(file: Path) -> Path:
    """The empty file that marks one which is copied on demand."""
    return file.with_name(file.name + _AWAITED)


def is_awaited(file: Path) -> bool:
    """Whether a file is not copied yet, but can be."""
    return awaited_mark(file).is_file()


def awaited_in(folder: Path) -> tuple[Path, ...]:
    """The files of a folder that can still be copied."""
    return tuple(mark.with_name(mark.name.removesuffix(_AWAITED)) for mark in sorted(folder.glob(f"*{_AWAITED}")))


_TIMEOUT = 60  # seconds without a byte after which a server is given up; a whole file may take as long as it does


class SizeLimit:
    """Counts the bytes of one answer."""

    def __init__(self, limit: int, shown_name: str) -> None:
        self._limit, self._left, self._shown_name = limit, limit, shown_name

    def add(self, number: int) -> None:
        """So many bytes more; an InputError where they are too many."""
        self._left -= number
        if self._left < 0:
            raise InputError(
                f"{self._shown_name} sends more than {in_mib(self._limit)}, and more than it said.",
                hint=f"Where that is meant, set {VARIABLE}=4 to allow four times as much.",
            )


def byte_callback(add: Callable[[int], None]) -> Any:
    """A callback for fsspec that passes on the number of bytes of each part of a file."""
    from fsspec.callbacks import Callback

    class ByteCallback(Callback):  # type: ignore[misc]
        def relative_update(self, inc: int = 1) -> None:
            add(inc)

    return ByteCallback()


def web_options() -> dict[str, Any]:
    """Fsspec's options for a web server: check its redirects, and give it up where it falls silent."""
    try:
        from aiohttp import ClientTimeout, TraceConfig
    except ImportError:  # reported where the file system is made
        return {}
    trace = TraceConfig()

    async def redirected(session: Any, context: Any, request: Any) -> None:
        location = request.response.headers.get("Location") or request.response.headers.get("URI") or ""
        refuse_private(str(request.url), str(request.url.join(type(request.url)(location))))

    trace.on_request_redirect.append(redirected)
    return {
        "client_kwargs": {
            "timeout": ClientTimeout(total=None, sock_connect=_TIMEOUT, sock_read=_TIMEOUT),
            "trace_configs": [trace],
        }
    }


def refuse_private(url: str, target: str) -> None:
    """Refuse a redirect from outside to inside: to this machine, its network, or a cloud's metadata service.

    Raises:
        InputError: The host of ``target`` is nearer to this machine than that of ``url``, or is this machine under
            another port.
    """
    before, after = _origin(url), _origin(target)
    if after is None or (after != before and _proximity(after[0]) > min(_proximity(before[0]) if before else 0, 1)):
        raise InputError(
            f"{shown_url(url)} sends its readers to {shown_url(target)}, which is no place for a log from there.",
            hint="If that is where the log is, name it.",
        )


def _origin(url: str) -> tuple[str, int] | None:
    """Host and port; None for anything but a URL of the web."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        return None
    return (parts.hostname, port) if parts.hostname else None


def _proximity(host: str) -> int:
    """0 for a host of the internet, 1 for one of a private network, 2 for this machine and its link-local network."""
    try:
        addresses = {ip_address(str(address[4][0]).partition("%")[0]) for address in socket.getaddrinfo(host, None)}
    except OSError:
        return 0  # no such host: asking it fails by itself
    unmapped = [getattr(address, "ipv4_mapped", None) or address for address in addresses]
    if any(ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast for ip in unmapped):
        return 2
    return int(not all(ip.is_global for ip in unmapped))


MAX_REQUESTS = 8  # requests that are under way at a time
_MAX_PAGES = 2000  # pages of links that are followed below one folder of a web server
_MAX_PAGE = 16 << 20  # bytes of one of them
# each stops where the next tag or quote begins, so that no page is looked at twice
_ANCHOR = re.compile(r"<a\s([^<>]+)>", re.IGNORECASE)
_HREF = re.compile(r"""(?:^|\s)href=["'](?P<link>[^"']+)""", re.IGNORECASE)
_MARKS = (
    *("ETag", "etag", "blob_id", "md5Hash", "generation", "Content-MD5", "Digest"),
    *("Last-Modified", "LastModified", "last_modified", "updated", "mtime", "created"),
)
"""Keys under which file systems report that a file has changed."""


class Entry(Struct, frozen=True, kw_only=True):
    """One file of a source."""

    name: str  # its path below the source, with ``/``; empty where the source is this file
    address: str  # its path for the file system; may hold credentials
    size: int | None  # its bytes; None where the server does not report them
    mark: str | None  # a text that changes with the file; None where the server reports nothing of the kind


class Listing(Struct, frozen=True, kw_only=True):
    """The files of a source."""

    system: Any  # fsspec's file system
    root: str  # the URL of the file, of the folder, or of the folder that a glob starts in, as it may be shown
    pattern: str  # the rest of a glob, below ``root``; empty without one
    entries: tuple[Entry, ...]  # its files, by name

    @property
    def is_file(self) -> bool:
        """Whether it is one file and no folder."""
        return len(self.entries) == 1 and not self.entries[0].name


def list_source(url: str) -> Listing:
    """The files that a URL names; FileNotFoundError where there are none, InputError for a name no folder can hold."""
    from fsspec.core import url_to_fs
    from fsspec.utils import glob_translate

    start, options = glob_start(url), web_options() if is_web(url) else {}
    system, address = url_to_fs(url, **options)
    system.invalidate_cache()
    if start is not None:
        folder = url[:start].rpartition("/")[0]
        base = url_to_fs(folder, **options)[1]
        root, pattern = shown_url(folder), url[len(folder) + 1 :]
        if is_web(url):
            depth = None if "**" in pattern else pattern.count("/")
            fits, names = re.compile(glob_translate(pattern)), _linked(system, base.rstrip("/"), depth)
            infos = [{"name": name} for name in names if fits.fullmatch(name.removeprefix(base).strip("/"))]
        else:
            infos = [info for info in system.glob(address, detail=True).values() if info["type"] == "file"]
        entries = _entries(base, iter(infos))
    else:
        info = system.info(address)
        if is_web(url) and info.get("mimetype") == "text/html" and "?" not in address:
            entries = _entries(address, ({"name": name, "size": None} for name in _linked(system, address.rstrip("/"))))
        elif info["type"] == "directory":
            entries = _entries(address, iter(system.find(address, detail=True).values()))
        else:
            entries = (Entry(name="", address=address, size=info.get("size"), mark=_mark(info)),)
        root, pattern = shown_url(url), ""
    if not entries:
        raise FileNotFoundError
    return Listing(system=system, root=root, pattern=pattern, entries=_with_sizes(system, entries))


def _with_sizes(system: Any, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Entries with sizes and marks, which the server is asked for where a page of links has names alone."""

    def with_size(entry: Entry) -> Entry:
        if entry.size is not None or entry.mark is not None or when_copied(entry.name) == "never":
            return entry
        info = system.info(entry.address)
        return replace(entry, size=info["size"], mark=_mark(info))

    with ThreadPoolExecutor(MAX_REQUESTS) as pool:
        return tuple(pool.map(with_size, entries))


def _linked(system: Any, address: str, depth: int | None = None) -> Iterator[str]:
    """The files that pages of links lead to, page by page; a link out of its folder is not followed."""
    folders, num_pages = [address], 0
    while folders:
        folder = folders.pop()
        num_pages += 1
        if num_pages > _MAX_PAGES:
            raise InputError(
                f"{shown_url(address)} has more than {_MAX_PAGES:,} folders.", hint="Name a folder further down."
            )
        base = urljoin(f"{folder}/", ".")
        with TemporaryDirectory() as copies:
            page, size_limit = Path(copies) / "page", SizeLimit(_MAX_PAGE, shown_url(folder))
            system.get_file(f"{folder}/", str(page), callback=byte_callback(size_limit.add))
            text = page.read_text(encoding="utf-8", errors="replace")
        tags = (anchor[1] for anchor in _ANCHOR.finditer(text))
        links = {unescape(href["link"]) for tag in tags for href in _HREF.finditer(tag)}
        for link in sorted(urljoin(base, link) for link in links):
            step = link.removeprefix(base)
            if step == link or "?" in step or "#" in step or unquote(step).rstrip("/") in ("", ".", ".."):
                continue
            if step.count("/") == 0:
                yield f"{folder}/{step}"
            elif step.count("/") == 1 and step.endswith("/") and depth != folder.count("/") - address.count("/"):
                folders.append(f"{folder}/{step.rstrip('/')}")


def _entries(base: str, infos: Iterator[Mapping[str, Any]]) -> tuple[Entry, ...]:
    base = base.rstrip("/")
    entries = []
    for info in infos:
        address = str(info["name"])
        name = address.removeprefix(base).strip("/")
        if address.endswith("/"):  # what stores write to show an empty folder
            continue
        parts = unquote(name).split("/")
        if any(part in ("", ".", "..") for part in parts) or set(unquote(name)) & set("\\\0\n\r"):
            raise InputError(
                f"A file at {shown_url(base)} has a name that no folder can hold: {name!r}.",
                hint="Rename it there, or name a folder further down.",
            )
        entries.append(Entry(name=name, address=address, size=info.get("size"), mark=_mark(info)))
    return tuple(sorted(entries, key=lambda entry: PurePosixPath(entry.name).parts))


def _mark(info: Mapping[str, Any]) -> str | None:
    return "|".join(str(info[key]) for key in _MARKS if info.get(key)) or None


_DIGITS = re.compile("[0-9]+")
_LONGEST_NUMBER = 20  # digits: those of a time in nanoseconds


def natural_path(path: Path) -> tuple[str, str]:
    """A sorting key for files of several folders: each number in their paths counts as a number.

    >>> sorted([Path("step10/a"), Path("step9/a")], key=natural_path)[0].parent.name
    'step9'
    """
    name = str(path)
    return _DIGITS.sub(lambda number: number[0].zfill(_LONGEST_NUMBER), name), name


@lru_cache(maxsize=1 << 14)  # since each format sorts the files of a folder
def natural(path: Path) -> tuple[int, str]:
    """A sorting key for numbered files: the last number in the name (0 without any), then the name."""
    digits = _DIGITS.findall(path.name.split(".")[0])
    return (int(digits[-1]) if digits else 0, path.name)
