"""Parts of a log that were reduced to their rewards: written here, and read in place of the log.

A part is a Parquet file: a row for each group, lists of its rollouts' numbers, and the reader's other results as JSON
in the schema. However a log was cut into parts, their merged table is the table of the log.

Legend: J groups of a part, N rollouts of these.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from gradscope.copies import copy_of
from gradscope.errors import InputError, OutputExistsError
from gradscope.machine import in_threads
from gradscope.reason import Reason
from gradscope.results.envelope import sha256_of
from gradscope.results.source import Quarantine, Source, set_aside_together
from gradscope.rollouts.arrays import to_numpy, to_strings, to_texts
from gradscope.rollouts.groups import GroupsOfTable, RewardTable, reward_table
from gradscope.rollouts.readers.evaluations.folders import are_of_one
from gradscope.rollouts.readers.format import Format
from gradscope.rollouts.readers.parsing.records import DIFFER, TWICE_LOGGED, describe_groups
from gradscope.rollouts.readers.parsing.request import ReadRequest, read_trainer_settings
from gradscope.rollouts.readers.parsing.tables import expand, natural, natural_path, read_parquet
from gradscope.rollouts.readers.reduction.columns import NOT_COMPARED
from gradscope.rollouts.readers.reduction.log import MOST_WITH_TEXTS
from gradscope.rollouts.readers.reduction.parts import (
    COLUMN_TYPES,
    ROWS_A_FILE,
    Part,
    merge_parts,
    repeated_samples,
)
from gradscope.rollouts.readers.reduction.processes import expanded_size
from gradscope.rollouts.run import Run, TrainerSettings
from gradscope.say import counted
from gradscope.version import __version__
from gradscope.writing import atomic_write, remove_partials

SUFFIX = ".part.parquet"  # how the names of parts end
LAYOUT = 1  # version of the content of a part; other versions are refused
_KEY = b"gradscope_part"
_ID_DIGITS = 12
_OF_GROUPS = ("step", "group", "prompt", "text", "place")
"""Columns with a cell for each group; the others have a list with a number for each of its rollouts."""
_ALWAYS = frozenset({"step", "group", "prompt", "place", "reward"})
_COUNTED = re.compile(r"\b([0-9]+) ((?:file|line|step|log)s?)\b")
_OF_THE_LOG = ("The trainer logged ", DIFFER, TWICE_LOGGED)
"""Sentences that begin so are written again for the merged log, perhaps with other numbers."""
_BY_STEP = ("notes", "windows", "repeats")
_BY_NAME = frozenset({"generic", "samples"})
"""Formats whose files are read in the order of the last number of their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """An input of a part."""

    name: str  # as it was named
    path: str  # absolute, on the machine that read it; a URL as it is
    sha256: str
    size: int  # bytes, of a compressed file its estimated unpacked size
    has_rows: bool  # whether it is a file of the log; the other files that a reader looked at are shared by parts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manifest:
    """The content of a part except its table."""

    layout: int
    gradscope: str  # the version that wrote it
    path: str
    format: str
    recognized: str
    files: tuple[_File, ...]
    num_rows: int
    inferred: tuple[str, ...]
    missing: tuple[str, ...]
    quarantined: Quarantine
    metrics: Mapping[int, Mapping[str, float]]
    settings: TrainerSettings
    notes: Mapping[int, Reason]
    windows: Mapping[int, int]
    repeats: Mapping[int, int]
    names_in_run: bool  # whether groups are named within the run, not within their steps
    numbers_rows: bool  # whether the column ``place`` has row numbers across files; else groups are counted
    policies: tuple[str, ...]

    @property
    def row_files(self) -> tuple[_File, ...]:
        """The files of the log that it was reduced from."""
        return tuple(file for file in self.files if file.has_rows)


