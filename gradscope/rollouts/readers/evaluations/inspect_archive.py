"""Where an inspect_ai log keeps its samples: members of a zip, or a list in one JSON document.

The archive is somebody else's: members are read one at a time, by name, never unpacked to disk, and one that says it is
larger than a sample can be is refused before it is inflated, and never inflated beyond what it says.
"""

from __future__ import annotations

import io
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from gradscope.errors import InputError
from gradscope.outside.limits import MOST_ROW, in_mib, most, most_unpacked, open_file, raise_limits
from gradscope.outside.plain_json import parse_json, read_json
from gradscope.outside.zips import is_zip
from gradscope.rollouts.readers.parsing.nested_cells import list_of, mapping_of
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog

SUFFIX = ".eval"
_SAMPLE = re.compile(r"samples/[^/]+\.json")
_CHUNK = re.compile(r"samples/[^/]+_epoch_[0-9]+/.+")
_ZSTD = 93
"""The zip format's number for Zstandard, which Python's zipfile knows from 3.14 on."""
_LOCAL_HEADER = struct.Struct("<26x2H")
"""What stands before a member's bytes: 26 bytes of no interest here, and the lengths of its name and extra field."""
_BROKEN = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, pa.ArrowException),
    *(EOFError, OSError, RuntimeError),
)
"""What reading an archive raises that is damaged or compressed in a way that nobody uses."""
_CONVERT = "Convert it where inspect_ai is installed: inspect log convert {} --to json --output-dir logs-json"


def is_log(path: Path) -> bool:
    """Whether a file is a zip named ``.eval``, or a JSON document with ``eval`` and a list of ``samples``."""
    if path.suffix == SUFFIX:
        with open_file(path) as stream:
            return is_zip(stream)
    document = _document(path)
    return isinstance(document, dict) and isinstance(document.get("samples"), list) and "eval" in document


def read_archived_samples(path: Path, quarantine: QuarantineLog) -> Iterator[tuple[str, dict[str, Any]]]:
    """The samples of a log, each with its ``file:number``, from 1 on; members that are none go to the quarantine."""
    documents = _members(path) if path.suffix == SUFFIX else iter(list_of((_document(path) or {}).get("samples")))
    for number, sample in enumerate(documents, start=1):
        if isinstance(sample, dict):
            yield f"{path}:{number}", sample
        else:
            quarantine.add("the sample is not a JSON object", f"{path}:{number}")


def has_succeeded(path: Path) -> bool:
    """Whether an ``.eval`` log says that its evaluation succeeded; the header is written last."""
    try:
        with open_file(path) as stream, zipfile.ZipFile(stream) as archive:
            member = archive.getinfo("header.json")
            _refuse_unreadable(path, [member], [member])
            header = _parse(_inflated(path, archive, member))
    except (InputError, KeyError, *_BROKEN):
        return False
    return mapping_of(header).get("status") == "success"


def _document(path: Path) -> Any:
    try:
        return read_json(path)
    except (InputError, OSError, ValueError):
        return None


def _members(path: Path) -> Iterator[Any]:
    try:
        with open_file(path) as stream, zipfile.ZipFile(stream) as archive:
            members = archive.infolist()
            chosen = [member for member in members if _SAMPLE.fullmatch(member.filename)]
            _refuse_unreadable(path, members, chosen)
            for member in chosen:
                yield _parse(_inflated(path, archive, member))
    except _BROKEN as error:
        raise InputError(f"{path} cannot be read: {error}.", hint="Copy the file again.") from error


def _inflated(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """The bytes of a member; those of zstd, in one frame or several, are unpacked here and held to their checksum."""
    if member.compress_type != _ZSTD:
        return archive.read(member)
    with path.open("rb") as stream:
        stream.seek(member.header_offset)
        name_length, extra_length = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
        stream.seek(name_length + extra_length, io.SEEK_CUR)
        packed = stream.read(member.compress_size)
    with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as unpacked:
        data: bytes = unpacked.read(member.file_size + 1)
    if len(data) != member.file_size or zlib.crc32(data) != member.CRC:
        raise zipfile.BadZipFile(f"Bad CRC-32 for file {member.filename!r}")
    return data


def _refuse_unreadable(path: Path, members: list[zipfile.ZipInfo], chosen: list[zipfile.ZipInfo]) -> None:
    """Refuse an archive that cannot be read.

    Raises:
        InputError: Its samples are split into chunks, locked, or too large.
    """
    if not chosen and any(_CHUNK.fullmatch(member.filename) for member in members):
        raise InputError(
            f"{path} splits each sample into chunks, a layout that is not read.",
            hint=_CONVERT.format(path),
        )
    if any(member.flag_bits & 1 for member in chosen):
        raise InputError(f"{path} is encrypted.", hint="Give a log without a password.")
    if any(member.file_size > most(MOST_ROW) for member in chosen):
        raise InputError(f"{path} has a sample of more than {in_mib(most(MOST_ROW))}.", hint=raise_limits(path))
    if sum(member.file_size for member in chosen) > most_unpacked(path):
        raise InputError(f"{path} unpacks to more than {in_mib(most_unpacked(path))}.", hint=raise_limits(path))


def _parse(data: bytes) -> Any:
    try:
        return parse_json(data)
    except ValueError:
        return None
