"""Bad rows: each is used or set aside with its place, and no group changes its verdict unseen."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.readers.detect import read_run
from tests.rollouts.readers.lines import rewards_of, set_aside, write_lines
from tests.rollouts.readers.parsing.test_records import CONTRADICTS, REPEATS, read, row


@pytest.mark.slow
def test_verl_rows_with_one_uid_twice_are_settled(tmp_path: Path) -> None:
    base = {"input": "q", "output": "o", "gts": "g", "score": 1.0, "step": 1}
    rows = [{**base, "uid": f"a_{session}_0"} for session in (0, 1, 0, 1)]
    run = read_run(write_lines(tmp_path / "1.jsonl", *rows[:3], {**rows[3], "score": 0.0}))
    assert rewards_of(run) == {"1:a": (1.0, None)}
    assert set_aside(run) == {REPEATS: 1, CONTRADICTS: 2}


def test_columns_of_mixed_types_and_unknown_keys(tmp_path: Path) -> None:
    rows = [row(reward=1), row(reward=True), row(reward=0.5), row(group_id=7), row(group_id="7"), row(new={"a": [1]})]
    assert rewards_of(read(tmp_path, *rows)) == {"1:a": (1.0, 1.0, 0.5, 1.0), "1:7": (1.0, 1.0)}


def test_text_never_groups_rows_where_an_id_exists(tmp_path: Path) -> None:
    run = read(tmp_path, *(row(group_id=name, prompt="2+2?") for name in ("a", "a", "b", "b")))
    assert [group.size for group in run.groups] == [2, 2]
    assert len({group.prompt_id for group in run.groups}) == 1


@pytest.mark.parametrize("step", [1e300, -(10**30), "1e400", True, [1], {}, "one", None, 1.5])
def test_a_step_that_is_no_number_of_a_step_is_set_aside(tmp_path: Path, step: Any) -> None:
    run = read(tmp_path, row(), row(step=step))
    assert rewards_of(run) == {"1:a": (1.0,)}
    assert set_aside(run) == {"the step is not a whole number": 1}


def test_zstd_is_read_and_broken_zstd_named(tmp_path: Path) -> None:
    import pyarrow as pa

    data = pa.compress((json.dumps(row()) + "\n").encode() * 100, codec="zstd", asbytes=True)
    path = tmp_path / "log.jsonl.zst"
    path.write_bytes(data)
    assert read_run(path).source.num_rows == 100
    path.write_bytes(b"not zstd")
    with pytest.raises(InputError, match=r"log\.jsonl\.zst cannot be read"):
        read_run(path)


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "[red]x[/red]", "\x1b[31mx", "\u202ex"])
def test_hostile_text_stays_raw_in_the_run_for_output_to_escape(tmp_path: Path, text: str) -> None:
    run = read(tmp_path, row(group_id=text, prompt=text, completion=text))
    rollout = run.groups[0].rollouts[0]
    assert (rollout.group_id, rollout.prompt, rollout.completion) == (f"1:{text}", text, text)
