from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY

LOGS = REPOSITORY / "fixtures" / "logs"


def row(**cells: Any) -> dict[str, Any]:
    return {"input": "q", "output": "o", "gts": "g", "score": 1.0, "step": 1, **cells}


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "1.jsonl").write_text("".join(json.dumps(cells) + "\n" for cells in rows))
    return folder


def test_the_uid_names_the_group_even_where_prompts_are_equal(tmp_path: Path) -> None:
    run = read_run(write(tmp_path / "v1", *(row(uid=f"{group}_{k}_0", score=k) for group in "ab" for k in (0, 1))))
    assert [group.group_id for group in run.groups] == ["1:a", "1:b"]
    assert len({group.prompt_id for group in run.groups}) == 1
    assert run.source.inferred == ()


def test_several_outputs_of_a_session_are_one_rollout(tmp_path: Path) -> None:
    run = read_run(
        write(tmp_path / "v1", row(uid="a_0_0", output="first"), row(uid="a_0_1", output="last"), row(uid="a_1_0"))
    )
    assert [rollout.completion for rollout in run.groups[0].rollouts] == ["last", "o"]


def test_the_tokens_of_all_outputs_of_a_session_count() -> None:
    run = read_run(LOGS / "verl_v1_tokens")
    assert [group.rewards for group in run.groups] == [(1.0, 0.0), (0.0, 0.0)]
    several, single = run.groups[0].rollouts
    (first,) = several.earlier
    assert (first.prompt_ids, first.completion_ids, first.mask) == ((5, 9), (11, 12, 13), (True, False, True))
    assert (first.logprobs, first.trainer_logprobs) == ((-0.5, 0.0, -0.25), (-0.5, 0.0, -0.5))
    assert (several.prompt_ids, several.completion_ids, several.completion) == ((5, 9, 14), (2,), "4")
    assert (several.advantage, several.num_tokens, single.num_tokens) == (0.7, 4, 2)
    assert {step: reason.cause for step, reason in run.notes.items()} == {1: "several_sequences"}
    assert "several sequences" in run.source.inferred[0]


@pytest.mark.parametrize(("cells", "aside"), [({}, 0), ({"prompts": [5], "responses": "x"}, 1)], ids=["text", "odd"])
def test_a_part_of_the_outputs_never_passes_for_all(tmp_path: Path, cells: dict[str, Any], aside: int) -> None:
    whole = row(uid="a_0_1", prompts=[5], responses=[7])
    run = read_run(write(tmp_path / "v1", row(uid="a_0_0", **cells), whole))
    (rollout,) = run.groups[0].rollouts
    assert (rollout.reward, rollout.completion_ids, rollout.earlier) == (1.0, None, ())
    assert run.source.quarantined.num_rows == aside


def test_legacy_rows_are_grouped_by_input_and_truth_and_it_is_said() -> None:
    run = read_run(LOGS / "verl_legacy")
    assert [group.rewards for group in run.groups] == [(1.0, 0.0), (0.0, 0.0)]
    assert run.groups[0].rollouts[0].rewards == {"score": 1.0, "acc": 1.0}
    assert "grouped by input and ground truth within the step" in run.source.inferred[0]
    assert "Rollouts were read from rollout/" in run.source.inferred[1]
    assert run.steps == (1,)


def test_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    rows = [row(uid="a_0_0"), row(uid="a_1_0", score=None), row(uid="a"), row(uid="a_2_0", step={}), row()]
    rows.append(row(uid="a_3_0", step=10**400))
    run = read_run(write(tmp_path / "v1", *rows))
    assert [group.rewards for group in run.groups] == [(1.0, None)]
    assert {reason.reason: reason.num_rows for reason in run.source.quarantined.reasons} == {
        "the reward is null": 1,
        "the uid is not <group>_<session>_<index>": 2,
        "the step is not a whole number": 2,
    }


def test_a_folder_without_dumps_says_how_to_get_them(tmp_path: Path) -> None:
    (tmp_path / "other.txt").touch()
    with pytest.raises(InputError, match="holds no rollouts") as caught:
        read_run(tmp_path, ReadOptions(reader="verl"))
    assert "trainer.rollout_data_dir" in (caught.value.hint or "")
