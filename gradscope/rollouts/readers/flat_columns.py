"""The columns of a log with a row a rollout, and what its rows hold, exact tokens among it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.outside.plain_json import parse_json
from gradscope.rollouts.arrays import Counts, Flags, to_floats, without_answers
from gradscope.rollouts.groups import REWARD, Tokens, numbered_policies
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.column_roles import RESPONSE_IDS, are_held_out, columns_in, key_of, verdict_of
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, UnusableRowError
from gradscope.rollouts.readers.parsing.tables import read_rows
from gradscope.rollouts.readers.reduction.columns import Cells, Columns, texts_in
from gradscope.rollouts.readers.reduction.log import ColumnLog
from gradscope.rollouts.readers.trainers.trl_groups import MASKS
from gradscope.rollouts.readers.trainers.verl import row_tokens

TIMES = ("generation_seconds", "timing")  # columns that ``generation_seconds`` looks at


class FlatColumns(Struct, frozen=True, kw_only=True):
    """The columns of a log with a row a rollout."""

    names: ColumnNames  # by role; the reward and something to group by are known
    rewards: tuple[str, ...]  # those of reward functions
    in_words: bool = False  # whether rewards are verdicts in words
    sample: str | None  # the one that tells the rollouts of a group apart
    environment: str | None = None  # the one that names a row's environment, data source or agent
    steps: Mapping[Path, int] = {}  # the step of each file, where rows name none
    image: str | None = None  # the one of what a prompt asks about, where its text does not tell prompts apart
    policies: tuple[str, ...] = ()  # those that name the policy
    qualifiers: tuple[str, ...] = ()  # those that tell groups of one key apart
    held_out: tuple[str, ...] = ()  # those that may say that a row is of an evaluation and none of training
    times: tuple[str, ...] = ()  # those of :data:`TIMES`
    end: str | None = None  # the one that says how completions ended
    entries: frozenset[str] = frozenset()  # those that are entries of objects
    num_turns: int | None = None  # the assistant's messages in a prompt, where conversations go on behind their answer
    measures_completions: bool = False  # whether completions are read, too, because rewards alone do not suffice

    @property
    def key(self) -> str:
        """The column that rollouts are grouped by."""
        return key_of(self.names) or ""

    @property
    def by_prompt(self) -> bool:
        """Whether only the prompts' texts tell groups apart."""
        return self.names.group is None and self.names.prompt_id is None

    @property
    def holds_answers(self) -> bool:
        """Whether prompts are whole conversations, each with its answer."""
        return self.names.prompt is not None and self.names.prompt.endswith(parse.CONVERSATION)

    def to_columns(self, rows: Cells) -> Columns:
        """What rows hold."""
        names, with_answers = self.names, rows.with_entries(self.entries)
        training, notes = self._training_rows(with_answers)
        with_answers = with_answers if training is None else with_answers.chosen(training.tolist())
        rows = with_answers
        if self.holds_answers:
            if self.num_turns is None:
                rows = rows.changed(names.prompt or "", parse.before_answers, without_answers)
            else:
                cut = partial(parse.before_answer, num_turns=self.num_turns)
                rows = rows.changed(names.prompt or "", lambda cells: [cut(parse.plain_cell(cell)) for cell in cells])
        rows, noted = _judged_rows(rows, names.reward, in_words=self.in_words)
        sampled_by, qualifiers = _joined_texts(rows, self.policies), _joined_texts(rows, self.qualifiers)
        policies, policy = numbered_policies(sampled_by)
        numbers = self._numbers(rows) | policy
        group = rows.prompt_ids(self.key) if self.by_prompt else rows.names(self.key)
        if self.image is not None:
            ids = zip(texts_in(rows.prompt_ids(self.image)), texts_in(group), strict=True)
            group = [prompt_id and f"{image}/{prompt_id}".removeprefix("/") for image, prompt_id in ids]
        has_ids = hold_tokens(rows.keys)

        def parsed_cell(row: int, name: str) -> Any:
            cell = rows.cell(name, row)
            if rows.from_text and isinstance(cell, str) and cell.startswith("["):
                with suppress(ValueError):
                    return parse_json(cell)
            return cell

        def details(row: int) -> dict[str, Any]:
            return {
                "completion": self._completions(rows, with_answers, [row])[0],
                "messages": parse.parse_messages(rows.cell(names.prompt, row)),
                "tokens": tokens_by_names(partial(parsed_cell, row), names.advantage) if has_ids else None,
            }

        return Columns(
            row=training,
            notes=notes,
            step=rows.steps(names.step) if names.step else np.full(len(rows), self.steps.get(rows.path, 0)),
            group=[name and f"{prefix}/{name}" for prefix, name in zip(qualifiers, texts_in(group), strict=True)]
            if self.qualifiers
            else group,
            no_group=f"{self.key} is missing",
            prompts=partial(self._prompts, rows, group),
            texts=None
            if names.prompt is None
            else lambda first_rows: list(map(parse.text_of, rows.cells(names.prompt, first_rows))),
            numbers=numbers,
            noted=noted,
            no_reward=partial(rows.no_reward, names.reward or ""),
            is_irregular=rows.not_finite(names.advantage),
            samples=None if self.sample is None else [name or None for name in texts_in(rows.names(self.sample))],
            policies=policies,
            has_all_functions=True,
            completions=partial(self._completions, rows, with_answers) if self.measures_completions else None,
            details=details,
            flaw=partial(rows.flaw_of_advantage, names.advantage),
        )

    def _training_rows(self, rows: Cells) -> tuple[Counts | None, tuple[str, ...]]:
        """Which rows are of training, where others are of an evaluation, and a sentence about these."""
        held_out = are_held_out({name: texts_in(rows.names(name)) for name in self.held_out})
        if not held_out.any():
            return None, ()
        marks = " or ".join(map(repr, self.held_out))
        return np.flatnonzero(~held_out), (f"Rows of an evaluation beside training, by {marks}, are left out.",)

    def _numbers(self, rows: Cells) -> dict[str, NDArray[Any]]:
        names, reward = self.names, rows.numbers(self.names.reward)
        numbers: dict[str, NDArray[Any]] = {"reward": reward}
        for name in self.rewards:
            numbers[REWARD + name] = reward if name == names.reward else rows.numbers(name)
        if self.times and not rows.from_text:
            timed = zip(*map(rows.cells, self.times), strict=True)
            numbers["seconds"] = to_floats(
                parse.generation_seconds(dict(zip(self.times, cells, strict=True))) for cells in timed
            )
        if self.end is not None:
            numbers["truncated"] = rows.truncated(self.end)
        if names.advantage is not None:
            numbers["advantage"] = rows.numbers(names.advantage)
        return numbers

    def _prompts(self, rows: Cells, group: list[str] | pa.Array, first_rows: list[int]) -> list[str]:
        """The ids of the prompts of some rows: their own, else that of their text, else that of their group."""
        names, cells = self.names, rows.chosen(first_rows)
        ids = texts_in(group, first_rows) if self.by_prompt else [""] * len(first_rows)
        for name, ids_in in ((names.prompt_id, cells.names), (names.prompt, cells.prompt_ids), (self.key, cells.names)):
            if name is not None and "" in ids:
                ids = [prompt_id or other for prompt_id, other in zip(ids, texts_in(ids_in(name)), strict=True)]
        return (
            list(map(parse.in_environment, texts_in(cells.names(self.environment)), ids)) if self.environment else ids
        )

    def _completions(self, rows: Cells, with_answers: Cells, chosen: Sequence[int] | None = None) -> list[str]:
        """The completions of some rows, or all, else the ends of conversations, of which ``rows`` have the rest."""
        name = self.names.prompt if self.names.completion is None else self.names.completion
        cells = rows.cells(name, chosen)
        if self.names.completion is not None:
            return list(map(parse.text_of, cells))
        if not self.holds_answers:
            return [""] * len(cells)
        return [
            parse.text_of(full[len(prompt) :] or None) if isinstance(prompt, list) and prompt else ""
            for prompt, full in zip(cells, with_answers.cells(name, chosen), strict=True)
        ]


