import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradscope.errors import UsageError
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.evaluations.folders import evaluations_in
from gradscope.rollouts.run import Run
from tests.conftest import LOGS, REPOSITORY
from tests.rollouts.readers.lines import naming, refusal, refused, rewards_of, set_aside, write_lines, write_rows
from tests.rollouts.readers.reduced import assert_reduced_alike

DUMP = REPOSITORY / "fixtures/logs/skyrl_eval"
EVAL = REPOSITORY / "fixtures/logs/verifiers_eval/gsm8k--qwen3--single-turn--5f2c"


def test_evalplus_counts_a_sample_only_if_both_suites_pass() -> None:
    run = read_run(LOGS / "evalplus")
    assert rewards_of(run) == {"HumanEval/0": (1.0, 0.0), "HumanEval/1": (0.0, 0.0)}
    assert run.groups[0].rollouts[1].rewards == {"base": 1.0, "plus": 0.0}
    assert "base and plus tests both pass" in run.source.inferred[0]


@pytest.mark.parametrize("name", [{"plus_status": None, "completion": "c"}, {"solution": "c"}])
def test_evalplus_without_plus_tests_takes_the_base_verdict(tmp_path: Path, name: dict[str, Any]) -> None:
    key = "status" if "solution" in name else "base_status"  # of BigCodeBench
    samples = [{key: status, **name} for status in ("pass", "fail", None)]
    run = read_run(write_rows(tmp_path / "eval_results.json", {"eval": {"t": samples}}))
    assert (rewards_of(run), run.groups[0].rollouts[0].completion) == ({"t": (1.0, 0.0, None)}, "c")
    assert set_aside(run) == {"the reward is null": 1}
    assert "no plus tests" in run.source.inferred[0]


@pytest.mark.parametrize("word", ["success", "pass"])
@pytest.mark.parametrize("has_plus", [True, False])
def test_evalplus_of_the_older_layout_is_read(tmp_path: Path, word: str, has_plus: bool) -> None:
    plus = [[word, []], ["failed", [False]], [word, []]] if has_plus else []
    cell = {"nfiles": 3, "base": [[word, [True]], [word, [True]], ["timed out", []]], "plus": plus}
    document = {"date": "2023-05-01 10:00", "eval": {"HumanEval/0": cell}}
    run = read_run(write_rows(tmp_path / "codegen_eval_results.json", document))
    assert rewards_of(run) == {"HumanEval/0": (1.0, 0.0 if has_plus else 1.0, 0.0)}
    assert ("no plus tests" in run.source.inferred[0]) is not has_plus


def test_lm_eval_rows_of_another_filter_are_not_samples() -> None:
    run = read_run(LOGS / "lm_eval")
    assert rewards_of(run) == {"0": (0.0,), "1": (1.0,)}
    assert "Rows of other filters are the same responses" in run.source.inferred[0]
    assert "A document has one score" in run.source.missing[0]


def test_lm_eval_rows_without_a_document_are_set_aside(tmp_path: Path) -> None:
    row = {"doc_id": 0, "doc": {}, "resps": [["4"], "four", 4], "filter": "none", "metrics": ["note", "acc"]}
    row |= {"acc": 1.0, "note": "easy"}
    run = read_run(write_lines(tmp_path / "samples_a_2026.jsonl", row, {**row, "doc_id": None}))
    assert (rewards_of(run), run.groups[0].rollouts[0].rewards) == ({"0": (1.0,)}, {"acc": 1.0})
    assert set_aside(run) == {"the test has no name": 1}


def test_lm_eval_filters_are_named_behind_the_metric() -> None:
    path = LOGS / "lm_eval"
    run = read_run(path, naming(reward="exact_match,flexible-extract"))
    assert run.source.inferred[1] == "The score is exact_match after the filter flexible-extract."
    refusal(path, "has no score 'exact_match,none'", naming(reward="exact_match,none"))


def test_lm_eval_without_a_score_is_refused(tmp_path: Path) -> None:
    row = {"doc_id": 0, "doc": {}, "resps": [["4"]], "filter": "none", "metrics": ["acc"], "acc": "high"}
    path = write_lines(tmp_path / "samples_a.jsonl", row)
    refusal(path, "has no score that is a number")
    refusal(path, "has no score 'f1'", naming(reward="f1"))


