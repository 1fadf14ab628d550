import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradscope.errors import InputError
from gradscope.rollouts.groups import reward_table
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.trainers.trl_files import TrlState, read_state
from tests.rollouts.readers.lines import refusal
from tests.rollouts.test_event_file import history, record, scalar, wandb_file
from tests.rollouts.trl_folder import entry, rows, write_file, write_state

AABB = ["a", "a", "b", "b"]


def test_files_of_steps_with_an_evaluation_are_left_out(tmp_path: Path) -> None:
    write_file(tmp_path, 1, rows(AABB, [1, 0, 0, 0]))
    write_file(tmp_path, 2, rows(["x", "x", "y", "y"], [1, 1, 1, 1]))
    write_state(tmp_path, entry(1), entry(2), {"step": 2, "eval_reward": 1.0})
    run = read_run(tmp_path)
    assert run.steps == (1,)
    assert any(sentence.endswith("are left out: 2.") for sentence in run.source.inferred)
    assert run.notes[2].cause == "rollouts_missing"


@pytest.mark.parametrize(("iterations", "steps"), [(1, (2, 4)), (2, (2,))])
def test_a_batch_that_may_be_older_than_an_evaluation_was_overwritten(
    tmp_path: Path, iterations: int, steps: tuple[int, ...]
) -> None:
    """Of the batches of steps 3 and 4 one reward was logged."""
    for step in (2, 4):
        write_file(tmp_path / "run", step, rows(AABB, [step % 4, 0, 0, 0]))
    write_state(tmp_path / "run", entry(2), {"step": 3, "eval_reward": 1.0}, entry(4))
    batches = {"steps_per_generation": 2, "gradient_accumulation_steps": 2}
    run = read_run(tmp_path / "run", config(tmp_path, **batches, num_iterations=iterations))
    assert (run.steps, tuple(run.notes)) == (steps, (4,) if iterations == 2 else ())


def test_an_evaluation_does_not_hide_that_a_batch_was_used_again(tmp_path: Path) -> None:
    """At step 2 the trainer logged no reward of training: its batch is that of step 1, whatever its file holds."""
    for step in (1, 2, 3):
        write_file(tmp_path, step, rows(AABB, [step % 2, 0, 0, 0]))
    write_state(tmp_path, entry(1), {"step": 2, "grad_norm": 0.1}, {"step": 2, "eval_reward": 1.0}, entry(3))
    run = read_run(tmp_path)
    assert run.steps == (1, 3)
    assert any("step 2 repeats 1" in sentence for sentence in run.source.inferred)


def test_the_rows_of_an_evaluation_stay_until_the_next_batch_is_sampled(tmp_path: Path) -> None:
    """An evaluation overwrites the trainer's buffer, which it writes again at the next update of the same batch."""
    evaluated = rows(["x", "x", "y", "y"], [1, 1, 1, 1])
    for step, values in enumerate([rows(AABB, [1, 0, 0, 0]), evaluated, evaluated, rows(AABB, [0, 1, 0, 0])], start=1):
        write_file(tmp_path, step, values)
    logged = [entry(1), entry(2), {"step": 2, "eval_reward": 1.0}, {"step": 3, "grad_norm": 0.1}, entry(4)]
    write_state(tmp_path, *logged)
    assert read_run(tmp_path).steps == (1, 4)
    del logged[1]["reward"]  # as where the batch of step 1 served all three
    write_state(tmp_path, *logged)
    run = read_run(tmp_path)
    assert run.steps == (1, 4)
    assert any("step 2 repeats 1, 3 repeats 1" in sentence for sentence in run.source.inferred)
    write_file(tmp_path, 5, rows(AABB, [0, 0, 1, 0]))
    write_state(tmp_path, *logged, {"step": 4, "eval_reward": 1.0})
    assert read_run(tmp_path).steps == (1, 5)  # what was logged at step 5 is not known, as where a run was killed