IMAGES = tuple(
    name + rest for name in ("image", "video", "audio") for rest in ("", "s", "_path", "_paths", "_file", "_id", "_url")
)
_OF_MODEL = re.compile(r"(model_)?(answer|output|prediction|response)|pred")


def image_column(rows: Sequence[Mapping[str, Any]], columns: ColumnNames) -> str | None:
    """The column of what prompts ask about beside their text, where nothing else tells them apart and it does.

    An image that is of one row alone may be its sample, or a screen of its episode, unless an evaluation has a text.
    """
    if columns.prompt is None or columns.group is not None or columns.prompt_id is not None:
        return None
    names = columns_in(rows)
    is_answered = columns.step is None and (columns.completion is not None or any(map(_OF_MODEL.fullmatch, names)))
    for name in filter(names.__contains__, IMAGES):
        ids = (
            (parse.text_of(row.get(column or "")) for column in (columns.step, columns.prompt, name)) for row in rows
        )
        sizes = Counter(map(tuple, ids))
        are_several = sum(size > 1 for size in sizes.values()) > len(sizes) / 2
        if len(sizes) > len({ids[:2] for ids in sizes}) and (are_several or is_answered):
            return name
    return None


def _joined_texts(rows: Cells, names: Iterable[str]) -> list[str]:
    """The texts of some columns of each row as one, [R]; empty without a column."""
    texts = (texts_in(rows.names(name)) for name in names)
    return ["/".join(filter(None, cells)) for cells in zip(*texts, strict=True)]


