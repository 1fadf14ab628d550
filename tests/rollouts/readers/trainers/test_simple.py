import gzip
import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradscope.diagnostics.degeneracy.measure import measure_degeneracy
from gradscope.diagnostics.logged.tokens import STALENESS, logged_part
from gradscope.metrics.uncertainty.intervals import RESAMPLING
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from tests.conftest import LOGS, REPOSITORY
from tests.rollouts.readers.lines import refusal, refused, rewards_of, set_aside, write_lines
from tests.rollouts.readers.reduced import STRANGE, assert_reduced_alike, assert_same

LOG = REPOSITORY / "fixtures/logs/areal"
ALL = {"0": (1.0, 0.0), "1": (0.0, 0.0), "10:2": (1.0, 1.0)}


def row(sample: Any = 0, **cells: Any) -> dict[str, Any]:
    cells = {"task_id": 7, "head_version": 3, "tail_version": 3, "reward": 1.0, "prompt": "p", **cells}
    return {"sample_idx": sample, "completion": f"c{sample}", **cells}


@pytest.mark.parametrize(
    ("below", "expected"),
    [
        ("", ALL),
        ("rollout", ALL),
        ("rollout/0", {name: ALL[name] for name in ("0", "1")}),
        ("rollout/10/2.jsonl", {"10:2": ALL["10:2"]}),
        ("eval-rollout", {"10:0": (1.0,)}),
    ],
)
def test_a_task_is_a_group_at_the_version_that_finished_it(below: str, expected: dict[str, tuple[float, ...]]) -> None:
    run = read_run(LOG / below)
    assert (run.source.format, rewards_of(run)) == ("areal", expected)
    assert run.source.quarantined.num_rows == 0


def test_samples_of_several_versions_are_said() -> None:
    assert any("begun by an earlier version" in sentence for sentence in read_run(LOG).source.inferred)
    assert len(read_run(LOG / "rollout/0").source.inferred) == 1
    assert len(measure_degeneracy(LOG / "rollout/0").source.inferred) == 1  # from arrays, several files at a time


def test_interactions_of_an_agent_count_each_which_is_said(tmp_path: Path) -> None:
    """As AReaL exports them by default."""
    for task in (7, 8):
        rows = (row(i, task_id=task, prompt=f"{task}{prompt}") for i, prompt in enumerate("pqr"))
        write_lines(tmp_path / f"{task}.jsonl", *rows)
    run = read_run(tmp_path)
    assert [group.size for group in run.groups] == [3, 3]
    assert "each interaction counts as a rollout" in run.source.inferred[0]


def test_lags_are_from_the_first_token_to_the_last() -> None:
    run = read_run(LOG)
    assert {rollout.policy_versions for rollout in run.groups_at(10)[0].rollouts} == {(9, 10)}
    (fresh, stale) = logged_part(STALENESS, run, RESAMPLING).by_lag
    assert (fresh.lag, fresh.num_rollouts, stale.lag, stale.num_rollouts) == (0, 4, 1, 2)


@pytest.mark.parametrize("version", [4, -1, None, "x", [3], 2.5])
def test_a_version_that_none_can_have_begun_with_tells_no_lag(tmp_path: Path, version: Any) -> None:
    run = read_run(write_lines(tmp_path / "7.jsonl", row(0, head_version=version), row(1)))
    assert [rollout.policy_versions for rollout in run.groups[0].rollouts] == [None, (3, 3)]


def test_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    rows = [
        row(0),
        row(1, reward=None),
        row(0, reward=0.0),
        row(3, tail_version=[3]),
        row(5, task_id=None),
        row(None, head_version="x", prompt=None, completion=4),
    ]
    run = read_run(write_lines(tmp_path / "7.jsonl", *rows))
    assert rewards_of(run) == {"3:7": (None, None, 1.0)}
    assert set_aside(run) == {
        "the reward is null": 1,
        "the row contradicts an earlier one of the same sample, so that neither counts": 2,
        "tail_version is not a whole number": 1,
        "task_id is missing": 1,
    }


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


def test_ragen_groups_by_the_metadata() -> None:
    run = read_run(LOGS / "ragen")
    assert rewards_of(run) == {"0": (1.5, -0.2), "1": (-0.2, -0.2)}
    rollout = run.groups[0].rollouts[0]
    assert (rollout.prompt, rollout.completion, rollout.rewards) == ("maze 0", "up\nwall\nleft", {"success": 1.0})
    assert "evaluation rollouts" in run.source.missing[0]