def test_a_log_on_tensorboard_alone_is_the_trainers_log(tmp_path: Path) -> None:
    for step in (1, 2):
        write_file(tmp_path, step, rows(AABB, [1, 0, 0, 0]))
    tags = (
        (1, b"train/reward", 0.25),
        (1, b"train/grad_norm", 1.5),
        (2, b"train/reward", 0.5),
        (2, b"eval/reward", 0.75),
    )
    (tmp_path / "runs" / "now").mkdir(parents=True)
    file = tmp_path / "runs" / "now" / "events.out.tfevents.1.host"
    file.write_bytes(b"".join(record(scalar(*values)) for values in tags))
    run = read_run(tmp_path)
    assert run.steps == (1,)  # the table of step 2 is of the evaluation
    assert run.metrics == {1: {"reward": 0.25, "grad_norm": 1.5}, 2: {"reward": 0.5}}
    assert str(file) in run.source.files
    assert not any("trainer_state.json" in sentence for sentence in run.source.missing)
    file.unlink()
    with closing(sqlite3.connect(tmp_path / "project.db")) as database, database:
        database.execute("CREATE TABLE metrics (run_name TEXT, step INTEGER, metrics TEXT)")
        cells = [(step, json.dumps({"train/global_step": step, tag.decode(): value})) for step, tag, value in tags]
        database.executemany("INSERT INTO metrics VALUES ('a', ?, ?)", cells)
        database.commit()
        run = read_run(tmp_path)
        assert (run.steps, run.metrics[1]["grad_norm"], run.metrics[2]["reward"]) == ((1,), 1.5, 0.5)
        database.executemany("INSERT INTO metrics VALUES ('b', ?, ?)", cells)
    run = read_run(tmp_path)
    assert run.metrics == {}
    assert "holds 2 runs" in run.source.quarantined.lost[0]
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("step,loss\n1,0.5\n")
    tables = ", ".join(str(tmp_path / name) for name in ("a.csv", "b.csv", "project.db"))
    sentence = f"Metrics lie in 3 files ({tables}): which are of this run is not known, and none were read."
    assert sentence in read_run(tmp_path).source.missing


def test_a_log_of_nothing_but_evaluation_is_refused(tmp_path: Path) -> None:
    write_file(tmp_path, 2, rows(AABB, [1, 1, 1, 1]))
    write_state(tmp_path, {"step": 2, "eval_reward": 1.0})
    refusal(tmp_path, r"Every file of completions in .* holds evaluation rows")


def test_a_repeated_batch_counts_once_and_one_that_came_out_equal_again_twice(tmp_path: Path) -> None:
    batch = rows(AABB, [1, 0, 0, 0])
    for step in (1, 2):
        write_file(tmp_path, step, batch)
    write_state(tmp_path, entry(1), {"step": 2, "loss": 0.1})
    run = read_run(tmp_path)
    assert run.steps == (1,)
    assert "also served step 2" in str(run.notes[1])
    assert any("step 2 repeats 1" in sentence for sentence in run.source.inferred)
    write_state(tmp_path, entry(1), entry(2))
    assert read_run(tmp_path).steps == (1, 2)


def test_a_part_of_a_run_leads_to_the_run(tmp_path: Path) -> None:
    file = write_file(tmp_path, 1, rows(AABB, [1, 0, 0, 0]))
    write_file(tmp_path, 2, rows(AABB, [1, 0, 0, 1]))
    write_state(tmp_path / "checkpoint-2", entry(1, grad_norm=2.0), entry(2))
    for path, steps in ((tmp_path, (1, 2)), (file.parent, (1, 2)), (file, (1,))):
        run = read_run(path)
        assert run.steps == steps
        assert run.metrics[1]["grad_norm"] == 2.0


def test_tables_on_wandb_are_read_as_the_files_beside_the_run(tmp_path: Path) -> None:
    extra = {"style": [0.5, 0.5, 1.0, 0.5]}
    tables = tmp_path / "wandb" / "run-1" / "files" / "media" / "table"
    tables.mkdir(parents=True)
    for step in (1, 2):
        content = rows(AABB, [1, 0, 0, step - 1], **extra)
        write_file(tmp_path / "run", step, content)
        cells = [[str(step), *row.values()] for row in content]  # the rewards that are whole are numbers without a dot
        table = {"columns": ["step", *content[0]], "data": cells, "ncols": 6, "nrows": 4}
        (tables / f"completions_{step}_0ab.table.json").write_text(json.dumps(table))
    logged = [history(_step=9 * step, **{"train/global_step": step, "train/grad_norm": step / 2}) for step in (1, 2)]
    wandb_file(tmp_path / "wandb" / "run-1" / "run-1.wandb", *logged)
    simple = read_run(tmp_path / "run")
    for path in (tables.parent.parent.parent, tables):
        saved = read_run(path)
        assert saved.metrics == {1: {"grad_norm": 0.5}, 2: {"grad_norm": 1.0}}
        assert [group.rollouts for group in saved.groups] == [group.rollouts for group in simple.groups]
        assert saved.steps == (1, 2)
    assert read_run(tables / "completions_2_0ab.table.json").steps == (2,)
    assert read_run(tables, ReadOptions(reader="generic", columns=ColumnNames(reward="right"))).steps == (1, 2)