def write_part(run: Run, folder: Path) -> Path:
    """Write the table of a run, read for its rewards alone, as a part of a log, whose name its inputs determine.

    Raises:
        OutputExistsError: It exists.
        InputError: A file that was read cannot be read again.
    """
    table, source = reward_table(run.groups), run.source
    files = in_threads(lambda name: _file(name, run.path), source.files)
    names, names_in_run = _names_within_steps(table)
    manifest = _Manifest(
        layout=LAYOUT,
        gradscope=__version__,
        **{name: getattr(source, name) for name in ("path", "format", "recognized", "num_rows", "quarantined")},
        files=tuple(files),
        inferred=_own(source.inferred),
        missing=_own(source.missing),
        metrics=dict(run.metrics),
        settings=run.settings,
        **{name: getattr(run, name) for name in _BY_STEP},
        names_in_run=names_in_run,
        numbers_rows=table.first_row is not None,
        policies=table.policies,
    )
    identity = hashlib.sha256("\n".join(f"{file.path} {file.sha256}" for file in files).encode()).hexdigest()
    stem = re.sub(r"[^\w.-]+", "_", Path(source.path).name) or "log"
    path = folder / f"{stem}-{identity[:_ID_DIGITS]}{SUFFIX}"
    remove_partials(path)
    if path.exists():
        raise OutputExistsError(
            f"{path} is there: the same files were reduced before.", hint="Name another folder, or remove the part."
        )
    import pyarrow.parquet as pq  # 30 ms that no other log needs

    written = io.BytesIO()
    text = json.dumps(dataclasses.asdict(manifest), default=str)
    pq.write_table(_arrow(table, names).replace_schema_metadata({_KEY: text}), written, compression="zstd")
    atomic_write(path, written.getvalue())
    return path


def _own(sentences: Iterable[str]) -> tuple[str, ...]:
    return tuple(sentence for sentence in sentences if not sentence.startswith(_OF_THE_LOG))


def _file(name: str, log_path: Path) -> _File:
    copy = copy_of(name)
    has_rows = copy.is_relative_to(log_path) if log_path.is_dir() else copy in expand(log_path)
    return _File(
        name=name,
        path=name if "://" in name else str(copy.absolute()),
        sha256=sha256_of(copy),
        size=expanded_size(copy),
        has_rows=has_rows,
    )


def _names_within_steps(table: RewardTable) -> tuple[pa.Array, bool]:
    """Names of groups within their steps, or, with True, within the run."""
    if not isinstance(table.names, tuple):
        return table.names, False
    prefixes = [f"{step}:" if step else "" for step in table.step.tolist()]
    if all(map(str.startswith, table.names, prefixes)):
        return to_strings(list(map(str.removeprefix, table.names, prefixes))), False
    return to_strings(list(table.names)), True


def _arrow(table: RewardTable, names: pa.Array) -> pa.Table:
    prompts = [table.prompts[at] for at in table.prompt.tolist()]
    columns = {
        "step": pa.array(table.step),
        "group": names.cast(pa.large_binary()),
        "prompt": to_strings(prompts).cast(pa.large_binary()),
        "place": pa.array(np.arange(len(table)) if table.first_row is None else table.first_row),
    }
    if table.prompt_texts is not None:
        texts = [table.prompt_texts[at] for at in table.prompt.tolist()]
        columns["text"] = to_strings(texts).cast(pa.large_binary())
    ends = pa.array(np.append(table.starts, table.size.sum()))
    columns |= {name: pa.LargeListArray.from_arrays(ends, pa.array(values)) for name, values in table.columns.items()}
    return pa.table(columns)


def _read(request: ReadRequest) -> Run:
    """The run of the log that the parts were reduced from, without weights."""
    paths = [file for file in expand(request.path) if file.name.endswith(SUFFIX)]
    if not paths:
        hint = "`gradscope reduce PATH -o DIR` writes such parts; leave --reader out to read a log itself."
        raise InputError(f"{request.path} holds no part of a log that was reduced (*{SUFFIX}).", hint=hint)
    opened = [(path, *_opened(path)) for path in paths]
    if not request.parts_answer:
        log = opened[0][1].path
        raise InputError(
            f"{request.path} holds rewards alone: texts, token ids and weights stayed with the log.",
            hint=f"Name the log itself, which was read as {log}.",
        )
    manifests = {path: manifest for path, manifest, _ in opened}
    _require_one_log(manifests)
    order = natural if next(iter(manifests.values())).format in _BY_NAME else natural_path
    names = {file.path for manifest in manifests.values() for file in manifest.row_files}
    number_of = {name: number for number, name in enumerate(sorted(names, key=lambda name: order(Path(name))))}
    opened.sort(key=lambda part: min((number_of[file.path] for file in part[1].row_files), default=0))
    merged = _merged(opened, number_of)
    return _run(request, [manifest for _, manifest, _ in opened], number_of, merged)


