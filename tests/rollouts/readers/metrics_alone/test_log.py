import json
import math
import shlex
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gradscope.diagnostics.degeneracy.measure import measure_degeneracy
from gradscope.errors import InputError, UsageError
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.detect import read_run, runs_below
from gradscope.rollouts.readers.metrics_alone import log
from gradscope.rollouts.readers.metrics_alone.log import holds_metrics, read_metrics_log, switch_on
from gradscope.rollouts.readers.parsing.records import ReadRequest
from gradscope.rollouts.run import Run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import naming, refusal, refused, write_lines, write_rows
from tests.rollouts.test_event_file import record, scalar

LOGS = REPOSITORY / "fixtures/logs/metrics"
Metrics = Mapping[int, Mapping[str, float]]


def read(path: Path, **options: Any) -> Run:
    return read_run(path, ReadOptions(**options), metrics_alone=True)


LINES, JSON, TABLE, CONSOLE = "metrics in JSON lines", "metrics in JSON", "a table of metrics", "a trainer's console"
OPTIONS: dict[str, dict[str, Any]] = {
    "wandb_chart.csv": {"metric_run": "grpo-b"},
    "trackio.db": {"metric_run": "quiet-sea-2"},
    "own.csv": {
        "columns": ColumnNames(step="update"),
        "metric_columns": ["frac_reward_zero_std=groups/dead", "grad_norm=gnorm"],
    },
}
DEAD, CUT, LENGTH = "frac_reward_zero_std", "completions/clipped_ratio", "completions/mean_length"


@pytest.mark.parametrize(
    ("name", "kind", "steps", "step", "numbers"),
    [
        ("trainer_state.json", "trainer_state.json", (20, 200, 10), 180, {DEAD: 0.99, "grad_norm": 2.929, CUT: 1.0}),
        ("log_history.json", JSON, (1, 10, 10), 10, {"reward": 0.7, DEAD: 0.75}),
        ("console_trl.log", CONSOLE, (1, 10, 10), 9, {"grad_norm": math.nan, "reward": 0.48}),
        ("console_verl.log", CONSOLE, (1, 10, 10), 2, {"reward": 0.18, "entropy": 0.84}),
        ("console_slime.log", CONSOLE, (0, 9, 10), 9, {"reward": 0.47, "grad_norm": 0.19}),
        ("verl_file.jsonl", LINES, (0, 10, 11), 10, {"reward": 0.5, "kl": 0.002}),
        ("tinker_metrics.jsonl", LINES, (0, 9, 10), 9, {DEAD: 0.85, "frac_all_pass": 0.65, "frac_all_fail": 0.2}),
        ("prime_rl_metrics.jsonl", LINES, (0, 9, 10), 9, {DEAD: 0.31 + 0.28, "entropy": 0.41, CUT: 0.03}),
        ("open_instruct_wandb.json", JSON, (1, 10, 10), 8, {DEAD: 0.5, CUT: 0.13, "reward": 2.8}),
        ("console_prime_rl.log", CONSOLE, (5, 50, 10), 50, {"reward": 0.5791, "grad_norm": 0.4036, LENGTH: 212.0}),
        ("notebook.ipynb", "a notebook's outputs", (5, 50, 10), 15, {DEAD: 0.4}),
        ("card.md", "tables in Markdown", (5, 50, 10), 10, {DEAD: 0.35, "loss": 0.002086}),
        ("mlflow", "MLflow's metrics", (5, 50, 10), 20, {DEAD: 0.25}),
        ("wandb_history.csv", TABLE, (1, 10, 10), 5, {"grad_norm": math.inf, "reward": 0.35}),
        ("wandb_chart.csv", f"{TABLE}, run 'grpo-b' of 2", (1, 8, 8), 8, {"reward": 0.54, DEAD: 0.34}),
        ("tensorboard", "TensorBoard's events", (1, 10, 10), 10, {"reward": 0.4, "grad_norm": 0.4}),
        ("trackio.db", "trackio's database, run 'quiet-sea-2' of 2", (1, 10, 10), 6, {"grad_norm": math.nan}),
        ("own.csv", TABLE, (1, 9, 9), 9, {DEAD: 0.9, "grad_norm": 0.58}),
    ],
)
def test_each_format(name: str, kind: str, steps: tuple[int, int, int], step: int, numbers: dict[str, float]) -> None:
    run = read(LOGS / name, **OPTIONS.get(name, {}))
    assert (run.source.kind, run.source.format) == ("metrics", "metrics")
    assert run.source.recognized == f"{kind}, {steps[2]} steps"
    assert (run.steps, run.every_step[0], run.every_step[-1]) == ((), *steps[:2])
    logged = {key: run.metrics[step][key] for key in numbers}
    assert logged == pytest.approx(numbers, nan_ok=True)
    assert any("rollouts would add" in sentence for sentence in run.source.missing)
    assert run.source.quarantined.num_rows == 0


