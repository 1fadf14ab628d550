"""inspect_ai's logs, ``.eval`` (a zip of JSON) and ``.json``: epochs of a sample are the samples of a prompt.

An archive is not trusted: members are read one at a time, by name, never unpacked to disk; one whose declared size is
larger than a sample may be is refused before it is inflated, and none is inflated beyond its declared size.

A sharded run has a log for each worker in ``<name>.shards/<k>/``, which are merged into ``<name>.eval`` at the end.
Until that has succeeded the shards count instead; of a shard that was tried again, the last attempt.
"""

from __future__ import annotations

import contextlib
import io
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from gradscope.errors import InputError
from gradscope.outside.limits import MAX_ROW, allowed, in_mib, is_zip, max_unpacked, open_file, raise_limits
from gradscope.outside.plain_json import parse_json, read_json
from gradscope.rollouts.listing import natural
from gradscope.rollouts.readers import column_roles as roles
from gradscope.rollouts.readers.format import Format
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing.quarantine import TEXT_ONLY, QuarantineLog
from gradscope.rollouts.readers.parsing.records import (
    ReadRequest,
    Record,
    assemble_groups,
    build_groups,
    chosen_name,
    list_names,
)
from gradscope.rollouts.readers.parsing.tables import BOM, files_like
from gradscope.rollouts.run import Run
from gradscope.say import counted

_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""inspect_ai's own values of correct, partial, incorrect and no answer."""
SUFFIX = ".eval"
_HEADERS = ("header.json", "_journal/start.json")  # members that describe the evaluation: written last, and first
_OPENING = 4096  # bytes in which a document begins
_CHUNK = re.compile(r"samples/.+_epoch_[0-9]+/.+")
_SAMPLE = re.compile(rf"(?!{_CHUNK.pattern})samples/.+\.json")  # also of an id with slashes, as HumanEval's are
_ZSTD = 93  # the zip format's number for Zstandard, which Python's zipfile supports from 3.14 on
_LOCAL_HEADER = struct.Struct("<26x2H")
"""The header of a member: 26 bytes that are skipped, and the lengths of its name and extra field."""
_BROKEN = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, pa.ArrowException),
    *(EOFError, OSError, RuntimeError, UnicodeDecodeError),
)
"""Errors of reading an archive that is damaged or compressed in an unusual way."""
_CONVERT = "Convert it where inspect_ai is installed: inspect log convert {} --to json --output-dir logs-json"
SHARDS = ".shards"  # suffix of a folder with a log for each worker
_RECOVERED = "-recovered"
_CREATED = re.compile(r"[0-9]{4}-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]-[0-9][0-9]-[0-9][0-9]")


def _recognizes(request: ReadRequest) -> bool:
    files = [*find_logs(request.path)]
    archives = [file for file in files if file.suffix == SUFFIX]
    return any(map(is_log, archives or files[:1]))


def _read(request: ReadRequest) -> Run:
    """Read the logs of an evaluation: a group for each sample, at step 0, with its epochs as rollouts."""
    quarantine = QuarantineLog()
    files = [file for file in find_logs(request.path) if _is_readable(file, quarantine)]
    samples = [located for file in files for located in read_archived_samples(file, quarantine)]
    unfinished = header_of(files).unfinished(len(samples))
    names = dict.fromkeys(name for _, sample in samples for name in _scores(sample))
    ended = f": the evaluation {unfinished}" if unfinished else ""
    scorer = chosen_name(names, request, "scorer", f"no scored samples{ended}") if files else ""
    choices = f" (of {list_names(names)}: --reward-column)" if len(names) > 1 else ""
    records = [_record(sample, scorer, location, quarantine) for location, sample in samples]
    run = assemble_groups(
        request,
        request.source(
            "inspect-ai",
            f"inspect_ai, {counted(len(files), 'log')}",
            files=tuple(files),
            inferred=(f"The score is that of the scorer {scorer}{choices}; C, P, I and N count 1, 0.5, 0 and 0.",),
            missing=(TEXT_ONLY, *([f"The evaluation {unfinished}."] if unfinished else [])),
        ),
        groups=build_groups(records, quarantine),
        quarantine=quarantine,
    )
    return replace(run, source=replace(run.source, unfinished=unfinished))


def _is_readable(file: Path, quarantine: QuarantineLog) -> bool:
    try:
        if is_log(file):
            return True
        if file.suffix == SUFFIX:
            quarantine.add("the file is no zip archive", f"{file}:1")
    except InputError as error:
        quarantine.add_unreadable(error)
    return False


