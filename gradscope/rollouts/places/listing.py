"""What lies at a URL: names, sizes, and what changes when a file does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

from gradscope.errors import InputError
from gradscope.rollouts.places.kinds import when_copied
from gradscope.rollouts.places.urls import glob_start, is_web, shown_url

AT_ONCE = 8
"""Requests that are under way at a time."""
_MOST_PAGES = 2000
"""Pages of links that are followed below one folder of a web server."""
_MARKS = (
    *("ETag", "etag", "blob_id", "md5Hash", "generation", "Content-MD5", "Digest"),
    *("Last-Modified", "LastModified", "last_modified", "updated", "mtime", "created"),
)
"""Under which names file systems tell that a file is another than before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file of a place."""

    name: str
    """Its path below the place, with ``/``; empty where the place is this file."""
    address: str
    """Its path for the file system; may hold credentials."""
    size: int | None
    """Its bytes; None where the server does not tell."""
    mark: str | None
    """Another text when the file changes; None where the server tells nothing of the kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files of a place."""

    system: Any
    """fsspec's file system."""
    root: str
    """The URL of the file, of the folder, or of the folder that a glob starts in, as it may be shown."""
    pattern: str
    """The rest of a glob, below ``root``; empty without one."""
    entries: tuple[Entry, ...]
    """Its files, by name."""

    @property
    def is_file(self) -> bool:
        """Whether it is one file and no folder."""
        return [entry.name for entry in self.entries] == [""]


def list_place(url: str) -> Listing:
    """Everything that a URL names.

    Args:
        url: A file, a folder or a glob.

    Returns:
        The listing.

    Raises:
        InputError: A file there has a name that no folder can hold.
        FileNotFoundError: There is nothing; other errors are those of the file system.
    """
    from fsspec.core import url_to_fs

    start = glob_start(url)
    system, address = url_to_fs(url)
    system.invalidate_cache()
    if start is not None:
        folder = url[:start].rpartition("/")[0]
        base = url_to_fs(folder)[1]
        found = system.glob(address, detail=True)
        entries = _entries(base, (one for one in found.values() if one["type"] == "file"))
        root, pattern = shown_url(folder), url[len(folder) + 1 :]
    else:
        entries = _at(system, address, is_web=is_web(url))
        root, pattern = shown_url(url), ""
    if not entries:
        raise FileNotFoundError
    return Listing(system=system, root=root, pattern=pattern, entries=_with_sizes(system, entries))


def _with_sizes(system: Any, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Entries with what the server tells of each file that may be copied: a page of links tells its name alone."""

    def asked(entry: Entry) -> Entry:
        if entry.size is not None or entry.mark is not None or when_copied(entry.name) == "never":
            return entry
        info = system.info(entry.address)
        return replace(entry, size=info["size"], mark=_mark(info))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return tuple(pool.map(asked, entries))


def _at(system: Any, address: str, *, is_web: bool) -> tuple[Entry, ...]:
    info = system.info(address)
    if is_web and info.get("mimetype") == "text/html" and "?" not in address:
        return _entries(address, ({"name": name, "size": None} for name in _linked(system, address.rstrip("/"))))
    if info["type"] == "directory":
        return _entries(address, iter(system.find(address, detail=True).values()))
    return (Entry(name="", address=address, size=info.get("size"), mark=_mark(info)),)


def _linked(system: Any, address: str) -> Iterator[str]:
    """The files that pages of links lead to, page by page; a link that leads out of its folder is left alone."""
    folders, num_pages = [address], 0
    while folders:
        folder = folders.pop()
        num_pages += 1
        if num_pages > _MOST_PAGES:
            raise InputError(
                f"{shown_url(address)} has more than {_MOST_PAGES:,} folders.", hint="Name a folder further down."
            )
        for link in sorted(system.ls(folder, detail=False)):
            step = link.removeprefix(f"{folder}/")
            if step == link or "?" in step or "#" in step or unquote(step).rstrip("/") in ("", ".", ".."):
                continue
            if step.count("/") == 0:
                yield link
            elif step.count("/") == 1 and step.endswith("/"):
                folders.append(link.rstrip("/"))


def _entries(base: str, found: Iterator[Mapping[str, Any]]) -> tuple[Entry, ...]:
    base = base.rstrip("/")
    entries = []
    for info in found:
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
    told = [str(info[key]) for key in _MARKS if info.get(key)]
    return "|".join(told) or None