def test_lighteval_has_one_value_a_document() -> None:
    run = read_run(LOGS / "lighteval")
    assert rewards_of(run) == {"math|0/0": (0.0,), "math|0/1": (1.0,)}
    assert run.source.inferred == ("The score is extractive_match; others are 'len'.",)
    by_length = read_run(LOGS / "lighteval", naming(reward="len"))
    assert rewards_of(by_length) == {"math|0/0": (2.0,), "math|0/1": (2.0,)}
    refusal(LOGS / "lighteval", "has no score 'f1'", naming(reward="f1"))


def test_older_details_of_lighteval_have_a_row_for_each_set_of_metrics(tmp_path: Path) -> None:
    scores = [{"acc": number, "pass@1:4_samples": None} for number in (0.0, 1.0, 1.0)]
    scores += [{"acc": None, "pass@1:4_samples": number} for number in (0.25, 0.5, 0.75)]
    rows = [
        {"example": "q", "full_prompt": f"q{index % 3}", "gold": ["1"], "predictions": ["a"] * 4, "metrics": metrics}
        for index, metrics in enumerate(scores)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "details_a.parquet")
    rewards_of_four = ((1.0, 0.0, 0.0, 0.0), (1.0, 1.0, 0.0, 0.0), (1.0, 1.0, 1.0, 0.0))
    for named, rewards in ((None, ((0.0,), (1.0,), (1.0,))), ("pass@1:4_samples", rewards_of_four)):
        run = read_run(tmp_path, naming(reward=named))
        assert run.source.format == "lighteval"
        complete = [group for group in run.groups if None not in group.rewards]
        assert [(group.rollouts[0].prompt, group.rewards) for group in complete] == [
            (f"q{index}", group_rewards) for index, group_rewards in enumerate(rewards)
        ]
        assert set_aside(run) == {"the reward is missing": 3}
        assert "A document has one score" in run.source.missing[0]


@pytest.mark.parametrize(
    ("score", "is_share"),
    [
        *((name, True) for name in ("pass@1", "pass@k:k=1&n=4", "avg@n:n=4", "codegen_pass@1:4", "gpqa_pass@k:k=1")),
        *((name, False) for name in ("pass@k:k=2&n=4", "G-Pass@4_0.25", "pass@10", "maj@n:n=4", "pass@1:8")),
    ],
)
@pytest.mark.parametrize("harness", ["lm-eval", "lighteval"])
def test_a_share_of_the_responses_counts_as_samples(tmp_path: Path, harness: str, score: str, is_share: bool) -> None:
    """As humaneval's of lm-eval with repeats, and aime's of lighteval; 0.4 is no share of four."""
    texts, shares = list("abcd"), (0.75, 0.0, 0.4)
    if harness == "lm-eval":
        cells = {"filter": "none", "resps": [texts], "metrics": [score]}
        write_lines(
            tmp_path / "samples_a.jsonl",
            *({"doc_id": f"{index}", "doc": {}, score: share} | cells for index, share in enumerate(shares)),
        )
    else:
        rows = [
            {"doc": {"id": f"{index}", "task_name": "t"}, "model_response": {"text": texts}, "metric": {score: share}}
            for index, share in enumerate(shares)
        ]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "details_a.parquet")
    run = read_run(tmp_path)
    assert run.source.format == harness
    expected = [(1.0, 1.0, 1.0, 0.0), (0.0,) * 4, (0.4,)] if is_share else [(0.75,), (0.0,), (0.4,)]
    assert list(rewards_of(run).values()) == expected
    assert (run.groups[0].rollouts[0].completion == "") == (is_share or harness == "lm-eval")
    assert_reduced_alike(tmp_path)


