from __future__ import annotations

import json
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


def test_neighboring_groups_of_one_prompt_are_cut_where_advantages_center(tmp_path: Path) -> None:
    write_file(tmp_path, 1, rows(["a"] * 4, [1, 0, 1, 1]))
    run = read_run(tmp_path)
    assert [group.size for group in run.groups] == [2, 2]
    assert "runs of 4 equal prompts, cut by the logged advantages" in run.source.inferred[-1]


def test_two_dead_groups_of_one_prompt_are_not_one_live_group(tmp_path: Path) -> None:
    write_file(tmp_path, 1, rows(["a"] * 4, [1, 1, 0, 0]))
    assert [group.rewards for group in read_run(tmp_path).groups] == [(1.0, 1.0), (0.0, 0.0)]


def test_the_logged_share_of_dead_groups_decides_where_advantages_are_of_another_kind(tmp_path: Path) -> None:
    content = [
        row | {"advantage": 2 * row["right"] - 1.0} for row in rows(["a"] * 4 + ["b"] * 4, [1, 1, 0, 1, 0, 0, 1, 0])
    ]
    write_file(tmp_path, 1, content)
    write_state(tmp_path, entry(1, frac_reward_zero_std=0.5))
    run = read_run(tmp_path)
    assert [group.size for group in run.groups] == [2, 2, 2, 2]
    assert "cut by the logged frac_reward_zero_std" in run.source.inferred[-1]


def test_advantages_that_are_not_centered_confirm_no_size(tmp_path: Path) -> None:
    content = [row | {"advantage": 1.0} for row in rows(AABB, [1, 0, 1, 0])]
    write_file(tmp_path, 1, content)
    run = read_run(tmp_path)
    assert [group.size for group in run.groups] == [2, 2]
    assert "nothing in the log confirms it" in run.source.inferred[-1]


def test_the_given_size_counts_and_must_fit(tmp_path: Path) -> None:
    write_file(tmp_path / "run", 1, rows(["a"] * 4, [0, 0, 0, 0]))
    config = tmp_path / "RUN.json"
    config.write_text(json.dumps({"args": {"num_generations": 2}}))
    run = read_run(tmp_path / "run", ReadOptions(trainer_args=config))
    assert [group.size for group in run.groups] == [2, 2]
    assert run.settings.origin == str(config)
    for wrong in (3, "2", 0):
        config.write_text(json.dumps({"num_generations": wrong}))
        with pytest.raises(InputError, match=r"gives num_generations .* are not blocks"):
            read_run(tmp_path / "run", ReadOptions(trainer_args=config))


def test_files_of_steps_with_an_evaluation_are_left_out(tmp_path: Path) -> None:
    write_file(tmp_path, 1, rows(AABB, [1, 0, 0, 0]))
    write_file(tmp_path, 2, rows(["x", "x", "y", "y"], [1, 1, 1, 1]))
    write_state(tmp_path, entry(1), entry(2), {"step": 2, "eval_reward": 1.0})
    run = read_run(tmp_path)
    assert run.steps == (1,)
    assert any(said.endswith("are left out: 2.") for said in run.source.inferred)


def test_a_log_of_nothing_but_evaluation_is_refused(tmp_path: Path) -> None:
    write_file(tmp_path, 2, rows(AABB, [1, 1, 1, 1]))
    write_state(tmp_path, {"step": 2, "eval_reward": 1.0})
    with pytest.raises(InputError, match=r"Every file of completions in .* holds evaluation rows"):
        read_run(tmp_path)


def test_a_repeated_batch_counts_once(tmp_path: Path) -> None:
    batch = rows(AABB, [1, 0, 0, 0])
    for step in (1, 2):
        write_file(tmp_path, step, batch)
    write_state(tmp_path, entry(1), {"step": 2, "loss": 0.1})
    run = read_run(tmp_path)
    assert run.steps == (1,)
    assert "also served step 2" in run.notes[1]
    assert any("step 2 repeats 1" in said for said in run.source.inferred)


