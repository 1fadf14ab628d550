"""A format of rows, made up here: what the one path does for every reader that declares itself."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope.rollouts.readers.format import IfNoted, Reading, RowFormat, has_keys, has_row
from gradscope.rollouts.readers.parsing.records import ReadRequest
from gradscope.rollouts.readers.parsing.tables import Row
from gradscope.rollouts.readers.reduction.columns import Cells, Columns, texts_in
from gradscope.rollouts.readers.reduction.log import ColumnLog
from gradscope.rollouts.run import Run
from tests.rollouts.readers.lines import refused, rewards_of, set_aside, write_lines

LATE = "Some rows came late."


def to_columns(rows: Cells, factor: float = 1.0) -> Columns:
    groups = texts_in(rows.names("group"))
    return Columns(
        step=np.ones(len(rows), dtype=np.int64),
        group=groups,
        no_group="group is missing",
        prompts=partial(texts_in, groups),
        numbers={"reward": factor * rows.numbers("reward")},
        no_reward=partial(rows.no_reward, "reward"),
        noted={LATE: np.array([cell is True for cell in rows.cells("late")])},
        details=lambda _: {"completion": rows.path.stem},
    )


def made_up(**options: Any) -> RowFormat:
    fields: dict[str, Any] = {
        "name": "made-up",
        "title": "made-up rows",
        "patterns": ("logs/log_*.jsonl", "log_*.jsonl"),
        "recognizes_file": has_keys("group", "reward"),
        "columns": lambda reading, factor=1.0: reading.log(to_columns=partial(to_columns, factor=factor)),
    }
    return RowFormat(**fields | options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_lines(tmp_path / "logs" / "log_2.jsonl", {"group": "b", "reward": 0.5})
    rows = [{"group": "a", "reward": 1.0}, {"reward": 1.0}, {"group": "a", "reward": "high"}]
    write_lines(tmp_path / "logs" / "log_1.jsonl", *rows)
    return tmp_path


def read(path: Path, **options: Any) -> Run:
    return made_up(**options).read(ReadRequest(path=path))


def test_rows_of_all_files_become_groups_and_bad_ones_are_set_aside(folder: Path) -> None:
    run = read(folder, inferred=("Steps are made up.",), missing=("There are no tokens.",))
    assert rewards_of(run) == {"1:a": (1.0, None), "1:b": (0.5,)}
    assert [rollout.completion for group in run.groups for rollout in group.rollouts] == ["log_1", "log_1", "log_2"]
    assert set_aside(run) == {"group is missing": 1, "the reward is text": 1}
    first = {reason.reason: reason.first for reason in run.source.quarantined.reasons}
    assert first["group is missing"] == f"{folder}/logs/log_1.jsonl:2"
    assert (run.source.format, run.source.recognized) == ("made-up", "made-up rows, 2 files")
    assert run.source.inferred == ("Steps are made up.", "Groups differ in size: 1 to 2 rollouts.")
    assert run.source.missing == ("There are no tokens.",)


def test_the_first_file_decides_whether_it_is_the_format(folder: Path) -> None:
    assert made_up().recognizes(ReadRequest(path=folder))
    assert made_up().recognizes(ReadRequest(path=folder / "logs" / "log_2.jsonl"))
    assert not made_up(recognizes_file=has_keys("group", "score")).recognizes(ReadRequest(path=folder))
    assert not made_up(patterns=("*.csv",)).recognizes(ReadRequest(path=folder))
    assert made_up(recognizes_file=has_row(lambda row: row.get("reward") == 1.0)).recognizes(ReadRequest(path=folder))


@pytest.mark.parametrize(("late", "noted"), [(True, (LATE,)), (False, ())])
def test_a_sentence_may_wait_for_a_row_that_calls_for_it(tmp_path: Path, late: bool, noted: tuple[str, ...]) -> None:
    path = write_lines(tmp_path / "log_1.jsonl", {"group": "a", "reward": 1.0, "late": late})
    run = read(path, inferred=(IfNoted(LATE), "Always."), missing=(IfNoted(LATE),))
    assert run.source.inferred == (*noted, "Always.")
    assert run.source.missing == noted


def test_a_survey_sees_all_rows_before_the_first_is_used(folder: Path) -> None:
    def columns(reading: Reading, factor: float | None = None) -> ColumnLog | None:
        return None if factor is None else reading.log(to_columns=partial(to_columns, factor=factor))

    def survey(rows: Sequence[Row], reading: Reading) -> dict[str, float]:
        reading.inferred.append(f"{len(rows)} rows were seen.")
        reading.missing.append("Nothing.")
        return {"factor": float(len(rows))}

    run = read(folder, survey=survey, columns=columns, inferred=("First.",))
    assert rewards_of(run) == {"1:a": (4.0, None), "1:b": (2.0,)}
    assert run.source.inferred[:2] == ("First.", "4 rows were seen.")
    assert run.source.missing == ("Nothing.",)


def test_files_that_are_not_the_logs_stay_out(folder: Path) -> None:
    run = read(folder, keeps_file=lambda file: file.stem == "log_2")
    assert rewards_of(run) == {"1:b": (0.5,)}
    assert run.source.recognized == "made-up rows, 1 file"


def test_of_a_format_of_one_file_the_first_is_read(folder: Path) -> None:
    run = read(folder, is_one_file=True)
    assert (list(rewards_of(run)), run.source.recognized) == (["1:a"], "made-up rows")


def test_rows_may_come_from_another_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "log_1.jsonl").write_text(json.dumps([{"group": "a", "reward": 1.0}]))
    run = read(
        tmp_path,
        rows_of=lambda file, quarantine: ((f"{file}:{n}", row) for n, row in enumerate(json.loads(file.read_text()))),
    )
    assert rewards_of(run) == {"1:a": (1.0,)}


def test_a_log_without_a_usable_row_is_refused_unless_rewards_are_not_needed(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log_1.jsonl", {"group": "a"})
    refused(r"has no usable rows; set aside: 1, first .*:1: the reward is missing", read, path)
    assert rewards_of(read(path, needs_reward=False)) == {"1:a": (None,)}
