import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gradscope.diagnostics.passk import measure as passk
from gradscope.errors import InputError
from gradscope.render.terminal.passk import pass_at_k_table
from gradscope.rollouts.groups import RolloutGroup
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.run_folder import heldout_path
from tests.conftest import REPOSITORY
from tests.diagnostics.compared_runs import write_run
from tests.diagnostics.made_up_runs import FIRST, group_of, humaneval, run_of, samples, tau_bench
from tests.render.printing import printed
from tests.rollouts.readers.evaluations.test_harnesses import review
from tests.rollouts.readers.evaluations.test_inspect_ai import archive
from tests.rollouts.readers.lines import write_lines


def test_samples_that_repeat_are_told_once(tmp_path: Path) -> None:
    rows = [{"task_id": f"t{n % 20}", "completion": f"{n % 40} " * 40, "passed": n % 3 > 0} for n in range(80)]
    file, copy = (write_lines(tmp_path / name, *rows) for name in ("a.jsonl", "b.jsonl"))
    copies = "40 samples are exact copies of another long text"
    assert copies in " ".join(passk.measure_pass_at_k(file).findings)
    assert "b.jsonl is a.jsonl, byte for byte: " in passk.measure_pass_at_k(file, copy).findings[1]
    short = [{**row, "completion": row["completion"][:3]} for row in rows]  # as of a choice of four
    for other in (rows[:40], short):
        assert copies not in " ".join(passk.measure_pass_at_k(write_lines(tmp_path / "c.jsonl", *other)).findings)


def test_a_budget_beyond_the_samples_is_undefined() -> None:
    comparison = passk.pass_at_k_of_samples([FIRST, samples("short", {"a": [1, 0]})], ks=(4,)).comparison
    (row,) = comparison.rows
    assert row.difference.undefined == row.compression_factor.undefined == "k = 4 exceeds the 2 samples of a prompt"
    assert (row.first_wins, row.second_wins, row.ties) == (0, 0, 0)
    assert comparison.frac_won.undefined == "the two have no budget in common"
    report = passk.pass_at_k_of_samples([FIRST], ks=(8,))
    assert report.tables[0].rows[0].pass_at_k.undefined == "k = 8 exceeds the 4 samples of a prompt"
    assert report.findings == ("first: no budget asked for is within the 4 samples of every prompt.",)
    assert "at least 10 prompts, there are 4" in report.tables[0].forecasts[0].pass_hat_k.undefined


def test_table_of_one_file() -> None:
    report = passk.pass_at_k_of_samples([FIRST])
    (table,) = report.tables
    assert (table.name, table.num_prompts, table.num_samples) == ("first", 4, (4, 4))
    assert [(row.k, row.pass_at_k.value) for row in table.rows] == [
        (1, pytest.approx(2.5 / 4)),
        (2, pytest.approx((2 + 5 / 6) / 4)),
        (4, pytest.approx(3 / 4)),
    ]
    assert table.rows[1].pass_hat_k.value == pytest.approx((2 + 1 / 6) / 4)
    assert report.comparison is None
    assert [re.sub(r" \[[^]]*\]", "", sentence) for sentence in report.findings] == [
        "first: pass@1 = 0.625 and pass@4 = 0.750 over 4 prompts."
    ]


def test_budget_beyond_the_samples_is_forecast_apart() -> None:
    correct = {f"p{i}": [float(j < i % 5) for j in range(4)] for i in range(60)}
    (table,) = passk.pass_at_k_of_samples([samples("many", correct)], ks=(4, 16, 64)).tables
    assert [row.pass_at_k.is_defined for row in table.rows] == [True, False, False]
    near, far = table.forecasts
    assert (near.k, near.method, far.k) == (16, "forecast", 64)
    assert table.rows[0].pass_at_k.value < near.pass_at_k.value < 1.0
    assert far.pass_at_k.undefined == "k = 64 is more than 8 times the 4 samples of a prompt"