def _opened(path: Path) -> tuple[_Manifest, pa.Table]:
    table = read_parquet(path)
    try:
        fields = json.loads((table.schema.metadata or {})[_KEY])
        if fields["layout"] != LAYOUT:
            raise InputError(
                f"{path} was written by gradscope {fields['gradscope']}, whose parts this version ({__version__}) does "
                "not read.",
                hint="Reduce its files again with this version.",
            )
        manifest, lacks = msgspec.convert(fields, _Manifest, strict=False), _ALWAYS - set(table.column_names)
    except (AttributeError, KeyError, TypeError, ValueError, msgspec.ValidationError):
        manifest, lacks = None, _ALWAYS
    if manifest is None or lacks:
        raise InputError(
            f"{path} is no part of a log, though its name ends with {SUFFIX}.", hint="Move it out of the folder."
        )
    return manifest, table


def _require_one_log(manifests: Mapping[Path, _Manifest]) -> None:
    """Refuse parts of several formats, and files that two parts hold, under one path or copied to another."""
    (first, first_manifest), *further = manifests.items()
    for path, other in further:
        if other.format != first_manifest.format:
            raise InputError(
                f"{first} is of a log of {first_manifest.format} and {path} of one of {other.format}.",
                hint="Put the parts of each log in a folder of their own.",
            )
    files = [Path(file.path) for manifest in manifests.values() for file in manifest.row_files]
    if further and not are_of_one(first_manifest.format, files):
        raise InputError(
            f"{first} and {further[0][0]} are of several evaluations, which are never pooled.",
            hint="Put the part of each evaluation in a folder of its own.",
        )
    seen: dict[tuple[str, ...], Path] = {}
    for path, manifest in manifests.items():
        for file in manifest.row_files:
            for key in ((file.path,), (os.path.basename(file.path), file.sha256)):
                if seen.setdefault(key, path) != path:
                    raise InputError(
                        f"{seen[key]} and {path} both hold {file.name}: it was reduced twice.",
                        hint="Remove one of the two parts, or reduce what only one of them holds again.",
                    )


def _merged(opened: Sequence[tuple[Path, _Manifest, pa.Table]], number_of: Mapping[str, int]) -> RewardTable:
    total = sum(file.size for _, manifest, _ in opened for file in manifest.row_files)
    parts = [
        _part(manifest, table, number_of, with_texts=total <= MOST_WITH_TEXTS or not manifest.numbers_rows)
        for _, manifest, table in opened
    ]
    merged = merge_parts(parts)
    if len(merged) < sum(len(part.size) for part in parts) and merged.sample is not None:
        _refuse_repeats(merged, parts, opened)
    if any(manifest.names_in_run for _, manifest, _ in opened):
        merged = replace(merged, names=tuple(to_texts(merged.names)))
    return merged