def review(i: int, value: dict[str, Any], **score: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"q{i // 2}"}, {"role": "assistant", "content": "a"}]
    info = {"sample_id": i, "group_id": i // 2, "generation_index": i % 2}
    return {"index": i, "messages": messages, "sample_score": {"score": {"value": value, **score}, **info}}


def test_repeats_of_evalscope_are_the_samples_of_a_prompt(tmp_path: Path) -> None:
    """Also in the order in which they ended; a sample whose judge failed has no score."""
    scores = [{"f1": 0.5, "acc": float(i != 1)} for i in range(3)]
    rows = [review(i, value, main_score_name="acc") for i, value in reversed([*enumerate(scores)])]
    file = write_lines(tmp_path / "reviews/m/gsm8k_main.jsonl", *rows, review(3, {}, status="judge_error"))
    run = read_run(file)
    assert (run.source.format, run.source.missing) == ("evalscope", ())
    assert run.groups[0].rollouts[0].completion == "a"
    assert {group.rollouts[0].prompt: sorted(group.rewards, key=str) for group in run.groups} == {
        "q0": [0.0, 1.0],
        "q1": [1.0, None],
    }
    by_f1 = read_run(file, naming(reward="f1"))
    assert rewards_of(by_f1)["0"] == (0.5, 0.5)
    assert [(log.task, log.model) for log in evaluations_in(tmp_path, ReadOptions())] == [("gsm8k_main", "m")]
    older = {"index": 0, "input": "q", "sample_score": {"score": {"value": {"acc": True}}, "sample_id": 0}}
    assert rewards_of(read_run(write_lines(tmp_path / "a.jsonl", older))) == {"0": (1.0,)}


@pytest.mark.parametrize(
    "verdicts",
    [
        {"correct": [True, False], "pred": ["a", "b"]},
        {"is_correct": [True, False], "completion": ["a", "b"], "passed": [False, False]},
        {"cascade_correct": [True, False], "rule_evaluation": [{"correct": False}] * 2, "pred": ["a"]},
    ],
)
def test_runs_of_an_example_of_opencompass_are_its_samples(tmp_path: Path, verdicts: dict[str, Any]) -> None:
    details = [{"example_abbr": f"aime_{i}", "G-Pass@2_0.5": 1.0, "prompt": ["q", "q"], **verdicts} for i in range(2)]
    path = tmp_path / "results/m/aime.json"
    write_lines(path, {"accuracy (2 runs average)": 50.0, "details": [*details, {"example_abbr": "aime_2"}]})
    run = read_run(path)
    assert rewards_of(run) == {"aime_0": (1.0, 0.0), "aime_1": (1.0, 0.0), "aime_2": (None,)}
    assert run.groups[0].rollouts[0].completion == "a"
    assert set_aside(run) == {"the reward is missing": 1}
    assert [(log.task, log.model) for log in evaluations_in(tmp_path, ReadOptions())] == [("aime", "m")]


def test_lighteval_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    rows = [{"doc": {"id": name}, "model_response": {"text": ["a"]}, "metric": {"acc": 1.0}} for name in ("1", None)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "details_a.parquet")
    assert set_aside(read_run(tmp_path)) == {"the test has no name": 1}
    texts = [{**row, "metric": {"acc": "high"}} for row in rows]
    pq.write_table(pa.Table.from_pylist(texts), tmp_path / "details_a.parquet")
    refusal(tmp_path, "has no score that is a number")


def row(**cells: Any) -> dict[str, Any]:
    return {"input_prompt": "2+2?", "output_response": "4", "score": 1.0, "data_source": "s", **cells}


def read(tmp_path: Path, *rows: Any) -> Run:
    return read_run(write_lines(tmp_path / "s.jsonl", *rows))


@pytest.mark.parametrize("below", ["", "dumped_evals", "dumped_evals/global_step_10_evals"])
def test_scores_of_tokens_are_summed(below: str) -> None:
    run = read_run(DUMP / below)
    assert (run.source.format, run.steps) == ("skyrl-eval", (10,))
    assert [group.rewards for group in run.groups] == [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)]
    assert "count as their sum" in run.source.inferred[1]
    assert run.source.quarantined.num_rows == 0