@pytest.mark.slow
def test_codegen_and_tau_bench_have_their_published_numbers(shared_data: Path) -> None:
    counted = passk.samples_of_run(humaneval(shared_data), name="codegen")
    table = passk.pass_at_k_of_samples([counted], ks=(1, 2, 5, 10, 20, 50, 100)).tables[0]
    published = [0.22116, 0.30793, 0.42030, 0.50379, 0.58906, 0.68687, 0.73780]
    assert [row.pass_at_k.value for row in table.rows] == pytest.approx(published, abs=5.1e-6)
    counted = passk.samples_of_run(tau_bench(shared_data), name="gpt-4o")
    table = passk.pass_at_k_of_samples([counted], ks=(1, 2, 3, 4)).tables[0]
    assert [row.pass_hat_k.value for row in table.rows] == pytest.approx([0.42, 0.27333, 0.22, 0.20], abs=5e-6)
    assert [row.pass_at_k.value for row in table.rows] == pytest.approx([0.42, 0.56667, 0.66, 0.72], abs=5e-6)


@pytest.mark.parametrize("name", ["aime24", "amc23"])
def test_reasoning_gym_from_the_file_as_it_is(shared_data: Path, name: str) -> None:
    published = {"aime24": [0.024, 0.07391, 0.17422, 0.300], "amc23": [0.144, 0.33061, 0.53749, 0.675]}
    path = shared_data / "reasoning_gym" / f"llama3b_rl_step400_{name}_n50.json"
    table = passk.measure_pass_at_k(path, ks=(1, 4, 16, 50)).tables[0]
    assert [row.pass_at_k.value for row in table.rows] == pytest.approx(published[name], abs=5.1e-6)


@pytest.fixture
def evaluations(tmp_path: Path) -> Path:
    """Two logs of three prompts, two epochs and three scorers, one with verdicts; a damaged log; another task."""
    for name, model, status in (("1", "org/a", "success"), ("2", "org/b", "cancelled")):
        samples = {
            f"samples/{prompt}_epoch_{epoch}.json": {
                "id": prompt,
                "epoch": epoch,
                "scores": {"match": {"value": "CI"[right]}, "judge": {"value": 0.3 + right}, "none": {"value": "?"}},
            }
            for prompt in "xyz"
            for epoch in (1, 2)
            for right in [epoch == 2 and prompt != "z"]
        }
        header = {"task": "gsm8k", "model": model, "dataset": {"sample_ids": [*"xyzw"]}, "config": {"epochs": 2}}
        archive(tmp_path / f"{name}.eval", {**samples, "header.json": {"status": status, "eval": header}})
    (tmp_path / "3.eval").write_bytes(b"cut off")
    write_lines(tmp_path / "math.jsonl", *({"task_id": name, "passed": True} for name in "ab"))
    return tmp_path


