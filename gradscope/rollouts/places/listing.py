"""What lies at a URL: names, sizes, and what changes when a file does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urljoin

from gradscope.errors import InputError
from gradscope.rollouts.places.kinds import when_copied
from gradscope.rollouts.places.transfer import AtMost, told_of, web_options
from gradscope.rollouts.places.urls import glob_start, is_web, shown_url

AT_ONCE = 8
"""Requests that are under way at a time."""
_MOST_PAGES = 2000
"""Pages of links that are followed below one folder of a web server."""
_MOST_PAGE = 16 << 20
"""Bytes of one of them."""
# each stops where the next tag or quote begins, so that no page is looked at twice
_ANCHOR = re.compile(r"<a\s([^<>]+)>", re.IGNORECASE)
_HREF = re.compile(r"""(?:^|\s)href=["'](?P<link>[^"']+)""", re.IGNORECASE)
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
        return len(self.entries) == 1 and not self.entries[0].name


def list_place(url: str) -> Listing:
    """Everything that a URL names; nothing is a FileNotFoundError, and a name that no folder can hold an InputError."""
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
            found = [{"name": name} for name in names if fits.fullmatch(name.removeprefix(base).strip("/"))]
        else:
            found = [one for one in system.glob(address, detail=True).values() if one["type"] == "file"]
        entries = _entries(base, iter(found))
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


def _links(page: str) -> set[str]:
    tags = (match[1] for match in _ANCHOR.finditer(page))
    return {unescape(found["link"]) for tag in tags for found in _HREF.finditer(tag)}


def _page(system: Any, folder: str) -> str:
    with TemporaryDirectory() as aside:
        file = Path(aside) / "page"
        system.get_file(f"{folder}/", str(file), callback=told_of(AtMost(_MOST_PAGE, shown_url(folder)).add))
        return file.read_text(encoding="utf-8", errors="replace")


def _linked(system: Any, address: str, depth: int | None = None) -> Iterator[str]:
    """The files that pages of links lead to, page by page; a link that leads out of its folder is left alone."""
    folders, num_pages = [address], 0
    while folders:
        folder = folders.pop()
        num_pages += 1
        if num_pages > _MOST_PAGES:
            raise InputError(
                f"{shown_url(address)} has more than {_MOST_PAGES:,} folders.", hint="Name a folder further down."
            )
        here = urljoin(f"{folder}/", ".")
        for link in sorted(urljoin(here, link) for link in _links(_page(system, folder))):
            step = link.removeprefix(here)
            if step == link or "?" in step or "#" in step or unquote(step).rstrip("/") in ("", ".", ".."):
                continue
            if step.count("/") == 0:
                yield f"{folder}/{step}"
            elif step.count("/") == 1 and step.endswith("/") and depth != folder.count("/") - address.count("/"):
                folders.append(f"{folder}/{step.rstrip('/')}")


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