def test_skyrls_steps_may_stand_in_names_of_files(tmp_path: Path) -> None:
    row = {"input_prompt": "p", "output_response": "r", "score": 1.0, "data_source": "d"}
    for step in (1, 2):
        write_lines(tmp_path / f"global_step_{step}.jsonl", row, row)
    assert [(group.step, group.size) for group in read_run(tmp_path).groups] == [(1, 2), (2, 2)]


def test_one_file_is_read_alone_and_without_a_step_it_is_at_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(DUMP / "dumped_evals/global_step_10_evals")
    run = read_run("aime.jsonl")
    assert run.steps == (10,)
    assert [group.rewards for group in run.groups] == [(0.0, 0.0)]
    assert len(run.source.inferred) == 1
    assert read(tmp_path, row(stop_reason="length")).groups[0].rollouts[0].status == "truncated"
    finished = read(tmp_path, row(stop_reason="stop"))
    assert (finished.steps, finished.groups[0].rollouts[0].status) == ((0,), "completed")


def test_a_file_that_cannot_be_read_is_lost_alone(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", row())
    (tmp_path / "b.jsonl").symlink_to("/proc/self/mem")
    source = read_run(tmp_path, rewards_only=True).source
    assert (source.num_rows, len(source.quarantined.lost)) == (1, 1)


@pytest.mark.parametrize(
    ("score", "reward", "reason"),
    [
        ([0.1, 0.2, 0.3, -0.6], 0.0, None),
        ([True, 1], 2.0, None),
        ([0.0, None], None, "the reward is null"),
        ([0.0, "1"], None, "the reward is text"),
        ([0.0, float("nan")], None, "the reward is not finite"),
        ([float("inf"), -float("inf")], None, "the reward is not finite"),
        ([1e308, 1e308], None, "the reward is not finite"),
        ([[1.0]], None, "the reward is a list, not a number"),
        ([], None, "the reward is a list, not a number"),
        ({"a": 1}, None, "the reward is a dict, not a number"),
        (None, None, "the reward is null"),
    ],
)
def test_a_missing_score_is_incomplete(tmp_path: Path, score: Any, reward: float | None, reason: str | None) -> None:
    run = read(tmp_path, row(score=[1.0]), row(score=score))
    assert run.groups[0].rewards[1] == (pytest.approx(reward, abs=1e-15) if reward is not None else None)
    assert set_aside(run) == ({} if reason is None else {reason: 1})


def test_rows_without_a_prompt_are_set_aside(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "s.jsonl", row(), row(input_prompt=None), row(input_prompt=""))
    path.write_text(path.read_text() + '{"input_prompt": "2')
    assert set_aside(read_run(path)) == {"input_prompt is missing": 2, "the last line is cut off": 1}


def test_turns_of_trajectories_are_refused(tmp_path: Path) -> None:
    later = row(input_prompt="2+2?4 Sure?", output_response="5")
    refused(r"s\.jsonl:2 is a turn of a trajectory that another row continues", read, tmp_path, later, row(score=[0.0]))
    assert len(read(tmp_path, row(output_response=""), row(input_prompt="2+2? Sure?")).groups) == 2


def test_nemo_rls_validation_is_grouped_by_what_comes_before_the_answer(tmp_path: Path) -> None:
    def row(prompt: str, answer: str, reward: Any, index: int) -> dict[str, Any]:
        talk = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
        return {"content": [talk], "rewards": [reward], "idx": index}

    questions = [("2+2?", "4", 1.0), ("2+2?", "5", 0.0), ("3+3?", "6", 1.0), ("3+3?", "6", None)]
    rows = [row(*name, index) for index, name in enumerate(questions)]
    path = write_lines(tmp_path / "val_data_step20.jsonl", *rows, {**rows[0], "content": []})
    run = read_run(path)
    assert (run.source.format, run.steps) == ("nemo-rl-val", (0,))
    assert [group.rewards for group in run.groups] == [(1.0, 0.0), (1.0, None)]
    assert run.groups[0].rollouts[1].completion == "5"
    assert set_aside(run) == {"the reward is null": 1, "the test has no name": 1}
    assert_reduced_alike(path)


def episode(name: str = "x", **cells: Any) -> dict[str, Any]:
    row = json.loads((EVAL / "traces.jsonl").read_text().splitlines()[0])
    return {**row, "traces": [{**row["traces"][0], "id": name}], **cells}


def read_episodes(tmp_path: Path, *rows: Any) -> Run:
    return read_run(write_lines(tmp_path / "traces.jsonl", *rows))


@pytest.mark.parametrize("path", [EVAL, EVAL / "traces.jsonl"])
def test_episodes_of_a_task_are_the_samples_of_a_prompt(path: Path) -> None:
    run = read_run(path)
    assert (run.source.format, run.steps) == ("verifiers", (0,))
    assert rewards_of(run) == {"gsm8k/a": (1.0, 0.0, 1.0), "gsm8k/b": (0.0, 0.0, 0.0)}
    first = run.groups[0].rollouts[0]
    assert (first.prompt, first.completion, first.rewards) == ("a?", "4", {"correct": 1.0, "length": 1.0})
    assert run.source.quarantined.num_rows == 0


def test_a_task_without_a_key_is_identified_by_its_hash_or_its_data(tmp_path: Path) -> None:
    task = {"data": {"prompt": "q"}, "key": None}
    envs = ({"name": "math", "id": "m"}, {"id": "m"}, {"id": "gsm8k"}, {"id": "gsm8k"})
    tasks = ({**task, "hash": "h"}, task, task, task)
    run = read_episodes(tmp_path, *(episode(str(index), task=tasks[index], env=env) for index, env in enumerate(envs)))
    assert run.groups[0].group_id == "math/h"
    assert [(group.group_id.partition("/")[0], group.size) for group in run.groups[1:]] == [("m", 1), ("gsm8k", 2)]


def test_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    trace = episode()["traces"][0]
    rows = [
        episode("a"),
        episode("a"),
        episode("b", task={"key": None}),
        episode("c", task=None),
        episode("d", run={"type": "train", "work": {"step": 1}}),
        episode("e", traces=[]),
        episode("f", traces="none"),
        episode("g", traces=[{**trace, "rewards": {"correct": {"score": "high"}}}]),
        episode("h", traces=[{**trace, "rewards": {}, "id": None}], ok=False),
    ]
    run = read_episodes(tmp_path, *rows)
    assert rewards_of(run) == {"gsm8k/a": (1.0, None, None)}
    assert set_aside(run) == {
        "the row repeats an earlier one of the same sample": 1,
        "task.key, task.hash and task.data are missing": 2,
        "the episode is not of an evaluation": 2,
        "the episode has no trace of a trained agent": 1,
        "the reward is text": 1,
        "the reward is missing": 1,
    }


def test_several_agents_of_an_episode_are_said(tmp_path: Path) -> None:
    trace = episode()["traces"][0]
    traces = [{**trace, "id": name, "agent": {"name": name}} for name in ("solver", "critic")]
    run = read_episodes(tmp_path, episode(traces=traces))
    assert list(rewards_of(run)) == ["gsm8k/a/solver", "gsm8k/a/critic"]
    assert {group.prompt_id for group in run.groups} == {"gsm8k/a"}
    assert "several trained agents" in run.source.inferred[1]


def test_a_cut_line_is_set_aside_and_a_file_of_none_but_such_is_no_log(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "traces.jsonl", episode("a"), episode("b"))
    path.write_text(path.read_text()[:-9])
    assert set_aside(read_run(path)) == {"the last line is cut off": 1}
    path.write_text(path.read_text()[:50])
    refusal(path, "has no usable rows")


def trial(job: Path, name: str, rewards: Any, model: str = "m", **extra: Any) -> None:
    (job / name).mkdir(parents=True)
    row = {
        "task_name": name.partition("__")[0] or None,
        "trial_name": name,
        "agent_info": {"name": "terminus", "model_info": {"name": model}},
        "verifier_result": {"rewards": rewards},
        "exception_info": None,
        **extra,
    }
    (job / name / "result.json").write_text(json.dumps(row, indent=1))


def test_a_job_of_harbor_has_a_folder_a_trial(tmp_path: Path) -> None:
    for number, reward in enumerate((1.0, 0.0)):
        trial(tmp_path / "job", f"chess__{number}", {"reward": reward})
    trial(tmp_path / "job", "chess__other", {"accuracy": 1}, model="n")
    trial(tmp_path / "job", "go__0", {"reward": 0.5, "tests": 2})
    error = {"exception_type": "AgentTimeoutError"}
    trial(tmp_path / "job", "go__1", None, verifier_result=None, exception_info=error)
    trial(tmp_path / "job", "go__2", {"tests": 1, "style": 2})
    trial(tmp_path / "job", "__3", {"reward": 1.0})
    (tmp_path / "job" / "result.json").write_text('{"id": "j", "n_total_trials": 7}')  # of the whole job
    run = read_run(tmp_path / "job")
    assert run.source.format == "harbor"
    assert rewards_of(run) == {
        "terminus/m/chess": (1.0, 0.0),
        "terminus/n/chess": (1.0,),
        "terminus/m/go": (0.5, 0.0, None),
    }
    assert run.source.inferred[1].startswith("Trials that ended in an error")
    assert {group.prompt_id for group in run.groups} == {"chess", "go"}
    assert set_aside(run) == {"the test has no name": 1, "the reward is missing": 1}


def swe_bench_report(folder: Path, instance: str, **report: Any) -> None:
    write_rows(folder / instance / "report.json", {instance: {"patch_exists": True, **report}})


def test_a_folder_of_swe_bench_has_a_report_an_instance(tmp_path: Path) -> None:
    for run_id, resolved in (("r1", True), ("r2", False)):
        swe_bench_report(tmp_path / run_id / "org__m", "django-1", resolved=resolved)
        swe_bench_report(tmp_path / run_id / "org__m", "django-2", resolved=None)
    run = read_run(tmp_path / "r1" / "org__m")
    assert (run.source.format, rewards_of(run)) == ("swe-bench", {"django-1": (1.0,), "django-2": (None,)})
    assert "without a report.json" in run.source.missing[0]
    assert set_aside(run) == {"the reward is null": 1}
    assert rewards_of(read_run(tmp_path / "*" / "org__m" / "*" / "report.json"))["django-1"] == (1.0, 0.0)
    refusal(tmp_path, "2 evaluations, which are never pooled: r1 org/m, r2 org/m")
    assert refusal(tmp_path / "r1", r"is no log itself, but .*org__m is") == f"Name it: {tmp_path / 'r1' / 'org__m'}"


@pytest.mark.parametrize("name", ["lm_eval", "lighteval", "inspect_ai"])
def test_only_the_score_can_be_named(name: str) -> None:
    refusal(LOGS / name, "whose columns are known", naming(prompt="doc"), error=UsageError)


def promptfoo_result(test: str, provider: Any, success: bool | None, **extra: Any) -> dict[str, Any]:
    return {
        "promptIdx": 0,
        "testIdx": 5,  # another in each repeat
        "promptId": "of the template",
        "prompt": {"raw": f"Say {test}", "label": "Say {{test}}"},
        "provider": provider,
        "vars": {"test": test},
        "testCase": {"assert": [{"type": "equals", "value": test}]},
        "response": {"output": "so"},
        "success": success,
        "score": 0.5,
        "failureReason": 0 if success else 1,
        "namedScores": {"tone": 0.25},
        **extra,
    }


PROMPTFOO = (
    *(promptfoo_result("a", {"id": "openai:m", "label": "m"}, success) for success in (True, False)),
    promptfoo_result("a", {"id": "n", "label": ""}, True),
    promptfoo_result("b", {"id": "n"}, False, failureReason=2, namedScores=None, response={"error": "429"}),
    promptfoo_result("b", "n", None),
)


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("output.json", json.dumps({"evalId": "e", "results": {"version": 3, "results": PROMPTFOO}}, indent=1)),
        ("summary.json", json.dumps({"version": 2, "results": PROMPTFOO, "stats": {}})),
        ("output.jsonl", "\n".join(map(json.dumps, PROMPTFOO))),
    ],
)
def test_results_of_promptfoo_are_samples_of_tests_by_provider(tmp_path: Path, name: str, document: str) -> None:
    (tmp_path / name).write_text(document)
    run = read_run(tmp_path / name)
    rewards = [tuple(rollout.reward for rollout in group.rollouts) for group in run.groups]
    assert (run.source.format, rewards) == ("promptfoo", [(1.0, 0.0), (1.0,), (0.0, None)])
    assert [rollout.policy for group in run.groups for rollout in group.rollouts] == ["m", "m", "n", "n", "n"]
    prompts = [group.prompt_id for group in run.groups]
    assert prompts[0] == prompts[1] != prompts[2]
    first = run.groups[0].rollouts[0]
    assert (first.prompt, first.completion, first.rewards) == ("Say a", "so", {"score": 0.5, "tone": 0.25})
    assert "ended in an error count as failed" in run.source.inferred[1]
    assert set_aside(run) == {"the reward is null": 1}


