"""inspect_ai's logs, ``.eval`` (a zip of JSON) and ``.json``: epochs of a sample are the samples of a prompt.

An archive is somebody else's: members are read one at a time, by name, never unpacked to disk, and one that says it is
larger than a sample can be is refused before it is inflated, and never inflated beyond what it says.

A run that was sharded has a log a worker in ``<name>.shards/<k>/``, which are merged into ``<name>.eval`` at the end.
Until that has succeeded the shards count and it does not; of a shard that was tried again, the last attempt.
"""

from __future__ import annotations

import io
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from gradscope.errors import InputError
from gradscope.outside.limits import MOST_ROW, in_mib, most, most_unpacked, open_file, raise_limits
from gradscope.outside.plain_json import parse_json, read_json
from gradscope.outside.zips import is_zip
from gradscope.rollouts.readers.flat.columns import chosen_name
from gradscope.rollouts.readers.format import Format
from gradscope.rollouts.readers.parsing.assemble import assemble
from gradscope.rollouts.readers.parsing.counted import TEXT_ONLY, counted
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import list_of, mapping_of, usable_reward, whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, finite_or_none, parse_messages, text_of
from gradscope.rollouts.readers.parsing.tables import files_like, natural
from gradscope.rollouts.run import Run

_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""inspect_ai's own values of correct, partial, incorrect and no answer."""
_SUFFIX = ".eval"
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
_SHARDS = ".shards"
_RECOVERED = "-recovered"
_CREATED = re.compile(r"[0-9]{4}-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]-[0-9][0-9]-[0-9][0-9]")


def _recognizes(request: ReadRequest) -> bool:
    """Whether the path is a log of inspect_ai's."""
    files = [*find_logs(request.path)]
    archives = [file for file in files if file.suffix == _SUFFIX]
    return any(map(is_log, archives or files[:1]))


def _read(request: ReadRequest) -> Run:
    """Read logs of inspect_ai's: one group a sample of a log, at step 0; its epochs are the rollouts."""
    found = find_logs(request.path)
    files = {file: log for file, log in found.items() if is_log(file)}
    several = len(set(files.values())) > 1
    quarantine = QuarantineLog()
    for file in found.keys() - files.keys():
        if file.suffix == _SUFFIX:
            quarantine.add("the file is no zip archive", f"{file}:1")
    samples = [
        (log if several else "", *located)
        for file, log in files.items()
        for located in read_archived_samples(file, quarantine)
    ]
    names = (name for _, _, sample in samples for name in mapping_of(sample.get("scores")))
    scorer = chosen_name(names, request, "scorer", "no scored samples")
    return assemble(
        request,
        records=[_record(sample, scorer, log, location, quarantine) for log, location, sample in samples],
        quarantine=quarantine,
        format="inspect-ai",
        recognized=f"inspect_ai, {counted(len(files), 'log')}",
        inferred=(f"The score is that of the scorer {scorer}; C, P, I and N count 1, 0.5, 0 and 0.",),
        missing=(TEXT_ONLY,),
        files=tuple(files),
    )


def _record(sample: Mapping[str, Any], scorer: str, log: str, location: str, quarantine: QuarantineLog) -> Record:
    prompt = sample.get("input")
    name = text_of(sample.get("id")) or digest(prompt)
    scores = {key: mapping_of(score).get("value", ABSENT) for key, score in mapping_of(sample.get("scores")).items()}
    epoch = whole_number(sample.get("epoch"))
    choice = mapping_of(next(iter(list_of(mapping_of(sample.get("output")).get("choices"))), None))
    return Record(
        step=0,
        group=f"{log}/{name}" if log else name,
        prompt_id=name,
        prompt=text_of(prompt),
        completion=text_of([choice["message"]]) if parse_messages([choice.get("message")]) else "",
        messages=parse_messages(prompt),
        reward=usable_reward(_value(scores.get(scorer, ABSENT)), location, quarantine),
        rewards={key: finite_or_none(_value(value)) for key, value in scores.items()},
        status="error" if sample.get("error") else "unknown",
        sample_id=None if epoch is None else str(epoch),
        location=location,
    )


def _value(value: Any) -> Any:
    return _LETTERS.get(value, value) if isinstance(value, str) else value


def find_logs(path: Path) -> dict[Path, str]:
    """The logs that a path means, by their names: whether each is one is for ``is_log`` to say.

    Args:
        path: A log, a folder of logs, the shards of one, one of these, or a glob.

    Returns:
        File -> the evaluation that it is of, in order; the shards of one run are of one evaluation.
    """
    here = path.resolve()
    if path.is_dir() and here.name.endswith(_SHARDS):
        return _current(path)
    if path.is_dir() and here.parent.name.endswith(_SHARDS):
        return dict.fromkeys(_last_attempt(files_like(path, f"*{_SUFFIX}")), _evaluation(here.parent))
    files = files_like(path, f"*{_SUFFIX}", "*.json")
    found = {file: file.stem for file in files}
    for shards in sorted(path.glob(f"*{_SHARDS}")) if path.is_dir() else ():
        merged = [path / f"{_evaluation(shards)}{ending}{_SUFFIX}" for ending in ("", _RECOVERED)]
        if not any(map(has_succeeded, merged)):
            found = {file: name for file, name in found.items() if file not in merged} | _current(shards)
    return found


def _current(shards: Path) -> dict[Path, str]:
    folders = sorted((folder for folder in shards.glob("[!.]*") if folder.is_dir()), key=natural)
    logs = (log for folder in folders for log in _last_attempt(files_like(folder, f"*{_SUFFIX}")))
    return dict.fromkeys(logs, _evaluation(shards))


def _evaluation(shards: Path) -> str:
    return shards.name.removesuffix(_SHARDS)


def _last_attempt(logs: Iterable[Path]) -> list[Path]:
    return sorted(logs, key=_when)[-1:]


def _when(log: Path) -> tuple[str, bool, float]:
    """When an attempt began, by its name; one without a time comes first."""
    created = _CREATED.match(log.name)
    return (created[0] if created else "", log.stem.endswith(_RECOVERED), log.stat().st_mtime)


def is_log(path: Path) -> bool:
    """Whether a file is a zip named ``.eval``, or a JSON document with ``eval`` and a list of ``samples``."""
    if path.suffix == _SUFFIX:
        with open_file(path) as stream:
            return is_zip(stream)
    document = _document(path)
    return isinstance(document, dict) and isinstance(document.get("samples"), list) and "eval" in document


def read_archived_samples(path: Path, quarantine: QuarantineLog) -> Iterator[tuple[str, dict[str, Any]]]:
    """The samples of a log, each with its ``file:number``, from 1 on; members that are none go to the quarantine."""
    documents = _members(path) if path.suffix == _SUFFIX else iter(list_of((_document(path) or {}).get("samples")))
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


FORMAT = Format(
    name="inspect-ai",
    looks_for="*.eval, *.shards/*/*.eval, or .json with eval and samples (inspect_ai)",
    recognizes=_recognizes,
    read=_read,
    takes=frozenset({"reward_column"}),
)
