from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import set_aside, write_lines

DUMP = REPOSITORY / "fixtures/logs/skyrl_eval"


def row(**cells: Any) -> dict[str, Any]:
    return {"input_prompt": "2+2?", "output_response": "4", "score": 1.0, "data_source": "s", **cells}


def read(tmp_path: Path, *rows: Any) -> Run:
    return read_run(write_lines(tmp_path / "s.jsonl", *rows))


@pytest.mark.parametrize("below", ["", "dumped_evals", "dumped_evals/global_step_10_evals"])
def test_scores_of_tokens_are_summed(below: str) -> None:
    run = read_run(DUMP / below)
    assert (run.source.format, run.steps) == ("skyrl-eval", (10,))
    assert [group.rewards for group in run.groups] == [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)]
    assert "count as their sum" in run.source.inferred[1]
    assert run.source.quarantined.num_rows == 0


def test_skyrls_steps_may_stand_in_names_of_files(tmp_path: Path) -> None:
    row = {"input_prompt": "p", "output_response": "r", "score": 1.0, "data_source": "d"}
    for step in (1, 2):
        write_lines(tmp_path / f"global_step_{step}.jsonl", row, row)
    assert [(group.step, group.size) for group in read_run(tmp_path).groups] == [(1, 2), (2, 2)]


def test_one_file_is_read_alone_and_without_a_step_it_is_at_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(DUMP / "dumped_evals/global_step_10_evals")
    run = read_run("aime.jsonl")
    assert run.steps == (10,)
    assert [group.rewards for group in run.groups] == [(0.0, 0.0)]
    assert len(run.source.inferred) == 1
    assert read(tmp_path, row(stop_reason="length")).groups[0].rollouts[0].status == "truncated"
    finished = read(tmp_path, row(stop_reason="stop"))
    assert (finished.steps, finished.groups[0].rollouts[0].status) == ((0,), "completed")


def test_a_file_that_cannot_be_read_is_lost_alone(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", row())
    (tmp_path / "b.jsonl").symlink_to("/proc/self/mem")
    source = read_run(tmp_path, rewards_only=True).source
    assert (source.num_rows, len(source.quarantined.lost)) == (1, 1)


@pytest.mark.parametrize(
    ("score", "reward", "reason"),
    [
        ([0.1, 0.2, 0.3, -0.6], 0.0, None),
        ([True, 1], 2.0, None),
        ([0.0, None], None, "the reward is null"),
        ([0.0, "1"], None, "the reward is text"),
        ([0.0, float("nan")], None, "the reward is not finite"),
        ([float("inf"), -float("inf")], None, "the reward is not finite"),
        ([1e308, 1e308], None, "the reward is not finite"),
        ([[1.0]], None, "the reward is a list, not a number"),
        ([], None, "the reward is a list, not a number"),
        ({"a": 1}, None, "the reward is a dict, not a number"),
        (None, None, "the reward is null"),
    ],
)
def test_a_missing_score_is_incomplete(tmp_path: Path, score: Any, reward: float | None, reason: str | None) -> None:
    run = read(tmp_path, row(score=[1.0]), row(score=score))
    assert run.groups[0].rewards[1] == (pytest.approx(reward, abs=1e-15) if reward is not None else None)
    assert set_aside(run) == ({} if reason is None else {reason: 1})


def test_rows_without_a_prompt_are_set_aside(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "s.jsonl", row(), row(input_prompt=None), row(input_prompt=""))
    path.write_text(path.read_text() + '{"input_prompt": "2')
    assert set_aside(read_run(path)) == {"input_prompt is missing": 2, "the last line is cut off": 1}


def test_turns_of_trajectories_are_refused(tmp_path: Path) -> None:
    later = row(input_prompt="2+2?4 Sure?", output_response="5")
    with pytest.raises(InputError, match=r"s\.jsonl:2 is a turn of a trajectory that another row continues"):
        read(tmp_path, later, row(score=[0.0]))
    assert len(read(tmp_path, row(output_response=""), row(input_prompt="2+2? Sure?")).groups) == 2
