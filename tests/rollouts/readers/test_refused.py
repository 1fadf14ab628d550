import json
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import evaluations_below, read_run
from tests.conftest import LOGS
from tests.rollouts.readers.lines import naming, refusal, write_lines, write_rows


def touched(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True)
        file.touch()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "There is no file or folder"),
        (lambda path: path.mkdir(), "The folder .* is empty"),
        (lambda path: path.touch(), "The file .* is empty"),
        (
            lambda path: path.write_text('{"a": 1}\n'),
            r"is not a log that gradscope knows. Its columns are 'a'\. Looked for",
        ),
        (  # where verl and NeMo-RL write them
            lambda path: touched(path / "project" / "run" / "events.out.tfevents.1.host"),
            "has no rows itself: such files are in .*project/run.",
        ),
        (
            lambda path: touched(path / "a" / "1.jsonl", path / "b" / "1.csv"),
            "has no rows itself: such files are in .*a and 1 more folder.",
        ),
        (lambda path: path.write_text("\n\n"), "has no usable rows; the first .*: the line is blank"),
    ],
)
def test_an_unusable_path_says_why(tmp_path: Path, make: object, message: str) -> None:
    path = tmp_path / "log"
    make(path)  # type: ignore[operator]
    refusal(path, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[\n{"reward": 1},\n{"rew', "breaks off within its last value, at line 3"),
        ('{"log_history": [\n{"step": 1, "loss": -Inf', "breaks off within its last value, at line 2"),
        ('[\n{"reward": 1},\n{"rew"', "breaks off within its last value, at line 3"),
        ("<html>\n404 Not Found\n</html>", "is no JSON: expecting value, at line 1"),
        ('{"a": 1}, {"a": 2}, {"a": 3}', "is no JSON: extra data, at line 1"),
    ],
)
def test_a_broken_document_says_where(tmp_path: Path, text: str, message: str) -> None:
    (path := tmp_path / "log.json").write_text(text)
    assert refusal(path, message) == "Copy the file again."


@pytest.mark.parametrize("name", ["log.jsonl", "log.json"])
def test_documents_that_are_no_line_each_have_a_command(name: str, tmp_path: Path) -> None:
    (path := tmp_path / name).write_text('{\n "prompt": "p",\n "reward": 1\n}\n' * 2)
    assert refusal(path, "has several JSON documents").endswith(f"jq -c . {path} > rows.jsonl")


@pytest.mark.parametrize("named", ["log.jsonl", "."])
def test_a_document_in_place_of_lines_has_another_name(named: str, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(json.dumps([{"prompt": "p", "reward": 1}] * 2, indent=1))
    assert refusal(tmp_path / named, "log.jsonl is one JSON document") == "Rename it, as in log.json."


@pytest.mark.parametrize("data", [b"\x80", b"[" * 5000 + b"]" * 5000])
def test_a_document_of_bytes_or_nested_too_deep_has_no_rows(tmp_path: Path, data: bytes) -> None:
    (path := tmp_path / "log.json").write_bytes(data)
    refusal(path, r"no usable rows|cannot be read")


@pytest.mark.parametrize(
    ("row", "hint"),
    [
        ('{"step": 1, "prompt": "p", "scores": {"total": 1, "format": 0}}', "--reward-column scores.total"),
        ('{"text": "a", "reward": 1, "scores": {"total": 1}}', "taken to be 'reward'; name what rollouts of a group"),
        ('{"text": "a", "reward": 1}', "--prompt-column NAME. Where no column does, write the prompt"),
        (
            "\n".join(f'{{"step": {i // 2}, "idx": {i % 2}, "reward": {i % 2}, "text": "a{i}"}}' for i in range(4)),
            "--prompt-column NAME. Where no column does, write the prompt",
        ),
        ('{"completion": {"text": "a"}, "reward": 1}', "--prompt-column NAME. Where no column does, write the prompt"),
        ('{"name": "a", "is_success": true}\n{"name": "b", "is_success": false}', "--prompt-column name."),
        ('{"text": "a", "kl": 1}', "--group-column or --prompt-column and --step-column"),
    ],
)
def test_a_log_that_lacks_one_column_is_told_which_option_names_it(tmp_path: Path, row: str, hint: str) -> None:
    (path := tmp_path / "log.jsonl").write_text(f"{row}\n")
    with pytest.raises(InputError) as error:
        read_run(path)
    assert hint in str(error.value.hint)


@pytest.mark.parametrize(
    ("document", "keys", "column"),
    [
        ({"results": {"step_10": "rows", "step_20": "rows"}}, "'results', 'step_10'", "step: $p[-1]"),
        ({"step_3": {"a": "unasked", "b": "unasked"}}, "'step_3', 'a'", "step: $p[-2], prompt: $p[-1]"),
        ({"curves": {"0": "rows", "1": "rows"}}, "'curves', '0'", "setting: ($p | join"),
        ({"30": "unasked", "140": "unasked"}, "'30', '140'", "prompt_id: $p[-1]"),
        ({"gsm": "unasked", "math": "unasked"}, "'gsm', 'math'", "setting: ($p | join"),
        ({"config": {}, "step_3": "unasked", "step_6": "unasked"}, "'step_3', 'step_6'", "step: $p[-1]"),
        (
            {"zero_shot": {"a": "rows", "b": "rows"}, "few_shot": {"a": "rows"}},
            "'zero_shot', 'a'",
            "setting: ($p | join",
        ),
    ],
)
def test_rows_below_keys_are_refused_with_what_makes_them_lines(
    document: dict[str, Any], keys: str, column: str, tmp_path: Path
) -> None:
    rows = json.dumps([{"question": f"q{index}", "correct": index % 2 == 0} for index in range(4)])
    unasked = rows.replace("question", "answer")
    (tmp_path / "a.json").write_text(json.dumps(document).replace('"rows"', rows).replace('"unasked"', unasked))
    hint = refusal(tmp_path / "a.json", f"Its rows lie below the keys {keys}, and what these are")
    assert f"objects | {{{column}" in hint


TRL = LOGS / "trl"
BYTES = b"\x80\x04cos\nsystem\n"  # what a hostile pickle begins with: it must never be opened


@pytest.mark.parametrize(
    ("files", "path_given", "message", "instead"),
    [
        (
            ["checkpoint-5/config.json", "checkpoint-5/model.safetensors"],
            "checkpoint-5",
            "a checkpoint",
            "above it: RUN",
        ),
        (["global_step_5/actor/0.distcp"], "global_step_5", "a checkpoint", "above it: RUN"),
        (["qwen/config.json", "qwen/model.safetensors"], "qwen", "a model folder", "--initial"),
        (["a/adapter_config.json", "a/adapter_model.safetensors"], "a", "a model folder", "--model"),
        (["checkpoint-5/trainer_state.json"], "checkpoint-5", "a checkpoint", "above it: RUN"),
        (["checkpoint-5/trainer_state.json"], ".", "holds no completions", "log_completions=True"),
        (["global_step_5/actor/0.distcp"], ".", "checkpoints and without rollouts", "rollout_data_dir"),
        (["run-1-ab/files/wandb-summary.json"], "run-1-ab", "or TensorBoard keeps", "log_completions=True"),
        (["run-1-ab/run-ab.wandb"], "run-1-ab/run-ab.wandb", "or TensorBoard keeps", "log_completions=True"),
        (["my-project.db"], ".", "or TensorBoard keeps", "log_completions=True"),
        (["runs/events.out.tfevents.1.host"], ".", "or TensorBoard keeps", "log_completions=True"),
        (["events.out.tfevents.1.host"], "events.out.tfevents.1.host", "or TensorBoard keeps", "rollout_data_dir"),
        (["2026_A_on_miniwob.click_3_a1b2/summary_info.json"], ".", "BrowserGym's episodes", "jq -c '{task_id: ("),
        (["ic_sql_multiturn.json"], "ic_sql_multiturn.json", "is of InterCode", "reward: .summary.max_reward"),
        (["evaluation_results.json"], "evaluation_results.json", "keeps no verdict", "task_id, completion, passed"),
        (["generations_mbpp.json"], "generations_mbpp.json", "keeps no verdict", "task_id, completion, passed"),
        (["results_2026.json"], "results_2026.json", "the totals of an evaluation", "log_samples"),
        (["Scenario.x_1_eval.json"], "Scenario.x_1_eval.json", "LiveCodeBench", "Scenario.x_1_eval_all.json"),
        (["Scenario.x_1_eval.json"], ".", "LiveCodeBench", "Scenario.x_1_eval_all.json"),
    ],
)
@pytest.mark.parametrize("is_remote", [False, True], ids=["here", "at a URL"])
def test_what_is_no_log_is_recognized(
    tmp_path: Path, memory: Any, files: list[str], path_given: str, message: str, instead: str, is_remote: bool
) -> None:
    for name in files:
        file = tmp_path / "run" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    run = str(tmp_path / "run")
    if is_remote:
        memory.put(f"{run}/", "/runs/run", recursive=True)
        run = "memory://runs/run"
    assert instead.replace("RUN", run) in refusal(run if path_given == "." else f"{run}/{path_given}", message)


def test_a_checkpoint_is_read_only_where_its_run_has_no_completions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checkpoint-5").mkdir()
    state = tmp_path / "checkpoint-5" / "trainer_state.json"
    state.write_text("{}")
    monkeypatch.chdir(state.parent)
    assert refusal(".", r"\. is a checkpoint") == f"Name the run folder above it: {tmp_path}"
    state.write_text('{"log_history": [{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.75}]}')
    (state.parent / "vocab.json").write_text('{"reward": 1, "step": 2}')
    assert read_run(".", metrics_alone=True).metrics[2]["reward"] == 0.75
    assert evaluations_below(".", ReadOptions()) == ()
    shutil.copytree(TRL / "completions", tmp_path / "completions")
    refusal(".", r"\. is a checkpoint")


def test_a_folder_of_runs_lists_them_with_commands(tmp_path: Path) -> None:
    for number in range(7):
        shutil.copytree(TRL, tmp_path / "my runs" / f"seed{number}")
    folder = tmp_path / "my runs"
    assert refusal(folder, r"is a folder of 7 runs: seed0, seed1, seed2, seed3, seed4 and 2 more\.") == (
        f"One: gradscope degeneracy '{folder}/seed0'; all, on one page: gradscope report '{folder}'"
    )


def test_numbers_of_lists_that_may_be_the_reward_are_named_and_do(tmp_path: Path) -> None:
    """As in the logs of Tree of Thoughts."""
    rows = [{"idx": n, "ys": ["a", "b"], "infos": [{"cost": 7, "r": n % 2}, {"cost": 9, "r": 1}]} for n in range(4)]
    log = write_lines(tmp_path / "logs.jsonl", *rows)
    hint = refusal(log, "Its columns are 'idx', 'ys', 'infos'")
    assert hint == "Name the reward, where it is one of 'r': --reward-column r"
    assert read_run(log, naming(reward="r")).source.num_rows == 8


@pytest.mark.parametrize("name", ["agent.log", "trajectories.jsonl"])
def test_the_lines_of_an_agent_of_openenv_become_a_row_an_episode(tmp_path: Path, name: str) -> None:
    turn = "[STEP] step=1 action=f(x=1) reward=0.57 done=true error=null"
    ends = [("easy", "m/a", "True"), ("easy", "m/b", "false"), ("hard", "m/a", "true")]
    episodes = [f"[START] task={label} env=e model={m}\n{turn}\n[END] success={end} steps=1" for label, m, end in ends]
    log = tmp_path / name
    log.write_text("\n".join(episodes) + "\n")
    command = refusal(log, "is what an agent in an environment of OpenEnv's printed").removeprefix(
        "Write a row an episode: "
    )
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert (tmp_path / "rows.csv").read_text().split() == [
        "task_id,model,correct",
        "easy,m/a,true",
        "easy,m/b,false",
        "hard,m/a,true",
    ]
    run = read_run(tmp_path / "rows.csv")
    assert sorted((rollout.policy, rollout.reward) for group in run.groups for rollout in group.rollouts) == [
        ("m/a", 1.0),
        ("m/a", 1.0),
        ("m/b", 0.0),
    ]


@pytest.mark.parametrize("name", ["notes.txt", "train.log", "README"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_text_is_no_log(tmp_path: Path, name: str, encoding: str) -> None:
    (tmp_path / name).write_text("[étape] 1 reward 0.5\n", encoding=encoding)
    assert "log_completions=True" in refusal(tmp_path / name, "is text without rows")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("model.safetensors", b"\0\0", "is a file of weights, without rollouts"),
        ("x.ipynb", b'{"cells": []}', "is a notebook whose outputs have no table of metrics"),
    ],
)
def test_weights_and_notebooks_without_metrics_are_no_log(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    refusal(tmp_path / name, message)


@pytest.mark.slow
def test_an_archive_is_unpacked_by_the_command_of_its_hint(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "logs.zip", "w") as archive:
        archive.writestr("log.jsonl", '{"prompt_id": "a", "step": 1, "reward": 1}\n')
    _, *arguments = shlex.split(refusal(tmp_path / "logs.zip", "is an archive").partition(": ")[2])
    subprocess.run([sys.executable, *arguments], check=True, cwd=tmp_path)
    assert read_run(tmp_path / "log.jsonl").steps == (1,)


@pytest.mark.slow
def test_archives_of_a_folder_are_unpacked_by_the_command_of_its_hint(tmp_path: Path) -> None:
    """As agent-lightning's examples upload a step's files."""
    folder = tmp_path / "of all"
    folder.mkdir()
    for step in range(2):
        with zipfile.ZipFile(folder / f"step_{step}.zip", "w") as archive:
            archive.writestr("rollouts.jsonl", f'{{"prompt_id": "a", "text": "{step}", "reward": 1}}\n')
    command = refusal(folder, "holds nothing but archives").partition(": ")[2]
    subprocess.run(["bash", "-c", command.replace("python", shlex.quote(sys.executable))], check=True)
    assert read_run(folder / "step_*" / "rollouts.jsonl").steps == (0, 1)


@pytest.mark.parametrize(
    ("name", "path_given", "message", "instead"),
    [
        ("dumped_data/global_step_3_training_input.pkl", ".", "SkyRL's dump", "dump_eval_results"),
        ("dumped_data/global_step_3_training_input.pkl", "dumped_data", "SkyRL's dump", "global_step_<N>_evals"),
        ("3/0/tq_batch.pt", ".", "verl's rollout cache", "trainer.rollout_data_dir"),
        ("3/gen_batch.dp", "3/gen_batch.dp", "verl's rollout cache", "trainer.rollout_data_dir"),
        ("rollout_data/3.pt", ".", "slime's dump of training", "--dump-details"),
        ("train_data/3.pt", "train_data/3.pt", "slime's dump of training", "rollout_data/<rollout_id>.pt"),
        ("val_rollouts_1.pkl", ".", "RAGEN's evaluation rollouts", "format: jsonl"),
        ("anything.pkl", "anything.pkl", "looks like a pickle", "JSONL, Parquet or CSV"),
    ],
)
def test_a_refused_pickle_says_what_helps(
    tmp_path: Path, name: str, path_given: str, message: str, instead: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(BYTES)
    assert instead in refusal(tmp_path / path_given, message)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"prompt": "p", "quality": 0.5, "format_score": 1}, "--reward-column quality; others are 'format_score'."),
        ({"task_id": 1, "variants": [{"name": "a", "score": 0.5}]}, "--reward-column variants.score."),
        ({"prompt": "p", "format reward": 1.0, "graded": "no"}, "--reward-column 'format reward'."),
        ({"id": "a", "exact_answer": True, "target": "31"}, "--reward-column exact_answer."),
        ({"prompt": "p", "ok": True, "boxed": "4"}, "--reward-column ok."),
        ({"prompt": "p", "human_label": 1.0}, "--reward-column human_label."),
        ({"prompt": "p", "receipt_verified": True}, "--reward-column receipt_verified."),
        ({"prompt": "p", "any_correct": True, "first_correct": True}, "--reward-column first_correct."),
        ({"prompt": "p", "auto_equivalent": True, "model_prediction": "4"}, "--reward-column auto_equivalent."),
        ({"prompt": "p", "tests_passed": 3, "test_pass_rate": 0.5}, "--reward-column test_pass_rate."),
        ({"prompt": "p", "base_correct": "True", "correction_step": "2"}, "--reward-column base_correct."),
        ({"prompt": "p", "payload": {"reward_info": {"reward": 1}}}, "--reward-column payload.reward_info.reward."),
        ({"task_id": 1, "result": {"report": {"resolved": True}}}, "--reward-column result.report.resolved."),
        (
            {"prompt": "p", "of_score": {"id": 1, "score": {"value": {"acc": 1}}}},
            "--reward-column of_score.score.value.acc.",
        ),
    ],
)
def test_columns_that_may_be_the_reward_are_named(tmp_path: Path, row: dict[str, Any], named: str) -> None:
    path = write_lines(tmp_path / "log.jsonl", *[row] * 4)
    assert refusal(path, "is not a log that gradscope knows") == f"Name the number that the trainer used, as in {named}"
    reward = shlex.split(named.split(";")[0].removesuffix("."))[1]
    assert len(read_run(path, naming(reward=reward)).groups[0].rollouts) == 4