def test_a_folder_of_evaluations_is_a_table_a_log_and_scorer(
    evaluations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = passk.measure_pass_at_k(evaluations)
    assert [(log.task, log.model, log.scorer) for table in report.tables if (log := table.evaluation)] == [
        ("3", "", "reward"),
        *(("gsm8k", model, scorer) for model in ("org/a", "org/b") for scorer in ("match", "judge", "none")),
        ("math", evaluations.name, "reward"),
    ]
    damaged, match, judge, unscored, *_, math = report.tables
    assert [(row.k, row.pass_at_k.value) for row in match.rows] == [(1, pytest.approx(2 / 3)), (2, 1.0)]
    assert (match.num_prompts, match.num_samples) == (3, (2, 2))
    assert match.evaluation.mean_score.value == pytest.approx(2 / 3)
    assert judge.evaluation.mean_score.value == pytest.approx(0.3 + 1 / 3)
    assert "neither 0/1 nor -1/1" in judge.rows[0].pass_at_k.undefined
    assert (judge.num_prompts, judge.num_samples) == (3, (2, 2))
    assert unscored.rows[0].pass_at_k.undefined == "no sample has this score"
    assert (unscored.num_prompts, unscored.num_samples) == (0, (0, 0))
    assert "the file is no zip archive" in damaged.rows[0].pass_at_k.undefined
    assert math.rows[0].pass_at_k.value == 1.0
    assert report.comparison is None
    (source,) = report.sources
    assert (source.path, source.num_rows) == (str(evaluations), 14)
    assert source.recognized == "4 evaluations (inspect-ai, samples)"
    assert report.findings[:2] == (
        "4 evaluations: 3 tasks, 3 models, 4 scorers, none of them pooled. 1 did not succeed.",
        "2.eval: the evaluation was cancelled: 6 of 8 samples.",
    )
    monkeypatch.chdir(evaluations)
    assert [source.path for source in passk.measure_pass_at_k(Path()).sources] == ["."]


def test_of_a_folder_of_evaluations_one_scorer_may_be_named_and_a_pass_defined(evaluations: Path) -> None:
    (evaluations / "3.eval").unlink()
    named = ReadOptions(reader="inspect-ai", columns=ColumnNames(reward="judge"), strict=True)
    report = passk.measure_pass_at_k(evaluations, ks=(2,), success_threshold=1.0, read=named)
    (first, second) = report.tables
    assert first.evaluation.scorer == second.evaluation.scorer == "judge"
    assert first.rows[0].pass_at_k.value == second.rows[0].pass_at_k.value == pytest.approx(2 / 3)
    (table,) = passk.measure_pass_at_k(evaluations / "2.eval").tables
    assert (table.source.unfinished, table.evaluation) == ("was cancelled: 6 of 8 samples", None)
    with pytest.raises(InputError, match="has no scorer 'other'"):
        passk.measure_pass_at_k(evaluations, read=ReadOptions(columns=ColumnNames(reward="other"), strict=True))


def test_each_policy_of_an_evaluation_in_a_folder_has_a_table_of_its_own(tmp_path: Path) -> None:
    rows = [{"model": m, "task_id": task, "passed": m == "a" or task > 1} for m in "ab" for task in range(4)]
    for name in ("code", "math"):
        write_lines(tmp_path / f"{name}.jsonl", *rows, {"task_id": 0, "passed": False})
    write_lines(tmp_path / "judge.jsonl", *({**row, "passed": 0.5} for row in rows))
    tables = passk.measure_pass_at_k(tmp_path).tables
    policies = [("a", 4, 1.0), ("b", 4, 0.5), (tmp_path.name, 1, 0.0)]
    rates = [(table.evaluation.model, table.num_prompts, table.rows[0].pass_at_k.value) for table in tables]
    assert rates == [*policies, ("a", 4, None), ("b", 4, None), *policies]
    assert [table.evaluation.mean_score.value for table in tables][3:5] == [0.5, 0.5]
    assert len({table.name for table in tables}) == 8


def test_trials_with_a_folder_each_are_read_as_one_file_of_them_would_be(tmp_path: Path) -> None:
    for task, trial in product(("sort", "grep"), (1, 2)):
        folder = tmp_path / "job" / task / f"{task}.{trial}"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps({"task_id": task, "is_resolved": task == "sort" or None}))
    report = passk.measure_pass_at_k(tmp_path / "job", ks=(1, 2))
    (table,) = report.tables
    assert (table.num_prompts, table.num_samples, table.evaluation) == (2, (2, 2), None)
    assert [row.pass_at_k.value for row in table.rows] == [0.5, 0.5]


def test_filters_of_lm_eval_are_scorers_and_files_and_folders_are_evaluations(tmp_path: Path) -> None:
    logs = REPOSITORY / "fixtures/logs"
    row = {"doc_id": 0, "doc": {}, "resps": [["4"]], "metrics": ["acc"]}
    for task in ("a", "b"):
        filtered = [{**row, "filter": name, "acc": right} for name, right in (("strict", 0.0), ("loose", 1.0))]
        write_lines(tmp_path / f"samples_{task}_2026.jsonl", *filtered)
    report = passk.measure_pass_at_k(tmp_path, logs / "samples_rows.jsonl", logs / "trl")
    assert [(t.evaluation.task, t.evaluation.scorer, t.rows[0].pass_at_k.value) for t in report.tables] == [
        *((task, f"acc,{name}", right) for task in ("a", "b") for name, right in (("strict", 0.0), ("loose", 1.0))),
        ("samples_rows", "reward", 0.25),
        ("trl", "reward", None),
    ]


