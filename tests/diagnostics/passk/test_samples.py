import json
from pathlib import Path

import pytest

from gradscope.diagnostics.passk.measure import measure_pass_at_k, pass_at_k_of_samples
from gradscope.diagnostics.passk.samples import sample_files, samples_of_run
from gradscope.errors import InputError
from gradscope.rollouts.run_folder import heldout_path
from tests.diagnostics.compared_runs import write_run
from tests.diagnostics.made_up_runs import group_of, run_of


def test_groups_of_one_prompt_are_pooled_and_missing_verdicts_counted() -> None:
    run = run_of(group_of([1, None], prompt="a"), group_of([0], prompt="a"), group_of([None], prompt="b"))
    counted = samples_of_run(run, name="x")
    assert (counted.prompts, counted.num_samples.tolist(), counted.num_correct.tolist()) == (("a",), [2], [1])
    assert counted.num_missing == 2
    assert pass_at_k_of_samples([counted]).findings[-1] == "x: 2 samples have no reward and are not counted."


def test_log_of_several_steps_has_no_common_policy() -> None:
    with pytest.raises(InputError, match="logs 2 training steps, each from another policy"):
        samples_of_run(run_of(group_of([1, 0], step=1), group_of([1, 0], step=2)), name="x")


def test_samples_without_verdicts_are_refused() -> None:
    with pytest.raises(InputError, match="holds no sample with a reward"):
        samples_of_run(run_of(group_of([None])), name="x")


def test_fractional_verdicts_need_a_threshold() -> None:
    run = run_of(group_of([0.2, 0.9]))
    with pytest.raises(InputError, match="which samples are correct is not known"):
        samples_of_run(run, name="x")
    assert samples_of_run(run, name="x", success_threshold=0.5).num_correct.tolist() == [1]


def test_run_folder_stands_for_its_held_out_samples(tmp_path: Path) -> None:
    assert sample_files(tmp_path) == (tmp_path,)
    (tmp_path / "heldout").mkdir()
    for when, correct in (("before", [0, 0]), ("after", [1, 0])):
        rows = [
            {"prompt_id": p, "prompt": p, "answer": "", "completion": "", "reward": float(c), "correct": bool(c)}
            for p in ("a", "b")
            for c in correct
        ]
        (tmp_path / "heldout" / f"{when}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = measure_pass_at_k(tmp_path)
    assert [table.name for table in report.tables] == ["before.jsonl", "after.jsonl"]
    assert [row.difference.value for row in report.comparison.rows] == [0.5, 1.0]


def test_held_out_samples_say_themselves_which_are_correct(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    path = heldout_path(run, "after")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row | {"reward": 0.5 + 0.5 * row["correct"]}) + "\n" for row in rows))
    (table,) = measure_pass_at_k(run).tables
    assert table.rows[0].pass_at_k.value == 0.5
    (table,) = measure_pass_at_k(run, success_threshold=0.5).tables
    assert table.rows[0].pass_at_k.value == 1.0


def test_counts_are_no_verdicts() -> None:
    run = run_of(*(group_of([correct], prompt=f"p{correct}") for correct in (0, 3, 8)))
    with pytest.raises(InputError, match="one row a prompt, with whole numbers up to 8 as rewards: counts") as caught:
        samples_of_run(run, name="x")
    assert "--n-column N --c-column C" in str(caught.value.hint)
    several = run_of(group_of([0, 3, 8]))
    with pytest.raises(InputError, match="neither 0/1 nor -1/1"):
        samples_of_run(several, name="x")
