import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from gradscope.results.source import BROKEN_ADVANTAGE
from gradscope.rollouts.groups import GroupsOfTable, Tokens, reward_table
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.column_roles import key_of
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.flat_columns import FlatColumns, column_log, hold_tokens, tokens_by_names
from gradscope.rollouts.readers.parsing.cells import prompt_text_id
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.records import Record
from gradscope.rollouts.readers.reduction import lines
from gradscope.rollouts.readers.reduction.columns import LineColumns, ListColumns, TableColumns, records_in
from gradscope.rollouts.readers.reduction.log import ColumnLog
from tests.rollouts.readers.lines import IDS, write_rows
from tests.rollouts.readers.lines import write_lines as write
from tests.rollouts.readers.reduced import STRANGE, assert_reduced, assert_reduced_alike, assert_same


def columns(sample: str | None = None, times: tuple[str, ...] = (), **names: str) -> FlatColumns:
    named = ColumnNames(reward="reward", **names)
    return FlatColumns(names=named, rewards=("reward", "format"), sample=sample, times=times)


def read(row: dict[str, Any], flat: FlatColumns, file: str = "a") -> tuple[list[Record], dict[str, int]]:
    quarantine = QuarantineLog()
    records = [record for _, record in records_in(flat.to_columns, Path(file), [("a:1", row)], quarantine)]
    return records, {reason.reason: reason.num_rows for reason in quarantine.result().reasons}


USUAL = {"step": "3", "group": "g", "prompt": "2+2?", "text": "4", "reward": 1, "format": 0.5, "advantage": -0.25}
NAMES = {"step": "step", "group": "group", "prompt": "prompt", "completion": "text", "advantage": "advantage"}


def test_a_row_is_a_rollout_with_what_its_columns_hold() -> None:
    (record,), reasons = read(
        USUAL | {"id": 7, "generation_seconds": 2}, columns("id", times=("generation_seconds",), **NAMES)
    )
    assert not reasons
    assert (record.step, record.group, record.prompt, record.completion) == (3, "g", "2+2?", "4")
    assert (record.reward, record.rewards, record.advantage) == (1.0, {"reward": 1.0, "format": 0.5}, -0.25)
    assert (record.prompt_id, record.seconds) == (prompt_text_id("2+2?"), 2.0)
    assert (record.sample_id, record.location) == ("7", "a:1")


def test_exact_tokens_have_the_names_of_trls_columns() -> None:
    (record,), _ = read(USUAL | IDS, columns(**NAMES))
    tokens = record.tokens
    assert (tokens.prompt_ids, tokens.completion_ids, tokens.mask) == ((5, 9), (7, 11, 2), (True, False, True))
    assert tokens.logprobs == (-0.5, 0.0, -1.5)
    named_otherwise = {"env_mask": IDS["completion_mask"], "sampling_logprobs": IDS["logprobs"]}
    rest = {name: cell for name, cell in IDS.items() if name.endswith("_ids")}
    assert read(USUAL | rest | named_otherwise, columns(**NAMES))[0][0].tokens == tokens
    other_names = dict(zip(("prompt_token_ids", "response_ids", "loss_mask", "logprobs"), IDS.values(), strict=True))
    sequence = other_names | {"loss_mask": [0, 0, *IDS["completion_mask"]], "advantages": [0.5, 0, -0.5]}
    for row in (other_names, sequence):
        (record,), _ = read(USUAL | row, columns(**NAMES | {"advantage": "advantages"}))
        assert replace(record.tokens, token_advantages=None) == tokens
    assert record.tokens.token_advantages == (0.5, 0.0, -0.5)
    assert read(USUAL | IDS | {"prompt_ids": None}, columns(**NAMES))[0][0].tokens == replace(tokens, prompt_ids=None)
    for other in ({"completion_ids": "7 11 2"}, {"completion_mask": [1, 0]}, {"prompt_ids": "5 9"}):
        (record,), reasons = read(USUAL | IDS | other, columns(**NAMES))
        assert record.tokens is None
        assert not reasons