@pytest.mark.parametrize(
    ("row", "hint"),
    [
        (
            {"pass_at_1": 0.2, "n_samples": 30, "responses": ["a", "b"]},
            "'pass_at_1' is a total, over prompts or samples: give the file",
        ),
        ({"sft": {"ndcg@10": 0.3}, "grpo": {"ndcg@10": 0.4}}, "'sft.ndcg@10' is a total, over prompts or samples"),
        ({"run_1.jsonl": {"total": 50, "pass@k": 0.7}}, "'run_1.jsonl.pass@k' is a total, over prompts or samples"),
        (
            {"run_name": "b32", "final_validation_accuracy": "0.66"},
            "'final_validation_accuracy' is a total, over prompts or samples",
        ),
        (
            {"id": "a", "params.run": 1, "metrics.exact_match": 0.1},
            "'metrics.exact_match' is a total, over prompts or samples",
        ),
        ({"score": 0.1, "score:std": 0.3, "chars": 2026.2}, "'score' is a total, over prompts or samples"),
        ({"accuracy": 0.35, "attempted": 20, "correct": 7, "seed": 1}, "'correct' is a total, over prompts or samples"),
        ({"eval_reward": 0.5, "eval_runtime": 9.0}, "Name trainer_state.json, which is beside it"),
        ({"study": "v2", "accuracy": {"ppo": {"n": 3}, "grpo": {"n": 3}}}, "'accuracy' is an object of totals: give"),
        ({"question": "p", "f1": 0.5}, "Name the columns with --reward-column"),
        ({"question": "p", "success_count_std": 0.5}, "Name the columns with --reward-column"),
        ({"main": {"gold_final_answer": 4}, "final_line_removed": True}, "Name the columns with --reward-column"),
    ],
)
def test_totals_of_evaluations_are_refused_for_what_they_are(tmp_path: Path, row: dict[str, Any], hint: str) -> None:
    assert refusal(write_lines(tmp_path / "log.jsonl", row), "not a log|a trainer's totals").startswith(hint)


