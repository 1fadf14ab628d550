from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradscope.diagnostics.passk.measure import default_ks, measure_pass_at_k, pass_at_k_of_samples
from gradscope.diagnostics.passk.samples import samples_of_run
from gradscope.errors import InputError, UsageError
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from tests.conftest import REPOSITORY
from tests.diagnostics.made_up_runs import FIRST, humaneval, samples, tau_bench
from tests.rollouts.readers.evaluations.test_inspect_ai import archive
from tests.rollouts.readers.lines import write_lines
from tests.work import num_calls


def test_table_of_one_file() -> None:
    report = pass_at_k_of_samples([FIRST])
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


def test_budget_beyond_the_samples_is_undefined() -> None:
    report = pass_at_k_of_samples([FIRST], ks=(8,))
    assert report.tables[0].rows[0].pass_at_k.undefined == "k = 8 exceeds the 4 samples of a prompt"
    assert report.findings == ("first: no budget asked for is within the 4 samples of every prompt.",)


def test_budget_beyond_the_samples_is_forecast_apart() -> None:
    correct = {f"p{i}": [float(j < i % 5) for j in range(4)] for i in range(60)}
    (table,) = pass_at_k_of_samples([samples("many", correct)], ks=(4, 16, 64)).tables
    assert [row.pass_at_k.is_defined for row in table.rows] == [True, False, False]
    near, far = table.forecasts
    assert (near.k, near.method, far.k) == (16, "forecast", 64)
    assert table.rows[0].pass_at_k.value < near.pass_at_k.value < 1.0
    assert far.pass_at_k.undefined == "k = 64 is more than 8 times the 4 samples of a prompt"


def test_few_prompts_give_no_forecast() -> None:
    (table,) = pass_at_k_of_samples([FIRST], ks=(8,)).tables
    assert "at least 10 prompts, there are 4" in table.forecasts[0].pass_hat_k.undefined


def test_usual_budgets_end_at_n() -> None:
    assert default_ks(1) == [1]
    assert default_ks(100) == [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100]


def test_nothing_to_read_is_refused() -> None:
    with pytest.raises(UsageError, match=r"pass@k needs a file of samples\."):
        measure_pass_at_k()


def test_budget_below_one_is_refused() -> None:
    with pytest.raises(UsageError, match=r"k is at least 1, got 0\."):
        measure_pass_at_k("samples.jsonl", ks=(0,))


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = []
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "samples.jsonl")
        paths[-1].write_text('{"task_id": "a", "n": 4, "c": 1}\n{"task_id": "b", "n": 4, "c": 2}\n')
    report = measure_pass_at_k(*paths)
    assert [table.name for table in report.tables] == [str(path) for path in paths]


def test_humaneval_as_published(shared_data: Path) -> None:
    counted = samples_of_run(humaneval(shared_data), name="codegen")
    table = pass_at_k_of_samples([counted], ks=(1, 2, 5, 10, 20, 50, 100)).tables[0]
    published = [0.22116, 0.30793, 0.42030, 0.50379, 0.58906, 0.68687, 0.73780]
    assert [row.pass_at_k.value for row in table.rows] == pytest.approx(published, abs=5.1e-6)


def test_tau_bench_as_published(shared_data: Path) -> None:
    table = pass_at_k_of_samples([samples_of_run(tau_bench(shared_data), name="gpt-4o")], ks=(1, 2, 3, 4)).tables[0]
    assert [row.pass_hat_k.value for row in table.rows] == pytest.approx([0.42, 0.27333, 0.22, 0.20], abs=5e-6)
    assert [row.pass_at_k.value for row in table.rows] == pytest.approx([0.42, 0.56667, 0.66, 0.72], abs=5e-6)


@pytest.mark.parametrize("name", ["aime24", "amc23"])
def test_reasoning_gym_from_the_file_as_it_is(shared_data: Path, name: str) -> None:
    published = {"aime24": [0.024, 0.07391, 0.17422, 0.300], "amc23": [0.144, 0.33061, 0.53749, 0.675]}
    path = shared_data / "reasoning_gym" / f"llama3b_rl_step400_{name}_n50.json"
    table = measure_pass_at_k(path, ks=(1, 4, 16, 50)).tables[0]
    assert [row.pass_at_k.value for row in table.rows] == pytest.approx(published[name], abs=5.1e-6)


