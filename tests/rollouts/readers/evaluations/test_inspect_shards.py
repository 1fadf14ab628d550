from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.evaluations.inspect_shards import find_logs
from tests.conftest import REPOSITORY
from tests.rollouts.readers.evaluations.test_inspect_archive import zstd_archive
from tests.rollouts.readers.lines import rewards_of, set_aside

LOG = REPOSITORY / "fixtures/logs/inspect_ai_shards"
RUN = "2026-11-01T10-00-00+00-00_demo_x"
EARLY, LATE = f"{RUN}.eval", "2026-11-01T11-00-00+00-00_demo_y.eval"


def members(name: str, score: Any, *, epoch: int = 1, **header: Any) -> dict[str, Any]:
    sample = {"id": name, "epoch": epoch, "scores": {"m": {"value": score}}}
    return {f"samples/{name}_epoch_{epoch}.json": sample, **({"header.json": header} if header else {})}


@pytest.mark.parametrize(
    ("below", "expected"),
    [
        ("", {"a": (1.0, 0.0), "b": (0.0, 0.5)}),
        (f"{RUN}.shards", {"a": (1.0, 0.0), "b": (0.0, 0.5)}),
        (f"{RUN}.shards/0", {"a": (1.0,), "b": (0.0,)}),
        (f"{RUN}.eval", {"a": (1.0,)}),
    ],
)
def test_the_shards_of_a_run_are_one_evaluation_until_they_are_merged(
    below: str, expected: dict[str, tuple[float, ...]]
) -> None:
    assert rewards_of(read_run(LOG / below)) == expected


def test_a_merged_log_goes_before_its_shards(tmp_path: Path) -> None:
    zstd_archive(tmp_path / f"{RUN}.shards/0/{LATE}", members("a", "C"))
    merged = zstd_archive(tmp_path / f"{RUN}-recovered.eval", members("a", "I", status="success"))
    assert list(find_logs(tmp_path)) == [merged]
    zstd_archive(merged, members("a", "I", status="error"))
    assert [file.name for file in find_logs(tmp_path)] == [LATE]


def test_the_last_attempt_of_a_shard_counts(tmp_path: Path) -> None:
    shard = tmp_path / f"{RUN}.shards/0"
    zstd_archive(shard / LATE, members("a", "C"))
    zstd_archive(shard / EARLY, members("a", "I"))
    zstd_archive(shard / "undated.eval", members("a", "I"))
    (shard / "notes.eval.txt").write_text("no log")
    (shard.parent / ".hidden").mkdir()
    (shard.parent / "stray.eval").write_text("no log of a worker")
    assert rewards_of(read_run(tmp_path)) == rewards_of(read_run(shard)) == {"a": (1.0,)}
    zstd_archive(shard / LATE.replace(".eval", "-recovered.eval"), members("a", "P"))
    assert rewards_of(read_run(shard.parent)) == {"a": (0.5,)}


def test_attempts_without_a_time_go_by_when_they_were_written(tmp_path: Path) -> None:
    shard = tmp_path / "run.shards/0"
    for at, name in enumerate(("b", "a")):
        os.utime(zstd_archive(shard / f"{name}.eval", members("a", at)), (at, at))
    assert rewards_of(read_run(tmp_path)) == {"a": (1.0,)}


def test_runs_stay_apart_and_a_sample_in_two_shards_is_settled(tmp_path: Path) -> None:
    zstd_archive(tmp_path / "one.shards/0/x.eval", members("a", 1))
    zstd_archive(tmp_path / "one.shards/1/x.eval", members("a", 0))
    zstd_archive(tmp_path / "one.shards/2/x.eval", members("a", 1, epoch=2))
    (tmp_path / "one.shards/3").mkdir()
    (tmp_path / "one.shards/3/x.eval").write_bytes(b"cut off")
    zstd_archive(tmp_path / "two.eval", members("a", 1))
    run = read_run(tmp_path)
    assert rewards_of(run) == {"two/a": (1.0,), "one/a": (None, 1.0)}
    assert set_aside(run) == {
        "the row contradicts an earlier one of the same sample, so that neither counts": 2,
        "the file is no zip archive": 1,
    }