def _record(sample: Mapping[str, Any], scorer: str, location: str, quarantine: QuarantineLog) -> Record:
    prompt = sample.get("input")
    name = parse.text_of(sample.get("id")) or parse.digest(prompt)
    scores = _scores(sample)
    epoch = parse.whole_number(sample.get("epoch"))
    reward = parse.parse_reward(scores.get(scorer, parse.ABSENT))
    if isinstance(reward, str):  # the sample stays in its group
        quarantine.add(reward, location)
    choice = parse.mapping_of(next(iter(parse.list_of(parse.mapping_of(sample.get("output")).get("choices"))), None))
    return Record(
        step=0,
        group=name,
        prompt_id=name,
        prompt=parse.text_of(prompt),
        completion=parse.text_of([choice["message"]]) if parse.parse_messages([choice.get("message")]) else "",
        messages=parse.parse_messages(prompt),
        reward=None if isinstance(reward, str) else reward,
        rewards={key: parse.finite_or_none(value) for key, value in scores.items()},
        status="error" if sample.get("error") else "unknown",
        sample_id=None if epoch is None else str(epoch),
        location=location,
    )


def _scores(sample: Mapping[str, Any]) -> dict[str, Any]:
    """The values by scorer, numbers for words as its own metrics have; of an object one an entry, ``scorer.entry``."""
    values: dict[str, Any] = {}
    for scorer, score in parse.mapping_of(sample.get("scores")).items():
        value = parse.mapping_of(score).get("value", parse.ABSENT)
        values |= {f"{scorer}.{key}": entry for key, entry in parse.mapping_of(value).items()} or {scorer: value}
    words = {name: _LETTERS.get(value, value) if type(value) is str else value for name, value in values.items()}
    return {name: roles.verdict_of(word) for name, word in words.items()}


def find_logs(path: Path) -> dict[Path, str]:
    """File -> evaluation, in order, by their names alone; the shards of a run are one evaluation."""
    folder = path.resolve()
    if path.is_dir() and folder.name.endswith(SHARDS):
        return _current(path)
    if path.is_dir() and folder.parent.name.endswith(SHARDS):
        return _last_attempt(path, folder.parent)
    files = files_like(path, f"*{SUFFIX}", "*.json")
    logs = {file: file.stem for file in files}
    for shards in sorted(path.glob(f"*{SHARDS}")) if path.is_dir() else ():
        merged = [path / f"{shards.name.removesuffix(SHARDS)}{ending}{SUFFIX}" for ending in ("", _RECOVERED)]
        if not any(_read_header(log).status == "success" for log in merged):
            logs = {file: name for file, name in logs.items() if file not in merged} | _current(shards)
    return logs


def _current(shards: Path) -> dict[Path, str]:
    folders = sorted((folder for folder in shards.glob("[!.]*") if folder.is_dir()), key=natural)
    return {log: name for folder in folders for log, name in _last_attempt(folder, shards).items()}


def _last_attempt(shard: Path, shards: Path) -> dict[Path, str]:
    """The last log of a shard by the time in its name, before which comes one without a time."""

    def when(log: Path) -> tuple[str, bool, float]:
        created = _CREATED.match(log.name)
        return (created[0] if created else "", log.stem.endswith(_RECOVERED), log.stat().st_mtime)

    logs = sorted(files_like(shard, f"*{SUFFIX}"), key=when)
    return dict.fromkeys(logs[-1:], shards.name.removesuffix(SHARDS))


def is_log(path: Path) -> bool:
    """Whether a file is a zip named ``.eval``, or a JSON document with ``eval`` and a list of ``samples``."""
    if path.suffix == SUFFIX:
        with open_file(path) as stream:
            return is_zip(stream)
    document = _document(path, named=(b'"eval"', b'"samples"'))
    return isinstance(document, dict) and isinstance(document.get("samples"), list) and "eval" in document


def read_archived_samples(path: Path, quarantine: QuarantineLog) -> Iterator[tuple[str, dict[str, Any]]]:
    """The samples of a log, each with its ``file:number``, from 1; members that are no samples go to the quarantine."""
    documents = _members(path) if path.suffix == SUFFIX else iter(parse.list_of((_document(path) or {}).get("samples")))
    for number, sample in enumerate(documents, start=1):
        if isinstance(sample, dict):
            yield f"{path}:{number}", sample
        else:
            quarantine.add("the sample is not a JSON object", f"{path}:{number}")