@pytest.mark.slow
def test_a_prompt_more_costs_a_few_calls_and_no_resampling_of_its_own() -> None:
    def measure(num_prompts: int) -> None:
        many = samples("many", {str(i): [float(j < i % 9) for j in range(8)] for i in range(num_prompts)})
        pass_at_k_of_samples([many, many])

    few, more = num_calls(lambda: measure(100)), num_calls(lambda: measure(500))
    assert (more - few) / 400 < 100


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
        about = {"task": "gsm8k", "model": model, "dataset": {"sample_ids": [*"xyzw"]}, "config": {"epochs": 2}}
        archive(tmp_path / f"{name}.eval", {**samples, "header.json": {"status": status, "eval": about}})
    (tmp_path / "3.eval").write_bytes(b"cut off")
    write_lines(tmp_path / "math.jsonl", *({"task_id": name, "passed": True} for name in "ab"))
    return tmp_path


def test_a_folder_of_evaluations_is_a_table_a_log_and_scorer(evaluations: Path) -> None:
    report = measure_pass_at_k(evaluations)
    about = [(one.task, one.model, one.scorer) for table in report.tables if (one := table.evaluation)]
    assert about == [
        ("3", "", "reward"),
        *(("gsm8k", model, scorer) for model in ("org/a", "org/b") for scorer in ("match", "judge", "none")),
        ("math", evaluations.name, "reward"),
    ]
    damaged, match, judge, none, *_, math = report.tables
    assert [(row.k, row.pass_at_k.value) for row in match.rows] == [(1, pytest.approx(2 / 3)), (2, 1.0)]
    assert (match.num_prompts, match.num_samples, match.evaluation.mean_score.value) == (
        3,
        (2, 2),
        pytest.approx(2 / 3),
    )
    assert judge.evaluation.mean_score.value == pytest.approx(0.3 + 1 / 3)
    assert "neither 0/1 nor -1/1" in judge.rows[0].pass_at_k.undefined
    assert (judge.num_prompts, judge.num_samples) == (3, (2, 2))
    assert none.rows[0].pass_at_k.undefined == "no sample has this score"
    assert "the file is no zip archive" in damaged.rows[0].pass_at_k.undefined
    assert math.rows[0].pass_at_k.value == 1.0
    assert report.comparison is None
    (source,) = report.sources
    assert (source.path, source.num_rows, source.recognized) == (
        str(evaluations),
        14,
        "4 evaluations (inspect-ai, samples)",
    )
    assert report.findings[:2] == (
        "4 evaluations: 3 tasks, 3 models, 4 scorers, none of them pooled. 1 did not succeed.",
        "2.eval: the evaluation was cancelled: 6 of 8 samples.",
    )


def test_of_a_folder_of_evaluations_one_scorer_may_be_named_and_a_pass_defined(evaluations: Path) -> None:
    (evaluations / "3.eval").unlink()
    named = ReadOptions(reader="inspect-ai", columns=ColumnNames(reward="judge"), strict=True)
    report = measure_pass_at_k(evaluations, ks=(2,), success_threshold=1.0, read=named)
    assert [(table.evaluation.scorer, table.rows[0].pass_at_k.value) for table in report.tables] == [
        ("judge", pytest.approx(2 / 3))
    ] * 2
    with pytest.raises(InputError, match="has no scorer 'other'"):
        measure_pass_at_k(evaluations, read=ReadOptions(columns=ColumnNames(reward="other"), strict=True))


def test_filters_of_lm_eval_are_scorers_and_a_file_beside_a_folder_is_another_evaluation(tmp_path: Path) -> None:
    logs = REPOSITORY / "fixtures/logs"
    row = {"doc_id": 0, "doc": {}, "resps": [["4"]], "metrics": ["acc"]}
    for task in ("a", "b"):
        filtered = [{**row, "filter": name, "acc": right} for name, right in (("strict", 0.0), ("loose", 1.0))]
        write_lines(tmp_path / f"samples_{task}_2026.jsonl", *filtered)
    report = measure_pass_at_k(tmp_path, logs / "samples_rows.jsonl", logs / "trl")
    assert [(one.evaluation.task, one.evaluation.scorer, one.rows[0].pass_at_k.value) for one in report.tables] == [
        *((task, f"acc,{name}", right) for task in ("a", "b") for name, right in (("strict", 0.0), ("loose", 1.0))),
        ("samples_rows", "reward", 0.25),
        ("trl", "reward", None),
    ]


def test_an_evaluation_that_was_cancelled_says_so_where_it_stands_alone(evaluations: Path) -> None:
    (table,) = measure_pass_at_k(evaluations / "2.eval").tables
    assert table.source.unfinished == "was cancelled: 6 of 8 samples"
    assert table.evaluation is None