def helm_block(instance: str, trial: int, **means: float | None) -> dict[str, Any]:
    stats = [{"name": {"name": name, "split": "test"}, "count": 1, "mean": mean} for name, mean in means.items()]
    return {"instance_id": instance, "train_trial_index": trial, "stats": stats}


def test_an_instance_of_helm_has_a_sample_a_trial(tmp_path: Path) -> None:
    blocks = [helm_block("id1", trial, num_prompt_tokens=9, exact_match=trial, f1=0.5) for trial in (0, 1)]
    blocks += [{**blocks[1], "perturbation": {"name": "typos"}}, helm_block("id2", 0, num_prompt_tokens=9)]
    path = write_rows(tmp_path / "per_instance_stats.json", blocks)
    run = read_run(path)
    assert list(rewards_of(run).values()) == [(0.0, 1.0), (1.0,), (None,)]
    assert run.source.inferred[1] == "The score is exact_match; others are 'num_prompt_tokens', 'f1'."
    named = read_run(path, naming(reward="f1"))
    assert next(iter(rewards_of(named).values())) == (0.5, 0.5)
    assert "--reward-column: 'num_prompt_tokens', 'exact_match', 'f1'" in refusal(
        path, "has no score 'em'", naming(reward="em")
    )
    blocks = [helm_block("id1", 0, num_prompt_tokens=9)]
    refusal(write_rows(path, blocks), "has no usual score")


