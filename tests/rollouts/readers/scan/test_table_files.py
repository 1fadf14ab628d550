from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradscope.rollouts.readers.scan import table_files
from gradscope.rollouts.readers.scan.parts import Part
from gradscope.rollouts.readers.scan.table_files import CellColumns, scan_table_file

COLUMNS = CellColumns(
    reward="reward", rewards=("reward", "format"), step="step", group="group", prompt="prompt", prompt_id=str.upper
)


def scanned(path: Path, columns: CellColumns = COLUMNS, place: int = 100) -> list[Part] | None:
    return scan_table_file(duckdb.connect(), path, columns, place=place)


def csv(folder: Path, *rows: str, header: str = "step,group,prompt,reward,format") -> Path:
    path = folder / "a.csv"
    path.write_text("\n".join((header, *rows)) + "\n")
    return path


def parquet(folder: Path, **cells: list[Any]) -> Path:
    usual = {"step": [1, 1], "group": ["g", "g"], "prompt": ["p", "p"], "reward": [1.0, 0.0], "format": [0.5, None]}
    path = folder / "a.parquet"
    pq.write_table(pa.table(usual | cells), path)
    return path


def test_plain_files_are_groups_whose_rows_count_on_from_a_place(tmp_path: Path) -> None:
    for path in (csv(tmp_path, "1,g,p,1.0,0.5", "1,g,p,0,x"), parquet(tmp_path)):
        found = scanned(path)
        assert found is not None
        (part,) = found
        assert (part.place.tolist(), part.size.tolist(), part.step.tolist()) == ([100], [2], [1])
        assert (part.group.to_pylist(), [part.prompts[at] for at in part.prompt]) == (["g"], ["P"])
        assert tuple(part.columns) == ("reward", "reward/reward", "reward/format")
        assert part.columns["reward"].tolist() == [1.0, 0.0]
        np.testing.assert_array_equal(part.columns["reward/format"], [0.5, math.nan])


def test_a_long_file_has_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "_ROWS", 2048)
    found = scanned(csv(tmp_path, *["1,g,p,1,0"] * 5000))
    assert found is not None
    assert len(found) > 1
    assert [part.place.tolist()[0] for part in found[:2]] == [100, 100 + int(found[0].size.sum())]
    assert sum(int(part.size.sum()) for part in found) == 5000


def test_groups_that_are_prompts_have_their_ids(tmp_path: Path) -> None:
    columns = CellColumns(
        reward="reward", rewards=(), step=None, group="prompt", prompt="prompt", prompt_id=str.upper,
        group_is_prompt=True,
    )  # fmt: skip
    found = scanned(parquet(tmp_path), columns)
    assert found is not None
    assert (found[0].group.to_pylist(), found[0].step.tolist()) == (["P"], [0])


@pytest.mark.parametrize(
    "row", ["1,g,p,,", "1,g,p,x,", "1.5,g,p,1,", ",g,p,1,", "1,,p,1,", "1,[g,p,1,", '1,g,"{p",1,', "1,g,p,inf,", ""]
)
def test_a_file_of_csv_with_an_odd_row_is_for_the_row_reader(tmp_path: Path, row: str) -> None:
    assert scanned(csv(tmp_path, "1,g,p,1,0", row, "1,g,p,1,0")) is None


@pytest.mark.parametrize(
    "cells",
    [
        {"reward": [1.0, None]},
        {"reward": [1.0, math.nan]},
        {"reward": ["1", "0"]},
        {"format": ["1", "0"]},
        {"step": ["1", "1"]},
        {"step": [1.0, 1.5]},
        {"group": [1.0, 2.0]},
        {"group": ["g", None]},
        {"prompt": [["p"], ["p"]]},
    ],
)
def test_a_file_of_parquet_with_odd_cells_or_types_is_for_the_row_reader(
    tmp_path: Path, cells: dict[str, list[Any]]
) -> None:
    assert scanned(parquet(tmp_path, **cells)) is None


def test_columns_that_are_missing_or_twice_there_are_for_the_row_reader(tmp_path: Path) -> None:
    assert scanned(csv(tmp_path, "1,g,p,1", header="step,group,prompt,reward")) is None
    assert scanned(csv(tmp_path, "1,g,p,1,0,0", header="step,group,prompt,reward,format,format")) is None
    assert scanned(csv(tmp_path, "1,g,p,1,0,0,0", header="step,group,prompt,reward,format,x,x")) is None
    missing = tmp_path / "b.parquet"
    pq.write_table(pa.table({"reward": [1.0]}), missing)
    assert scanned(missing) is None


def test_damaged_files_and_names_that_are_patterns_are_for_the_row_reader(tmp_path: Path) -> None:
    for name, content in (("a.parquet", b"PAR1"), ("a.csv.gz", gzip.compress(b"step\n" * 99)[:-9]), ("b.csv", b"")):
        path = tmp_path / name
        path.write_bytes(content)
        assert scanned(path) is None
    assert scanned(csv(tmp_path, "1,g,p,1,0").rename(tmp_path / "[a].csv")) is None
