"""Reductions held to the row reader: what a log says must not depend on which of the two read it."""

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.errors import InputError
from gradscope.rollouts.groups import (
    GroupsOfTable,
    GroupsOnDisk,
    RewardTable,
    RolloutGroup,
    holds_rewards_alone,
    reward_table,
)
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.reduction import lines, log, parts
from gradscope.rollouts.readers.trainers import verl
from gradscope.rollouts.run import Run

STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 3, 2.0, 2.5, float("nan"), float("-inf"), 1e300, 1 << 60, "", "a", "1", "2.0"),
    *("nan", "\ud800", "line\nend", 'quo"te', [], [1], [0, 1], [True], [1.5], ["a"], [None], [[1, 2]], [[]]),
    *({}, {"a": 1}, {"score": 0.5}, {"score": None}, {"role": "user", "content": "c"}, [{"role": "user"}]),
)
"""What a cell may hold that no trainer writes."""


def in_small_blocks(monkeypatch: pytest.MonkeyPatch, *, block: int = 400) -> None:
    """Read logs in blocks of a few lines, and those of prime-rl as large ones are."""
    monkeypatch.setattr(log, "MAX_WITH_TEXTS", 0)
    monkeypatch.setattr(lines, "BLOCK", block)


def read_by_row(path: Path, options: ReadOptions | None = None, **named: Any) -> Run:
    """A log read by the row reader alone, all rows at once, which is what every other reading is held to."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log, "MAX_WITH_TEXTS", 1 << 60)
        patched.setattr(log, "scan_files", lambda files, *_, **__: iter(range(len(files))))
        patched.setattr(log.StepSpans, "is_cheap", lambda *_, **__: False)
        patched.setattr(log, "part_of_records", parts.part_of_records)  # which a test may look at
        patched.setattr(verl, "_reduced", lambda *_: None)
        run = read_run(path, options, **named)
        return replace(run, groups=tuple(run.groups))


def answers(run: Run) -> dict[str, Any]:
    """All that a question about groups may look at, apart from the order of rows."""
    source = run.source
    return {
        "groups": Counter(
            (group.step, group.group_id, group.prompt_id, tuple(sorted(map(_rewards, group.rollouts))))
            for group in run.groups
        ),
        "order": [group.group_id for group in run.groups],
        "rows": source.num_rows,
        "quarantined": source.quarantined,
        "inferred": source.inferred,
        "missing": source.missing,
        "files": source.files,
        "notes": run.notes,
    }


def _rewards(rollout: Any) -> str:
    rewards = {name: reward for name, reward in sorted(rollout.rewards.items()) if reward is not None}
    return f"{rollout.reward} {rewards}"


def assert_same(path: Path, *, is_reduced: bool | None = None, has_texts: bool = True, **named: Any) -> Run | None:
    """Hold a reduction to the row reader.

    Args:
        path: A log.
        is_reduced: Whether it is to be reduced indeed; None: it may be read by rows after all.
        has_texts: Whether the texts of prompts are compared: rows of a prompt may be damaged differently.
        how: Fields of the options.

    Returns:
        The reduced run; None where neither finds anything.
    """
    options = ReadOptions(**named)
    by_row = _read(path, options, read=read_by_row)
    on_disk, reduced = (_read(path, options, rewards_only=rewards_only) for rewards_only in (False, True))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log, "MAX_WITH_TEXTS", 1 << 60)
        small = _read(path, options, rewards_only=True)
    if isinstance(by_row, str) or isinstance(reduced, str) or isinstance(on_disk, str) or isinstance(small, str):
        assert reduced == on_disk == small == by_row
        return None
    assert_same_table(reward_table(small.groups), reward_table(by_row.groups), has_texts=has_texts)
    assert_same_rollouts(on_disk, by_row)
    expected = answers(by_row)
    for name, answer in answers(reduced).items():
        assert answer == expected[name], name
    if is_reduced is not None:
        assert holds_rewards_alone(reduced.groups) == is_reduced
    assert _lengths(reduced) in (None, _lengths(by_row))
    return reduced


def assert_reduced(path: Path, **options: Any) -> Run:
    """:func:`assert_same` of a log that is to be reduced indeed."""
    run = assert_same(path, is_reduced=True, **options)
    assert run is not None
    return run


def assert_reduced_alike(path: Path, options: ReadOptions | None = None) -> Run | str:
    """Hold the rewards of a log alone to its rollouts; return the reduced run, or the error that both end in."""
    by_row = _read(path, options or ReadOptions(), read=read_by_row)
    reduced = _read(path, options or ReadOptions(), rewards_only=True)
    if isinstance(by_row, str) or isinstance(reduced, str):
        assert reduced == by_row
        return reduced
    assert isinstance(reduced.groups, GroupsOfTable)
    assert_same_table(
        reduced.groups.table, RewardTable.from_groups(by_row.groups), may_lack=("advantage", "prompt_texts")
    )
    for name in ("source", "metrics", "settings", "weights", "notes", "windows", "repeats"):
        assert getattr(reduced, name) == getattr(by_row, name), name
    return reduced


def assert_same_table(
    reduced: RewardTable, by_row: RewardTable, may_lack: Sequence[str] = (), *, has_texts: bool = True
) -> None:
    """Hold the table of a log to that of its rollouts, in the order of the log."""
    assert reduced.ids() == by_row.ids()
    for name in ("step", "size", "reward", "advantage", "num_tokens", "seconds", "policy"):
        actual, wanted = getattr(reduced, name), getattr(by_row, name)
        if actual is None and name in may_lack:
            continue
        assert (actual is None) == (wanted is None), name
        if actual is not None:
            assert actual.dtype == wanted.dtype, name
            np.testing.assert_array_equal(actual, wanted, name)
    assert prompts_of(reduced) == prompts_of(by_row)  # it may hold prompts of rows that do not count
    assert reduced.policies == by_row.policies
    for name in reduced.rewards.keys() | by_row.rewards.keys():  # some of rows that do not count alone
        nothing = np.full(len(by_row.reward), np.nan)
        actual, wanted = (table.rewards.get(name, nothing) for table in (reduced, by_row))
        np.testing.assert_array_equal(actual, wanted, name)
    if has_texts and (reduced.prompt_texts is not None or "prompt_texts" not in may_lack):
        assert texts_of_prompts(reduced) == texts_of_prompts(by_row)


def prompts_of(table: RewardTable) -> list[str]:
    return [table.prompts[index] for index in table.prompt.tolist()]


def texts_of_prompts(table: RewardTable) -> dict[str, str] | None:
    """The texts of the prompts that groups have, by their ids."""
    texts = table.prompt_texts
    return None if texts is None else {table.prompts[i]: texts[i] for i in table.prompt.tolist()}


def assert_same_rollouts(on_disk: Run, by_row: Run) -> None:
    """Hold a run whose rollouts may lie on disk to one that was read row by row: in all that both have."""
    assert _shown(on_disk.groups) == _shown(by_row.groups)
    assert on_disk.steps == by_row.steps
    assert on_disk.source == by_row.source
    assert on_disk.notes == by_row.notes
    if isinstance(on_disk.groups, GroupsOnDisk):
        for step in reversed(by_row.steps):
            assert _shown(on_disk.groups_at(step)) == _shown(by_row.groups_at(step))
        assert _lengths(on_disk) == _lengths(by_row)


def _shown(groups: Sequence[RolloutGroup]) -> list[str]:
    """All of groups but the order of reward functions, as text: a log-probability may be NaN."""
    sorted_groups = (
        replace(
            group, rollouts=tuple(replace(old, rewards=dict(sorted(old.rewards.items()))) for old in group.rollouts)
        )
        for group in groups
    )
    return list(map(repr, sorted_groups))


def _read(path: Path, options: ReadOptions, *, read: Callable[..., Run] = read_run, **named: bool) -> Run | str:
    try:
        return read(path, options, **named)
    except InputError as error:
        return str(error)


def _lengths(run: Run) -> Any:
    """The tokens of each group; None where the log does not tell."""
    table = reward_table(run.groups)
    if table.num_tokens is None:
        return None
    return sorted(zip(table.ids(), table.sums(table.num_tokens).tolist(), strict=True))


def mutated(rows: Sequence[Mapping[str, Any]], seed: int, *, nested: Sequence[str] = ()) -> list[str]:
    """Lines of rows that somebody has damaged: cells replaced or dropped, rows repeated, lines cut.

    Args:
        rows: Proper rows.
        seed: Of the damage.
        within: Keys of objects whose cells are damaged, too.
    """
    chance = random.Random(seed)
    lines = []
    for row in [json.loads(json.dumps(row)) for row in chance.choices(rows, k=chance.randint(1, 12))]:
        for _ in range(chance.choice((0, 0, 0, 1, 1, 2))):
            _damage(row, chance, nested)
        line = json.dumps(row, ensure_ascii=chance.random() < 0.5 or "\\ud800" in json.dumps(row))
        if chance.random() < 0.05:
            line = line[: chance.randrange(len(line))]
        lines += [line] * (2 if chance.random() < 0.1 else 1)
        if chance.random() < 0.05:
            lines.append(
                chance.choice(("", "[1]", "null", line + line, line[:-1] + ", }", line.replace(": ", ": nan", 1)))
            )
    return lines


def _damage(row: dict[str, Any], chance: random.Random, nested: Sequence[str]) -> None:
    target = row
    while chance.random() < 0.7:
        inner = [value for name, value in target.items() if name in nested and isinstance(value, dict | list) and value]
        if not inner:
            break
        chosen = chance.choice(inner)
        chosen = chance.choice(chosen) if isinstance(chosen, list) else chosen
        if not isinstance(chosen, dict) or not chosen:
            break
        target = chosen
    name = chance.choice(sorted(target))
    strange = list(STRANGE)
    match chance.randrange(5):
        case 0:
            del target[name]
        case 1 if isinstance(target[name], list) and target[name]:
            target[name] = target[name] + [chance.choice(strange)]
        case 2 if isinstance(target[name], list) and target[name]:
            target[name] = target[name][:-1]
        case _:
            target[name] = chance.choice(strange)
