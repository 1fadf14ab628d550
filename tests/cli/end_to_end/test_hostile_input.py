"""Damaged and hostile input where several parts decide; rows and files of trainers are the readers' own tests."""

import gzip
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from gradscope.outside import limits, torch_archive
from gradscope.rollouts.readers.evaluations import inspect_ai, samples
from gradscope.rollouts.readers.parsing import tables
from gradscope.rollouts.run_folder import append_metrics
from gradscope.rollouts.store import checksum_path, step_files, write_step_rollouts
from tests.cli.conftest import Cli, Done
from tests.diagnostics.compared_runs import write_run
from tests.rollouts.build import group
from tests.rollouts.readers.lines import write_lines

LOGS = Path(__file__).parents[3] / "fixtures" / "logs"
DEEP = '{"a":' * 5000 + "1" + "}" * 5000
LONG = '{"global_step": 1, "step": 1, "a": %s}' % ("9" * 5000)


def rows(num_rows: int = 16, **fields: Any) -> list[dict[str, Any]]:
    return [{"step": 1, "prompt_id": f"p{row // 4}", "reward": float(row % 2)} | fields for row in range(num_rows)]


def own_run(path: Path, num_steps: int = 3) -> Path:
    write_run(path, rewards=(), heldout_prompts=0)
    for step in range(1, num_steps + 1):
        groups = [group(step, name, (1.0, 0.0)) for name in "abcd"]
        write_step_rollouts(path, step, groups)
        append_metrics(path, step, {"grad_norm": 0.5, "num_groups": 4})
    return path


def refused(done: Done, words: str) -> None:
    """Exit 2 with an error and nothing on stdout."""
    assert (done.code, done.out) == (2, ""), done.err
    error = next(line for line in done.err.splitlines() if line.startswith("error: "))
    assert words in error
    assert "Traceback" not in done.err


def partly(done: Done, words: str) -> None:
    """The result of the rest on stdout, an error that names the part, and exit 2."""
    assert done.code == 2, done.err
    assert done.out
    assert any(words in line for line in done.err.splitlines() if line.startswith("error: ")), done.err
    assert "hint: What is shown is the result of the rest." in done.err


@pytest.mark.parametrize("command", ["degeneracy", "passk", "rank", "replay"])
def test_a_missing_and_an_empty_folder_are_named_and_nothing_is_written(cli: Cli, tmp_path: Path, command: str) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("absent", "empty"):
        refused(cli(command, tmp_path / name, "--output", tmp_path / "results"), str(tmp_path / name))
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_groups_of_unequal_size_are_named(cli: Cli, tmp_path: Path) -> None:
    done = cli("degeneracy", write_lines(tmp_path / "a.jsonl", *rows(6)))
    assert done.code == 0
    assert "groups of unequal size" in done.out


@pytest.mark.parametrize("name", ["args.json", "absent.json"])
def test_a_run_configuration_that_is_no_json(cli: Cli, tiny_run: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "args.json").write_text("{")
    refused(cli("replay", tiny_run, "--run-config", tmp_path / name), name)