def test_a_batch_that_came_out_equal_again_counts_again(tmp_path: Path) -> None:
    batch = rows(AABB, [1, 0, 0, 0])
    for step in (1, 2):
        write_file(tmp_path, step, batch)
    write_state(tmp_path, entry(1), entry(2))
    assert read_run(tmp_path).steps == (1, 2)


@pytest.mark.parametrize(("per_generation", "note"), [(4, None), (8, "serves 8 micro-batches and an update takes 4")])
def test_the_arguments_say_whether_an_update_saw_the_whole_batch(
    tmp_path: Path, per_generation: int, note: str | None
) -> None:
    batch = rows(AABB, [1, 0, 0, 0])
    for step in (1, 2):
        write_file(tmp_path / "run", step, batch)
    write_state(tmp_path / "run", entry(1), {"step": 2, "loss": 0.1})
    config = tmp_path / "RUN.json"
    config.write_text(json.dumps({"steps_per_generation": per_generation, "gradient_accumulation_steps": 4}))
    notes = read_run(tmp_path / "run", ReadOptions(trainer_args=config)).notes
    assert (1 in notes) == (note is not None)
    assert note is None or note in notes[1]


def test_a_batch_that_was_sampled_for_an_earlier_update_is_noted(tmp_path: Path) -> None:
    write_file(tmp_path / "run", 2, rows(AABB, [1, 0, 0, 0]))
    write_state(tmp_path / "run", {"step": 1, "reward": 0.5}, {"step": 2, "loss": 0.1})
    assert "logged no reward at this step" in read_run(tmp_path / "run").notes[2]
    config = tmp_path / "RUN.json"
    config.write_text(json.dumps({"steps_per_generation": 2, "gradient_accumulation_steps": 2, "num_iterations": 2}))
    assert (
        read_run(tmp_path / "run", ReadOptions(trainer_args=config)).notes[2]
        == "The batch was sampled for update 1 and served again."
    )


def test_a_logging_window_is_noted(tmp_path: Path) -> None:
    for step in (3, 6, 7):
        write_file(tmp_path, step, rows(AABB, [1, 0, 0, step % 2]))
    write_state(tmp_path, entry(3), entry(6), entry(7))
    run = read_run(tmp_path)
    assert sorted(run.notes) == [3, 6]
    assert run.notes[3] == "The trainer logged the mean of 3 steps; the file holds the rollouts of the last only."


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
    with pytest.raises(InputError, match="Rows that cannot be used: 2; first"):
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


def test_the_run_is_found_from_its_parts(tmp_path: Path) -> None:
    file = write_file(tmp_path, 1, rows(AABB, [1, 0, 0, 0]))
    write_file(tmp_path, 2, rows(AABB, [1, 0, 0, 1]))
    write_state(tmp_path / "checkpoint-2", entry(1, grad_norm=2.0), entry(2))
    for path, steps in ((tmp_path, (1, 2)), (file.parent, (1, 2)), (file, (1,))):
        run = read_run(path)
        assert run.steps == steps
        assert run.metrics[1]["grad_norm"] == 2.0


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = write_file(tmp_path, 1, rows(AABB, [1, 0, 0, 0]))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match=r"completions_00001\.parquet is not a readable Parquet file"):
        read_run(tmp_path)


def test_a_file_that_is_not_trls_says_so(tmp_path: Path) -> None:
    content = [{key: value for key, value in row.items() if key != "advantage"} for row in rows(AABB, [1, 0, 0, 0])]
    write_file(tmp_path, 1, content)
    with pytest.raises(InputError, match="lacks the column advantage that TRL writes"):
        read_run(tmp_path)
    write_file(tmp_path, 1, [row | {"step": at} for at, row in enumerate(rows(AABB, [1, 0, 0, 0]))])
    with pytest.raises(InputError, match="does not hold one step, as TRL writes it"):
        read_run(tmp_path)


def test_a_folder_without_completions_says_how_to_log_them(tmp_path: Path) -> None:
    write_state(tmp_path, entry(1))
    with pytest.raises(InputError, match=r"holds no completions/completions_") as caught:
        read_run(tmp_path, ReadOptions(reader="trl"))
    assert "log_completions=True" in (caught.value.hint or "")