@pytest.mark.parametrize(
    "row",
    [
        {"action": "left", "reward": 0.1, "done": False},
        {"action": {"left": 1}, "observation": {"done": False, "reward": 0.1}},
        {"step": 1, "action": "left", "reward": 0.1, "cumulative_reward": 0.1},
    ],
)
def test_the_steps_of_an_agent_are_no_rollouts_of_a_prompt(tmp_path: Path, row: dict[str, Any]) -> None:
    message = "has a row for each step of an episode"
    assert refusal(write_lines(tmp_path / "log.jsonl", row, row), message).startswith("Write a row an episode")
    refusal(write_rows(tmp_path / "episode.json", {"task": "t", "steps": [row] * 3}), message)


def test_a_verdict_in_words_is_named_before_one_that_never_differs(tmp_path: Path) -> None:
    rows = [{"task_id": index, "status": word, "verified": True} for index, word in enumerate(("passed", "failed"))]
    hint = refusal(write_lines(tmp_path / "log.jsonl", *rows), "is not a log that gradscope knows")
    assert hint == "Name the number that the trainer used, as in --reward-column status."


@pytest.mark.parametrize("outer", [{}, {"wrong": [{"gt": "0"}]}, {"mean": {"score": 0.5}, "wrong": []}])
@pytest.mark.parametrize("prompt", ["problem_text", "row_idx"])
def test_a_number_in_the_list_of_a_document_is_named_with_what_tells_prompts_apart(
    tmp_path: Path, prompt: str, outer: dict[str, Any]
) -> None:
    rows = [{"kind": "x", prompt: f"p{index}", "label": str(index), "judged_score": index % 2} for index in range(4)]
    path = write_rows(tmp_path / "a.json", {**outer, "per_item": rows})
    hint = refusal(path, "is not a log that gradscope knows")
    named = shlex.split(hint.partition("as in ")[2].replace(",", " "))
    assert named[:4] == ["--reward-column", "judged_score", "--prompt-column", prompt]
    run = read_run(path, naming(reward=named[1], prompt=named[3]))
    assert [group.rewards for group in run.groups] == [(0,), (1,)] * 2