@pytest.mark.parametrize("content", ["{", '{"columns": [], "data": [1]}', '{"columns": ["a"], "data": [1]}', "[]"])
def test_what_is_no_table_of_completions_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "completions_1_0ab.table.json").write_text(content)
    refusal(tmp_path, "is no table of completions, as TRL logs it to W&B")


def test_odd_cells_of_a_table_on_wandb_cost_their_rows(tmp_path: Path) -> None:
    cells = [["1", "a", "c", right, right - 0.5] for right in (1.0, 0.0)] + [
        ["1", "b", "c", 1, 0.5],
        [None, "b", 3, "x", "NaN"],
    ]
    cells = [[*row, "half a surrogate pair"] for row in cells]
    table = {"columns": ["step", "prompt", "completion", "right", "advantage", "\ud800"], "data": cells}
    (tmp_path / "completions_1_0ab.table.json").write_text(json.dumps(table))
    run = read_run(tmp_path)
    assert [group.rewards for group in run.groups] == [(1.0, 0.0), (1.0, None)]
    assert run.source.quarantined.num_rows == 1


def test_prompts_are_those_of_rows_whatever_the_dictionary_of_the_file_has(tmp_path: Path) -> None:
    file = write_file(tmp_path, 1, rows(["a", "a", "", ""], [1, 0, 0, 0]))
    table = pq.read_table(file)
    prompts = pa.DictionaryArray.from_arrays(pa.array([1, 1, None, None], pa.int32()), ["of no row", "a"])
    pq.write_table(table.set_column(table.schema.get_field_index("prompt"), "prompt", prompts), file)
    read = reward_table(read_run(tmp_path, rewards_only=True).groups)
    assert (read.prompt_texts, read.size.tolist()) == (("a", ""), [2, 2])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda table: table.drop_columns(["advantage"]), "lacks the column advantage that TRL writes"),
        (
            lambda table: table.select(["step", "prompt", "completion"]),
            "lacks the column advantage .* DistillationTrainer",
        ),
        (lambda table: table.set_column(0, "step", [[1, 1, 2, 2]]), "does not hold one step, as TRL writes it"),
        # what TRL writes of a training that ended so
        (lambda table: table.slice(0, 0), "holds no rollouts: the training ended before its first step"),
        (lambda _: None, "is not a readable Parquet file"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, changed: Callable[[pa.Table], Any], message: str) -> None:
    file = write_file(tmp_path, 1, rows(AABB, [1, 0, 0, 0]))
    table = changed(pq.read_table(file))
    pq.write_table(table, file) if table is not None else file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(InputError) as caught:
        read_run(tmp_path)
    assert re.search(rf"completions_00001\.parquet {message}", f"{caught.value.message} {caught.value.hint}")


def test_a_folder_without_completions_says_how_to_log_them(tmp_path: Path) -> None:
    write_state(tmp_path, entry(1))
    assert "log_completions=True" in refusal(tmp_path, r"holds no completions/completions_", ReadOptions(reader="trl"))


def config(folder: Path, **values: int) -> ReadOptions:
    (folder / "RUN.json").write_text(json.dumps(values))
    return ReadOptions(trainer_args=folder / "RUN.json")


def used_twice(folder: Path) -> Path:
    for step in (1, 2):
        write_file(folder / "run", step, rows(AABB, [1, 0, 0, 0]))
    write_state(folder / "run", entry(1), {"step": 2, "loss": 0.1})
    return folder / "run"


@pytest.mark.parametrize(
    ("per_generation", "cause", "text"),
    [
        (8, "batch_split", "serves 8 micro-batches and an update takes 4"),
        (2, "rollouts_missing", "An update takes 4 micro-batches and one generation serves 2"),
    ],
)
def test_the_arguments_say_why_a_file_differs(tmp_path: Path, per_generation: int, cause: str, text: str) -> None:
    run = used_twice(tmp_path)
    options = config(tmp_path, steps_per_generation=per_generation, gradient_accumulation_steps=4)
    loaded = read_run(run, options)
    assert loaded.notes[1].cause == cause
    assert text in str(loaded.notes[1])
    assert loaded.repeats == {}
    assert loaded.updates == (1,)