@pytest.mark.parametrize(
    ("metric", "value"),
    [("grad_norm", '"NaN"'), ("grad_norm@last", "NaN"), ("grad_norm@max", "1e400"), ("grad_norm@mean", "NaN")],
)
def test_a_run_that_diverged_passes_no_gate(cli: Cli, tmp_path: Path, metric: str, value: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(LOGS / "trl", run)
    state = json.loads((run / "trainer_state.json").read_text())
    for entry in state["log_history"]:
        entry["grad_norm"] = "VALUE"
    (run / "trainer_state.json").write_text(json.dumps(state).replace('"VALUE"', value))
    assert cli("check", run, "--require", f"{metric} <= 1").code == 1


def rewritten(run: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    file = step_files(run)[0]
    pq.write_table(change(pq.read_table(file)), file)
    checksum_path(file).unlink()


def test_a_key_that_stands_there_twice_counts_as_its_last(cli: Cli, tmp_path: Path) -> None:
    log = write_lines(tmp_path / "a.jsonl", *rows(), '{"step": 1, "prompt_id": "p0", "reward": 1, "reward": null}')
    quarantined = json.loads(cli("degeneracy", log, "--json").out)["result"]["quarantined"]
    assert [(reason["reason"], reason["num_rows"]) for reason in quarantined["reasons"]] == [("the reward is null", 1)]


def test_two_columns_of_one_name_are_no_rewards(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("step,prompt_id,reward,reward\n1,a,0,1\n1,a,1,0\n")
    refused(cli("degeneracy", tmp_path / "a.csv"), "two columns have the name 'reward'")
    columns = [pa.array([1, 1]), pa.array(["a", "a"]), pa.array([0.0, 1.0]), pa.array([1.0, 1.0])]
    pq.write_table(pa.Table.from_arrays(columns, ["step", "prompt_id", "reward", "reward"]), tmp_path / "b.parquet")
    refused(cli("degeneracy", tmp_path / "b.parquet"), "two columns have the name 'reward'")


def test_a_step_that_changed_or_is_gone_is_told(cli: Cli, tmp_path: Path) -> None:
    run = own_run(tmp_path / "run")
    file = step_files(run)[1]
    full = file.read_bytes()
    file.write_bytes(step_files(run)[0].read_bytes())
    partly(cli("degeneracy", run), "its content is not what step_00002.parquet.sha256 was written for")
    file.unlink()
    partly(cli("degeneracy", run), "step_00002.parquet is gone: the run wrote rollouts at step 2")
    file.write_bytes(full)
    assert cli("degeneracy", run).code == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table.take([0, 2, 4, 6, 1, 3, 5, 7]), "rows of one group do not stand together"),
        (lambda table: table.slice(0, 0), "it has no rows"),
        (lambda table: table.slice(0, 4), "has 2 groups of step 1, and the metrics tell of 4"),
        (lambda table: pa.concat_tables([table.slice(0, 1), table]), "a rollout stands there twice"),
        (lambda table: table.drop_columns(["status"]), "the column status is not there once"),
        (lambda table: table.set_column(0, "step", pa.array(["1"] * 8)), "the column step holds string and not int64"),
        (
            lambda table: table.set_column(0, "step", pa.array([2] * 8, pa.int64())),
            "it has rows of another step than its name says",
        ),
        (lambda table: table.set_column(7, "messages", pa.array(["{"] * 8)), "a row is none of a rollout"),
    ],
)
def test_a_damaged_step_is_set_aside(cli: Cli, tmp_path: Path, change: Any, words: str) -> None:
    run = own_run(tmp_path / "run")
    rewritten(run, change)
    partly(cli("degeneracy", run), words)


def test_lines_of_metrics_that_are_none_are_lost(cli: Cli, tmp_path: Path) -> None:
    run = own_run(tmp_path / "run")
    metrics = run / "metrics.jsonl"
    steps = ("2.9", "true", "-1", '"1"', "1e400", "9" * 400)
    damaged = [f'{{"step": {step}, "grad_norm": 99}}' for step in steps]
    metrics.write_text(
        "\n".join(["garbage", *damaged, '{"step": 1, "grad_norm": true}', DEEP]) + "\n" + metrics.read_text()
    )
    done = cli("check", run, "--require", "grad_norm@max <= 1", "--json")
    quarantined = json.loads(done.out)["result"]["source"]["quarantined"]
    lost = quarantined["lost"]
    assert (quarantined["num_rows"], sum(int(sentence.split()[0]) for sentence in lost)) == (0, 9), lost
    assert done.code == 1
    assert cli("degeneracy", run).code == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [("config", [1]), ("seed", "x"), ("seed", True), ("notes", [3]), ("versions", []), ("schema_version", True)],
)
def test_a_manifest_has_its_types(cli: Cli, tmp_path: Path, field: str, value: Any) -> None:
    run = own_run(tmp_path / "run")
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {field: value}))
    refused(cli("degeneracy", run), "manifest.json")