@pytest.mark.parametrize(
    "document",
    [
        {"contingency": {"both_correct": 3, "p": 0.1}},
        {"temperature_sweep": {"peak_reward": 0.5}, "mean_accuracy": 0.5},
        {"name": "x", "deltas": {"accuracy": -0.1}, "runs": []},
    ],
)
def test_totals_in_a_document_without_prompts_are_not_named_as_rewards(tmp_path: Path, document: Any) -> None:
    hint = refusal(write_rows(tmp_path / "summary.json", document), "is not a log that gradscope knows")
    assert "as in --reward-column" not in hint


@pytest.mark.parametrize(
    "cells",
    [
        {"reward_model": {"style": "rule", "ground_truth": "4"}},  # prompts as verl takes them
        {"evaluation_criteria": {"reward_basis": ["DB"]}, "payload": {"reward_info": {"reward": "1 of 2"}}},
        {"correct_label": 1, "is_correct_answer": "B"},
        {"chosen_reward": 0.5, "rejected_reward": 0.1},
        {"info": {"complexity_score": 1.5}, "difficulty_score": 2},
        {"reward_spec": {"require_correct": True}, "gold": "4"},
        {"fen": "k7/8", "castling_rights": 0},
    ],
)
def test_columns_that_are_no_reward_are_not_named(tmp_path: Path, cells: dict[str, Any]) -> None:
    path = write_lines(tmp_path / "log.jsonl", *[{"prompt": "p"} | cells] * 4)
    hint = refusal(path, "is not a log that gradscope knows")
    assert hint.startswith("Name the columns with --reward-column, --group-column")