def test_an_exercise_of_aider_passed_if_its_last_try_did(tmp_path: Path) -> None:
    for run, tries in (("r1", [False, True]), ("r2", [])):
        for language in ("go", "rust"):
            folder = tmp_path / run / language / "exercises" / "practice" / "bowling"
            result = {"testcase": "bowling", "model": "m", "edit_format": "diff", "tests_outcomes": tries}
            write_rows(folder / ".aider.results.json", result)
    run = read_run(tmp_path / "r1")
    assert (run.source.format, rewards_of(run)) == (
        "aider",
        {"m/diff/go/bowling": (1.0,), "m/diff/rust/bowling": (1.0,)},
    )
    assert run.groups[0].rollouts[0].rewards == {"first_try": 0.0}
    pair = read_run(tmp_path / "*" / "*" / "exercises" / "practice" / "*" / ".aider.results.json")
    assert rewards_of(pair)["m/diff/go/bowling"] == (1.0, 0.0)


def test_a_problem_of_multipl_e_has_a_program_a_sample(tmp_path: Path) -> None:
    for index, ends in enumerate(([("OK", 0), ("Exception", 1), ("OK", 1)], [("Timeout", -1), ("OK", 0)])):
        results = [{"program": "p", "status": status, "exit_code": code} for status, code in ends]
        problem = {"name": f"HumanEval_{index}", "language": "lua", "results": results}
        (tmp_path / f"HumanEval_{index}.results.json.gz").write_bytes(gzip.compress(json.dumps(problem).encode()))
    run = read_run(tmp_path)
    rewards = {"lua/HumanEval_0": (1.0, 0.0, 0.0), "lua/HumanEval_1": (0.0, 1.0)}
    assert (run.source.format, rewards_of(run)) == ("multipl-e", rewards)