def test_ragen_rows_without_a_group_are_set_aside(tmp_path: Path) -> None:
    row = {"messages": [], "metadata": {"group_id": 3, "total_reward": 1.0}}
    run = read_run(write_lines(tmp_path / "val_rollouts_1.jsonl", row, {**row, "metadata": []}))
    assert set_aside(run) == {"metadata.group_id is missing": 1}


@pytest.mark.parametrize(
    ("name", "usual"),
    [
        ("training_data_1.jsonl", {"data": {"prompt": "p", "completion": "c", "accepted": True}}),
        ("val_rollouts_1.jsonl", {"messages": [], "metadata": {"group_id": 3, "total_reward": 1.0, "success": True}}),
        (
            "dumped_evals/global_step_10_evals/a.jsonl",
            {"input_prompt": "p", "output_response": "c", "score": 1.0, "data_source": "d", "stop_reason": "stop"},
        ),
    ],
)
def test_odd_cells_mean_the_same_in_columns_and_row_by_row(tmp_path: Path, name: str, usual: dict[str, Any]) -> None:
    entries = [(key, entry) for key, cell in usual.items() if isinstance(cell, dict) for entry in cell]
    for index, (key, entry) in enumerate([*((key, None) for key in usual), *entries]):
        strange = [usual | {key: cell if entry is None else usual[key] | {entry: cell}} for cell in STRANGE]
        rows = [usual, *strange, {}, usual]
        assert_reduced_alike(write_lines(tmp_path / str(index) / name, *rows))


RLINF_LOG = REPOSITORY / "fixtures/logs/rlinf"


def test_completions_of_a_prompt_are_a_group_with_what_users_accepted() -> None:
    run = read_run(RLINF_LOG)
    assert (run.source.format, run.steps) == ("rlinf", (0,))
    assert [group.rewards for group in run.groups] == [(1.0, 0.0), (0.0, 0.0)]
    assert run.groups[0].rollouts[0].completion == "return a + b"


@pytest.mark.parametrize("is_packed", [True, False])
def test_a_name_in_gz_is_plain_json_or_compressed(tmp_path: Path, is_packed: bool) -> None:
    (data,) = (file.read_bytes() for file in RLINF_LOG.iterdir())
    path = tmp_path / "training_data_20260801_100000_000.jsonl.gz"
    path.write_bytes(gzip.compress(data) if is_packed else data)
    assert read_run(tmp_path).source.num_rows == 4


def test_feedback_that_cannot_be_used_is_set_aside(tmp_path: Path) -> None:
    row = json.loads(next(RLINF_LOG.iterdir()).read_text().splitlines()[0])
    rows = [{**row, "data": {**row["data"], **cells}} for cells in ({}, {"prompt": None}, {"accepted": "yes"})]
    assert set_aside(read_run(write_lines(tmp_path / "training_data_1.jsonl", *rows))) == {
        "data.prompt is missing": 1,
        "the reward is text": 1,
    }


ROLL_LOG = REPOSITORY / "fixtures/logs/roll"


def line(**cells: Any) -> dict[str, Any]:
    columns = {"global_step": [3] * 4, "id": ["a", "a", "b", "b"], "prompt": ["p", "p", "q", "q"]}
    return {**columns, "responses": ["1", "2", "3", "4"], "scores": [1.0, 0.0, 0.0, 0.0], **cells}


def read(tmp_path: Path, *rows: Any) -> Run:
    return read_run(write_lines(tmp_path / "rollout_dump_data.step_3.jsonl", *rows))


def test_a_line_is_a_step_of_several_groups() -> None:
    run = read_run(ROLL_LOG)
    assert [group.step for group in run.groups] == [0, 0, 1, 1]
    assert [group.rewards for group in run.groups] == [(1.0, 0.0), (0.0, 0.0), (1.0, 1.0), (0.0, 1.0)]
    assert "lower bound" in run.source.missing[0]
    assert_reduced_alike(ROLL_LOG)
    single = read_run(ROLL_LOG / "rollout_dump_data.step_1.jsonl")
    assert [group.rewards for group in single.groups] == [(1.0, 1.0), (0.0, 1.0)]