@pytest.mark.parametrize(
    ("row", "instead"),
    [
        ({"input": "p", "prediction": "4", "target": "5"}, "grade 'prediction' against 'target'"),
        ({"id": "a", "beam": "x", "reference": "p", "hypothesis": "q"}, "grade 'hypothesis' against 'reference'"),
        ({"idx": 1, "question": "p", "pred": ["4"], "gt": "5"}, "grade 'pred' against 'gt'"),
        ({"id": "a", "correct_index": 3, "predicted_index": 1}, "grade 'predicted_index' against 'correct_index'"),
        (
            {"question": "p", "reference_answer": "4", "model_outputs": [{"sample_idx": 1, "latency": 2.5}]},
            "grade 'model_outputs' against 'reference_answer'",
        ),
        ({"query": "p", "answer": "4", "ref_answer": "5", "cost": 0.1}, "grade 'answer' against 'ref_answer'"),
        ({"question_id": 1, "answer": "no", "label": "yes"}, "grade 'answer' against 'label'"),
        (
            {"question": "p", "generated_prediction": "4", "answer": "A"},
            "grade 'generated_prediction' against 'answer'",
        ),
        ({"question": "p", "final_result": 18.0, "true_label": "18"}, "grade 'final_result' against 'true_label'"),
        ({"task_id": "a", "completion": "f()"}, "run the evaluation on 'completion'"),
        ({"id": "a", "prediction": "4"}, "run the evaluation on 'prediction'"),
        ({"prompt": [{"role": "user"}], "responses": ["4", "5"]}, "run the evaluation on 'responses'"),  # of verl
        ({"instance_id": "a", "model_patch": "diff"}, "run the evaluation on 'model_patch'"),
        (
            {"doc_id": "1", "doc": {"label": 1}, "target": "A", "resps": [["A"]], "filtered_resps": ["A"]},
            "grade 'filtered_resps' against 'target'",
        ),
        ({"task_id": "a", "completion": "f()", "status": "Passed"}, ""),
        ({"task_id": "a", "completion": "f()", "tokens": 7}, ""),
        ({"task_id": "a", "target": "4", "output_tokens": 7, "output_dir": "/runs"}, ""),
        ({"idx": 1, "ys": ["a", "b"], "infos": [{"cost": 7}, {"cost": 9}]}, ""),
    ],
)
def test_responses_that_nobody_graded_are_to_be_graded(tmp_path: Path, row: dict[str, Any], instead: str) -> None:
    hint = refusal(write_lines(tmp_path / "log.jsonl", *[row] * 4), "is not a log that gradscope knows")
    assert hint.startswith(f"No column is a verdict: {instead}" if instead else "Name the columns with --reward-column")
    for document in ({"cot": [row] * 4, "act": [row] * 4}, {"rounds": [row], "seed": 7}):
        if instead:
            assert instead in refusal(write_rows(tmp_path / "a.json", document), "is not a log that gradscope knows")


@pytest.mark.parametrize("comment", ["# run 1, seed 3\n# model\n", "# run\n", ""])
def test_comments_before_the_header_of_a_table_are_to_be_left_out(comment: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{comment}{'' if comment else '#'}id,tokens,cost\nx,3,0.1\ny,4,0.2\n")
    message = "begins with a comment" if comment else "is not a log that gradscope knows"
    assert refusal(path, message).startswith("Leave such lines out: grep" if comment else "Name the columns with")


def test_the_numbers_of_rows_in_a_table_are_no_reward(tmp_path: Path) -> None:
    rows = [{"": index, "query": f"p{index // 3}", "answer": "4", "ref_answer": "5"} for index in range(9)]
    for path in (write_rows(tmp_path / "a.csv", rows), write_lines(tmp_path / "a.jsonl", *rows)):
        refusal(path, "is not a log that gradscope knows")