def test_a_score_of_what_is_wrong_is_no_scorer(tmp_path: Path) -> None:
    for task in "ab":
        values = [{"is_correct": i == 0, "is_incorrect": i == 1, "is_not_attempted": i == 2} for i in range(4)]
        rows = [review(2 * i, value, main_score_name="is_correct") for i, value in enumerate(values)]
        write_lines(tmp_path / f"reviews/m/{task}.jsonl", *rows)
    report = passk.measure_pass_at_k(tmp_path)
    assert [(t.evaluation.scorer, t.rows[0].pass_at_k.value) for t in report.tables] == [("is_correct", 0.25)] * 2


def test_groups_of_one_prompt_are_pooled_and_missing_verdicts_counted() -> None:
    run = run_of(group_of([1, None], prompt="a"), group_of([0], prompt="a"), group_of([None], prompt="b"))
    counted = passk.samples_of_run(run, name="x")
    assert (counted.prompts, counted.num_samples.tolist(), counted.num_correct.tolist()) == (("a",), [2], [1])
    assert counted.num_missing == 2
    assert passk.pass_at_k_of_samples([counted]).findings[-1] == "x: 2 samples have no reward and are not counted."


@pytest.mark.parametrize(
    ("groups", "message", "hint"),
    [
        ([group_of([0.2, 0.9])], "which samples are correct is not known", ""),
        ([group_of([0, 3, 8])], "neither 0/1 nor -1/1", "Say from which reward on"),
        (
            [group_of([0.2, 1.3, 2.0], functions={"length": [2, 0.3, 3], "solved": [0, 1, 1]})],
            "neither 0/1 nor -1/1",
            "Name the verdict: --reward-column solved, or say from which",
        ),
        ([group_of([None])], "holds no sample with a reward", ""),
        ([group_of([1, 0], step=1), group_of([1, 0], step=2)], "logs 2 training steps, each from another policy", ""),
        (
            [group_of([correct], prompt=f"p{correct}") for correct in (0, 3, 8)],
            "one row a prompt, with whole numbers up to 8 as rewards: counts",
            "--n-column N --c-column C",
        ),
    ],
)
def test_samples_must_have_verdicts_of_one_policy(groups: list[RolloutGroup], message: str, hint: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        passk.samples_of_run(run_of(*groups), name="x")
    assert hint in str(caught.value.hint)
    if "is not known" in message:
        assert passk.samples_of_run(run_of(*groups), name="x", success_threshold=0.5).num_correct.tolist() == [1]


def test_the_policies_of_a_file_are_never_pooled(tmp_path: Path) -> None:
    rows = [{"task_id": task, "model": m, "passed": m == "a"} for m in ("a", "b", None) for task in (1, 1, 2)]
    path = write_lines(tmp_path / "all.jsonl", *rows)
    tables = passk.measure_pass_at_k(path).tables
    shares = [(table.name, table.num_prompts, table.rows[0].pass_at_k.value) for table in tables]
    assert shares == [("a", 2, 1.0), ("b", 2, 0.0), ("all.jsonl", 2, 0.0)]
    with pytest.raises(InputError, match="holds samples of 2 policies, which have no common pass@k"):
        passk.read_samples(path)
    lists = [{"task_id": 1, "model": m, "scores": [s], "responses": ["x"]} for m, s in (("a", 1.0), ("c", None))]
    assert [table.name for table in passk.measure_pass_at_k(write_lines(path, *lists)).tables] == ["a"]


@pytest.mark.parametrize(
    ("key", "cells"), [("id", {"responses": ["x"], "scores": [1]}), ("problem_id", {"response": "x", "correct": 1})]
)
def test_files_that_ask_otherwise_under_the_same_ids_say_so(tmp_path: Path, key: str, cells: dict[str, Any]) -> None:
    def asking(name: str, verb: str) -> Path:
        return write_lines(tmp_path / name, *({key: row, "question": f"{verb} {row}?", **cells} for row in range(3)))

    first, other, same = asking("a.jsonl", "sum"), asking("b.jsonl", "root"), asking("c.jsonl", "sum")
    caution = "The files ask other questions under the same ids"
    assert caution in " ".join(passk.measure_pass_at_k(first, other).findings)
    assert caution not in " ".join(passk.measure_pass_at_k(first, same).findings)


def test_of_attempts_that_end_once_one_passes_the_first_alone_count(tmp_path: Path) -> None:
    attempts = ["1"] * 5 + ["01"] * 5
    rows = [{"task_id": n, "passed": digit == "1"} for n, digits in enumerate(attempts) for digit in digits]
    write_lines(tmp_path / "a" / "tries.jsonl", *rows)
    for path in (tmp_path / "a" / "tries.jsonl", tmp_path):
        if path.is_dir():
            write_lines(tmp_path / "b.jsonl", *rows)
        report = passk.measure_pass_at_k(path)
        assert {(table.num_samples, table.rows[0].pass_at_k.value) for table in report.tables} == {((1, 1), 0.5)}
        assert any("only the first of each counts" in finding for finding in report.findings)


def test_policies_of_one_name_in_two_files_are_named_by_their_files(tmp_path: Path) -> None:
    rows = [{"task_id": task, "model": model, "passed": task == "z"} for model in "ab" for task in "xyz"]
    files = [write_lines(tmp_path / name, *rows) for name in ("first.jsonl", "second.jsonl")]
    report = passk.measure_pass_at_k(*files)
    assert [table.name for table in report.tables] == [f"{file.name}/{model}" for file in files for model in "ab"]


def test_policies_of_a_file_that_were_asked_something_else_are_not_compared(tmp_path: Path) -> None:
    tasks_of = {"a": "xyz", "b": "uvw", "c": "zw", "d": "x", "e": "yz", "f": "u", "g": "z"}
    rows = [{"task_id": task, "model": m, "passed": task == "z"} for m, tasks in tasks_of.items() for task in tasks]
    report = passk.measure_pass_at_k(write_lines(tmp_path / "all.jsonl", *rows))
    assert [table.name for table in report.tables] == list(tasks_of)
    pairs = [(pair.first, pair.second, pair.num_prompts) for pair in (report.comparison, *report.further_comparisons)]
    assert pairs == [("a", "c", 1), ("a", "d", 1), ("a", "e", 2), ("a", "g", 1)]
    led = [line.split()[0] for line in printed(pass_at_k_table(report)).splitlines() if line.count("[") == 2]
    assert led == ["c", "d", "e", "g"]


def test_run_folder_stands_for_its_held_out_samples(tmp_path: Path) -> None:
    assert passk.sample_files(tmp_path) == (tmp_path,)
    for when, correct in (("before", [0, 0]), ("after", [1, 0])):
        texts = {"answer": "", "completion": ""}
        rows = [{"prompt_id": p, "prompt": p, **texts, "reward": c, "correct": c > 0} for p in "ab" for c in correct]
        write_lines(tmp_path / "heldout" / f"{when}.jsonl", *rows)
    report = passk.measure_pass_at_k(tmp_path)
    assert [table.name for table in report.tables] == ["before.jsonl", "after.jsonl"]
    assert [row.difference.value for row in report.comparison.rows] == [0.5, 1.0]


def test_held_out_samples_say_themselves_which_are_correct(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    path = heldout_path(run, "after")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row | {"reward": 0.5 + 0.5 * row["correct"]}) + "\n" for row in rows))
    (table,) = passk.measure_pass_at_k(run).tables
    assert table.rows[0].pass_at_k.value == 0.5
    (table,) = passk.measure_pass_at_k(run, success_threshold=0.5).tables
    assert table.rows[0].pass_at_k.value == 1.0


def test_a_folder_around_the_folder_of_one_evaluation_is_that_evaluation() -> None:
    (table,) = passk.measure_pass_at_k(REPOSITORY / "fixtures/logs/verifiers_eval").tables
    assert (table.num_prompts, table.num_samples, Path(table.source.path).name) == (2, (3, 3), "traces.jsonl")


def test_a_folder_of_which_nothing_can_be_read_says_what_to_do(tmp_path: Path) -> None:
    """As of BFCL's scores."""
    for name in "ab":
        rows = [{"accuracy": 0.5, "correct_count": 1, "total_count": 2}, {"id": "q", "valid": False}]
        (tmp_path / f"{name}_score.json").write_text("\n".join(map(json.dumps, rows)) + "\n")
    with pytest.raises(InputError, match="is a score file of BFCL") as caught:
        passk.measure_pass_at_k(tmp_path)
    assert "a_result.json > rows.jsonl" in str(caught.value.hint)