def _part(manifest: _Manifest, table: pa.Table, number_of: Mapping[str, int], *, with_texts: bool) -> Part:
    """A part with row numbers of the merged log."""

    def strings(name: str) -> pa.Array:
        return table[name].combine_chunks().cast(pa.binary())

    def texts(name: str) -> list[str]:
        return [value.decode("utf-8", "surrogatepass") for value in strings(name).to_pylist()]

    first_row = to_numpy(table["place"])
    numbers = np.array([number_of[file.path] for file in manifest.row_files], dtype=np.int64)
    if manifest.numbers_rows:
        first_row = numbers[first_row // ROWS_A_FILE] * ROWS_A_FILE + first_row % ROWS_A_FILE
    else:
        first_row = first_row + (numbers.min() if len(numbers) else 0) * ROWS_A_FILE
    lists = {name: table[name].combine_chunks() for name in table.column_names if name not in _OF_GROUPS}
    columns = {
        name: to_numpy(values.flatten()).astype(COLUMN_TYPES.get(name, np.float64), copy=False)
        for name, values in lists.items()
    }
    return Part(
        first_row=first_row,
        step=to_numpy(table["step"]),
        group=pa.Array.from_buffers(pa.string(), len(table), strings("group").buffers()),
        prompt=texts("prompt"),
        texts=(texts("text") if "text" in table.column_names else [""] * len(table)) if with_texts else (),
        size=to_numpy(lists["reward"].value_lengths()).astype(np.int64),
        columns=columns,
        policies=manifest.policies,
        may_repeat=True,
    )


def _refuse_repeats(
    merged: RewardTable, parts: Sequence[Part], opened: Sequence[tuple[Path, _Manifest, pa.Table]]
) -> None:
    """Refuse a group in several parts where a rollout may be logged twice: only the rows show which one counts."""
    assert merged.first_row is not None
    assert merged.sample is not None
    first_rows, sizes = (np.concatenate([getattr(part, name) for part in parts]) for name in ("first_row", "size"))
    order = np.argsort(first_rows)
    in_first = sizes[order][np.searchsorted(first_rows[order], merged.first_row)]
    several = merged.select(merged.size > in_first)
    assert several.sample is not None
    has_ids = several.sums(several.sample != NOT_COMPARED) > 0
    repeated = several.select(repeated_samples(several, several.sample) & has_ids)
    if len(repeated):
        step, name = int(repeated.step[0]), to_texts(repeated.names)[0].encode("utf-8", "surrogatepass")
        holding = [
            str(path)
            for path, _, table in opened
            if name in table["group"].filter(pa.array(to_numpy(table["step"]) == step)).to_pylist()
        ]
        raise InputError(
            f"A rollout of group {repeated.ids()[0]} may be logged twice, in the files of {' and of '.join(holding)}.",
            hint="Reduce the files of these parts together: only their rows tell.",
        )


def _run(request: ReadRequest, manifests: Sequence[_Manifest], number_of: Mapping[str, int], table: RewardTable) -> Run:
    groups, first = GroupsOfTable(table), manifests[0]
    settings = read_trainer_settings(request.run_config)
    values = {name: value for manifest in manifests for name, value in manifest.settings.values.items()}
    files = {file.name: file for manifest in manifests for file in manifest.files}
    if len(manifests) > 1:
        rows = sorted((file for file in files.values() if file.has_rows), key=lambda file: number_of[file.path])
        files = {file.name: file for file in (*rows, *files.values())}
    by_step: dict[str, Any] = {
        name: {step: of for manifest in manifests for step, of in getattr(manifest, name).items()}
        for name in ("metrics", *_BY_STEP)
    }
    sizes = () if first.format in ("gradscope", "trl") else describe_groups(groups)
    return Run(
        path=request.path,
        source=Source(
            path=str(request.path),
            format=first.format,
            recognized=_recognized([manifest.recognized for manifest in manifests]),
            files=tuple(files),
            digests=tuple(file.sha256 for file in files.values()),
            num_rows=sum(manifest.num_rows for manifest in manifests),
            inferred=(*dict.fromkeys(text for manifest in manifests for text in manifest.inferred), *sizes),
            missing=tuple(dict.fromkeys(text for manifest in manifests for text in manifest.missing)),
            quarantined=set_aside_together([manifest.quarantined for manifest in manifests]),
        ),
        groups=groups,
        settings=TrainerSettings(
            values={**values, **settings.values},
            origin=next(filter(None, (settings.origin, *(manifest.settings.origin for manifest in manifests))), None),
        ),
        **by_step,
    )


def _recognized(texts: Sequence[str]) -> str:
    """Descriptions of parts; those that differ in their counts of files alone become one, with the sum."""
    of_kind: dict[str, list[list[int]]] = {}
    for text in texts:
        kind = _COUNTED.sub(lambda match: f"\0{match[2].removesuffix('s')}\0", text)
        of_kind.setdefault(kind, []).append([int(number) for number, _ in _COUNTED.findall(text)])
    descriptions = []
    for kind, numbers in of_kind.items():
        words = kind.split("\0")  # every other word is a counted noun
        words[1::2] = map(counted, map(sum, zip(*numbers, strict=True)), words[1::2])
        descriptions.append("".join(words))
    return "; ".join(descriptions)


FORMAT = Format(
    name="reduced",
    looks_for=f"*{SUFFIX} (gradscope reduce)",
    recognizes=lambda request: any(file.name.endswith(SUFFIX) for file in expand(request.path)),
    read=_read,
)
