"""Sample files for pass@k: n samples a prompt, as rows, as lists, or as counts. One group a prompt, step 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from gradscope.errors import InputError
from gradscope.outside.limits import most, raise_limits
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.evaluations.sample_shapes import (
    COUNTS,
    PromptSamples,
    prompt_rows,
    refuse_lone_list,
    samples_of,
)
from gradscope.rollouts.readers.flat.columns import USUAL, resolve_columns
from gradscope.rollouts.readers.flat.generic import columns_in, read_flat
from gradscope.rollouts.readers.format import Format
from gradscope.rollouts.readers.parsing.assemble import assemble, peek
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import digest, finite_or_none, parse_messages, parse_reward, text_of
from gradscope.rollouts.readers.parsing.tables import expand, read_rows
from gradscope.rollouts.readers.parsing.watch import WatchedLog
from gradscope.rollouts.run import Run

_ROW_IDS = (*USUAL["prompt_id"], "id", "idx")
_WITHIN_DATASET = ("i", "idx", "index", "id")
_POLICIES = ("policy", "model")
MOST_SAMPLES = 20_000_000
"""Samples of all prompts: a row of counts declares up to a million with a few digits."""
_PLAIN = frozenset({type(None), bool, int, float, str})
"""What equal rewards can be counted as: a list or an object has no hash."""


def _recognizes(request: ReadRequest) -> bool:
    """Whether the path holds lists or counts of samples, or rows with a reward, a prompt and no step."""
    rows = peek(request.path)
    if _holds_shapes(rows, request.columns):
        return True
    columns = resolve_columns(columns_in(rows), request.columns)
    return columns.step is None and None not in (columns.reward, columns.group or columns.prompt_id or columns.prompt)


def _read(request: ReadRequest) -> Run:
    """Read a sample file: one group a prompt, at step 0."""
    rows = peek(request.path)
    if not _holds_shapes(rows, request.columns):
        reward = resolve_columns(columns_in(rows), request.columns).reward
        refuse_lone_list(request.path, [{reward: row.get(reward)} for row in rows] if reward else rows)
        return read_flat(request, format="samples", with_steps=False)
    quarantine = WatchedLog(request.progress, expand(request.path))
    shapes: Counter[str] = Counter()
    identities: Counter[str] = Counter()
    records = list(_records(request, quarantine, shapes, identities))
    return assemble(
        request,
        records=records,
        quarantine=quarantine,
        format="samples",
        recognized=f"samples of prompts as {' and '.join(shapes)}",
        inferred=[f"Prompts are told apart by {' and '.join(identities)}."],
    )


def _holds_shapes(rows: list[dict[str, Any]], columns: ColumnNames) -> bool:
    """Whether most of the first rows hold several samples each: one broken row decides nothing."""
    found = [(row, part) for row in rows if (part := next(prompt_rows(row, columns), None)) is not None]
    return len(found) > len(rows) / 2 and not _are_numbered(found, columns)


def _are_numbered(found: list[tuple[dict[str, Any], Mapping[str, Any]]], columns: ColumnNames) -> bool:
    """Whether what looks like counts is a sample a row with its number n: then most prompts stand in several rows."""
    if columns.num_samples or columns.num_correct:
        return False
    counts = [
        row
        for row, part in found
        if isinstance(one := samples_of(part, columns), PromptSamples) and one.shape == COUNTS
    ]
    prompts = {_identify(row, str(place))[0] for place, row in enumerate(counts)}
    return len(prompts) <= len(counts) / 2 and len(counts) > 1


def _records(
    request: ReadRequest, quarantine: QuarantineLog, shapes: Counter[str], identities: Counter[str]
) -> Iterator[Record]:
    columns = request.columns
    left = largest = most(MOST_SAMPLES)
    lines = quarantine.of_lines()
    for file in expand(request.path):
        for location, row in read_rows(file, lines):
            has_samples = False
            for part in prompt_rows(row, columns):
                has_samples = True
                samples = samples_of(part, columns)
                if isinstance(samples, PromptSamples):
                    shapes[samples.shape] += 1
                    lines.held(len(samples.rewards))
                    left -= len(samples.rewards)
                    if left < 0:
                        raise InputError(
                            f"{file} holds more than {largest:,} samples, which its counts declare or its lists have.",
                            hint=raise_limits(file),
                        )
                    yield from _expand(
                        part,
                        samples,
                        location,
                        columns,
                        quarantine,
                        identities,
                        by_reward=request.rewards_only,
                    )
                elif samples is not None:
                    lines.add(samples, location)
            if not has_samples:
                lines.add("the row holds no samples with a reward", location)


def _expand(
    row: Mapping[str, Any],
    samples: PromptSamples,
    location: str,
    columns: ColumnNames,
    quarantine: QuarantineLog,
    identities: Counter[str],
    *,
    by_reward: bool,
) -> Iterator[Record]:
    named = columns.group or columns.prompt_id or columns.prompt
    if named is not None and row.get(named) is None:
        quarantine.add(f"{named} is missing", location)
        return
    prompt_id, how = _identify(row, location) if named is None else (text_of(row[named]), named)
    identities[how] += 1
    policy = next((text_of(row[key]) for key in _POLICIES if isinstance(row.get(key), str)), None)
    prompt_keys = USUAL["prompt"] if columns.prompt is None else (columns.prompt,)
    prompt = next((row[key] for key in prompt_keys if key in row), None)
    for at, count in _distinct(samples, by_reward=by_reward):
        reward = parse_reward(samples.rewards[at])
        for _ in range(count if isinstance(reward, str) else 0):
            quarantine.add(str(reward), location)
        yield Record(
            step=0,
            group=prompt_id if policy is None else f"{policy}/{prompt_id}",
            prompt_id=prompt_id,
            prompt=text_of(prompt),
            completion=text_of(samples.texts[at]) if samples.texts else "",
            reward=None if isinstance(reward, str) else reward,
            rewards={name: finite_or_none(cells[at]) for name, cells in samples.further.items()},
            messages=parse_messages(prompt),
            policy=samples.policies[at] if samples.policies else policy,
            count=count,
        )


def _distinct(samples: PromptSamples, *, by_reward: bool) -> Iterator[tuple[int, int]]:
    """Index of a sample and how many it stands for: those of equal rewards are one where nothing else is looked at."""
    cells = list(zip(samples.rewards, *samples.further.values(), strict=True))
    if not by_reward or samples.policies or not _PLAIN.issuperset(map(type, samples.rewards)):
        yield from ((at, 1) for at in range(len(cells)))
        return
    first = dict(zip(reversed(cells), reversed(range(len(cells))), strict=True))
    yield from ((first[level], count) for level, count in Counter(cells).items())


def _identify(row: Mapping[str, Any], location: str) -> tuple[str, str]:
    """The id of a row's prompt, and how it was found; ``file:line`` serves rows that do not say."""
    if isinstance(row.get("dataset"), str):
        within = next((key for key in _WITHIN_DATASET if row.get(key) is not None), None)
        if within is not None:
            keys = [key for key in ("category", "dataset", within) if row.get(key) is not None]
            return "/".join(text_of(row[key]) for key in keys), ", ".join(keys)
    for key in _ROW_IDS:
        if row.get(key) is not None and row[key] != "":
            return text_of(row[key]), key
    for key in USUAL["prompt"]:
        if row.get(key):
            return digest(parse_messages(row[key]) or text_of(row[key])), f"the text of {key}"
    return location.rpartition(":")[2], "their lines"


FORMAT = Format(
    name="samples",
    looks_for="samples of prompts: task_id with passed, score or n and c (sample files)",
    recognizes=_recognizes,
    read=_read,
    takes=frozenset({"columns"}),
)