def test_a_file_of_several_runs_names_them() -> None:
    for name in ("trackio.db", "wandb_chart.csv"):
        assert "--metric-run" in refused("holds 2 runs", read, LOGS / name)
        refused("has no run 'x'", read, LOGS / name, error=UsageError, metric_run="x")


def test_metrics_are_no_answer_where_rollouts_are_needed() -> None:
    assert "degeneracy" in refusal(LOGS / "trainer_state.json", "holds metrics and no rollouts")


def test_rollouts_count_where_both_are_there() -> None:
    run = read(REPOSITORY / "fixtures/logs/trl")
    assert (run.source.kind, run.source.format) == ("rollouts", "trl")
    with pytest.raises(UsageError, match="names of metrics have no use"):
        read(REPOSITORY / "fixtures/logs/trl", metric_columns=["reward=x"])


def test_a_trainers_folder_without_completions_has_its_state(tmp_path: Path) -> None:
    for step in (5, 20):
        (tmp_path / f"checkpoint-{step}").mkdir()
        shutil.copy(LOGS / "trainer_state.json", tmp_path / f"checkpoint-{step}")
    run = read(tmp_path)
    assert run.source.files == (str(tmp_path / "checkpoint-20" / "trainer_state.json"),)
    assert read(tmp_path, reader="metrics").every_step == run.every_step


def test_a_tokenizer_whose_words_are_columns_is_no_log(tmp_path: Path) -> None:
    words = ["reward", "step", "loss", "prompt", "group_id", "completion"]
    for folder in (tmp_path, tmp_path / "checkpoint-20", tmp_path / "final_model"):
        folder.mkdir(exist_ok=True)
        (folder / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(words)}))
    shutil.copy(LOGS / "trainer_state.json", tmp_path / "checkpoint-20")
    assert read(tmp_path).source.files == (str(tmp_path / "checkpoint-20" / "trainer_state.json"),)


def test_files_of_several_runs_beside_the_one_that_is_read_are_named(tmp_path: Path) -> None:
    rows = [{"step": 1, "reward": 0.1 * i, "loss": 0.5} for i in range(3)]
    for name, num_rows in (("run_1.json", 1), ("run_2.json", 2), ("run_3.json", 3)):
        (tmp_path / name).write_text(json.dumps(rows[:num_rows]))
    write_lines(tmp_path / "history.jsonl", *rows)
    run = read(tmp_path)
    assert run.source.files == (str(tmp_path / "run_1.json"),)
    sentence = "Not read, as they have several rows a step with different values: "
    named = [text.removeprefix(sentence) for text in run.source.missing if text.startswith(sentence)]
    assert named == ["history.jsonl.", "run_2.json and 1 more."]
    assert not any(text.startswith(sentence) for text in read(tmp_path / "run_1.json").source.missing)