@pytest.mark.parametrize(
    ("cells", "reason", "is_kept"),
    [
        ({"step": 1.5}, "the step is not a whole number", False),
        ({"group": None}, "group is missing", False),
        ({"group": ""}, "group is missing", False),
        ({"group": [{"role": "user"}]}, "group is missing", False),
        ({"reward": None}, "the reward is null", True),
        ({"reward": "1"}, "the reward is text", True),
        ({"advantage": float("nan")}, BROKEN_ADVANTAGE, True),
    ],
)
def test_unusable_rows_are_set_aside_within_their_groups(cells: dict[str, Any], reason: str, is_kept: bool) -> None:
    records, reasons = read(USUAL | cells, columns(**NAMES))
    assert reasons == {reason: 1}
    assert len(records) == is_kept


@pytest.mark.parametrize(
    ("names", "row", "group", "prompt_id"),
    [
        ({"prompt_id": "p"}, {"p": 5}, "5", "5"),
        ({"prompt": "q"}, {"q": "2+2?"}, prompt_text_id("2+2?"), prompt_text_id("2+2?")),
        ({"group": "g", "prompt_id": "p", "prompt": "q"}, {"g": 1, "p": None, "q": "?"}, "1", prompt_text_id("?")),
        ({"group": "g", "prompt": "q"}, {"g": 1}, "1", "1"),
        ({"group": "g", "prompt": "q"}, {"g": 1, "q": ""}, "1", "1"),
    ],
)
def test_a_prompt_has_its_own_id_or_that_of_its_text_or_that_of_its_group(
    names: dict[str, str], row: dict[str, Any], group: str, prompt_id: str
) -> None:
    flat = columns(**names)
    (record,), _ = read(row | {"reward": 1}, flat)
    assert (record.group, record.prompt_id, record.step) == (group, prompt_id, 0)
    assert flat.by_prompt == (set(names) == {"prompt"})
    assert flat.key == key_of(flat.names)


def test_equal_messages_are_one_prompt_whatever_arrow_added_to_them() -> None:
    message = {"role": "user", "content": "2+2?"}
    assert prompt_text_id([message]) == prompt_text_id([message | {"name": None}])
    assert prompt_text_id([message]) != prompt_text_id("2+2?")
    assert key_of(ColumnNames()) is None


def log_of(sample: str | None = None, **names: str) -> ColumnLog:
    flat = FlatColumns(names=ColumnNames(reward="reward", **names), rewards=("reward",), sample=sample)
    return column_log([Path("a.jsonl")], flat, QuarantineLog())


def test_a_file_is_read_as_its_name_promises() -> None:
    columns_of = log_of(step="step", group="g").columns_of
    assert isinstance(columns_of(Path("a.jsonl")), LineColumns)
    assert columns_of(Path("a.jsonl")) is columns_of(Path("b.txt"))
    for name in ("a.csv", "a.csv.gz", "a.parquet"):
        assert isinstance(columns_of(Path(name)), TableColumns), name
    assert isinstance(columns_of(Path("a.json")), ListColumns)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["step", "reward", "more"])
