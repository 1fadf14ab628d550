"""Rows with a reward and something to group by as rollouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import generation_seconds, in_environment, whole_number
from gradscope.rollouts.readers.parsing.quarantine import BROKEN_ADVANTAGE, QuarantineLog
from gradscope.rollouts.readers.parsing.scalars import (
    ABSENT,
    digest,
    finite_or_none,
    is_not_finite,
    parse_messages,
    parse_reward,
    text_of,
)
from gradscope.rollouts.readers.parsing.tables import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatColumns:
    """The columns of a log with a row a rollout."""

    names: ColumnNames
    """By role; the reward and something to group by are known."""
    rewards: tuple[str, ...]
    """Those of reward functions."""
    sample: str | None
    """The one that tells the rollouts of a group apart."""
    environment: str | None = None
    """The one that names a row's environment, data source or agent."""

    @property
    def key(self) -> str:
        """The column that rollouts are grouped by."""
        return key_of(self.names) or ""

    @property
    def by_prompt(self) -> bool:
        """Whether only the prompts' texts tell groups apart."""
        return self.names.group is None and self.names.prompt_id is None


def key_of(names: ColumnNames) -> str | None:
    """The column that rollouts are grouped by; None where there is none."""
    return names.group or names.prompt_id or names.prompt


def flat_records(
    rows: Iterable[Row], columns: FlatColumns, quarantine: QuarantineLog, *, from_text: bool
) -> Iterator[Record]:
    """The rollouts of rows.

    Args:
        rows: Rows of one file.
        columns: What their columns are.
        quarantine: Takes the rows that cannot be used.
        from_text: Whether all cells are text, as those of CSV are.

    Yields:
        One record a usable row.
    """
    names = columns.names
    for location, row in rows:
        reward = parse_reward(row.get(names.reward or "", ABSENT), from_text=from_text)
        step = 0 if names.step is None else whole_number(row.get(names.step))
        key = row.get(columns.key)
        if step is None:
            quarantine.add("the step is not a whole number", location)
        elif key is None or key == "":
            quarantine.add(f"{columns.key} is missing", location)
        else:
            further = {name: _number(parse_reward(row.get(name), from_text=from_text)) for name in columns.rewards}
            if isinstance(reward, str):
                quarantine.add(reward, location)
            elif is_not_finite(row.get(names.advantage or "")):
                quarantine.add(BROKEN_ADVANTAGE, location)
            record = _record(row, columns, step, _number(reward), further)
            sample_id = None if columns.sample is None else text_of(row.get(columns.sample)) or None
            yield dataclasses.replace(record, sample_id=sample_id, location=location) if sample_id else record


def _record(
    row: Mapping[str, Any], columns: FlatColumns, step: int, reward: float | None, rewards: Mapping[str, float | None]
) -> Record:
    names = columns.names
    prompt = row.get(names.prompt or "")
    prompt_id = prompt_id_of(row, columns)
    environment = row.get(columns.environment or "")
    return Record(
        step=step,
        group=prompt_id if columns.by_prompt else text_of(row[columns.key]),
        prompt_id=in_environment(environment, prompt_id),
        prompt=text_of(prompt),
        completion=text_of(row.get(names.completion or "")),
        reward=reward,
        rewards=rewards,
        messages=parse_messages(prompt),
        advantage=finite_or_none(row.get(names.advantage or "")),
        seconds=generation_seconds(row),
    )


def prompt_id_of(row: Mapping[str, Any], columns: FlatColumns) -> str:
    """The id of a row's prompt: its own, else that of its text, else the group's."""
    names = columns.names
    if names.prompt_id is not None and row.get(names.prompt_id) is not None:
        return text_of(row[names.prompt_id])
    if names.prompt is not None and row.get(names.prompt) is not None:
        return prompt_text_id(row[names.prompt])
    return text_of(row[columns.key])


def prompt_text_id(prompt: Any) -> str:
    """The id of a prompt without one: of its messages or its text."""
    return digest(parse_messages(prompt) or text_of(prompt))


def _number(reward: float | str) -> float | None:
    return None if isinstance(reward, str) else reward