def column_log(files: Sequence[Path], columns: FlatColumns, quarantine: QuarantineLog) -> ColumnLog:
    """How the files of a log are read, in their order; what is set aside goes to the quarantine."""
    names = columns.names
    long = (names.prompt, names.completion if columns.measures_completions else None)
    texts = tuple(name for name in long if name is not None and name not in columns.entries)
    listed = (
        *(names.reward, names.step, columns.key, names.prompt_id, names.advantage, columns.sample),
        *(columns.image, columns.environment, *columns.policies, *columns.rewards, *columns.times, columns.end, *long),
        *columns.held_out,
    )
    read = [name for name in listed if name is not None and name not in texts]
    key_of_name = {name: name.partition(".")[0] if name in columns.entries else name for name in read}
    optional = {*columns.rewards, *columns.times, columns.end} - {names.reward}
    required = {key for name, key in key_of_name.items() if name not in optional}
    return ColumnLog(
        files=files,
        rows=read_rows,
        to_columns=columns.to_columns,
        keys=tuple(dict.fromkeys(key_of_name.values())),
        raw=texts,
        quarantine=quarantine,
        looks_at_path=bool(columns.steps),
        may_be_nan=tuple(set(key_of_name.values()) - required),
    )


_SEQUENCE_IDS = ("input_ids", "sequence_ids", "sequences", "token_ids", "tokens")  # of prompt and completion in one

_COLUMNS = {
    "prompts": ("prompt_ids", "prompt_token_ids", "query_token_ids", "query_ids"),
    "responses": RESPONSE_IDS,
    "sequence": _SEQUENCE_IDS,
    "labels": ("labels",),
    "attention_mask": ("attention_mask",),
    "response_mask": (*MASKS, "response_mask", "loss_mask", "action_mask", "assistant_mask", "assistant_masks"),
    "prompt_length": ("prompt_length", "prompt_len", "num_prompt_tokens"),
    "rollout_log_probs": ("sampling_logprobs", "logprobs", "rollout_log_probs"),
}
_DIVIDE = (*_COLUMNS["labels"], *_COLUMNS["response_mask"], *_COLUMNS["prompt_length"])
_NOT_SAMPLED = -100  # the label of a token that PyTorch's cross entropy leaves out


