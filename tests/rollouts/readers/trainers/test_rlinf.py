from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import set_aside, write_lines

LOG = REPOSITORY / "fixtures/logs/rlinf"


def test_completions_of_a_prompt_are_a_group_with_what_users_accepted() -> None:
    run = read_run(LOG)
    assert (run.source.format, run.steps) == ("rlinf", (0,))
    assert [group.rewards for group in run.groups] == [(1.0, 0.0), (0.0, 0.0)]
    assert run.groups[0].rollouts[0].completion == "return a + b"


@pytest.mark.parametrize("is_packed", [True, False])
def test_a_name_in_gz_is_plain_json_or_compressed(tmp_path: Path, is_packed: bool) -> None:
    (data,) = (file.read_bytes() for file in LOG.iterdir())
    path = tmp_path / "training_data_20260801_100000_000.jsonl.gz"
    path.write_bytes(gzip.compress(data) if is_packed else data)
    assert read_run(tmp_path).source.num_rows == 4


def test_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    row = json.loads(next(LOG.iterdir()).read_text().splitlines()[0])
    rows = [{**row, "data": {**row["data"], **cells}} for cells in ({}, {"prompt": None}, {"accepted": "yes"})]
    assert set_aside(read_run(write_lines(tmp_path / "training_data_1.jsonl", *rows))) == {
        "data.prompt is missing": 1,
        "the reward is text": 1,
    }