def agent_line(group: int, reward: Any) -> str:
    info = {"tag": "swe", "group_id": group, "episode_id": 2, "seed": 7, "env_id": 9}
    return json.dumps({"env_info": info, "reward_info": {"episode_reward": reward, "step_rewards": [0.0]}})


def test_episodes_of_rolls_agents_are_grouped_by_their_environments(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "mend it"}, {"role": "assistant", "content": "done"}]
    data = [agent_line(0, 1.0), agent_line(0, 0.0), agent_line(1, 0.5), agent_line(1, None), "{}", "no JSON"]
    row = {"global_step": [3] * 6, "trajectory_data": data, "messages": [json.dumps(talk)] * 6, "exp_name": ["e"] * 6}
    run = read(tmp_path, row, {**row, "messages": []}, {**row, "global_step": [3]})
    assert (run.source.format, run.steps) == ("roll-agentic", (3,))
    assert [group.rewards for group in run.groups] == [(1.0, 0.0), (0.5, None)]
    assert (run.groups[0].rollouts[0].prompt, run.groups[0].rollouts[0].completion) == ("mend it", "done")
    assert set_aside(run) == {
        "the reward is null": 1,
        "trajectory_data has no env_info, which names the group": 2,
        "global_step, trajectory_data and messages are not lists of one length": 2,
    }
    assert_reduced_alike(tmp_path)


def test_prompts_of_one_id_stay_apart_and_rows_without_ids_go_by_their_prompts(tmp_path: Path) -> None:
    assert [group.size for group in read(tmp_path, line(id=["a"] * 4)).groups] == [2, 2]
    run = read(tmp_path, line(id=["a", None, "b", "b"]))
    assert [group.size for group in run.groups] == [1, 1, 2]
    assert "equal prompts merge" in run.source.inferred[1]
    bare = {name: cells for name, cells in line().items() if name not in ("id", "prompt")}
    refused("neither an id nor a prompt", read, tmp_path, bare)


def test_what_cannot_be_used_is_set_aside(tmp_path: Path) -> None:
    rows = [
        line(scores=[1.0, None, 0.0, 1.0]),
        *(line(scores=[1.0]), line(responses=[]), line(global_step=3)),
        line(global_step=[3, "x", None, 1.5]),
    ]
    run = read(tmp_path, *rows)
    assert [group.rewards for group in run.groups] == [(1.0, None, 1.0), (0.0, 1.0)]
    assert set_aside(run) == {
        "the reward is null": 1,
        "global_step, responses and scores are not lists of one length": 3,
        "the step is not a whole number": 3,
    }


def test_a_dump_whose_first_file_is_damaged_is_still_rolls(tmp_path: Path) -> None:
    write_lines(tmp_path / "rollout_dump_data.step_2.jsonl", line(prompt=None, id=None, global_step=None))
    assert len(read(tmp_path, line()).groups) == len(read_run(tmp_path).groups) == 2
    assert read_run(tmp_path).source.format == "roll"


def test_a_dump_under_another_name_is_a_batch_and_not_taken_for_samples_of_one_prompt(tmp_path: Path) -> None:
    named, other = read(tmp_path, line()), read_run(write_lines(tmp_path / "dump.jsonl", line()))
    assert [(group.step, group.rewards) for group in named.groups] == [
        (group.step, group.rewards) for group in other.groups
    ]


@pytest.mark.slow
@pytest.mark.parametrize("key", ["domain", *sorted(line())])
def test_an_odd_element_has_the_answer_of_the_row_reader(tmp_path: Path, key: str) -> None:
    for index, value in enumerate(STRANGE):
        usual = line(domain=["math"] * 4, prompt=["p", "p", "é", "é"])
        strange = usual | {key: [value, *usual[key][1:]]}
        for step, rows in enumerate(([usual, strange], [strange])):
            write_lines(tmp_path / f"{index}/rollout_dump_data.step_{step}.jsonl", *rows, ended=step == 0)
        assert_reduced_alike(tmp_path / str(index))


def test_tinker_summaries_hold_rewards_only() -> None:
    run = read_run(LOGS / "tinker")
    assert rewards_of(run) == {"0": (1.0, 0.0), "1": (0.0, 0.0), "1:0": (1.0, 0.0), "1:1": (1.0, 1.0)}
    assert len({group.prompt_id for group in run.groups}) == 4
    assert "remove_constant_reward_groups" in run.source.missing[0]