def test_two_files_of_one_kind_in_a_folder_are_refused(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        shutil.copy(LOGS / "verl_file.jsonl", tmp_path / name)
    hint = refused("holds metrics in 2 places", read, tmp_path)
    assert hint == f"Name one: {tmp_path / 'a.jsonl'}; side by side: gradscope report {tmp_path}"
    assert runs_below(tmp_path) == (tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    (tmp_path / "b.jsonl").unlink()
    assert (read(tmp_path).every_step[-1], runs_below(tmp_path)) == (10, ())


def test_a_glob_of_consoles_is_read_as_a_folder_of_them(tmp_path: Path) -> None:
    for name in ("a.log", "b.log"):
        shutil.copy(LOGS / "console_verl.log", tmp_path / name)
    refused("holds metrics in 2 places", read, tmp_path / "*.log")
    assert read(tmp_path / "a*.log").every_step[-1] == 10
    (tmp_path / "b.log").unlink()
    write_lines(tmp_path / "below" / "metrics.jsonl", *({"step": step, "loss": 0.1} for step in range(3)))
    assert "Not read, in folders below: below/metrics.jsonl." in read(tmp_path).source.missing


def test_what_may_be_the_mean_reward_is_named(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": 0.1, "grad": 0.5, "reward/picked_mean": 0.3} for step in range(3)]
    run = read(series(tmp_path, *rows))
    assert "takes one, as reward/picked_mean." in run.source.missing[0]
    pairs = series(tmp_path, *({"step": step, "loss": 0.1, "rewards/chosen": 0.3} for step in range(3)))
    assert not any("takes one" in sentence for sentence in read(pairs).source.missing)
    assert run.metrics[2]["grad_norm"] == 0.5


def test_a_list_that_breaks_off_is_read_so_far(tmp_path: Path) -> None:
    text = json.dumps([{"step": step, "loss": 0.1, "of": {"a": 1}} for step in range(5)], indent=1)
    (file := tmp_path / "log.json").write_text(text[: text.rindex('"loss"')])
    run = read(file)
    assert (run.every_step[-1], run.source.quarantined.lost) == (3, (f"{file} breaks off after element 4.",))


def series(tmp_path: Path, *rows: Any) -> Path:
    return write_lines(tmp_path / "metrics.jsonl", *rows)


@pytest.mark.parametrize("key", ["profiling/Time taken: f", "eval_acc", "my_number"])
def test_other_numbers_may_differ_within_a_step_where_those_of_training_stand_once(tmp_path: Path, key: str) -> None:
    rows = [
        row
        for step in (10, 20)
        for row in ({key: 1.0}, {key: 2.0}, {"train/reward": step / 10, "train/loss": 0.1}, {key: 3.0})
        for row in [{"train/global_step": step} | row]
    ]
    assert read(series(tmp_path, *rows)).metrics.by_step("reward") == {10: 1.0, 20: 2.0}
    rows += [{"train/global_step": step, "train/reward": 0.7} for step in (10, 20)]
    rows.sort(key=lambda row: row["train/global_step"])
    refusal(series(tmp_path, *rows), "several rows a step", metrics_alone=True)


def test_a_run_that_was_resumed_counts_as_its_later_rows(tmp_path: Path) -> None:
    rows = [{"step": step, "reward": step / 10} for step in (1, 2, 3, 4)]
    path = series(tmp_path, *rows, {"step": 3, "reward": 0.9}, {"step": 4, "loss": 1.0})
    run = read(path)
    assert run.metrics == {1: {"reward": 0.1}, 2: {"reward": 0.2}, 3: {"reward": 0.9}, 4: {"loss": 1.0}}
    assert f"Resumed at step 3 ({path}:5)" in run.source.inferred[-1]
    in_turn = [{"step": max(1, 3 + i // 2 - i % 2), "reward": i / 30} for i in (-4, -3, *range(30))]
    (sentence,) = read(series(tmp_path, *in_turn)).source.inferred
    assert sentence.startswith("Resumed 7 times, as where several processes write one log: first at")


def test_an_evaluation_before_the_first_update_hides_no_restart(tmp_path: Path) -> None:
    rows = [{"step": 0, "acc": 0.5}, *({"step": step, "reward": step / 10} for step in (1, 2, 3, 4))]
    begun = [{"step": 0, "acc": 0.5}, {"step": 1, "reward": 0.9}]
    refused(r"'2' \(from metrics.jsonl:6\)", read, series(tmp_path, *rows, *begun))
    path = series(tmp_path, *rows, {"step": 2, "acc": 0.7}, {"step": 3, "reward": 0.9})
    run = read(path)
    assert run.metrics.by_step("reward") == {1: 0.1, 2: 0.2, 3: 0.9}
    assert f"Resumed at step 3 ({path}:7)" in run.source.inferred[-1]


def test_steps_that_begin_again_are_another_run(tmp_path: Path) -> None:
    rows = [{"step": step, "reward": step / 10} for step in (1, 2, 3)]
    repeated = [{"step": step, "reward": step / 5} for step in (1, 2)]
    path = series(tmp_path, *rows, *repeated)
    refused(r"holds 2 runs: '1' .*, '2' \(from metrics.jsonl:4\)\.", read, path)
    assert read(path, metric_run="2").metrics == {1: {"reward": 0.2}, 2: {"reward": 0.4}}
    assert read(path, metric_run="1").every_step == (1, 2, 3)
    assert read(series(tmp_path, *rows, *rows)).every_step == (1, 2, 3)
    many = series(tmp_path, *({"step": step, "reward": step / (7 + index)} for index in range(7) for step in (1, 2)))
    refused(r"holds 7 runs: .* '6' \(from metrics.jsonl:11\) and 1 more\.", read, many)


@pytest.mark.parametrize(("name", "extra"), [("episode", {"loss": 1}), ("seed", {})])
def test_steps_that_begin_again_are_no_turns_where_something_learns(name: str, extra: Any, tmp_path: Path) -> None:
    rows = ({name: index // 3, "step": index % 3, "reward": index, **extra} for index in range(6))
    refused("holds 2 runs", read, write_lines(tmp_path / "metrics.jsonl", *rows))


def test_of_several_runs_the_only_one_with_a_reward_counts(tmp_path: Path) -> None:
    tuned = [{"step": i, "loss": 1.0} for i in (1, 2)]
    trained = [{"step": i, "loss": 0.0, "mean_reward": i / 4} for i in (1, 2)]
    run = read(series(tmp_path, *tuned, *trained))
    assert run.metrics[2]["reward"] == 0.5
    assert "Of 2 runs only '2' has a reward; --metric-run takes another." in run.source.inferred
    assert "reward" not in read(tmp_path / "metrics.jsonl", metric_run="1").metrics[2]
    multiple = series(tmp_path, *tuned, *tuned, *trained, {"step": 1, "mean_reward": 0.0})
    assert "--metric-run 2" in refused("holds 3 runs", read, multiple)
    run = read(series(tmp_path, *trained, *({**row, "mean_reward": 0.9, "reward_std": 0.1} for row in trained)))
    assert "Of 2 runs only '2' has a reward and its spread; --metric-run takes another." in run.source.inferred


def test_beside_a_log_of_several_runs_the_folders_below_are_those_of_each(tmp_path: Path) -> None:
    rows = [{"step": i, "reward": i / 4} for i in (1, 2)]
    write_lines(tmp_path / "all.jsonl", *rows, *({**row, "reward": 0.1} for row in rows))
    write_lines(tmp_path / "a" / "metrics.jsonl", *rows)
    refused("holds 2 runs", read, tmp_path)
    write_lines(tmp_path / "b" / "metrics.jsonl", *rows)
    hint = refused(r"holds metrics in 3 places: .*all.jsonl, .*a/metrics.jsonl, ", read, tmp_path)
    assert "side by side: gradscope report" in hint
    assert read(tmp_path, metric_run="2").metrics[2]["reward"] == 0.1
    write_lines(tmp_path / "all.jsonl", *({"step": i, "loss": 1.0} for i in (1, 2)), *rows)
    assert read(tmp_path).metrics[2]["reward"] == 0.5


def test_a_reward_that_is_named_tells_the_run_that_has_it(tmp_path: Path) -> None:
    tuned = [{"step": i, "loss": 1.0} for i in (1, 2)]
    named = [{"step": i, "loss": 2.0, "return": i / 4} for i in (1, 2)]
    usual = [{"step": i, "loss": 3.0, "reward": 0.0} for i in (1, 2)]
    for rows in (tuned + named, tuned + named + usual):
        assert read(series(tmp_path, *rows), metric_columns=["reward=return"]).metrics[2]["reward"] == 0.5


def test_a_list_of_no_usual_name_is_named_and_chosen(tmp_path: Path) -> None:
    def read_lists(options: dict[str, Any], **lists: list[dict[str, Any]]) -> Run:
        return read(write_rows(tmp_path / "a.json", {**lists, "version": 3}), **options)

    rows = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 1}]
    sentence = "The rows are those of the document's list 'markers'."
    assert sentence in read_lists({}, markers=rows).source.inferred
    assert sentence not in read_lists({}, log_history=rows, markers=rows).source.inferred
    with pytest.raises(InputError, match=r"holds 2 runs: 'markers' .*, 'other' \(from a.json:3\)") as caught:
        read_lists({}, markers=rows, other=rows[:1])
    assert caught.value.hint == "Choose one: --metric-run markers"
    assert sentence in read_lists({"metric_run": "markers"}, markers=rows, other=rows).source.inferred
    rewarded = read_lists({}, markers=[{"step": 1, "reward": 0.5}], other=rows)
    assert (sentence in rewarded.source.inferred, rewarded.every_step) == (True, (1,))


def test_a_count_that_stays_the_same_is_no_step_where_another_rises(tmp_path: Path) -> None:
    path = series(tmp_path, *({"train/global_step": 0, "_step": index, "reward": index / 4} for index in range(4)))
    assert read(path).every_step == (0, 1, 2, 3)
    assert read(series(tmp_path, {"train/global_step": 5, "_step": 9, "reward": 1.0})).every_step == (5,)


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        *(("global_step/max_steps", ["1/9", "5/9"]), ("current_steps", [1, 5]), ("update", [1, 5])),
        *(("step", ["step_1", "step_5"]), ("Step", ["Step 1/9", "Step 5/9"]), ("iteration", ["iter=1", "iter=5"])),
        *(("step", ["checkpoint-1", "checkpoint-5"]), ("step", ["global_step_1", "global_step_5"])),
    ],
)
def test_steps_as_trainers_count_their_progress(tmp_path: Path, column: str, cells: list[Any]) -> None:
    write_lines(tmp_path / "log.jsonl", *({column: cell, "reward": 0.5, "total_steps": 9} for cell in cells))
    assert tuple(read(tmp_path / "log.jsonl").every_step) == (1, 5)


@pytest.mark.parametrize(
    ("row", "steps"),
    [
        ({"epoch": 1}, (1, 2)),
        ({"iter": 0}, (0, 1)),
        ({"epoch": 1, "round": 3}, (1, 2)),
        ({"Global Step": 5, "epoch": 1}, (5, 6)),
    ],
)
def test_epochs_count_as_steps_where_nothing_else_does(tmp_path: Path, row: Any, steps: Any) -> None:
    rows = [{key: cell + i for key, cell in row.items()} | {"reward": i / 2} for i in (0, 1)]
    run = read(series(tmp_path, *rows, {**row, "val_acc": 0.5}))
    assert tuple(run.every_step) == steps
    sentence = f"No column is called a step: {next(iter(row))!r} counts as one."
    assert (sentence in run.source.inferred) == ("Global Step" not in row)


@pytest.mark.parametrize(
    ("cells", "column"),
    [
        ([1.0, 0.0], "group_rewards"),
        ([{"score": 1.0, "n": 3}, {"score": 0.0, "n": 4}], "group_rewards.score"),
        ([{"tool": "x"}], None),
        (["x"], None),
    ],
)
@pytest.mark.parametrize("name", ["log.jsonl", "log.json"])
def test_lists_of_rewards_beside_metrics_are_named(
    tmp_path: Path, name: str, cells: list[Any], column: str | None
) -> None:
    more = {"reward": 0.5} if name == "log.jsonl" else {"prompt_id": "p"}
    rows = [{"step": step, **more, "loss": 1.0, "group_rewards": cells} for step in (1, 2)]
    path = write_lines(tmp_path / name, *(rows if name == "log.jsonl" else [{"config": {"k": 4}, "history": rows}]))
    run = read(path)
    assert run.metrics[2]["loss"] == 1.0
    sentence = f"Rows also list 'group_rewards'; if these are of the rollouts of one prompt: --reward-column {column}."
    assert (sentence in run.source.missing) == (column is not None)
    if column is not None:
        assert read(path, columns=ColumnNames(reward=column)).groups[1].rewards == (1.0, 0.0)
        refused("There is no", read, path, error=UsageError, columns=ColumnNames(reward=f"{column}x"))


@pytest.mark.parametrize("header", ["a,b", "prompt,reward", '"x y",loss', "RUN - loss,RUN - reward"])
def test_a_table_without_a_step_is_not_read_for_metrics(
    header: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n1,2\n")
    monkeypatch.setattr(log, "_first_look", None)
    assert not holds_metrics(tmp_path / "a.csv", ReadOptions())


def test_an_episode_counts_as_a_step_where_something_learns(tmp_path: Path) -> None:
    rows = [{"episode": step, "total_reward": step / 4} for step in (1, 2)]
    hint = refused("no column that is known to be the step", read, series(tmp_path, *rows))
    assert hint == "Name it: --step-column episode"
    with pytest.raises(InputError, match="no column that is known to be the step") as caught:
        read(series(tmp_path, *({"seed": i, "train_loss": 0.5} for i in (42, 123, 456))))
    assert "add a column `step`; of rollouts, name what those of a prompt share" in str(caught.value.hint)
    for key in ("policy_loss", "grad_norm", "lr"):
        run = read(series(tmp_path, *({**row, key: 0.5} for row in rows)))
        assert run.every_step == (1, 2)
        assert "No column is called a step: 'episode' counts as one." in run.source.inferred


@pytest.mark.parametrize("column", ["episode", "timesteps"])
def test_the_step_that_is_proposed_can_be_named(tmp_path: Path, column: str) -> None:
    (tmp_path / "episode").with_suffix(".log").write_text("Episode 1: reward=0.5\nEpisode 2: reward=1\n")
    (tmp_path / "timesteps").with_suffix(".json").write_text('{"timesteps": [8000, 16000], "mean_reward": [0.5, 1]}')
    (path,) = tmp_path.glob(f"{column}*")
    assert refused("no column that is known to be the step", read, path) == f"Name it: --step-column {column}"
    assert list(read(path, columns=ColumnNames(step=column)).metrics.values())[1]["reward"] == 1.0


@pytest.mark.parametrize(
    ("column", "cells", "runs"),
    [
        *((name, ["a", "b", "b"], ["a", "b"]) for name in ("Name", "name", "model", "method", "algo", "condition")),
        ("variant", ["run-1", "run-2", "run-3"], ["run-1", "run-2", "run-3"]),
        ("Name", ["a", "a", "a"], []),
        ("model", ["a/step-10", "a/step-20", "a/step-30"], []),
        ("model", ["a", None, "b"], []),
        ("Name", [1, 2, 3], []),
    ],
)
def test_rows_naming_several_runs_are_no_course(tmp_path: Path, column: str, cells: list[Any], runs: list[str]) -> None:
    rows = [{column: cell, "global_step": 10 * index, "reward": index / 4} for index, cell in enumerate(cells, start=1)]
    path = write_lines(tmp_path / "a.jsonl", *rows)
    if not runs:
        assert read(path).every_step == (10, 20, 30)
        return
    refused(rf"holds {len(runs)} runs: '{runs[0]}'", read, path)
    assert [read(path, metric_run=run).metrics[10 * cells.index(run) + 10]["reward"] for run in runs]


def test_several_rows_of_a_step_are_one(tmp_path: Path) -> None:
    path = series(tmp_path, {"step": 1, "reward": 0.5}, {"step": 1, "loss": 0.1}, {"step": 0, "val": 1}, {"time": 3})
    run = read(path)
    assert run.metrics == {0: {"val": 1.0}, 1: {"reward": 0.5, "loss": 0.1}}
    assert "Without a step, and left out: 1 row." in run.source.inferred


@pytest.mark.parametrize(
    "rows",
    [
        [{"step": step, "reward": index / 3} for step in (1, 2) for index in range(4)],  # rollouts without a group
        [{"step": 1, "temperature": 0.5}],
        [{"reward": 0.5}],
        [{"step": 1, "prompt": "p", "loss": 0.5}],
        [{"step": -1, "reward": 0.5}],
        [{"step": 1.5, "reward": 0.5}],
    ],
)
def test_what_is_no_log_of_metrics_is_refused_as_before(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    path = series(tmp_path, *rows)
    assert not holds_metrics(path, ReadOptions())
    refused("no metrics by step", read_metrics_log, ReadRequest(path=path))
    refused(r"not a log that gradscope knows|no usable rows|has (several|metrics|one row)", read, path)


@pytest.mark.parametrize(
    ("rows", "options", "message", "hint"),
    [
        *(
            ([{"step": i // num, "reward": i / 9} for i in range(8)], {}, r"several rows .*\(rew", "--group")
            for num in (2, 4)
        ),
        ([{"batch": 8, "ep": i, "avg_reward": 0.5} for i in (1, 2)], {}, r"\(reward\) and", "--step-column ep"),
        ([{"episode": i // 2, "step": i % 2, "reward": i} for i in range(6)], {}, "of an episode: 'step' c", "Write a"),
        ([{"epoch": i // 2, "avg_reward": i / 4} for i in (2, 3)], {}, r"\(reward\) and no column", "add a column"),
        ([{"epoch": i / 2, "avg_reward": i / 4} for i in (2, 3)], {}, r"\(reward\) and no column", "add a column"),
        (
            [{"at": run, "run_id": "ab"[run], "timestep": 9 * i, "reward": i} for run in (0, 1) for i in (1, 2, 3)],
            {},
            r"\(reward\) and no column",
            "--step-column timestep",
        ),
        ([{"n_steps": i, "reward": i} for i in (5, 9, 5, 9, 5)], {}, r"\(reward\) and no column", "add a column"),
        ([{"lr": 0.1, "loss": i} for i in (0.5, 0.25)], {}, r"\(loss\) and no column", "add a column `step`"),
        ([{"correct_samples": i, "truncation_rate": 0.1} for i in (7, 9)], {}, "and no column", "add a column `step`"),
        ([{"r": 0.5}], {"metric_columns": ["reward=r"]}, r"one row of metrics \(r\) and no step", "a row a step"),
        ([{"lr": 0.1, "seed": i} for i in (1, 2)], {}, "not a log that gradscope knows", "--metric-column"),
    ],
)
def test_metrics_without_a_step_or_with_several_rows_of_one_are_refused_with_the_option(
    tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, Any], message: str, hint: str
) -> None:
    assert hint in refused(message, read, series(tmp_path, *rows), **options)


LOG = [{"step": i, "beta": 0.5, "avg_r_style": i / 9, "avg_r_all": i / 7, "accuracy": i / 5} for i in (0, 1, 2)]


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        ("own.json", json.dumps(LOG), "avg_r_style"),
        ("own.json", json.dumps({f"step_{row['step']}": {"em": row["accuracy"]} for row in LOG}), "em"),
        ("own.csv", "time,global_step,mean return\n9:30,1,0.5\n9:31,2,1\n", "mean return"),
        ("PPO_1.csv", "Wall time,Step,Value\n1.7e9,2048,640\n1.7e9,4096,599\n", "PPO_1"),
    ],
)
def test_metrics_under_names_of_their_own_are_listed_with_the_option(
    name: str, text: str, key: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    hint = refused(rf"metrics by step under names of its own: {key}[,.]", read, tmp_path / name)
    assert hint.endswith(f"--metric-column {shlex.quote(f'reward={key}')}")
    run = read(tmp_path / name, metric_columns=[f"reward={key}"])
    assert run.metrics[run.every_step[1]]["reward"] == run.metrics[run.every_step[1]][key]


@pytest.mark.parametrize("inner", ["", "logs"])
def test_runs_with_a_file_each_are_offered_side_by_side(inner: str, tmp_path: Path) -> None:
    (tmp_path / inner).mkdir(exist_ok=True)
    for index in range(3):
        write_events(tmp_path / inner / f"events.out.tfevents.{index}.host", index / 4)
    hint = refused("holds 3 runs", read, tmp_path)
    assert hint == f"Choose one: --metric-run 1; side by side: gradscope report {tmp_path / inner}/*"


def write_events(file: Path, reward: float) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"".join(record(scalar(step, b"train/reward", reward)) for step in range(1, 9)))


def test_events_are_found_where_the_trainer_of_transformers_writes_them(tmp_path: Path) -> None:
    write_events(tmp_path / "a" / "runs" / "Feb25_host" / "events.out.tfevents.1.host", 0.25)
    assert read(tmp_path / "a").metrics[8]["reward"] == read(tmp_path).metrics[8]["reward"] == 0.25
    (tmp_path / "latest-run").symlink_to(tmp_path / "a")
    assert read(tmp_path).metrics[8]["reward"] == 0.25
    write_events(tmp_path / "b" / "runs" / "Feb26_host" / "events.out.tfevents.1.host", 0.5)
    assert "side by side: gradscope report" in refused("holds metrics in 2 places", read, tmp_path)


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_a_logger_wrote_has_nothing_but_metrics(is_folder: bool, tmp_path: Path) -> None:
    file = tmp_path / "events.out.tfevents.1.a"
    tags = (b"Performance/eval_rate", b"Performance/x")
    file.write_bytes(b"".join(record(scalar(step, tag, step)) for step in (1, 2) for tag in tags))
    hint = refused(r"names of its own: Performance/eval_rate, Performance/x\.", read, tmp_path if is_folder else file)
    assert hint == "If one is the mean reward, name it: --metric-column reward=Performance/eval_rate"
    assert read(tmp_path, metric_columns=["reward=Performance/x"]).metrics[2]["reward"] == 2.0


@pytest.mark.parametrize(
    "row",
    [
        {"accuracy": (0, 1, 1)},
        {"accuracy": (0.5, 0.5, 1), "row_id": (1, 2, 3)},
        {"accuracy": (0.5, 0.5, 1), "note": ("a", "b", "c")},
        {"accuracy": (0.5, 0.5, 1), "step": (1, 1, 2)},
        {"beta": (0.5, 0.5, 1)},
    ],
)
def test_rows_that_may_be_samples_are_no_means(row: dict[str, Any], tmp_path: Path) -> None:
    rows = [{"step": index, **{key: cells[index] for key, cells in row.items()}} for index in range(3)]
    refused("is not a log that gradscope knows", read, series(tmp_path, *rows))


def test_means_of_the_batches_of_a_step_are_averaged(tmp_path: Path) -> None:
    rows = [{"step": i // 4, "mean_reward": i, "kl": 0.5 * i, **({"loss": i} if i % 4 else {})} for i in range(8)]
    run = read(series(tmp_path, *rows))
    assert run.metrics == {
        0: {"reward": 1.5, "mean_reward": 1.5, "kl": 0.75, "loss": 2.0},
        1: {"reward": 5.5, "mean_reward": 5.5, "kl": 2.75, "loss": 6.0},
    }
    assert any(sentence.startswith("Most steps have several rows") for sentence in run.source.inferred)


@pytest.mark.parametrize("name", ["train_metrics", "metrics"])
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_dictionary_that_was_written_as_text_is_read(name: str, suffix: str, tmp_path: Path) -> None:
    texts = (
        "{'reward': 0.5, 'kl': nan, 'note': None}",
        '{"reward": 1, "kl": 0.25}',
        "{'reward': -inf}",
        "{'reward': it's}",
    )
    rows = [{"step": index, name: text, "usage": "{}"} for index, text in enumerate(texts)]
    path = write_rows(tmp_path / "a.csv", rows) if suffix == "csv" else series(tmp_path, *rows)
    assert str(dict(read(path).metrics)) == str(
        {0: {"reward": 0.5, "kl": math.nan}, 1: {"reward": 1.0, "kl": 0.25}, 2: {"reward": -math.inf}, 3: {}}
    )


@pytest.mark.parametrize(("names", "is_listed"), [(("a.log",), False), (("a.log", "b.log", "c.txt"), True)])
def test_consoles_of_other_runs_are_named(names: tuple[str, ...], is_listed: bool, tmp_path: Path) -> None:
    write_rows(tmp_path / "of_one.csv", [{"step": index, "reward": index} for index in range(3)])
    for name in names:
        (tmp_path / name).write_text("".join(f"{{'loss': 0.5, 'reward': {index}}}\n" for index in range(4)))
    sentence = "Not read: a.log, b.log, ... beside of_one.csv; name one, or several for gradscope report."
    assert (sentence in read(tmp_path).source.missing) == is_listed


def test_samples_of_steps_in_no_order_that_have_an_id_each_are_no_metrics(tmp_path: Path) -> None:
    rows = [{"id": f"v{index}", "step": index * 7 % 11, "reward": index % 2} for index in range(11)]
    refused("is not a log that gradscope knows", read, series(tmp_path, *rows))
    assert len(read(series(tmp_path, *sorted(rows, key=lambda row: row["step"]))).metrics) == 11


def test_runs_that_stopped_after_their_first_step_are_not_averaged_into_the_next(tmp_path: Path) -> None:
    rows = [{"step": 1, "mean_reward": i} for i in (9, 7, 5)]
    run = read(series(tmp_path, *rows, *({"step": i, "mean_reward": 1} for i in range(1, 5))))
    assert {step: row["reward"] for step, row in run.metrics.items()} == dict.fromkeys(range(1, 5), 1)


def test_a_text_without_steps_is_not_searched_for_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "naming_of", None)  # what took 16 of 19 ms a file
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("words\n")
    assert not holds_metrics(tmp_path, ReadOptions())


def test_a_named_column_of_rollouts_says_that_it_is_no_log_of_metrics() -> None:
    assert not holds_metrics(LOGS / "log_history.json", naming(reward="reward"))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("garbage", "the line is not JSON"),
        ('["a"]', "the line is not a JSON object"),
        ("", "the line is blank"),
        (f'{{"step": 1, "reward": {"9" * 5000}}}', "the line has a number of more than 4300 digits"),
        (f'{{"step": {"[" * 101}{"]" * 101}}}', "the line is nested deeper than 100 levels"),
        ('{"step": -1, "reward": 0.5}', "the step is not a whole number"),
        ('{"step": "x", "reward": 0.5}', "the step is not a whole number"),
        ('{"step": "2026/11/25", "reward": 0.5}', "the step is not a whole number"),
        ('{"step": 1e300, "reward": 0.5}', "the step is not a whole number"),
    ],
)
def test_a_row_that_cannot_be_used_is_set_aside(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "metrics.jsonl"
    good = '{"step": %d, "reward": 0.5}'
    path.write_text("\n".join([good % 1, line, good % 2, ""]))
    run = read(path)
    (entry,) = run.source.quarantined.reasons
    assert (entry.reason, entry.num_rows, entry.first) == (reason, 1, f"{path}:2")
    assert run.every_step == (1, 2)
    assert not run.source.quarantined.lost


def test_a_last_row_that_cannot_be_used_leaves_the_end_unknown(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "reward": 0.5}\ngarbage\n')
    assert read(path).source.quarantined.lost == (
        f"{path}:2: the line is not JSON; it is the file's last row, so the run may go on beyond what was read.",
    )
    path.write_text('{"step": 1, "reward": 0.5}\n{"step": 2, "rew')
    quarantined = read(path).source.quarantined
    assert (quarantined.lost, quarantined.reasons[0].reason) == ((), "the last line is cut off")


def test_a_database_is_read_as_it_stands_with_its_log_of_writes(tmp_path: Path) -> None:
    path = tmp_path / "trackio.db"
    shutil.copy(LOGS / "trackio.db", path)
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = WAL")
    row = json.dumps({"train/global_step": 11, "train/reward": 0.9})
    writer.execute(
        "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES ('c', '', 'late', 10, ?)", (row,)
    )
    writer.commit()
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert read(path, metric_run="late").metrics[11]["reward"] == 0.9
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    writer.close()


def test_a_database_of_something_else_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE other (id INTEGER)")
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id, '' AS run_name"
        database.execute(f"CREATE VIEW metrics AS {endless}, i AS step, '{{}}' AS metrics FROM n")
    with pytest.raises(InputError):
        read(path)
    (tmp_path / "cut.db").write_bytes((LOGS / "trackio.db").read_bytes()[:4096])
    with pytest.raises(InputError):
        read(tmp_path / "cut.db")


def test_percentages_are_read_under_the_name_that_the_sentence_gives(tmp_path: Path) -> None:
    run = read(series(tmp_path, *({"step": step, "reward": 0.5, "dead_groups_pct": 25.0 * step} for step in (1, 2))))
    assert [run.metrics[step]["frac_reward_zero_std"] for step in (1, 2)] == [0.25, 0.5]


def test_a_share_that_is_none_is_no_nan_of_the_trainers(tmp_path: Path) -> None:
    run = read(series(tmp_path, *({"step": step, "reward": 0.5, "frac_zero_std": 25.0} for step in (1, 2))))
    sentence = "frac_reward_zero_std is no share at 2 of 2 steps (25 at step 1): that counts as NaN."
    assert f"{sentence} Percentages are read under a name that says so, as dead_groups_pct." in run.source.inferred
    assert not any("NaN" in sentence for sentence in run.source.missing)
    report = measure_degeneracy(run.path)
    assert report.frac_reward_zero_std.undefined == "the trainer logged a number that is no share at step 1"
    assert report.by_step[1].frac_reward_zero_std.undefined == "the trainer logged a number that is no share"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("frac_reward_zero_std", "log_completions=True"),
        ("train/frac_reward_zero_std", "ms-swift"),
        ("critic/score/mean", "trainer.rollout_data_dir"),
        ("env/all/reward/total", "iteration_*"),
        ("reward/overall", "in its reward function"),
        ("system/batch_add_count", "rollout_dump_dir"),
        ("ppo_actor/task_reward/avg", "rollout.dump_to_file"),
        ("train/agg/all/agent/solved_none", "traces.jsonl"),
        ("batch/solve_none", "traces.jsonl"),
        ("rollout/raw_reward", "--save-debug-rollout-data"),
        ("val/stop_rate", "--save_traces"),
        ("actor/train/loss", "AsyncTrajectoryLogger"),
        ("loss", "a row a rollout"),
    ],
)
def test_the_hint_says_how_each_trainer_logs_rollouts(key: str, words: str) -> None:
    assert words in switch_on([key])
