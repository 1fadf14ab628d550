"""Logs whose groups are lines, or told by several parts of an id: Atropos, PipelineRL, RL2 and Trinity-RFT."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from gradscope.rollouts.groups import Tokens
from gradscope.rollouts.readers.format import IfNoted, RowFormat, has_keys, has_row, interpreted_by
from gradscope.rollouts.readers.parsing.cells import (
    cut_conversation,
    cut_sequence,
    digest,
    list_of,
    mapping_of,
    number_in_name,
    objects_in,
    text_of,
    whole_number,
)
from gradscope.rollouts.readers.parsing.quarantine import TEXT_ONLY, QuarantineLog, UnusableRowError, filter_caveat
from gradscope.rollouts.readers.parsing.tables import Row, read_rows, stem_of
from gradscope.rollouts.readers.reduction.columns import Cells, Columns

_NO_LISTS = "tokens, masks and scores are not lists of one length"


def _rows(rows: Cells) -> Columns:
    """Rows of which ``rows_of`` made ``step``, ``group``, ``prompt_key``, ``prompt``, ``response`` and ``reward``."""
    return Columns(
        step=rows.steps("step"),
        group=rows.names("group"),
        no_group="the id of the group is missing",
        prompts=lambda chosen: list(map(digest, rows.cells("prompt_key", chosen))),
        texts=lambda chosen: list(map(text_of, rows.cells("prompt", chosen))),
        numbers={"reward": rows.numbers("reward")},
        no_reward=partial(rows.no_reward, "reward"),
        details=lambda row: {"completion": text_of(rows.cell("response", row)), "tokens": rows.cell("tokens", row)},
    )


def _tokens(ids: Any, mask: Any, logprobs: Any) -> Tokens | None:
    """A sequence of which a mask says what was sampled; None where its lists are none, or of other lengths."""
    with suppress(UnusableRowError):
        return cut_sequence(ids, mask, logprobs=logprobs)
    return None


def _atropos_rollouts(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for location, line in read_rows(file, quarantine):
        lists = [list_of(line.get(key)) for key in ("tokens", "masks", "scores")]
        size = len(lists[0])
        if {*map(len, lists)} != {size} or not size:
            quarantine.add(_NO_LISTS, location)
            continue
        group = {"step": 0, "group": f"{stem_of(file)}:{location.rpartition(':')[2]}"}
        optional = (list_of(line.get(key)) for key in ("inference_logprobs", "messages"))
        lists += [cells if len(cells) == size else [None] * size for cells in optional]
        for ids, labels, score, logprobs, messages in zip(*lists, strict=True):
            tokens = _tokens(ids, [label != _MASKED for label in list_of(labels)], logprobs)
            talk = cut_conversation(messages)
            prompt = talk.prompt if talk.completion else ""  # else all was decoded as one message
            sample = {"prompt": prompt, "response": talk.completion, "reward": score, "tokens": tokens}
            prompt_key = [prompt, *(tokens.prompt_ids or ())] if tokens else prompt
            yield location, {**group, **sample, "prompt_key": prompt_key}


_MASKED = -100  # the label of a token that was not sampled
_are_groups = has_keys("tokens", "masks", "scores")
ATROPOS = RowFormat(
    name="atropos",
    title="Atropos groups",
    patterns=("*.jsonl",),
    recognizes_file=_are_groups,
    keeps_file=_are_groups,
    rows_of=_atropos_rollouts,
    columns=interpreted_by(_rows),
    inferred=("Each line is a group; Atropos does not log at which step it was trained on.",),
    missing=(filter_caveat("ensure_scores_are_not_same, the default in training, leaves out groups of equal scores"),),
)


def _lists_rollouts_with(*keys: str) -> Callable[[Path], bool]:
    """A test of a file: a row lists rollouts of which one has these keys."""
    return has_row(lambda row: any(map({*keys}.issubset, objects_in(row.get("rollouts")))))


def _pipeline_rl_rollouts(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    """The rollouts of lines: of the turns of one, each a text with its reward, the last."""
    for location, line in read_rows(file, quarantine):
        rollouts: dict[str, list[dict[str, Any]]] = {}
        for text in objects_in(line.get("rollouts")):
            index = text_of(mapping_of(text.get("metadata")).get("rollout_index"))
            rollouts.setdefault(index or f"text {len(rollouts)}", []).append(text)
        for turns in rollouts.values():
            first, last = turns[0], turns[-1]
            ids, labels, logprobs = (list_of(last.get(key)) for key in ("input_ids", "labels", "logprobs"))
            padded = [*[0.0] * (len(ids) - len(logprobs)), *logprobs]
            tokens = _tokens(ids, [label != _MASKED for label in labels], padded) if len(turns) == 1 else None
            prompt, response = (text_of(turn.get("text")) for turn in (first, last))
            sizes = [whole_number(turn.get("n_predicted")) or 0 for turn in (first, last)]
            prompt, response = prompt[: len(prompt) - sizes[0]], response[len(response) - sizes[1] :]
            cells = {"step": 0, "group": last.get("group_id"), "prompt_key": prompt, "prompt": prompt}
            yield location, {**last, **cells, "response": response, "tokens": tokens}


PIPELINE_RL = RowFormat(
    name="pipeline-rl",
    title="PipelineRL rollouts",
    patterns=("streams/actor/*/*/*.jsonl", "*.jsonl"),
    recognizes_file=_lists_rollouts_with("text", "n_predicted", "labels", "group_id", "metadata"),
    rows_of=_pipeline_rl_rollouts,
    columns=interpreted_by(_rows),
    inferred=("Texts of one group_id are a group; PipelineRL does not log at which step they were trained on.",),
)


def _rl2_rollouts(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for location, line in read_rows(file, quarantine):
        group = {"step": number_in_name(_STEP_FILE, file), "group": location.rpartition(":")[2]}
        for sample in objects_in(line.get("rollouts")):
            task, rewards = mapping_of(sample.get("sample")), list_of(mapping_of(sample.get("metrics")).get("rewards"))
            sequences = list(map(mapping_of, list_of(sample.get("state_dicts"))))
            lists = (sequences[0].get(key) for key in ("states", "action_mask", "logps"))
            tokens = _tokens(*lists) if len(sequences) == 1 else None
            prompt = task.get("messages", task.get("prompt", sample.get("state_text")))
            cells = {"prompt_key": task, "prompt": prompt, "response": sample.get("action_text"), "tokens": tokens}
            yield location, {**group, **cells, "reward": rewards[-1] if rewards else None}


_STEP_FILE = re.compile(r"^step([0-9]+)\.jsonl")
RL2 = RowFormat(
    name="rl2",
    title="RL2 rollouts",
    patterns=("train/step[0-9]*.jsonl", "step[0-9]*.jsonl"),
    recognizes_file=_lists_rollouts_with("sample", "state_dicts", "metrics"),
    rows_of=_rl2_rollouts,
    columns=interpreted_by(_rows),
    inferred=("Each line is a group, at the step in the name of its file.",),
)


def _trinity_runs(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    """The runs of tasks: of the turns of a run, which share its reward, or of which the last has it, the last."""
    turns: list[Row] = []
    run: list[Any] = []
    before = 0
    for location, row in read_rows(file, quarantine):
        *names, turn = (mapping_of(row.get("eid")).get(key) for key in ("batch", "task", "run", "step"))
        number = whole_number(turn) or 0
        # a workflow that numbers no runs has all of a task under one number, each with turns that rise
        if turns and (names != run or number <= before):
            yield _trinity_rollout(turns)
            turns = []
        turns.append((location, row))
        run, before = names, number
    if turns:
        yield _trinity_rollout(turns)


def _trinity_rollout(turns: list[Row]) -> Row:
    (_, first), (location, last) = turns[0], turns[-1]
    batch, task = map(mapping_of(first.get("eid")).get, ("batch", "task"))
    prompt = first.get("prompt_text") or cut_conversation(first.get("messages")).prompt
    names = {"step": batch, "group": task, "prompt_key": prompt, "prompt": prompt}
    return location, {**last, **names, "response": last.get("response_text")}


_EXPLORED = "explorer_output.jsonl"
_FILTERED = IfNoted(
    filter_caveat(
        f"Operators of the experience pipeline, behind which this is written, unlike {_EXPLORED}, may drop groups"
    )
)


def _trinity_rows(rows: Cells) -> Columns:
    return replace(_rows(rows), noted={_FILTERED: np.full(len(rows), rows.path.name != _EXPLORED)})


_are_experiences = has_row(lambda row: {"batch", "task", "run", "step"} <= mapping_of(row.get("eid")).keys())
TRINITY = RowFormat(
    name="trinity",
    title="Trinity-RFT experiences",
    patterns=(f"buffer/{_EXPLORED}", _EXPLORED, "buffer/*.jsonl", "*.jsonl"),
    recognizes_file=_are_experiences,
    keeps_file=_are_experiences,
    rows_of=_trinity_runs,
    columns=interpreted_by(_trinity_rows, looks_at_path=True),
    inferred=("Runs of one task in a batch of the explorer are a group, with the batch as the step.",),
    missing=(_FILTERED, TEXT_ONLY),
)