def hold_tokens(names: Collection[str]) -> bool:
    """Whether columns of these names may hold the tokens of a row.

    >>> hold_tokens(["response_ids"]), hold_tokens(["input_ids", "labels"]), hold_tokens(["tokens", "reward"])
    (True, True, False)
    """
    present = set(names)
    divided = not (present.isdisjoint(_SEQUENCE_IDS) or present.isdisjoint(_DIVIDE))
    return divided or not present.isdisjoint(RESPONSE_IDS)


def tokens_by_names(cell_of: Callable[[str], Any], advantage: str | None) -> Tokens | None:
    """The tokens of a row, whose advantages are in the column of that name; None where it has none that fit together.

    ``cell_of`` gives the cell of a column, None where there is none.
    """
    cells = {role: [cell_of(name) for name in names] for role, names in _COLUMNS.items()}
    row = {role: next((cell for cell in candidates if cell is not None), None) for role, candidates in cells.items()}
    advantages = cell_of(advantage) if advantage else None
    row["advantages"] = advantages if isinstance(advantages, list) else None
    with suppress(UnusableRowError):  # such columns are of something else
        if row["responses"] is None:
            return _whole_sequence(row)
        prompt, response, mask = (row[role] or [] for role in ("prompts", "responses", "response_mask"))
        if isinstance(mask, list) and len(mask) == len(prompt) + len(response):  # of the whole sequence
            row["response_mask"] = mask[len(prompt) :]
        tokens = row_tokens({**row, "prompts": prompt, "attention_mask": None})
        return tokens if prompt or tokens is None else replace(tokens, prompt_ids=None)  # those of its text
    return None


def _whole_sequence(row: dict[str, Any]) -> Tokens | None:
    """The tokens of a sequence; None where nothing says which of them were sampled."""
    ids, mask, labels, length = (row[role] for role in ("sequence", "response_mask", "labels", "prompt_length"))
    if not isinstance(ids, list):
        return None
    if isinstance(labels, list) and len(labels) == len(ids):
        mask = [label != _NOT_SAMPLED for label in labels]
    elif isinstance(mask, list):
        mask = _per_token(mask, len(ids))
    elif (start := parse.whole_number(length)) is not None:
        mask = [index >= start for index in range(len(ids))]
    else:
        return None
    sampled = list(map(bool, mask))
    lists = [ids, sampled]
    for values in (row["rollout_log_probs"], row["advantages"]):
        lists.append(_per_token(values, len(ids), sampled) if isinstance(values, list) else [])
    attended = row["attention_mask"]
    if isinstance(attended, list) and len(attended) == len(ids):  # the others are padding
        lists = [list(compress(values, attended)) for values in lists]
    ids, mask, logprobs, advantages = lists
    return parse.cut_sequence(ids, mask, logprobs=logprobs or None, advantages=advantages or None)


def _per_token(values: list[Any], num_ids: int, sampled: list[bool] | None = None) -> list[Any]:
    """Values of all tokens from those of all, of all that are predicted, or of those that were sampled."""
    if len(values) == num_ids - 1:
        return [0, *values]
    if sampled is None or len(values) == num_ids or len(values) != sum(sampled):
        return values
    remaining = iter(values)
    return [next(remaining) if is_sampled else 0 for is_sampled in sampled]


_TRIAL_VERDICT = "is_resolved"  # Terminal-Bench's, whose accuracy and pass@k count a trial that ended without as failed
_NO_VERDICT = "Trials without a verdict (is_resolved is null) failed, as in Terminal-Bench's own accuracy."


def _judged_rows(rows: Cells, reward: str | None, *, in_words: bool) -> tuple[Cells, Mapping[str, Flags]]:
    """Rows with numbers for verdicts, 0 where a benchmark counts a missing one so, and a sentence about which, [R]."""
    if in_words:
        rows = rows.changed(reward or "", lambda cells: [verdict_of(parse.plain_cell(cell)) for cell in cells])
    if reward != _TRIAL_VERDICT:
        return rows, {}
    judged = rows.changed(reward, lambda cells: [False if cell is None else cell for cell in cells])
    return judged, {_NO_VERDICT: np.isnan(rows.numbers(reward)) & ~np.isnan(judged.numbers(reward))}