def test_tinker_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    row = {"iteration": 2, "group_idx": 0, "traj_idx": 0, "total_reward": 1.0}
    rows = [row, {**row, "iteration": "x"}, {**row, "group_idx": None}, {**row, "total_reward": [1.0]}]
    run = read_run(write_lines(tmp_path / "train_rollout_summaries.jsonl", *rows))
    assert rewards_of(run) == {"2:0": (1.0, None)}
    assert set_aside(run) == {
        "iteration is not a whole number": 1,
        "group_idx is not a whole number": 1,
        "the reward is a list, not a number": 1,
    }


def test_tinker_names_the_weights_that_sampled(tmp_path: Path) -> None:
    rollouts = [rollout for group in read_run(LOGS / "tinker").groups for rollout in group.rollouts]
    assert {rollout.policy_versions for rollout in rollouts} == {(0, 0), (1, 1)}
    row = {"iteration": 1, "group_idx": 0, "traj_idx": 0, "total_reward": 1.0}
    rows = [{**row, "sampling_client_step": cell} for cell in (None, -1, "new", 1)]
    run = read_run(write_lines(tmp_path / "train_rollout_summaries.jsonl", *rows))
    assert [rollout.policy_versions for rollout in run.groups[0].rollouts] == [None, None, None, (1, 1)]


TRACKIO_LOG = REPOSITORY / "fixtures/logs/trackio_traces"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return Path(shutil.copy(TRACKIO_LOG / "async-grpo.db", tmp_path / "project.db"))


def change(database: Path, statement: str, *cells: Any) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(statement, cells)
        connection.commit()


def test_traces_with_rewards_are_rollouts_with_the_metrics_of_the_database() -> None:
    run = read_run(TRACKIO_LOG)
    assert (run.source.format, run.source.kind, run.steps) == ("trackio", "rollouts", (1, 2))
    assert [group.rewards for group in run.groups] == [(1.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)]
    first = run.groups[0].rollouts[0]
    assert (first.prompt, first.completion, first.rewards, first.advantage) == ("2+2?", "4", {"accuracy": 1.0}, 0.5)
    assert [run.metrics[step]["frac_reward_zero_std"] for step in (1, 2)] == [0.0, 0.5]


def test_of_several_runs_one_is_named(database: Path) -> None:
    change(database, "UPDATE traces SET run_name = 'other' WHERE step = 2")
    change(database, "DELETE FROM metrics")
    refusal(database, "has traces of 2 runs: calm-sea-1, other")
    run = read_run(database, ReadOptions(metric_run="other"))
    assert (run.steps, run.metrics) == ((2,), {})
    shutil.copy(database, database.with_name("second.db"))
    refusal(database.parent, "has traces of 2 projects")


@pytest.mark.parametrize(
    ("column", "cell", "reason"),
    [
        ("metadata", b"{", "the trace is not JSON"),
        ("metadata", None, "the trace is not JSON"),
        ("metadata", json.dumps({"reward": 1.0}), "metadata.group_id is missing"),
        ("metadata", json.dumps({"group_id": 0}), "the reward is missing"),
        ("step", "soon", "step is not a whole number"),
    ],
)
def test_traces_that_cannot_be_used_are_set_aside(database: Path, column: str, cell: Any, reason: str) -> None:
    change(database, "ALTER TABLE traces RENAME TO strict")
    change(database, "CREATE TABLE traces AS SELECT * FROM strict")  # in which a cell may be null
    change(database, f"UPDATE traces SET {column} = ? WHERE trace_index = 0 AND step = 1", cell)
    assert set_aside(read_run(database)) == {reason: 1}


def test_a_database_without_rewards_in_its_traces_is_one_of_metrics(database: Path) -> None:
    change(database, "UPDATE traces SET metadata = ?", b"{}")
    run = read_run(database, metrics_alone=True)
    assert (run.source.kind, run.metrics[2]["frac_reward_zero_std"]) == ("metrics", 0.5)


def test_a_database_of_any_name_is_opened(tmp_path: Path) -> None:
    """Names of files are bytes: this one is no UTF-8, and has what a URI gives a meaning."""
    name = os.fsdecode(b"a\xff#%41.db")
    shutil.copyfile(TRACKIO_LOG / "async-grpo.db", tmp_path / name)
    assert len(read_run(tmp_path / name).groups) == len(read_run(TRACKIO_LOG).groups)


