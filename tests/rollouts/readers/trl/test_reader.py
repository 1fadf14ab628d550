from __future__ import annotations

import math
from pathlib import Path

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from tests.rollouts.build import adapter_folder, model_folder
from tests.rollouts.trl_folder import entry, rows, write_file, write_state

AABB = ["a", "a", "b", "b"]


def shape(run: Run) -> list[tuple[str, str, int]]:
    return [(group.group_id, group.rollouts[0].prompt, group.size) for group in run.groups]


def test_rows_become_blocks_even_where_a_prompt_comes_twice(tmp_path: Path) -> None:
    write_file(tmp_path, 1, rows(["a", "a", "b", "b", "c", "c", "b", "b"], [1, 0, 0, 0, 1, 1, 1, 0]))
    write_state(tmp_path, entry(1))
    run = read_run(tmp_path)
    assert shape(run) == [("1:0", "a", 2), ("1:1", "b", 2), ("1:2", "c", 2), ("1:3", "b", 2)]
    assert run.groups[1].prompt_id == run.groups[3].prompt_id != run.groups[0].prompt_id
    assert [rollout.row for rollout in run.groups[3].rollouts] == [6, 7]
    assert run.groups[0].rollouts[1].advantage == pytest.approx(-0.70700679, abs=1e-7)
    assert run.source.format == "trl"
    assert run.source.num_rows == 8


def test_conversations_keep_their_messages_without_null_keys(tmp_path: Path) -> None:
    prompts = [
        [{"role": "system", "content": "s", "name": None}, {"role": "user", "content": p, "name": "n"}] for p in AABB
    ]
    content = rows(prompts, [1, 0, 0, 0])
    for row in content:
        row["completion"] = [{"role": "assistant", "content": "x"}, {"role": "tool", "content": "y"}]
    write_file(tmp_path, 1, content)
    first = read_run(tmp_path).groups[0].rollouts[0]
    assert first.messages == ({"role": "system", "content": "s"}, {"role": "user", "content": "a", "name": "n"})
    assert (first.prompt, first.completion) == ("s\na", "x\ny")


def test_ids_come_from_their_column_or_from_a_side_file(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_file(run, 1, rows(AABB, [1, 0, 0, 0], completion_ids=[[1], [2], [3], [4]]))
    assert [r.completion_ids for g in read_run(run).groups for r in g.rollouts] == [(1,), (2,), (3,), (4,)]
    side = tmp_path / "ids.jsonl"
    side.write_text('{"step": 1, "row": 2, "completion_ids": [7, 8]}\n')
    assert read_run(run, ReadOptions(completion_ids=side)).groups[1].rollouts[0].completion_ids == (7, 8)


def test_a_side_file_of_another_run_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_file(run, 1, rows(AABB, [1, 0, 0, 0]))
    side = tmp_path / "ids.jsonl"
    side.write_text('{"step": 9, "row": 0, "completion_ids": [7]}\n')
    with pytest.raises(InputError, match=r"No row of .*ids\.jsonl belongs to"):
        read_run(run, ReadOptions(completion_ids=side))


def test_a_row_without_reward_stays_in_its_group_and_is_counted(tmp_path: Path) -> None:
    path = write_file(tmp_path, 1, rows(AABB, [1, None, float("nan"), 0]))
    run = read_run(tmp_path)
    assert [group.rewards for group in run.groups] == [(1.0, None), (None, 0.0)]
    assert run.source.num_rows == 2
    reason = run.source.quarantined.reasons[0]
    assert (reason.num_rows, reason.first) == (2, f"{path}:2")
    assert run.source.quarantined.reasons[1].reason == "the advantage is not finite"
    with pytest.raises(InputError, match="Rows that cannot be used: 3; first"):
        read_run(tmp_path, ReadOptions(strict=True))


def test_weights_are_found_by_updates_and_the_base_although_the_run_moved(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_file(run, 1, rows(AABB, [1, 0, 0, 0]))
    base = model_folder(tmp_path / "base")
    initial = adapter_folder(tmp_path / "init", base="../base")
    (base / "tokenizer.json").touch()
    adapter_folder(run / "checkpoint-10", base="/gone/base")
    adapter_folder(run / "checkpoint-5", base="../base")
    found = read_run(run, ReadOptions(initial_weights=initial))
    assert [(ref.num_updates, ref.base) for ref in found.weights] == [
        (0, str(base)),
        (5, str(base)),
        (10, "/gone/base"),
    ]
    assert found.tokenizer == base
    assert found.weights_before(1) == found.weights[0]
    assert found.weights_before(2) is None
    assert {ref.base for ref in read_run(run, ReadOptions(model=base)).weights} == {str(base)}


def test_what_the_folder_does_not_tell_is_said(tmp_path: Path) -> None:
    write_file(tmp_path, 1, rows(AABB, [1, 0, 0, 0]))
    said = " ".join(read_run(tmp_path).source.missing)
    for words in ("no trainer_state.json", "never opened", "re-tokenized", "weights before the first update"):
        assert words in said


def test_a_run_under_unsloth_is_trls(tmp_path: Path) -> None:
    """Its patched trainer writes TRL's files; it logs a length and a KL of its own beside TRL's metrics."""
    write_file(tmp_path, 1, rows(AABB, [1, 0, 0, 0]))
    write_state(tmp_path, {**entry(1), "completion_length": 3.0, "kl": 0.01, "reward_std": 0.35})
    (tmp_path / "unsloth_compiled_cache").mkdir()
    run = read_run(tmp_path)
    assert run.source.format == "trl"
    assert shape(run) == [("1:0", "a", 2), ("1:1", "b", 2)]
    assert run.metrics[1]["completion_length"] == 3.0


def test_log_probabilities_of_both_sides_come_from_their_columns(tmp_path: Path) -> None:
    columns = {"sampling_logprobs": [[-0.5, None], [-1.0]], "old_per_token_logps": [[-0.6, -0.1], [-1.0]]}
    write_file(tmp_path, 1, rows(["a", "a"], [1.0, 0.0], **columns))
    first, second = read_run(tmp_path).groups[0].rollouts
    assert first.logprobs == pytest.approx((-0.5, math.nan), nan_ok=True)
    assert (first.trainer_logprobs, second.trainer_logprobs) == ((-0.6, -0.1), (-1.0,))


def test_log_probabilities_that_are_text_are_not_known(tmp_path: Path) -> None:
    write_file(tmp_path, 1, rows(["a", "a"], [1.0, 0.0], sampling_logprobs=[["x"], ["y"]], old_per_token_logps=[1, 2]))
    first, _ = read_run(tmp_path).groups[0].rollouts
    assert (first.logprobs, first.trainer_logprobs) == (None, None)