def test_a_bad_checkpoint_leaves_the_other_steps_alone(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    weights = run / "checkpoints/checkpoint-1/model.safetensors"
    tensors = load_file(weights)
    del tensors["model.norm.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})
    partly(cli("rank", run), "Step 2 was left out")
    assert cli("replay", run).code == 1
    weights.write_bytes(weights.read_bytes()[:1000])
    partly(cli("rank", run), "model.safetensors is cut off")


def test_weights_that_are_left_over_are_named(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    config = tmp_path / "run/checkpoints/checkpoint-0/config.json"
    values = json.loads(config.read_text())
    config.write_text(json.dumps(values | {"num_hidden_layers": 1, "layer_types": None}))
    refused(cli("rank", tmp_path / "run", "--step", "1"), "of no part of the model in config.json")


@pytest.mark.parametrize(
    "fields", [{"num_hidden_layers": "two"}, {"num_attention_heads": 0}, {"model_type": ["a"]}, {"dtype": "x3"}]
)
def test_a_configuration_that_none_can_have(cli: Cli, tiny_run: Path, tmp_path: Path, fields: dict[str, Any]) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    config = tmp_path / "run/checkpoints/checkpoint-0/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | fields))
    refused(cli("rank", tmp_path / "run", "--step", "1"), "checkpoint-0")


@pytest.mark.slow
def test_what_unpacks_to_too_much_is_refused(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_UNPACKED", 1 << 20)
    for module in (tables, inspect_ai, torch_archive):
        monkeypatch.setattr(module, "MAX_ROW", 1 << 20)
    big = json.dumps(rows(1, completion="x" * (3 << 20))[0])
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(f"{big}\n{big}".encode()))
    refused(cli("degeneracy", tmp_path / "a.jsonl.gz"), "unpacks to more than 1 MiB")
    (tmp_path / "a.jsonl").write_text(big)
    refused(cli("degeneracy", tmp_path / "a.jsonl"), "the line is longer than 1 MiB")
    (tmp_path / "a.json").write_text(f"[{big}]")
    refused(cli("degeneracy", tmp_path / "a.json"), "is a JSON document of more than 1 MiB")
    texts = [f"{number}{'x' * 20_000}" for number in range(4000)]  # one that repeats stays as small as it was packed
    table = pa.table({"step": [1] * 4000, "prompt_id": texts, "reward": [1.0] * 4000})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd")
    refused(cli("degeneracy", tmp_path / "a.parquet"), "unpacks to more than")
    with zipfile.ZipFile(tmp_path / "a.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("samples/1_epoch_1.json", json.dumps({"id": 1, "epoch": 1, "x": "0" * (2 << 20)}))
    refused(cli("passk", tmp_path / "a.eval", "--reader", "inspect-ai"), "has a sample of more than 1 MiB")
    assert cli("degeneracy", write_lines(tmp_path / "b.jsonl", *rows())).code == 0
    monkeypatch.setenv(limits.VARIABLE, "8")
    assert cli("degeneracy", tmp_path / "a.jsonl.gz").code == 0


@pytest.mark.parametrize(
    ("name", "is_nested"), [("group_id", False), ("step", False), ("reward", False), ("prompt_id", True)]
)
def test_a_shared_text_is_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, is_nested: bool
) -> None:
    monkeypatch.setattr(limits, "MAX_UNPACKED", 1 << 20)
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 400, pa.int32()), pa.array(["x" * 20_000]))
    columns = {
        "group_id": [f"g{row // 8}" for row in range(400)],
        "step": [1] * 400,
        "reward": [row % 2 for row in range(400)],
    }
    cells = pa.StructArray.from_arrays([text], names=["a"]) if is_nested else text
    pq.write_table(pa.table(columns | {name: cells}), tmp_path / "a.parquet")
    refused(cli("degeneracy", tmp_path / "a.parquet"), "unpacks to more than 1 MiB")


def test_a_shared_prompt_is_read_once(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_UNPACKED", 1 << 20)
    prompts = pa.DictionaryArray.from_arrays(pa.array([0, 1] * 200, pa.int32()), pa.array(["x" * 20_000, "y"]))
    table = pa.table({"prompt": prompts, "step": [1] * 400, "reward": [row % 3 for row in range(400)]})
    pq.write_table(table, tmp_path / "a.parquet")
    answer = cli("degeneracy", tmp_path / "a.parquet", "--json")
    assert json.loads(answer.out)["result"]["num_groups"] == 2


def test_counts_declare_no_more_samples_than_are_read(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MAX_SAMPLES", 10_000)
    counts = [{"task_id": f"t{task}", "n": 3000, "c": task} for task in range(4)]
    refused(cli("passk", write_lines(tmp_path / "a.jsonl", *counts)), "holds more than 10,000 samples")


def test_pipes_and_devices_are_never_read(cli: Cli, tmp_path: Path) -> None:
    run = own_run(tmp_path / "run")
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    for arguments in (
        ("degeneracy", pipe),
        ("passk", pipe),
        ("degeneracy", "/dev/zero"),
        ("replay", run, "--run-config", pipe),
        ("check", run, "--require", "pass_rate >= 0", "--baseline", pipe),
        ("check", run, "--require", "pass_rate >= 0", "--config", pipe),
        ("train", "--config", pipe, "--output", tmp_path / "new"),
    ):
        refused(cli(*arguments), "and only files are read")


@pytest.mark.parametrize("name", ["manifest.json", "metrics.jsonl", "rollouts/step_00001.parquet"])
def test_a_pipe_within_our_own_folder(cli: Cli, tmp_path: Path, name: str) -> None:
    run = own_run(tmp_path / "run")
    (run / name).unlink()
    os.mkfifo(run / name)
    done = cli("degeneracy", run)
    assert done.code == 2
    assert f"{Path(name).name} is a pipe" in done.err


def test_a_pipe_beside_a_log_is_never_opened(cli: Cli, tmp_path: Path) -> None:
    shutil.copytree(LOGS / "verl_v1", tmp_path / "verl")
    for name in ("metrics.jsonl", "2.jsonl", "events.out.tfevents.1"):
        os.mkfifo(tmp_path / "verl" / name)
    assert cli("degeneracy", tmp_path / "verl").code == 0
    shutil.copytree(LOGS / "trl", tmp_path / "trl")
    (tmp_path / "trl/trainer_state.json").unlink()
    os.mkfifo(tmp_path / "trl/trainer_state.json")
    done = cli("degeneracy", tmp_path / "trl")
    assert done.code == 2
    assert "trainer_state.json is damaged" in done.err


def test_a_gate_fails_where_most_rows_cannot_be_used_and_shows_a_few(cli: Cli, tmp_path: Path) -> None:
    log = write_lines(tmp_path / "a.jsonl", *rows(2), *["garbage"] * 1000)
    gate = ("check", log, "--require", "frac_reward_zero_std <= 0.5")
    junit = cli(*gate, "--format", "junit")
    assert junit.code == 1
    cases = {case.get("name"): case for case in ElementTree.fromstring(junit.out)}
    failure = cases["frac_set_aside <= 0.1"].find("failure")
    assert failure is not None
    assert "1,000 rows: the line is not JSON (first at " in str(failure.text)
    assert cli(*gate, "--require", "frac_set_aside <= 0.999").code == 0
    few = write_lines(tmp_path / "b.jsonl", *rows(32), "garbage")
    done = cli("check", few, *gate[2:], "--format", "github")
    assert done.code == 0
    assert "::notice title=PASS frac_set_aside <= 0.1::" in done.out


@pytest.mark.parametrize("text", [DEEP, LONG, "[]", "{", '{"global_step": 1e400, "log_history": []}'])
def test_documents_of_any_kind_are_refused_or_set_aside(cli: Cli, tmp_path: Path, text: str) -> None:
    run, trl, document = own_run(tmp_path / "run"), tmp_path / "trl", tmp_path / "a.json"
    document.write_text(text)
    shutil.copytree(LOGS / "trl", trl)
    shutil.copy(document, trl / "trainer_state.json")
    assert cli("degeneracy", trl).code == 2
    assert cli("check", run, "--require", "pass_rate >= 0", "--baseline", document).code == 2
    assert cli("replay", run, "--run-config", document).code in (1, 2)
    assert cli("train", "--config", document, "--output", tmp_path / "new").code == 2
    shutil.copy(document, run / "manifest.json")
    assert cli("degeneracy", run).code == 2


def test_a_digit_of_another_kind_is_no_number_of_a_file(cli: Cli, tmp_path: Path) -> None:
    for name in ("step²_1.jsonl", "²", "٣.jsonl"):
        write_lines(tmp_path / name, *rows())
    assert cli("degeneracy", tmp_path).code == 0


@pytest.mark.parametrize("digits", ["1_0", "٣"])
def test_cells_have_the_grammar_of_numbers(cli: Cli, tmp_path: Path, digits: str) -> None:
    refused(cli("degeneracy", write_lines(tmp_path / "b.jsonl", *rows(step=digits))), "the step is not a whole number")
    (tmp_path / "b.csv").write_text("step,prompt_id,reward\n" + f"1,a,{digits}\n" * 4)
    refused(cli("degeneracy", tmp_path / "b.csv"), "the reward is text")


@pytest.mark.parametrize("step", ["1.9", "true", "-1", '"1_0"', "1"])
def test_a_side_file_has_whole_steps_and_each_row_once(cli: Cli, tmp_path: Path, step: str) -> None:
    side = tmp_path / "ids.jsonl"
    side.write_text(f'{{"step": {step}, "row": 0, "completion_ids": [1]}}\n' * 2)
    message = "step and row were there before" if step == "1" else "does not hold step, row and completion_ids"
    refused(cli("replay", LOGS / "trl", "--completion-ids", side), message)


@pytest.mark.parametrize("index", [0, 4])
def test_a_cut_file_leaves_the_others_alone(cli: Cli, tmp_path: Path, index: int) -> None:
    for step in range(10):
        pq.write_table(pa.Table.from_pylist(rows(step=step)), tmp_path / f"{step}.parquet")
    damaged = tmp_path / f"{index}.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-40])
    done = cli("degeneracy", tmp_path, "--json")
    partly(done, f"{index}.parquet is not a readable Parquet file")
    result = json.loads(done.out)["result"]
    assert result["source"]["num_rows"] == 144
    assert f"{index}.parquet" in result["quarantined"]["lost"][0]
    refused(cli("degeneracy", tmp_path, "--strict"), "is not a readable Parquet file")


def test_a_reason_says_in_how_many_files_it_is(cli: Cli, tmp_path: Path) -> None:
    write_lines(tmp_path / "1.jsonl", {"step": 1, "prompt_id": "p"}, *rows())
    write_lines(tmp_path / "2.jsonl", *[{"step": 2, "prompt_id": "p"}] * 4)
    done = cli("degeneracy", tmp_path)
    assert "5 rows: the reward is missing (first at " in done.err
    assert "1.jsonl:1, in 2 files)" in done.err