TUNIX = LOGS / "tunix"


@pytest.mark.parametrize("path", [TUNIX, TUNIX / "trajectories", f"{TUNIX}/trajectories/step*/*/*/metadata.json"])
def test_trajectories_of_a_prompt_at_a_step_are_a_group(path: Path | str) -> None:
    run = read_run(path)
    assert run.source.format == "tunix"
    assert rewards_of(run) == {"p0": (1.0, 0.0), "p1": (0.0, 0.0), "1:p0": (1.0, 1.0), "1:p2": (0.5, 1.0)}
    first, second = run.groups[0].rollouts
    assert (first.prompt, first.completion, first.completion_ids) == ("p0?", "answer 0", (3, 4))
    assert (first.status, second.status) == ("completed", "error")
    assert run.groups[2].rollouts[1].policy_versions == (0, 1)
    assert run.source.missing == ()


def test_a_log_without_tokens_says_so(tmp_path: Path) -> None:
    folder = shutil.copytree(TUNIX, tmp_path / "log")
    for file in folder.rglob("metadata.json"):
        cells = json.loads(file.read_text())
        file.write_text(json.dumps({name: cell for name, cell in cells.items() if "tokens" not in name}))
    run = read_run(folder)
    assert run.groups[0].rollouts[0].completion_ids is None
    assert "without token ids" in run.source.missing[0]


def episode(folder: Path, name: str, **cells: Any) -> None:
    trajectory = {"name": "solver", "reward": 1.0}
    row = {"training_step": 1, "task_hash": "t", "task": {"q": 1}, "trajectories": [trajectory], **cells}
    (folder / f"episode_{name}.json").write_text(json.dumps(row))


def test_rllm_groups_by_task_and_leaves_validation_out() -> None:
    run = read_run(LOGS / "rllm")
    assert rewards_of(run) == {"3:1f0c9a2b": (1.0, 0.0), "4:2a0c9a2b": (0.0, 0.0)}
    rollout = run.groups[0].rollouts[0]
    assert (rollout.prompt, rollout.completion, rollout.rewards) == ("2+2=?", "4", {"is_correct": 1.0})
    assert rollout.seconds == 2.0
    assert "equal tasks at one step merge" in run.source.inferred[0]


def test_rllm_trajectories_of_one_name_form_a_group(tmp_path: Path) -> None:
    for name in "ab":
        pair = [{"name": who, "reward": 1.0} for who in ("solver", "judge")]
        episode(tmp_path, name, trajectories=pair, timing={"llm_time": 1.0})
    run = read_run(tmp_path)
    assert rewards_of(run) == {"1:t/solver": (1.0, 1.0), "1:t/judge": (1.0, 1.0)}
    assert "several trajectories" in run.source.inferred[1]
    # Each trajectory would repeat the time of the whole episode.
    assert {rollout.seconds for group in run.groups for rollout in group.rollouts} == {None}


def test_rllm_episodes_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    episode(tmp_path, "a")
    episode(tmp_path, "b", training_step=None)
    episode(tmp_path, "c", task_hash="")
    episode(tmp_path, "d", trajectories=[])
    episode(tmp_path, "e", trajectories=[{}])
    run = read_run(tmp_path)
    assert rewards_of(run) == {"1:t": (1.0, None)}
    assert set_aside(run) == {
        "the step is not a whole number": 1,
        "task_hash is missing": 1,
        "the episode has no trajectory": 1,
        "the reward is missing": 1,
    }


def test_rllm_a_number_beyond_all_floats_is_not_known(tmp_path: Path) -> None:
    episode(tmp_path, "a", is_correct=int("9" * 400))
    assert read_run(tmp_path).groups[0].rollouts[0].rewards == {"is_correct": None}


@pytest.mark.parametrize("strange", ["x", None, [1], [{}, {}], [{"name": 1, "reward": float("nan")}], [[]]])
def test_rllm_strange_trajectories_have_the_answers_of_the_row_reader(tmp_path: Path, strange: Any) -> None:
    for number in range(4):
        episode(tmp_path, str(number), task_hash=f"t{number % 2}")
    episode(tmp_path, "9", trajectories=strange, timing={"llm_time": 1.0})
    assert_same(tmp_path)
