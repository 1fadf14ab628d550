"""Bad rows: each is used or set aside with its place, and no group changes its verdict unseen."""

from pathlib import Path

import pytest

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


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "[red]x[/red]", "\x1b[31mx", "\u202ex"])
def test_hostile_text_stays_raw_in_the_run_for_output_to_escape(tmp_path: Path, text: str) -> None:
    rollout = read(tmp_path, row(group_id=text, prompt=text, completion=text)).groups[0].rollouts[0]
    assert (rollout.group_id, rollout.prompt, rollout.completion) == (f"1:{text}", text, text)