class Header(Struct, frozen=True, kw_only=True):
    """The description of an evaluation in its log."""

    task: str = ""  # the task's name; empty where the log has none
    model: str = ""  # the model, likewise
    status: str = ""  # ``success``, ``started``, ``cancelled`` or ``error``, likewise
    num_samples: int | None = None  # planned samples, each epoch counted; None where the log has no number

    @property
    def is_whole(self) -> bool:
        """Whether it has all its samples as far as the log says."""
        return self.status in ("success", "")

    def unfinished(self, num_samples: int) -> str:
        """How the evaluation ended, and how many of its samples it has, in words; empty where it is complete."""
        if self.is_whole:
            return ""
        ended = {"started": "has not ended", "error": "ended with an error"}.get(self.status, f"was {self.status}")
        planned = "" if self.num_samples is None else f" of {self.num_samples:,}"
        return f"{ended}: {num_samples:,}{planned} samples"


def header_of(logs: Sequence[Path]) -> Header:
    """The header of an evaluation from those of its logs; it is complete where all of them are."""
    headers = [_read_header(log) for log in logs] or [Header()]
    numbers = [header.num_samples for header in headers if header.num_samples is not None]
    return replace(
        next((header for header in headers if not header.is_whole), headers[0]),
        num_samples=sum(numbers) if len(numbers) == len(headers) else None,
    )


def _read_header(path: Path) -> Header:
    """The header of a log, which an archive has at its end or in the journal of its start; empty where damaged."""
    header: Mapping[str, Any] = {}
    if path.suffix == SUFFIX:
        with contextlib.suppress(InputError, *_BROKEN), open_file(path) as stream, zipfile.ZipFile(stream) as archive:
            for name in [name for name in _HEADERS if name in archive.namelist()][:1]:
                member = archive.getinfo(name)
                _refuse_unreadable(path, [member], [member])
                header = {"status": "started", **parse.mapping_of(_parse(_inflated(path, archive, member)))}
    else:
        header = parse.mapping_of(_document(path))
    evaluation, status = parse.mapping_of(header.get("eval")), parse.text_of(header.get("status"))
    dataset = parse.mapping_of(evaluation.get("dataset"))
    ids = parse.list_of(dataset.get("sample_ids"))
    epochs = parse.whole_number(parse.mapping_of(evaluation.get("config")).get("epochs")) or 1
    num_prompts = len(ids) or parse.whole_number(dataset.get("samples"))
    return Header(
        task=parse.text_of(evaluation.get("task")),
        model=parse.text_of(evaluation.get("model")),
        status=status,
        num_samples=None if num_prompts is None else num_prompts * epochs,
    )


def _document(path: Path, named: tuple[bytes, ...] = ()) -> Any:
    """A log as a whole; None for a file that is no JSON, lacks a key, or is a list, which may be large."""
    try:
        with open_file(path) as stream:
            is_object = stream.read(_OPENING).lstrip(BOM + b" \t\r\n").startswith(b"{")
        return read_json(path, named) if is_object else None
    except (InputError, OSError, ValueError):
        return None


def _members(path: Path) -> Iterator[Any]:
    try:
        with open_file(path) as stream, zipfile.ZipFile(stream) as archive:
            members = [*{member.filename: member for member in archive.infolist()}.values()]  # one written anew counts
            chosen = [member for member in members if _SAMPLE.fullmatch(member.filename)]
            _refuse_unreadable(path, members, chosen)
            for member in chosen:
                yield _parse(_inflated(path, archive, member))
    except _BROKEN as error:
        raise InputError(f"{path} cannot be read: {error}.", hint="Copy the file again.") from error


def _inflated(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """The bytes of a member; those of zstd, in one frame or several, are unpacked and checked against the CRC."""
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
    """Refuse an archive that cannot be read."""
    if not chosen and any(_CHUNK.fullmatch(member.filename) for member in members):
        raise InputError(
            f"{path} splits each sample into chunks, a layout that is not read.", hint=_CONVERT.format(path)
        )
    if any(member.flag_bits & 1 for member in chosen):
        raise InputError(f"{path} is encrypted.", hint="Give a log without a password.")
    if any(member.file_size > allowed(MAX_ROW) for member in chosen):
        raise InputError(f"{path} has a sample of more than {in_mib(allowed(MAX_ROW))}.", hint=raise_limits(path))
    if sum(member.file_size for member in chosen) > max_unpacked(path):
        raise InputError(f"{path} unpacks to more than {in_mib(max_unpacked(path))}.", hint=raise_limits(path))


def _parse(data: bytes) -> Any:
    try:
        return parse_json(data)
    except ValueError:
        return None


FORMAT = Format(name="inspect-ai", recognizes=_recognizes, read=_read, takes=frozenset({"reward_column"}))
