import json
import shlex
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.evaluations.folders import evaluations_in
from tests.conftest import LOGS
from tests.rollouts.readers.evaluations.test_inspect_ai import archive
from tests.rollouts.readers.lines import refusal, write_lines, write_rows

SAMPLES = [{"task_id": name, "passed": right} for name in "ab" for right in (True, False)]


def inspect_log(path: Path, task: str, model: str, status: str = "success") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    info = {"task": task, "model": model, "dataset": {"sample_ids": ["a", "b"]}}
    sample = {"id": "a", "epoch": 1, "scores": {"match": {"value": "C"}, "judge": {"value": 0.3}}}
    return archive(path, {"samples/a_epoch_1.json": sample, "header.json": {"status": status, "eval": info}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Logs of every harness below one folder."""
    inspect_log(tmp_path / "inspect" / "2026-01-01_x.eval", "gsm8k", "openai/gpt")
    inspect_log(tmp_path / "inspect" / "2026-01-02_y.eval", "mmlu", "openai/gpt", "cancelled")
    shutil.copytree(LOGS / "inspect_ai_shards", tmp_path / "shards")
    model = tmp_path / "lm" / "Qwen__Qwen2.5"
    shutil.copytree(LOGS / "lm_eval", model)
    when = "2026-01-01T00-00-00"
    shutil.copytree(LOGS / "lm_eval", tmp_path / "named")
    (tmp_path / "named" / f"results_{when}.json").write_text(json.dumps({"model_name": "org/named"}))
    details = tmp_path / "details" / "owner" / "model" / when
    details.mkdir(parents=True)
    shutil.copy(LOGS / "lighteval" / "details_math_2026-01-01.parquet", details)
    shutil.copytree(LOGS / "evalplus", tmp_path / "plus")
    shutil.copytree(LOGS / "verifiers_eval", tmp_path / "verifiers")
    shutil.copytree(LOGS / "skyrl_eval", tmp_path / "skyrl")
    for task in ("chess__a", "chess__b"):
        trial = {"task_name": "chess", "verifier_result": {}, "agent_info": {"name": "t", "model_info": {"name": "m"}}}
        write_rows(tmp_path / "jobs" / "first" / task / "result.json", trial)
    (tmp_path / "k8-t1.0.json").write_text(json.dumps({"model_name": "Qwen/Qwen2.5", "results": SAMPLES}))
    for name in ("model-a/math.jsonl", "model-a/code.jsonl", "parts-t1.0/part-0.jsonl", "parts-t1.0/part-1.jsonl"):
        write_lines(tmp_path / name, *SAMPLES)
    return tmp_path


def test_each_log_is_an_evaluation_with_its_task_and_model(folder: Path) -> None:
    logs = evaluations_in(folder, ReadOptions())
    assert {(log.format, log.task, log.model, str(log.path.relative_to(folder))) for log in logs} == {
        ("inspect-ai", "gsm8k", "openai/gpt", "inspect/2026-01-01_x.eval"),
        ("inspect-ai", "mmlu", "openai/gpt", "inspect/2026-01-02_y.eval"),
        ("inspect-ai", "2026-11-01T10-00-00+00-00_demo_x", "", "shards/2026-11-01T10-00-00+00-00_demo_x.shards"),
        ("lm-eval", "gsm8k", "Qwen/Qwen2.5", "lm/Qwen__Qwen2.5/samples_gsm8k_2026-01-01T00-00-00.jsonl"),
        ("lm-eval", "gsm8k", "org/named", "named/samples_gsm8k_2026-01-01T00-00-00.jsonl"),
        ("lighteval", "math", "owner/model", "details/owner/model/2026-01-01T00-00-00/details_math_2026-01-01.parquet"),
        ("evalplus", "HumanEval", "plus", "plus/samples_eval_results.json"),
        ("verifiers", "gsm8k", "qwen3", "verifiers/gsm8k--qwen3--single-turn--5f2c/traces.jsonl"),
        ("skyrl-eval", "aime", "step 10", "skyrl/dumped_evals/global_step_10_evals/aime.jsonl"),
        ("skyrl-eval", "openai_gsm8k", "step 10", "skyrl/dumped_evals/global_step_10_evals/openai_gsm8k.jsonl"),
        ("harbor", "first", "t/m", "jobs/first"),
        ("samples", "k8-t1.0", "Qwen/Qwen2.5", "k8-t1.0.json"),
        ("samples", "code", "model-a", "model-a/code.jsonl"),
        ("samples", "math", "model-a", "model-a/math.jsonl"),
        ("samples", "parts-t1.0", folder.name, "parts-t1.0"),
    }
    scorers = {log.format: log.scorers for log in logs}
    assert scorers["lm-eval"] == ("exact_match,strict-match", "exact_match,flexible-extract")
    assert (scorers["inspect-ai"], scorers["samples"]) == (None, (None,))


@pytest.mark.parametrize("below", ["", "math_eval/"])
def test_the_folder_around_a_file_of_math_evaluation_harness_is_its_task(tmp_path: Path, below: str) -> None:
    for task in ("aime24", "gsm8k"):
        file = tmp_path / "Qwen2.5-3B" / below / task / "test_qwen25-math-cot_-1_seed0_t0.6_s0_e-1.jsonl"
        write_lines(file, *({"idx": i, "question": f"{task} {i}", "score": [True], "code": ["a"]} for i in range(2)))
    logs = evaluations_in(tmp_path, ReadOptions())
    assert {(log.task, log.model) for log in logs} == {("aime24", "Qwen2.5-3B"), ("gsm8k", "Qwen2.5-3B")}


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (("humaneval", "mmlu_pro"), ("01_gpt", "llama-3")),
        (("MATH-500", "gsm8k_zh/outputs"), ("base", "tuned")),
        (("gpqa", "aime24"), ("results",)),
    ],
)
def test_files_in_folders_of_benchmarks_are_those_of_models(
    folders: tuple[str, ...], names: tuple[str, ...], tmp_path: Path
) -> None:
    for folder, name in product(folders, names):
        write_lines(tmp_path / folder / f"{name}.jsonl", *({"id": i, "correct": i % 2 == 0} for i in range(3)))
    named = {(log.task, log.model) for log in evaluations_in(tmp_path, ReadOptions())}
    models = [""] if names == ("results",) else names
    assert named == set(product([folder.partition("/")[0] for folder in folders], models))


def test_a_file_beside_results_names_their_environment_and_model(tmp_path: Path) -> None:
    for run, info in (("5f2c", {"env_id": "math", "model": "gpt"}), ("77ab", {"env": "math", "model": "o/q"})):
        write_lines(tmp_path / "math--gpt" / run / "results.jsonl", *SAMPLES)
        write_lines(tmp_path / "math--gpt" / run / "metadata.json", info)
    write_lines(tmp_path / "broken" / "results.jsonl", *SAMPLES)
    write_lines(tmp_path / "broken" / "metadata.json", "{")
    logs = evaluations_in(tmp_path, ReadOptions())
    assert [(log.task, log.model) for log in logs] == [("results", "broken"), ("math", "gpt"), ("math", "o/q")]


@pytest.mark.parametrize("below", ["gpt/results", "gpt/eval_results/raw", "gpt", "results/gpt"])
def test_a_folder_of_results_is_no_model(tmp_path: Path, below: str) -> None:
    write_lines(tmp_path / below / "math.jsonl", *SAMPLES)
    assert [(log.task, log.model) for log in evaluations_in(tmp_path, ReadOptions())] == [("math", "gpt")]


def test_samples_that_lm_eval_wrote_before_it_named_filters_are_of_their_task_and_model(tmp_path: Path) -> None:
    row = {"doc_id": 0, "doc": {}, "resps": [["4"]], "filtered_resps": ["4"], "doc_hash": "a", "exact_match": 1.0}
    when = "2025-03-13T18-38-33.359963"
    write_lines(tmp_path / "o__qwen" / f"samples_mgsm_direct_en_{when}.jsonl", row)
    write_lines(tmp_path / "named" / f"samples_mgsm_direct_en_{when}.jsonl", row)
    write_lines(tmp_path / "named" / f"results_{when}.json", {"model_name": "o/named"})
    logs = evaluations_in(tmp_path, ReadOptions())
    assert [(log.task, log.model) for log in logs] == [("mgsm_direct_en", "o/named"), ("mgsm_direct_en", "o/qwen")]


@pytest.mark.parametrize("key", ["category", "subject", "benchmark"])
def test_folders_called_as_what_their_logs_name_are_no_models(tmp_path: Path, key: str) -> None:
    """As reasoning-gym writes a file for each of its data sets, in folders of their categories."""
    for name, task in (("algebra", "sums"), ("algebra", "products"), ("logic", "syllogism")):
        trial(tmp_path / "claude" / name / f"{task}.json", **{key: name, "results": SAMPLES})
    assert {log.model for log in evaluations_in(tmp_path, ReadOptions())} == {"claude"}


def test_a_reader_that_is_named_finds_its_own_alone(folder: Path) -> None:
    assert {log.format for log in evaluations_in(folder, ReadOptions(reader="lm-eval"))} == {"lm-eval"}
    assert {log.format for log in evaluations_in(folder / "*" / "*.eval", ReadOptions())} == {"inspect-ai"}


@pytest.mark.parametrize("below", ["inspect", "model-a", "*/samples_gsm8k*.jsonl"])
def test_several_evaluations_are_not_read_as_one(folder: Path, below: str) -> None:
    shutil.copytree(folder / "named", folder / "again")
    assert "gradscope passk " in refusal(folder / below, "holds 2 evaluations, which are never pooled: ")


def test_evaluations_without_plus_tests_have_one_scorer(tmp_path: Path) -> None:
    """As BigCodeBench's."""
    shutil.copy(LOGS / "evalplus" / "samples_eval_results.json", tmp_path / "a_eval_results.json")
    for name in "bc":
        samples = {"BigCodeBench/1": [{"solution": "x", "status": "pass"}]}
        (tmp_path / f"{name}_eval_results.json").write_text(json.dumps({"eval": samples}))
    logs = evaluations_in(tmp_path, ReadOptions())
    assert {log.model: (log.scorers, log.scalar) for log in logs} == {
        "a": (("base", None), "base + plus"),
        **dict.fromkeys("bc", ((None,), "base")),
    }


def test_results_by_step_of_a_harness_are_not_pooled(tmp_path: Path) -> None:
    for step in (1, 2):
        shutil.copy(LOGS / "evalplus" / "samples_eval_results.json", tmp_path / f"step_{step}_eval_results.json")
    refusal(tmp_path, "holds 2 evaluations, which are never pooled: ")


def test_parts_of_one_log_and_steps_of_skyrl_are_read_together(folder: Path) -> None:
    assert read_run(folder / "parts-t1.0").source.num_rows == 8
    for seed in (0, 1):  # of sampling, as NeMo-Skills names its files
        write_lines(folder / f"output-rs{seed}.jsonl", {"problem": "p", "symbolic_correct": True})
    assert [group.size for group in read_run(folder / "output-rs*.jsonl").groups] == [2]
    assert len(read_run(folder / "skyrl").source.files) == 2


def test_parts_beside_a_summary_are_one_evaluation(tmp_path: Path) -> None:
    """As NeMo-Skills writes a folder for each benchmark, with its metrics.json."""
    folder = tmp_path / "qwen" / "eval-results" / "aime24"
    for seed in (0, 1):
        row = {"problem": "p", "generation": "a", "predicted_answer": "4", "symbolic_correct": seed > 0}
        write_lines(folder / f"output-rs{seed}.jsonl", row, {**row, "problem": "q"})
    write_lines(folder / "metrics.json", {"aime24": {"pass@1[avg-of-2]": {"num_entries": 2, "symbolic_correct": 50.0}}})
    (log,) = evaluations_in(tmp_path, ReadOptions())
    assert (log.task, log.model) == ("aime24", "qwen")
    for path in (log.path, folder):
        assert [group.rewards for group in read_run(path).groups] == [(0, 1), (0, 1)]
    assert "output-rs0.jsonl" not in refusal(tmp_path, "is no log itself, but .*is")


@pytest.mark.parametrize("document", [[1], {"model_name": 3}, {}])
def test_results_that_name_no_model_leave_it_to_the_folder(folder: Path, document: Any) -> None:
    (folder / "named" / "results_2026-01-01T00-00-00.json").write_text(json.dumps(document))
    assert [log.model for log in evaluations_in(folder / "named", ReadOptions())] == ["named"]


def trial(path: Path, **row: Any) -> None:
    write_rows(path, {"notes": {"passed": 3}, **row})


@pytest.mark.parametrize("named", ["sort.{}-of-2", "task_sort/{}", "sort/sort__{}"])
def test_trials_in_folders_named_after_their_tasks_are_one_evaluation(tmp_path: Path, named: str) -> None:
    for model, i, right in product("ab", (1, 2), (True, False)):
        task = "sort" if right else "grep"
        folder = tmp_path / model / named.replace("sort", task).format(i)
        trial(folder / "result.json", task_id=task, is_resolved=right and i == 1, trial_name=folder.name)
    logs = evaluations_in(tmp_path, ReadOptions())
    assert [(log.task, log.path.parts[len(tmp_path.parts) :][1]) for log in logs] == [("a", "*"), ("b", "*")]
    assert [[group.rewards for group in read_run(log.path).groups] for log in logs] == [[(0, 0), (1, 0)]] * 2
    below = tmp_path / "a" / named.format(1).partition("/")[0]
    assert len(evaluations_in(below, ReadOptions())) == 1
    trial(tmp_path / "a" / named.format(1) / "more" / "result.json", task_id="sort", is_resolved=True)
    assert {log.task for log in evaluations_in(tmp_path, ReadOptions())} == {"a", "b", "result"}


def test_trials_that_the_log_of_their_run_lists_are_part_of_it(tmp_path: Path) -> None:
    verdicts = {"sort.1-of-2": True, "sort.2-of-2": None, "grep.1-of-2": False}
    rows = [{"trial_name": name, "task_id": name[:4], "is_resolved": verdict} for name, verdict in verdicts.items()]
    for row in rows:
        if row["is_resolved"] is not None:  # without a verdict there is no file
            trial(tmp_path / "run" / row["task_id"] / row["trial_name"] / "results.json", **row)
    trial(tmp_path / "run" / "results.json", results=rows)
    (log,) = evaluations_in(tmp_path, ReadOptions())
    assert [group.rewards for group in read_run(log.path).groups] == [(1, 0), (0,)]
    assert read_run(tmp_path / "run").source.num_rows == 3
    trial(tmp_path / "run" / "more" / "results.json", task_id="more", is_resolved=True)
    assert len(evaluations_in(tmp_path, ReadOptions())) == 2


@pytest.mark.parametrize("has_report", [True, False])
def test_files_of_a_simulation_each_are_those_of_the_report_above_them(tmp_path: Path, has_report: bool) -> None:
    """As tau2-bench writes them, named by UUIDs."""
    names = {(task, n): f"3f2ab{task}7e-11{n}a-4bc{task}-8d0f-0123456789{n}b" for task in (1, 2) for n in (0, 1)}
    for (task, n), name in names.items():
        row = {"id": name, "task_id": str(task), "trial": n, "reward_info": {"reward": float(n)}, "messages": []}
        write_lines(tmp_path / "run" / "simulations" / f"{name}.json", row)
    index = [{"id": name, "task_id": str(task), "trial": n, "reward": n} for (task, n), name in names.items()]
    if has_report:
        write_lines(tmp_path / "run" / "results.json", {"tasks": [{"id": "1"}], "simulation_index": index})
    (log,) = evaluations_in(tmp_path, ReadOptions())
    assert [sorted(group.rewards) for group in read_run(log.path).groups] == [[0, 1], [0, 1]]


def test_a_run_of_helm_names_its_task_and_model(tmp_path: Path) -> None:
    block = {"instance_id": "id1", "train_trial_index": 0, "stats": [{"name": {"name": "exact_match"}, "mean": 1.0}]}
    for name in ("mmlu:subject=law,model=openai_gpt2,stop=none", "plain"):
        write_lines(tmp_path / name / "per_instance_stats.json", [block])
    logs = evaluations_in(tmp_path, ReadOptions())
    assert {(log.task, log.model) for log in logs} == {("mmlu:subject=law", "openai_gpt2"), ("plain", "plain")}


@pytest.mark.parametrize(
    ("rows", "is_one"),
    [
        ({"1-sort": {"problem": "sort", "correct": True}, "2-sort": {"problem": "sort", "correct": False}}, True),
        ({"base-sort": {"problem": "sort", "correct": True}, "rl-sort": {"problem": "sort", "correct": False}}, False),
        ({name: {"model": name, "problem": "sort", "correct": name > "b"} for name in ("base", "rl")}, True),
        ({"x": {"problem": "sort", "correct": True}, "y": {"problem": "grep", "correct": False}}, True),
        ({name: {"id": name, "correct": True} for name in ("base", "rl")}, False),
        ({name: {"problem": "sort", "score": 0.5} for name in "12"}, True),  # numbered parts
        ({name: {"problem": name, "score": 0.5} for name in ("sort", "grep")}, False),
        ({name: {"problem": name, "correct": 1, "samples": SAMPLES} for name in ("sort", "grep")}, False),
        ({name: {"problem": name, "scores": [1, 0], "responses": ["a", "b"]} for name in ("sort", "grep")}, False),
    ],
)
def test_files_of_a_trial_each_are_one_evaluation_unless_more_sets_them_apart(
    tmp_path: Path, rows: dict[str, dict[str, Any]], is_one: bool
) -> None:
    for name, row in rows.items():
        trial(tmp_path / f"{name}.json", **row)
    logs = evaluations_in(tmp_path, ReadOptions())
    assert len(logs) == (1 if is_one else 2)
    if is_one:
        assert read_run(logs[0].path).source.num_rows == 2


def test_the_command_that_reads_one_of_several_trials_works_when_pasted(tmp_path: Path) -> None:
    for folder, task in product(("a b", "c"), ("sort", "grep")):
        trial(tmp_path / folder / f"{task}.json", task_id=task, passed=True)
    shutil.copytree(tmp_path / "c", tmp_path / "a b" / "d")
    (named,) = shlex.split(refusal(tmp_path / "a b", "holds 2 evaluations").partition("name one log: ")[2])
    assert read_run(named).source.num_rows == 2


def test_evaluations_are_searched_for_eight_folders_deep(tmp_path: Path) -> None:
    for below in ("1/2/3/4/5/6/7/8", "1/2/3/4/5/6/7/x/9"):
        write_lines(tmp_path / below / "math.jsonl", *SAMPLES)
    (log,) = evaluations_in(tmp_path, ReadOptions())
    assert log.path == tmp_path / "1/2/3/4/5/6/7/8/math.jsonl"


def test_one_file_of_samples_is_read_without_what_lies_beside_it(tmp_path: Path) -> None:
    """As NeMo Gym leaves the inputs of its rollouts, empty failures and totals."""
    inputs = [{"params": {"input": f"q{i // 2}"}, "task_index": i // 2} for i in range(4)]
    rows = [cells | {"prompt": f"q{i // 2}", "response": f"a{i}", "reward": i % 2} for i, cells in enumerate(inputs)]
    write_rows(tmp_path / "rollouts_aggregate_metrics.json", [{"mean/reward": 0.5}])
    write_lines(tmp_path / "rollouts_materialized_inputs.jsonl", *inputs)
    (tmp_path / "rollouts_failures.jsonl").touch()
    run = read_run(write_lines(tmp_path / "rollouts.jsonl", *rows).parent)
    assert ([group.rewards for group in run.groups], run.source.quarantined.num_rows) == ([(0.0, 1.0)] * 2, 0)
    assert run.source.files == (str(tmp_path / "rollouts.jsonl"),)
