from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import rewards_of, set_aside

LOGS = REPOSITORY / "fixtures" / "logs"


def test_art_groups_by_index_within_the_step_of_the_file() -> None:
    run = read_run(LOGS / "art")
    assert rewards_of(run) == {"0": (1.0, 0.0), "1": (0.5, 0.5), "1:0": (0.0, 0.0)}
    rollout = run.groups[0].rollouts[0]
    assert (rollout.prompt, rollout.completion, rollout.rewards) == ("0?", "yes", {"won": 1.0})
    assert rollout.messages == ({"role": "user", "content": "0?"},)
    assert read_run(LOGS / "art/trajectories/val").steps == (1,)


def test_art_rows_without_a_group_are_set_aside(tmp_path: Path) -> None:
    rows = [{"group_index": index, "reward": 1.0, "messages": "", "metrics": "{"} for index in (0, None)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "0003.parquet")
    run = read_run(tmp_path)
    assert rewards_of(run) == {"3:0": (1.0,)}
    assert set_aside(run) == {"group_index is missing": 1}


def test_metrics_that_are_no_text_are_none(tmp_path: Path) -> None:
    rows = [{"group_index": 0, "reward": 1.0, "messages": "", "metrics": 1 << 62}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "0003.parquet")
    assert read_run(tmp_path).groups[0].rollouts[0].rewards == {}
