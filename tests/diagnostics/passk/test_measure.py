from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradscope.diagnostics.passk.comparison import crossover_k
from gradscope.diagnostics.passk.measure import default_ks, measure_pass_at_k, pass_at_k_of_samples
from gradscope.diagnostics.passk.samples import Samples, sample_files, samples_of_run
from gradscope.errors import InputError, UsageError
from gradscope.estimate import Estimate
from gradscope.results.passk import PassAtKDifference
from gradscope.rollouts.run_folder import heldout_path
from tests.diagnostics.compared_runs import write_run
from tests.diagnostics.made_up_runs import group_of, humaneval, run_of, samples_run, tau_bench
from tests.work import num_calls


def samples(name: str, correct: dict[str, list[float]]) -> Samples:
    return samples_of_run(samples_run(correct, path=name), name=name)


FIRST = samples("first", {"a": [1, 1, 1, 1], "b": [1, 1, 0, 0], "c": [0, 0, 0, 0], "only": [1, 1, 1, 1]})
SECOND = samples("second", {"a": [1, 0, 0, 0], "b": [1, 0, 0, 0], "c": [1, 0, 0, 0]})


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
    assert report.findings == ("first: pass@1 = 0.6250 and pass@4 = 0.7500 over 4 prompts.",)


def test_second_file_is_paired_by_prompt() -> None:
    report = pass_at_k_of_samples([FIRST, SECOND], ks=(4, 1))
    comparison = report.comparison
    assert (comparison.num_prompts, comparison.num_unpaired) == (3, 1)
    by_k = {row.k: row for row in comparison.rows}
    assert by_k[1].difference.value == pytest.approx((3 * 0.25 - 1.5) / 3)
    assert (by_k[1].first_wins, by_k[1].second_wins, by_k[1].ties) == (2, 1, 0)
    assert by_k[4].difference.value == pytest.approx(1 / 3)
    assert (by_k[4].first_wins, by_k[4].second_wins, by_k[4].ties) == (0, 1, 2)
    assert comparison.crossover_k == 4
    assert (comparison.solved.both, comparison.solved.first_only) == (2, 0)
    assert (comparison.solved.second_only, comparison.solved.neither) == (1, 0)
    assert "the sign turns at k = 4" in report.findings[2]
    assert report.findings[3].startswith("Verdict: undecided; the intervals allow a gain and a loss: -0.250")
    assert report.findings[4].startswith("1 prompts are in only one of first and second")


def test_further_files_are_compared_with_the_first() -> None:
    third = samples("third", {"a": [0, 0, 0, 0]})
    report = pass_at_k_of_samples([FIRST, SECOND, third])
    assert report.comparison.second == "second"
    assert [(one.first, one.second) for one in report.further_comparisons] == [("first", "third")]


def test_difference_beyond_the_samples_is_undefined() -> None:
    short = samples("short", {"a": [1, 0]})
    row = pass_at_k_of_samples([FIRST, short], ks=(4,)).comparison.rows[0]
    assert row.difference.undefined == "k = 4 exceeds the 2 samples of a prompt"
    assert (row.first_wins, row.second_wins, row.ties) == (0, 0, 0)


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


def test_wide_interval_is_called_undecided() -> None:
    one = samples("one", {str(i): [i % 2, 0] for i in range(12)})
    two = samples("two", {str(i): [(i // 2) % 2, 0] for i in range(12)})
    report = pass_at_k_of_samples([one, two], ks=(1,))
    assert "undecided" in report.findings[2]


def test_sign_may_never_turn() -> None:
    def row(k: int, value: float) -> PassAtKDifference:
        return PassAtKDifference(k=k, difference=Estimate.exact(value), first_wins=0, second_wins=0, ties=0)

    assert crossover_k([row(1, 0.1), row(2, 0.0), row(4, -0.1)]) == 4
    assert crossover_k([row(1, 0.1), row(2, 0.0)]) is None
    assert crossover_k([row(1, 0.0), row(2, -0.1)]) is None
    assert crossover_k([]) is None


def test_usual_budgets_end_at_n() -> None:
    assert default_ks(1) == [1]
    assert default_ks(100) == [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100]


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


def test_files_about_different_prompts_are_refused() -> None:
    other = samples("other", {"z": [1, 0]})
    with pytest.raises(InputError, match="have no prompt in common: the first has prompt 'a', the second 'z'"):
        pass_at_k_of_samples([FIRST, other])


def test_nothing_to_read_is_refused() -> None:
    with pytest.raises(UsageError, match=r"pass@k needs a file of samples\."):
        measure_pass_at_k()


def test_budget_below_one_is_refused() -> None:
    with pytest.raises(UsageError, match=r"k is at least 1, got 0\."):
        measure_pass_at_k("samples.jsonl", ks=(0,))


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


def test_a_prompt_more_costs_a_few_calls_and_no_resampling_of_its_own() -> None:
    def measure(num_prompts: int) -> None:
        many = samples("many", {str(i): [float(j < i % 9) for j in range(8)] for i in range(num_prompts)})
        pass_at_k_of_samples([many, many])

    few, more = num_calls(lambda: measure(100)), num_calls(lambda: measure(500))
    assert (more - few) / 400 < 100