def test_a_list_in_a_document_is_read_as_row_by_row(tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_ELEMENTS", 3)
    usual = [{"step": 1, "prompt": f"p{index % 2}", "reward": index % 3 / 2, "completion": "c\n"} for index in range(5)]
    for index, cell in enumerate([*STRANGE, "é", 2]):
        (tmp_path / f"{index}.json").write_text(json.dumps([*usual, usual[0] | {key: cell}], indent=index % 3 or None))
        assert_reduced_alike(tmp_path / f"{index}.json")


@pytest.mark.parametrize("text", ["[{}, [], 3, ROW]", '[ROW, "\xff"]', "[ROW]]", "[ROW, null]", "ROW", "[[ROW]]", "[]"])
def test_any_other_document_is_for_the_row_reader(tmp_path: Path, text: str) -> None:
    row = '{"step": 1, "prompt": "p", "reward": 1}'
    (tmp_path / "a.json").write_bytes(text.replace("ROW", row).encode("latin-1"))
    assert_reduced_alike(tmp_path / "a.json")
    (tmp_path / "b.json").write_text(f"[{row}]")
    (tmp_path / "c.json").symlink_to("/proc/self/mem")
    assert_reduced_alike(tmp_path)


def test_keys_that_no_struct_can_have_are_for_the_row_reader(tmp_path: Path) -> None:
    assert log_of(group='g"').columns_of(Path("a.jsonl")) is None
    assert log_of(group="\ud800").columns_of(Path("a.jsonl")) is None
    rows = [{"re\tward": index % 2, "é": "g", "": 0, "\ud800": 1} for index in range(4)]
    run = assert_same(write(tmp_path / "a.jsonl", *rows), columns=ColumnNames(reward="re\tward", group="é"))
    assert run is not None
    assert run.groups[0].rewards == (0.0, 1.0, 0.0, 1.0)


def test_one_key_may_be_several_columns(tmp_path: Path) -> None:
    rows = [{"step": index // 2, "reward": index % 2, "prompt": "p"} for index in range(4)]
    path = write(tmp_path / "a.jsonl", *rows)
    for names in (
        {"group": "prompt"},
        {"group": "step"},
        {"prompt": "reward"},
        {"reward": "step"},
        {"prompt_id": "reward"},
    ):
        assert_reduced(path, columns=ColumnNames(**names))


@pytest.mark.parametrize(
    ("cells", "seconds"),
    [
        ({"generation_seconds": 2.5}, 2.5),
        ({"timing": {"llm_time": 2}}, 2.0),
        ({"timing": {"generation_ms": 1500}}, 1.5),
        ({"generation_seconds": -1, "timing": {"llm_time": 2}}, 2.0),
        ({"generation_seconds": "x", "timing": 3}, None),
    ],
)
def test_seconds_are_those_of_the_row_reader(tmp_path: Path, cells: dict[str, Any], seconds: float | None) -> None:
    rows = [{"group_id": "a", "step": 1, "reward": 1.0, "generation_seconds": None, "timing": None} | cells] * 2
    path = write(tmp_path / "a.jsonl", *rows)
    table = reward_table(read_run(path, rewards_only=True).groups)
    assert seconds is None or (table.seconds is not None and table.seconds.tolist() == [seconds] * 2)
    assert [rollout.seconds for group in read_run(path).groups for rollout in group.rollouts] == [seconds] * 2


@pytest.mark.parametrize(
    ("name", "cells", "truncated"),
    [
        ("finish_reason", ["length", "stop", "abort", None], [1.0, 0.0, math.nan, math.nan]),
        ("stop_reason", ["max_tokens", "end_turn", "tool_calls", 2], [1.0, 0.0, 0.0, math.nan]),
        ("finish_reason", ["FinishReason.LENGTH", "FinishReason.STOP", "", "stop"], [1.0, 0.0, math.nan, 0.0]),
        ("is_truncated", [True, False, None, True], [1.0, 0.0, math.nan, 1.0]),
        ("truncated", [1, 0, 0, 1], [1.0, 0.0, 0.0, 1.0]),
        ("truncated", [1.0, 0.0, None, 1.0], [1.0, 0.0, math.nan, 1.0]),
        ("status", ["truncated", "completed", "aborted", "completed"], [1.0, 0.0, math.nan, 0.0]),
        ("status", ["truncated", "completed", "passed", "completed"], None),
        ("finish_reason", ["error", "abort", None, "error"], None),
        ("finish_reason", [1, 0, 1, 1], None),
    ],
)
@pytest.mark.parametrize("place_of", ["a.jsonl", "a.parquet", "a.csv", "entry.jsonl"])
def test_how_completions_ended_is_read(
    tmp_path: Path, place_of: str, name: str, cells: list[Any], truncated: list[float] | None
) -> None:
    ends = [{"meta": {name: cell}} if place_of.startswith("entry") else {name: cell} for cell in cells]
    rows = [{"group_id": "a", "step": 1, "completion": f"{i}", "reward": 1.0, **end} for i, end in enumerate(ends)]
    if place_of == "a.parquet" and 2 in cells:
        rows[3][name] = "2"
    path = write_rows(tmp_path / place_of, rows)
    table = reward_table(read_run(path, rewards_only=True).groups)
    np.testing.assert_array_equal(table.truncated, truncated)  # type: ignore[arg-type]
    statuses = {0.0: "completed", 1.0: "truncated"}
    wanted = [statuses.get(end, "unknown") for end in truncated or [math.nan] * 4]
    assert [rollout.status for rollout in GroupsOfTable(table)[0].rollouts] == wanted
    assert [rollout.status for group in read_run(path).groups for rollout in group.rollouts] == wanted


TABLES: list[dict[str, Any]] = [
    {"reward": [1.0, None, 0.0, float("nan")]},
    {"reward": [True, False, None, True]},
    {"reward": [1, 0, 1, 0], "step": ["1", "2.0", "x", None]},
    {"reward": ["1.0", "0.0", "x", None]},
    {"reward": [10**30, 1, 0, 2]} | {"step": [1.0, 1.5, -1.0, 3.0]},
    {"group_id": [1.5, 1.5, None, 2.0]},
    {"group_id": [True, False, True, None]},
    {"group_id": ["", "a", "a", "[a"]},
    {"group_id": [[1], [1], None, []]},
    {"prompt": ["p", None, "p", ""], "group_id": ["a", "a", "b", "b"]},
    {"prompt": [[{"role": "user", "content": "q"}]] * 3 + [None], "group_id": ["a", "a", "b", "b"]},
    {"prompt_id": ["p", None, "q", "q"], "prompt": ["x"] * 4, "group_id": ["a", "b", "c", "d"]},
    {"prompt_id": [7, 7, None, 8], "group_id": None},
    {"prompt": ["p", None, "p", ""], "group_id": None},
    {"prompt": [[{"role": "user", "content": "q"}]] * 2 + [None, [{"role": "user", "content": "r"}]], "group_id": None},
    {"advantage": [1.0, None, float("inf"), float("nan")]},
    {"sample_idx": [0, 1, 0, None], "group_id": ["a"] * 4},
    {"sample_idx": [0, 1, 2, 1], "group_id": ["a"] * 4, "completion": ["x", "y", "z", "w"]},
    {"generation_seconds": [1.0, None, -1.0, 2.0], "timing": [{"llm_time": 1.0}] * 3 + [None]},
    {"format_reward": [None, 0.5, float("inf"), 1.0], "score": ["1", "x", None, "2"]},
]


@pytest.mark.parametrize("cells", TABLES)
def test_tables_equal_the_row_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: dict[str, Any]) -> None:
    usual = {"step": [1, 1, 2, 2], "group_id": ["a", "a", "b", "b"], "reward": [1.0, 0.0, 0.5, 0.5]}
    columns = {name: values for name, values in (usual | cells).items() if values is not None}
    columns |= (
        {"reward": [None if i is None else float(i) for i in columns["reward"]]} if 10**30 in columns["reward"] else {}
    )
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert_same(tmp_path / "a.parquet")
    text = [
        ",".join(columns),
        *(",".join("" if cell is None else str(cell) for cell in row) for row in zip(*columns.values(), strict=True)),
    ]
    if not any(isinstance(cell, list | dict) for values in columns.values() for cell in values):
        (tmp_path / "b.csv").write_text("\n".join(text) + "\n")
        assert_same(tmp_path / "b.csv")


def test_an_empty_prompt_tells_no_group(tmp_path: Path) -> None:
    rows = [
        {"prompt": text, "completion": "4", "reward": 1.0, "step": 1} for text in ("2+2", "", "2+2", "2\u002b2", None)
    ]
    run = assert_reduced(write(tmp_path / "a.jsonl", *rows))
    assert [(entry.reason, entry.num_rows) for entry in run.source.quarantined.reasons] == [("prompt is missing", 2)]


def test_prompts_are_told_apart_by_what_they_say(tmp_path: Path) -> None:
    prompts = ['"é\\n/"', '"\\u00e9\\u000a\\/"', '"\\u00e9\\n/"', '["é"]', '["\\u00e9"]', '"\\ud83d\\ude00"', '"😀"']
    path = write(tmp_path / "a.jsonl", *(f'{{"step": 1, "reward": 1, "prompt": {text}}}' for text in prompts))
    assert [group.size for group in assert_reduced(path).groups] == [3, 2, 2]


def test_an_object_or_a_list_of_parts_is_no_reward_function(tmp_path: Path) -> None:
    parts = {"reward_components": {"format": 1.0}, "reward_history": [0.5], "reward_bonus": 0.5}
    rows = [{"step": 1, "group_id": "g", "total_reward": reward, **parts} for reward in (0.0, 1.0)]
    run = assert_reduced(write(tmp_path / "a.jsonl", *rows))
    assert run.groups[0].rollouts[0].rewards == {"reward_bonus": 0.5, "total_reward": 0.0}


def test_a_broken_advantage_is_told(tmp_path: Path) -> None:
    row = '{"group_id": "g", "step": 1, "reward": 1, "advantage": %s}'
    cells = ("0.5", "null", "NaN", "-Infinity", '"x"', "1e999")
    run = assert_reduced(write(tmp_path / "a.jsonl", *(row % cell for cell in cells)))
    assert [entry.num_rows for entry in run.source.quarantined.reasons] == [3]


@pytest.mark.parametrize(
    "cells", ['"reward_a": %s, "b_reward": 0.5', '"rewards": {"a": %s, "b": 0.5}', '"generation_seconds": %s']
)
def test_a_function_that_is_no_number_leaves_a_row_usual(
    cells: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = '{"group_id": "g", "step": 1, "reward": 1, "info": {}, ' + cells + "}"
    path = write(tmp_path / "a.jsonl", *(row % cell for cell in ("1", "NaN", "null", "-Infinity", "{}", "NaN")))
    assert not assert_reduced(path).source.quarantined.reasons
    monkeypatch.setattr(lines, "IrregularRow", None)
    assert read_run(path, rewards_only=True).groups[0].size == 6


MARKS: list[tuple[str, object, object]] = [
    *(("split", "train", word) for word in ("eval", "Test", "validation")),
    *(("phase", None, "val"), ("mode", "rollout", "dev"), ("event", "train", "eval"), ("log_type", "train", "eval")),
    *(("is_eval", False, True), ("is_training", True, False), ("isValidation", 0, 1)),
]
FILES = (("jsonl", 0), ("jsonl", 2100), ("json", 0), ("parquet", 0), ("csv", 2100), ("entry", 0))
"""Forms of a log, and rows of an evaluation before the first of training."""


@pytest.mark.parametrize(
    ("name", "training", "held_out", "kind", "num_first"),
    [  # every mark in a log of lines; a word, a gap and a flag in other forms
        *((*mark, *FILES[0]) for mark in MARKS),
        *(
            (*mark, *file)
            for mark, files in ((MARKS[0], FILES[1:2]), (MARKS[3], FILES[3:5]), (MARKS[7], FILES[2:]))
            for file in files
        ),
    ],
)
def test_rows_of_an_evaluation_are_left_out_of_training(
    name: str, training: object, held_out: object, kind: str, num_first: int, tmp_path: Path
) -> None:
    def row(step: int, prompt: str, reward: float, mark: object) -> dict[str, Any]:
        cells = {"info": {name: mark}} if kind == "entry" else {name: mark}
        return {"step": step, "prompt": prompt, "completion": str(reward), "reward": reward} | cells

    trained = [row(step, "p", sample, training) for step in (0, 1) for sample in (0, 1)]
    evaluated = [row(step, f"e{index}", 1, held_out) for step in (0, 1) for index in range(3)]
    first = [row(0, f"e{index}", 1, held_out) for index in range(num_first)]
    mixed = tmp_path / f"mixed.{'jsonl' if kind == 'entry' else kind}"
    run = read_run(write_rows(mixed, [*first, *trained[:2], *evaluated[:3], *trained[2:], *evaluated[3:]]))
    assert [(group.step, group.size, group.rollouts[0].prompt) for group in run.groups] == [(0, 2, "p"), (1, 2, "p")]
    column = f"info.{name}" if kind == "entry" else name
    assert f"Rows of an evaluation beside training, by {column!r}, are left out." in run.source.inferred
    single = read_run(write_rows(mixed, [*first, *evaluated]))
    assert sum(group.size for group in single.groups) == num_first + 6
    assert not any("left out" in sentence for sentence in single.source.inferred)


PROMPT, COMPLETION, ADVANTAGES, LOGPROBS = [5, 9], [7, 11, 2], [0.5, 0.25, -0.5], [-1.0, -0.5, -1.5]
WHOLE = [*PROMPT, *COMPLETION]
TOKENS = Tokens(
    prompt_ids=tuple(PROMPT),
    completion_ids=tuple(COMPLETION),
    mask=(True, True, True),
    logprobs=tuple(LOGPROBS),
    token_advantages=tuple(ADVANTAGES),
)
COMPLETION_VALUES = {"advantages": ADVANTAGES, "logprobs": LOGPROBS}
WHOLE_VALUES = {name: [0.0, 0.0, *values] for name, values in COMPLETION_VALUES.items()}
PREDICTED_VALUES = {name: values[1:] for name, values in WHOLE_VALUES.items()}


def tokens_of(row: dict[str, Any]) -> Tokens | None:
    assert hold_tokens(row)
    return tokens_by_names(row.get, "advantages")


@pytest.mark.parametrize("values", [COMPLETION_VALUES, WHOLE_VALUES, PREDICTED_VALUES])
@pytest.mark.parametrize(
    "row",
    [
        {"input_ids": WHOLE, "labels": [-100, -100, *COMPLETION]},
        {"sequence_ids": WHOLE, "action_mask": [False, True, True, True]},  # of what is predicted
        {"tokens": WHOLE, "loss_mask": [0, 0, 1, 1, 1]},
        {"token_ids": WHOLE, "prompt_len": 2},
        {"input_ids": WHOLE, "prompt_len": 2, "attention_mask": [1, 1]},  # a mask of another length is none
    ],
)
def test_ids_of_prompt_and_completion_in_one_are_divided(row: dict[str, Any], values: dict[str, Any]) -> None:
    assert tokens_of(row | values) == TOKENS


def test_padding_and_what_an_environment_wrote_are_no_sampled_tokens() -> None:
    padded = {
        "input_ids": [0, 0, *WHOLE, 0],
        "attention_mask": [0, 0, 1, 1, 1, 1, 1, 0],
        "completion_mask": [0, 0, 0, 0, 1, 0, 1, 0],
        "advantages": [0.5, -0.5],
    }
    tokens = tokens_of(padded)
    assert tokens is not None
    assert (tokens.prompt_ids, tokens.completion_ids) == ((5, 9), (7, 11, 2))
    assert (tokens.mask, tokens.token_advantages) == ((True, False, True), (0.5, 0.0, -0.5))


@pytest.mark.parametrize(
    "row",
    [
        {"tokens": 5, "prompt_len": 2},  # a count
        {"tokens": ["2", "+", "2"], "prompt_len": 1},  # texts
        {"input_ids": WHOLE, "labels": [-100] * 5},
        {"input_ids": WHOLE, "labels": [1, 2], "prompt_len": None},
        {"input_ids": WHOLE, "loss_mask": [1, 1]},
        {"input_ids": WHOLE, "loss_mask": [0, 0, 1, 1, 1], "advantages": [0.5]},
    ],
)
def test_columns_of_something_else_are_no_tokens(row: dict[str, Any]) -> None:
    assert tokens_of(row) is None


def test_a_name_alone_is_no_token() -> None:
    assert not hold_tokens({"tokens": 5, "reward": 1.0})
    assert not hold_tokens({"labels": [1]})
