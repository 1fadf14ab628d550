"""Our own files: run folders, of which nothing is inferred, and parts of logs that were reduced to their rewards.

A part is a Parquet file: a row for each group, lists of its rollouts' numbers, and the reader's other results as JSON
in the schema. However a log was cut into parts, their merged table is the table of the log, in whose place it is read.

Legend: J groups of a part, N rollouts of these.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from gradscope.copies import copy_of
from gradscope.errors import InputError, OutputExistsError
from gradscope.machine import in_threads
from gradscope.reason import Reason
from gradscope.results.envelope import sha256_of
from gradscope.results.source import Quarantine, set_aside_together
from gradscope.rollouts import run_folder
from gradscope.rollouts.arrays import to_numpy, to_strings, to_texts
from gradscope.rollouts.groups import GroupsOfTable, RewardTable, RolloutGroup, num_used, reward_table
from gradscope.rollouts.listing import natural, natural_path
from gradscope.rollouts.readers.evaluations.folders import are_of_one
from gradscope.rollouts.readers.format import Format
from gradscope.rollouts.readers.parsing import records
from gradscope.rollouts.readers.parsing.columnar import read_parquet
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, filter_caveat
from gradscope.rollouts.readers.parsing.settings import read_trainer_settings, require_arguments
from gradscope.rollouts.readers.parsing.tables import expand
from gradscope.rollouts.readers.reduction.log import MAX_WITH_TEXTS
from gradscope.rollouts.readers.reduction.parts import (
    COLUMN_TYPES,
    NOT_COMPARED,
    ROWS_A_FILE,
    Part,
    merge_parts,
    repeated_samples,
)
from gradscope.rollouts.readers.reduction.processes import expanded_size
from gradscope.rollouts.run import Run, TrainerSettings
from gradscope.rollouts.store import files_written, read_steps, step_files, steps_in_file
from gradscope.say import counted
from gradscope.version import __version__
from gradscope.writing import atomic_write, remove_partials

SUFFIX = ".part.parquet"  # how the names of parts end
LAYOUT = 1  # version of the content of a part; other versions are refused
_KEY = b"gradscope_part"
_ID_DIGITS = 12
_GROUP_COLUMNS = ("step", "group", "prompt", "text", "place")
"""Columns with a cell for each group; the others have a list with a number for each of its rollouts."""
_REQUIRED = frozenset({"step", "group", "prompt", "place", "reward"})
_COUNTED = re.compile(r"\b([0-9]+) ((?:file|line|step|log)s?)\b")
_LOG_SENTENCES = ("The trainer logged ", records.DIFFER, records.TWICE_LOGGED)
"""Sentences that begin so are written again for the merged log, perhaps with other numbers."""
_BY_STEP = ("notes", "windows", "repeats")
_BY_NAME = frozenset({"generic", "samples"})
"""Formats whose files are read in the order of the last number of their names."""


class _File(Struct, frozen=True, kw_only=True):
    """An input of a part."""

    name: str  # as it was named
    path: str  # absolute, on the machine that read it; a URL as it is
    sha256: str
    size: int  # bytes, of a compressed file its estimated unpacked size
    has_rows: bool  # whether it is a file of the log; the other files that a reader looked at are shared by parts


class _Manifest(Struct, frozen=True, kw_only=True):
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
    """Write the table of a run, read for its rewards and samples, as a part of a log, whose name its inputs determine.

    Raises:
        OutputExistsError: It exists.
        InputError: A file that was read cannot be read again.
    """
    table, source = reward_table(run.groups), run.source

    def file_named(name: str) -> _File:
        copy = copy_of(name)
        return _File(
            name=name,
            path=name if "://" in name else str(copy.absolute()),
            sha256=sha256_of(copy),
            size=expanded_size(copy),
            has_rows=copy.is_relative_to(run.path) if run.path.is_dir() else copy in expand(run.path),
        )

    def input_sentences(sentences: Iterable[str]) -> tuple[str, ...]:
        return tuple(sentence for sentence in sentences if not sentence.startswith(_LOG_SENTENCES))

    files = in_threads(file_named, source.files)
    names, names_in_run = _names_within_steps(table)
    manifest = _Manifest(
        layout=LAYOUT,
        gradscope=__version__,
        **{name: getattr(source, name) for name in ("path", "format", "recognized", "num_rows", "quarantined")},
        files=tuple(files),
        inferred=input_sentences(source.inferred),
        missing=input_sentences(source.missing),
        metrics=dict(run.metrics),
        settings=run.settings,
        **{name: getattr(run, name) for name in _BY_STEP},
        names_in_run=names_in_run,
        numbers_rows=table.first_row is not None,
        policies=table.policies,
    )
    listing = "\n".join(f"{file.path} {file.sha256}" for file in files)
    identity = hashlib.sha256(listing.encode(errors="surrogateescape")).hexdigest()
    stem = re.sub(r"[^\w.-]+", "_", Path(source.path).name) or "log"
    path = folder / f"{stem}-{identity[:_ID_DIGITS]}{SUFFIX}"
    remove_partials(path)
    if path.exists():
        raise OutputExistsError(
            f"{path} is there: the same files were reduced before.", hint="Name another folder, or remove the part."
        )
    import pyarrow.parquet as pq  # 30 ms that no other log needs

    written = io.BytesIO()
    text = json.dumps(msgspec.to_builtins(manifest, enc_hook=str))
    content = _arrow(table, names).replace_schema_metadata({_KEY: text})
    pq.write_table(content, written, compression="zstd", write_page_checksum=True)
    atomic_write(path, written.getvalue())
    return path


def _names_within_steps(table: RewardTable) -> tuple[pa.Array, bool]:
    """Names of groups within their steps, or, with True, within the run."""
    if not isinstance(table.names, tuple):
        return table.names, False
    prefixes = [f"{step}:" if step else "" for step in table.step.tolist()]
    if all(map(str.startswith, table.names, prefixes)):
        return to_strings(list(map(str.removeprefix, table.names, prefixes))), False
    return to_strings(list(table.names)), True


def _arrow(table: RewardTable, names: pa.Array) -> pa.Table:
    columns = {
        "step": pa.array(table.step),
        "group": names.cast(pa.large_binary()),
        "prompt": to_strings(table.prompts_of_groups()).cast(pa.large_binary()),
        "place": pa.array(np.arange(len(table)) if table.first_row is None else table.first_row),
    }
    if table.prompt_texts is not None:
        columns["text"] = to_strings(table.texts_of_groups()).cast(pa.large_binary())
    ends = pa.array(np.append(table.starts, table.size.sum()))
    columns |= {name: pa.LargeListArray.from_arrays(ends, pa.array(values)) for name, values in table.columns.items()}
    return pa.table(columns)


def _read(request: records.ReadRequest) -> Run:
    """The run of the log that the parts were reduced from, without weights."""
    paths = [file for file in expand(request.path) if file.name.endswith(SUFFIX)]
    if not paths:
        hint = "`gradscope reduce PATH -o DIR` writes such parts; leave --reader out to read a log itself."
        raise InputError(f"{request.path} holds no part of a log that was reduced (*{SUFFIX}).", hint=hint)
    opened = list[tuple[Path, _Manifest, pa.Table]]()
    for path in paths:
        table, manifest, lacks = read_parquet(path), None, _REQUIRED
        with suppress(AttributeError, KeyError, TypeError, ValueError, msgspec.ValidationError):
            fields = json.loads((table.schema.metadata or {})[_KEY])
            if fields["layout"] != LAYOUT:
                raise InputError(
                    f"{path} was written by gradscope {fields['gradscope']}, whose parts this version ({__version__}) "
                    "does not read.",
                    hint="Reduce its files again with this version.",
                )
            manifest, lacks = msgspec.convert(fields, _Manifest, strict=False), _REQUIRED - set(table.column_names)
        if manifest is None or lacks:
            hint = "Move it out of the folder."
            raise InputError(f"{path} is no part of a log, though its name ends with {SUFFIX}.", hint=hint)
        opened.append((path, manifest, table))
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
    total = sum(file.size for manifest in manifests.values() for file in manifest.row_files)
    parts = [
        _part(manifest, table, number_of, with_texts=total <= MAX_WITH_TEXTS or not manifest.numbers_rows)
        for _, manifest, table in opened
    ]
    merged = merge_parts(parts)
    if len(merged) < sum(len(part.size) for part in parts) and merged.sample is not None:
        _refuse_repeats(merged, parts, opened)
    if any(manifest.names_in_run for manifest in manifests.values()):
        merged = replace(merged, names=tuple(to_texts(merged.names)))
    return _run(request, [manifest for _, manifest, _ in opened], number_of, merged)


def _require_one_log(manifests: Mapping[Path, _Manifest]) -> None:
    """Refuse parts of several formats, and files that two parts hold, under one path or copied to another."""
    (first, first_manifest), *later = manifests.items()
    for path, other in later:
        if other.format != first_manifest.format:
            raise InputError(
                f"{first} is of a log of {first_manifest.format} and {path} of one of {other.format}.",
                hint="Put the parts of each log in a folder of their own.",
            )
    files = [Path(file.path) for manifest in manifests.values() for file in manifest.row_files]
    if later and not are_of_one(first_manifest.format, files):
        raise InputError(
            f"{first} and {later[0][0]} are of several evaluations, which are never pooled.",
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


def _part(manifest: _Manifest, table: pa.Table, number_of: Mapping[str, int], *, with_texts: bool) -> Part:
    """A part with row numbers of the merged log."""

    def strings(name: str) -> pa.Array:
        values = table[name].combine_chunks().cast(pa.binary())  # which may hold what no text does
        return pa.Array.from_buffers(pa.string(), len(table), values.buffers())

    first_row = to_numpy(table["place"])
    numbers = np.array([number_of[file.path] for file in manifest.row_files], dtype=np.int64)
    if manifest.numbers_rows:
        first_row = numbers[first_row // ROWS_A_FILE] * ROWS_A_FILE + first_row % ROWS_A_FILE
    else:
        first_row = first_row + (numbers.min() if len(numbers) else 0) * ROWS_A_FILE
    lists = {name: table[name].combine_chunks() for name in table.column_names if name not in _GROUP_COLUMNS}
    columns = {
        name: to_numpy(values.flatten()).astype(COLUMN_TYPES.get(name, np.float64), copy=False)
        for name, values in lists.items()
    }
    return Part(
        first_row=first_row,
        step=to_numpy(table["step"]),
        group=strings("group"),
        prompt=strings("prompt"),
        texts=(to_texts(strings("text")) if "text" in table.column_names else [""] * len(table)) if with_texts else (),
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
    split = merged.select(merged.size > in_first)
    assert split.sample is not None
    has_ids = split.sums(split.sample != NOT_COMPARED) > 0
    repeated = split.select(repeated_samples(split, split.sample) & has_ids)
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


def _run(
    request: records.ReadRequest, manifests: Sequence[_Manifest], number_of: Mapping[str, int], table: RewardTable
) -> Run:
    groups, first = GroupsOfTable(table), manifests[0]
    settings = read_trainer_settings(request.run_config)
    values = {name: value for manifest in manifests for name, value in manifest.settings.values.items()}
    files = {file.name: file for manifest in manifests for file in manifest.files}
    if len(manifests) > 1:
        rows = sorted((file for file in files.values() if file.has_rows), key=lambda file: number_of[file.path])
        files = {file.name: file for file in (*rows, *files.values())}
    by_step: dict[str, Any] = {
        name: {step: entry for manifest in manifests for step, entry in getattr(manifest, name).items()}
        for name in ("metrics", *_BY_STEP)
    }
    sizes = () if first.format in ("gradscope", "trl") else records.describe_groups(groups)
    return Run(
        path=request.path,
        source=request.source(
            first.format,
            _recognized([manifest.recognized for manifest in manifests]),
            files=files,
            digests=tuple(file.sha256 for file in files.values()),
            num_rows=sum(manifest.num_rows for manifest in manifests),
            inferred=(*dict.fromkeys(text for manifest in manifests for text in manifest.inferred), *sizes),
            missing=dict.fromkeys(text for manifest in manifests for text in manifest.missing),
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
    counts: dict[str, list[list[int]]] = {}
    for text in texts:
        kind = _COUNTED.sub(lambda match: f"\0{match[2].removesuffix('s')}\0", text)
        counts.setdefault(kind, []).append([int(number) for number, _ in _COUNTED.findall(text)])
    descriptions = []
    for kind, numbers in counts.items():
        words = kind.split("\0")  # every other word is a counted noun
        words[1::2] = map(counted, map(sum, zip(*numbers, strict=True)), words[1::2])
        descriptions.append("".join(words))
    return "; ".join(descriptions)


FORMAT = Format(
    name="reduced",
    recognizes=lambda request: any(file.name.endswith(SUFFIX) for file in expand(request.path)),
    read=_read,
)

_NO_WEIGHTS = "No complete checkpoint is in the folder."


def _read_folder(request: records.ReadRequest) -> Run:
    path = request.path
    manifest = run_folder.read_manifest(path)
    require_arguments(manifest.trainer_arguments, str(run_folder.manifest_path(path)))
    files = step_files(path)
    if not files:
        raise InputError(f"{path} holds no rollouts/step*.parquet.", hint="The run ended before its first step.")
    quarantine = QuarantineLog()
    metrics = run_folder.read_metrics(path, lines := QuarantineLog())
    quarantine.add_unreadable_metrics(lines)
    groups = read_steps(path, quarantine)
    if not groups:
        quarantine.raise_unreadable()
    for sentence in _contradictions(path, groups, metrics):
        quarantine.add_unreadable(InputError(sentence))
    overrides = read_trainer_settings(request.run_config)
    damaged_weights: dict[int, str] = {}
    weights = run_folder.find_weights(path, damaged_weights)
    if request.model is not None:
        weights = tuple(replace(ref, base=request.model) if ref.kind == "adapter" else ref for ref in weights)
    weights = run_folder.with_initial(weights, request.initial, request.base_of(path))
    side_files = filter(None, (run_folder.manifest_path(path), run_folder.metrics_path(path), request.run_config))
    rollout_settings = {  # which shape the rollouts, and are no arguments of TRL's
        # where it is TRL's, TRL's own arguments say which
        "advantage": None if manifest.advantage == run_folder.TRL_ADVANTAGE else manifest.advantage,
        "advantage_digest": manifest.advantage_digest,
        "sampling": manifest.config.get("sampling"),
    }
    named = f"gradscope run {manifest.run_id}"
    steps = len({group.step for group in groups})
    return Run(
        path=path,
        source=request.source(
            "gradscope",
            f"{named}, {counted(steps, 'step')}, advantage {manifest.advantage}",
            files=(file for file in (*files, *side_files) if file.is_file()),
            num_rows=num_used(groups),
            quarantined=quarantine.result(),
            missing=(*_sampling_notes(manifest, metrics), *(() if weights else (_NO_WEIGHTS,))),
        ),
        groups=groups,
        metrics=metrics,
        settings=TrainerSettings(
            values={
                **({"trl_version": version} if (version := manifest.versions.get("trl")) is not None else {}),
                **manifest.trainer_arguments,
                **{name: value for name, value in rollout_settings.items() if value is not None},
                **overrides.values,
            },
            origin=overrides.origin or "the run's manifest",
        ),
        weights=weights,
        damaged_weights=damaged_weights,
        tokenizer=run_folder.find_tokenizer(*(ref.path for ref in weights), run_folder.base_model_path(path)),
    )


def _contradictions(
    path: Path, groups: Sequence[RolloutGroup], metrics: Mapping[int, Mapping[str, float]]
) -> Iterator[str]:
    """Sentences on steps whose files contradict the checksums or the metrics."""
    num_groups = Counter(group.step for group in groups)
    files = step_files(path)
    covered = {step: file for file in files for step in steps_in_file(file)}
    logged = {step: values["num_groups"] for step, values in metrics.items() if "num_groups" in values}
    removed = {step: file for file in files_written(path) for step in steps_in_file(file) if step not in covered}
    removed = {
        step: run_folder.step_path(path, step) for step, count in logged.items() if count > 0 and step not in covered
    } | removed
    for file in dict.fromkeys(file for _, file in sorted(removed.items())):
        steps = steps_in_file(file)
        at_steps = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
        yield f"{file} is gone: the run wrote rollouts at {at_steps}."
    for step, count in sorted(logged.items()):
        was_read = step in covered and not num_groups.keys().isdisjoint(steps_in_file(covered[step]))
        if was_read and num_groups[step] != count:
            yield f"{covered[step]} has {num_groups[step]} groups of step {step}, and the metrics tell of {count:g}."


def _sampling_notes(manifest: run_folder.RunManifest, metrics: Mapping[int, Mapping[str, float]]) -> Iterator[str]:
    """Sentences on how the groups were sampled, which the log does not show."""
    sampling = manifest.config.get("sampling")
    sampled, dead = (
        sum(int(values[name]) for values in metrics.values() if math.isfinite(values.get(name, math.nan)))
        for name in ("num_sampled_groups", "num_sampled_degenerate_groups")
    )
    if sampling == "dynamic":
        share = f" (of {sampled} sampled groups {dead} were dead)" if sampled else ""
        yield filter_caveat(f"Dynamic sampling replaced dead groups by those of other prompts{share}")
    elif sampling == "reallocated":
        yield (
            "Rollouts were moved from prompts that a probe solved to prompts that it did not: large groups are hard "
            "and small ones easy, so shares of groups and rollouts are not those of groups of one size."
        )


RUN_FOLDER = Format(
    name="gradscope",
    recognizes=lambda request: (
        request.path.is_dir()
        and (
            (run_folder.manifest_path(request.path).is_file() and run_folder.rollouts_path(request.path).is_dir())
            or bool(step_files(request.path))
        )
    ),
    read=_read_folder,
)