def test_a_batch_that_is_used_again_whole_serves_each_of_its_updates(tmp_path: Path) -> None:
    options = config(tmp_path, steps_per_generation=4, gradient_accumulation_steps=4, num_iterations=2)
    run = read_run(used_twice(tmp_path), options)
    assert (run.notes, run.repeats) == ({}, {2: 1})
    assert (run.steps, run.updates) == ((1,), (1, 2))
    assert {group.step for group in run.groups_at(2)} == {2}
    assert [group.rollouts for group in run.groups_at(2)] == [group.rollouts for group in run.groups_at(1)]


def test_without_arguments_a_batch_that_serves_several_updates_may_be_split(tmp_path: Path) -> None:
    run = read_run(used_twice(tmp_path))
    assert run.notes[1].cause == "settings_unknown"
    assert "also served step 2" in str(run.notes[1])
    write_file(tmp_path / "late", 2, rows(AABB, [1, 0, 0, 0]))
    write_state(tmp_path / "late", {"step": 1, "reward": 0.5}, {"step": 2, "loss": 0.1})
    assert "logged no reward at this step" in str(read_run(tmp_path / "late").notes[2])


def test_a_logging_window_is_no_reservation_against_the_rollouts(tmp_path: Path) -> None:
    for step in (3, 6, 7):
        write_file(tmp_path, step, rows(AABB, [1, 0, 0, step % 2]))
    write_state(tmp_path, entry(3), entry(6), entry(7))
    run = read_run(tmp_path)
    assert (run.notes, run.windows) == ({}, {3: 3, 6: 3})
    assert [step in run.notes or step in run.windows for step in (3, 6, 7)] == [True, True, False]


def test_the_state_that_reaches_furthest_counts(tmp_path: Path) -> None:
    write_state(tmp_path / "checkpoint-10", entry(5), entry(10))
    newest = write_state(tmp_path / "checkpoint-20", entry(5), entry(10), entry(20))
    write_state(tmp_path, entry(5))
    read = read_state(tmp_path)
    assert (read.path, read.last_step, sorted(read.metrics)) == (newest, 20, [5, 10, 20])
    assert read.reward_names == ("right",)


def test_evaluation_and_summary_do_not_replace_what_training_logged(tmp_path: Path) -> None:
    write_state(
        tmp_path, entry(2, loss=0.1), {"step": 2, "eval_loss": 9.0}, {"step": 2, "loss": 7.0, "train_runtime": 1.0},
        {"step": 3, "eval_reward": 0.5},
    )  # fmt: skip
    read = read_state(tmp_path)
    assert (read.metrics[2]["loss"], read.metrics[2]["eval_loss"], list(read.metrics)) == (0.1, 9.0, [2])
    assert read.metrics[2]["train_runtime"] == 1.0
    assert read.eval_steps == {2, 3}


def test_windows_run_from_entry_to_entry(tmp_path: Path) -> None:
    write_state(tmp_path, entry(3), entry(6), entry(7))
    read = read_state(tmp_path)
    assert [read.window(step) for step in (3, 5, 6, 7)] == [3, 0, 3, 1]


@pytest.mark.parametrize("content", ["{", "[]", '{"global_step": 1}', '{"global_step": 1, "log_history": [1]}'])
def test_a_damaged_state_is_named_and_the_next_one_read(tmp_path: Path, content: str) -> None:
    (tmp_path / "trainer_state.json").write_text(content)
    assert read_state(tmp_path) == TrlState(damaged=(tmp_path / "trainer_state.json",))
    write_state(tmp_path / "checkpoint-1", entry(1))
    read = read_state(tmp_path)
    assert read.last_step == 1
    assert read.damaged == (tmp_path / "trainer_state.json",)


def test_a_damaged_state_that_a_sound_one_reaches_beyond_costs_nothing(tmp_path: Path) -> None:
    for name in ("checkpoint-1", "checkpoint-3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer_state.json").write_text("{")
    write_state(tmp_path, entry(1), entry(2))
    assert read_state(tmp_path).damaged == (tmp_path / "checkpoint-3" / "trainer_state.json",)
    write_state(tmp_path, entry(1), entry(3))
    assert read_state(tmp_path).damaged == ()


def test_a_number_that_is_not_finite_is_a_metric_and_text_is_none(tmp_path: Path) -> None:
    write_state(tmp_path, {"step": 1, "kl": float("inf"), "grad_norm": float("nan"), "note": "x", "loss": 10**400})
    (values,) = read_state(tmp_path).metrics.values()
    assert {name: str(value) for name, value in values.items()} == {"kl": "inf", "grad_norm": "nan", "loss": "inf"}
