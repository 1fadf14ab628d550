import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from gradscope.gradients.plan.trainers import objective_of
from gradscope.results.source import Quarantine
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing import tables
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.records import ReadRequest
from gradscope.rollouts.readers.run_files import (
    CheckpointLayout,
    metric_lines,
    numbered_folders,
    saved_weights,
    trainer_settings,
)
from tests.conftest import LOGS
from tests.rollouts.readers.lines import refusal, refused, rewards_of, set_aside, write_lines
from tests.rollouts.test_event_file import record, scalar


def test_the_first_readable_file_counts_and_what_is_given_wins(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("{[")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "config.yaml").write_text("actor:\n  n: 2\n  m: 3\n")
    (tmp_path / "given.toml").write_text("[actor]\nn = 5\n")
    files = [tmp_path / name for name in ("none.json", "broken.yaml", "list.json", "config.yaml")]
    request = ReadRequest(path=tmp_path, options=ReadOptions(trainer_args=tmp_path / "given.toml"))
    settings = trainer_settings(request, "some", files)
    assert dict(settings.values) == {"actor.n": 5, "actor.m": 3, "trainer": "some"}
    assert settings.origin == f"{tmp_path / 'config.yaml'} and {tmp_path / 'given.toml'}"
    bare = trainer_settings(ReadRequest(path=tmp_path), "some", [])
    assert (dict(bare.values), bare.origin) == ({"trainer": "some"}, None)


def test_lines_of_one_step_are_joined_under_common_names(tmp_path: Path) -> None:
    lines = [{"step": 1, "x/norm": 0.5}, {"step": 1, "note": "text", "loss": 2}, {"step": None, "loss": 9}]
    file = write_lines(tmp_path / "metrics.jsonl", *lines)
    quarantine = QuarantineLog()
    assert metric_lines([file], {"x/norm": "grad_norm"}, quarantine) == {1: {"grad_norm": 0.5, "loss": 2.0}}
    assert quarantine.result() == Quarantine()


UNUSED = "2 lines of metrics cannot be used: .*\\(first at .*metrics.jsonl:2\\)."


@pytest.mark.parametrize(
    ("lines", "steps", "lost"),
    [
        *((["", damage, damage, "", '{"step": 3, "x": 1}', ""], (1, 3), UNUSED) for damage in ("garbage", "[1]", "\0")),
        (["", *['{"step": 2, "x": 9'] * 2, '{"step": 3, "x": 1}', ""], (1, 3), UNUSED),
        (["", '{"step": 2, "x'], (1,), None),  # it may be being written
        (["", *["garbage"] * 6], (1,), ".*metrics.jsonl has no row in 5 lines from line 2 on."),
    ],
)
def test_lines_that_cannot_be_read_are_lost(
    lines: list[str], steps: tuple[int, ...], lost: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MAX_FLAWED", 5)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "x": 1}' + "\n".join(lines))
    read = metric_lines([tmp_path / "metrics.jsonl"], {}, quarantine := QuarantineLog())
    assert read == {step: {"x": 1.0} for step in steps}
    sentences = quarantine.result().lost
    assert not sentences if lost is None else re.fullmatch(lost, sentences[-1])


EVENTS = record(scalar(1, b"a/b", 0.5)) + record(scalar(2, b"a/b", 2.0))


def copy_of(name: str, tmp_path: Path) -> Path:
    return shutil.copytree(LOGS / name, tmp_path / name)


@pytest.mark.parametrize("name", ["slime", "open_instruct"])
def test_tensorboards_files_in_the_folder_are_read(tmp_path: Path, name: str) -> None:
    log = copy_of(name, tmp_path)
    assert read_run(log).metrics == {}
    (log / "tensorboard").mkdir()
    (log / "tensorboard" / "events.out.tfevents.1.host").write_bytes(EVENTS)
    run = read_run(log)
    assert run.metrics == {1: {"a/b": 0.5}, 2: {"a/b": 2.0}}
    assert run.source.files[-1] == str(log / "tensorboard" / "events.out.tfevents.1.host")


def test_open_instructs_own_names_of_step_and_norm_are_known(tmp_path: Path) -> None:
    log = copy_of("open_instruct", tmp_path)
    (log / "metrics.jsonl").write_text('{"training_step": 1, "optim/grad_norm": 0.5, "objective/scores": 0.3}\n')
    write_model(log / "step_1")
    run = read_run(log)
    assert run.metrics == {1: {"training_step": 1, "optim/grad_norm": 0.5, "grad_norm": 0.5, "objective/scores": 0.3}}
    assert [weights.num_updates for weights in run.weights] == [1]


def test_damage_in_tensorboards_files_is_a_part_that_cannot_be_read(tmp_path: Path) -> None:
    log = copy_of("slime", tmp_path)
    file = log / "events.out.tfevents.1.host"
    file.write_bytes(EVENTS[:-6] + b"?" + EVENTS[-5:])
    (lost,) = read_run(log).source.quarantined.lost
    assert lost.startswith(f"{file}: the record at byte ")


def test_who_stands_in_slimes_folder_of_rollouts_has_them_too(tmp_path: Path) -> None:
    log = copy_of("slime", tmp_path)
    (log / "metrics.jsonl").write_text(json.dumps({"step": 1, "x": 2}) + "\n")
    assert read_run(log / "rollout_data").metrics == read_run(log / "rollout_data" / "0.pt").metrics == {1: {"x": 2.0}}


def test_files_of_two_runs_are_not_mixed(tmp_path: Path) -> None:
    log = copy_of("slime", tmp_path)
    for name in ("a", "b"):
        (log / name).mkdir()
        (log / name / "events.out.tfevents.1.host").write_bytes(EVENTS)
    run = read_run(log)
    assert run.metrics == {}
    assert run.source.missing[-1].startswith(f"TensorBoard's files lie in 2 folders ({log}/a, {log}/b): which are")


def test_metrics_of_runs_in_folders_beside_the_rollouts_are_nobodys_unless_the_log_has_its_own(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log.jsonl", *({"prompt": "a", "step": 1, "reward": n % 2} for n in range(4)))
    norms = [{"step": step, "loss": 0.1, "grad_norm": 1.0 + step} for step in range(1, 4)]
    for name in ("metrics_a", "metrics_b"):
        write_lines(tmp_path / name / "run.jsonl", *norms)
    run = read_run(log)
    assert run.metrics == {}
    assert run.source.missing[-1].startswith("Metrics lie in 2 files")
    write_lines(tmp_path / "own.jsonl", *norms[:2])
    run = read_run(log)
    assert run.metrics[2]["grad_norm"] == 3.0
    assert run.source.inferred[-1] == f"Metrics are those of {tmp_path / 'own.jsonl'}."
    for name in ("eval.jsonl", "log2.jsonl"):
        log.replace(tmp_path / name)
        log.write_bytes((tmp_path / name).read_bytes())
        assert read_run(log).metrics[2]["grad_norm"] == 3.0
    later = ({"prompt": "a", "step": step, "reward": n % 2} for step in (8, 9) for n in range(4))
    run = read_run(write_lines(tmp_path / "later" / "log.jsonl", *later))
    assert run.metrics == {}
    write_lines(tmp_path / "later" / "own.jsonl", *norms)
    run = read_run(tmp_path / "later" / "log.jsonl")
    assert run.metrics == {}
    assert run.source.missing[-1].endswith("own.jsonl are of other steps than the rollouts, and none were read.")
    other = write_lines(tmp_path / "tuned.jsonl", {"prompt": "a", "step": 1, "reward": 1})
    run = read_run(log)
    assert run.metrics == {}
    assert run.source.missing[-1].startswith(f"Metrics lie in {tmp_path / 'own.jsonl'}, but rollouts in {other} too")


def test_a_scripts_rollouts_have_the_norms_that_its_trainer_saved_in_the_last_checkpoint(tmp_path: Path) -> None:
    write_lines(tmp_path / "log.jsonl", *({"prompt": "a", "step": 1 + n // 2, "reward": n % 2} for n in range(24)))
    for last in (9, 12):
        history = [{"step": step, "loss": 0.1, "grad_norm": 1.0 + step} for step in range(1, 1 + last)]
        (tmp_path / f"checkpoint-{last}").mkdir()
        state = tmp_path / f"checkpoint-{last}" / "trainer_state.json"
        state.write_text(json.dumps({"global_step": last, "log_history": history}))
    run = read_run(tmp_path)
    assert {step: values["grad_norm"] for step, values in run.metrics.items()} == {n: 1.0 + n for n in range(1, 13)}
    assert run.source.inferred[-1] == f"Metrics are those of {state}."


LAYOUT = CheckpointLayout(
    patterns=("step_*", "*/step_*"), inside=("hf", "weights/*"), merge=lambda folder: f"Merge {folder.name}."
)


def write_model(folder: Path, *, adapter: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ("adapter_config.json" if adapter else "config.json")).write_text("{}")
    save_file({"w": torch.zeros(1)}, folder / ("adapter_model.safetensors" if adapter else "model.safetensors"))
    return folder


@pytest.mark.parametrize(
    ("changes", "logged"),
    [
        ({}, {1: {"grad_norm": 0.5, "kl": 0.01}, 2: {"grad_norm": 0.25, "kl": 0.02}}),
        ({"kl": 3.0}, {1: {"grad_norm": 0.5}, 2: {"grad_norm": 0.25}}),  # one of the rollout
        ({"grad_norm": 3.0}, {}),
        ({"step": "last", "grad_norm": 3.0}, {1: {"grad_norm": 0.5, "kl": 0.01}, 2: {"grad_norm": 0.25, "kl": 0.02}}),
    ],
)
def test_rows_may_hold_the_norm_of_their_step(
    changes: dict[str, Any], logged: dict[int, dict[str, float]], tmp_path: Path
) -> None:
    rows = [
        {"step": step, "prompt": f"p{row % 2}", "reward": row % 3, "kl": 0.01 * step, "grad_norm": 0.5 / step}
        for step in (1, 2)
        for row in range(4)
    ]
    path = write_lines(tmp_path / "rollouts.jsonl", *rows[:-1], rows[-1] | changes)
    run = read_run(path)
    metrics = {step: dict(values) for step, values in run.metrics.items()}
    assert metrics == {step: pytest.approx(values) for step, values in logged.items()}
    assert any("Each row has the" in sentence for sentence in run.source.inferred) == bool(logged)
    assert not read_run(path, rewards_only=True).metrics  # whose time it would double


def test_models_inside_checkpoints_are_listed_and_other_checkpoints_say_what_to_run(tmp_path: Path) -> None:
    write_model(tmp_path / "step_2" / "weights" / "merged")
    write_model(tmp_path / "step_1")
    (tmp_path / "step_3" / "hf").mkdir(parents=True)
    (tmp_path / "step_3" / "hf" / "config.json").write_text("{}")
    (tmp_path / "step_3" / "hf" / "tokenizer.json").write_text("{}")
    saved = saved_weights(ReadRequest(path=tmp_path), LAYOUT, [tmp_path])
    assert [(weights.num_updates, weights.path.name) for weights in saved["weights"]] == [(1, "step_1"), (2, "merged")]
    assert {number: (reason.cause, reason.advice) for number, reason in saved["unmerged_weights"].items()} == {
        3: ("weights_unmerged", "Merge step_3.")
    }


def test_checkpoints_of_two_runs_are_nobodys(tmp_path: Path) -> None:
    for run in ("one", "two"):
        write_model(tmp_path / run / "step_1")
    assert list(numbered_folders(tmp_path, LAYOUT.patterns)) == []
    assert [number for number, _ in numbered_folders(tmp_path / "one", LAYOUT.patterns)] == [1]


def test_the_first_weights_are_those_given_and_of_the_same_kind(tmp_path: Path) -> None:
    write_model(tmp_path / "step_1")
    first = write_model(tmp_path / "first")
    request = ReadRequest(path=tmp_path, options=ReadOptions(initial_weights=first))
    assert [weights.num_updates for weights in saved_weights(request, LAYOUT, [tmp_path])["weights"]] == [0, 1]
    other = write_model(tmp_path / "other", adapter=True)
    request = ReadRequest(path=tmp_path, options=ReadOptions(initial_weights=other))
    refused("adapter", saved_weights, request, LAYOUT, [tmp_path])


ROW = {"input": "q", "output": "o", "gts": "g", "score": 1.0, "step": 1, "uid": "a_0_0"}
CONFIG = """
actor_rollout_ref:
  actor:
    ppo_micro_batch_size_per_gpu: 4
    use_dynamic_bsz: false
    fsdp_config:
      dtype: {dtype}
data:
  train_batch_size: 8
"""


def test_hydras_copy_of_the_configuration_is_read_beside_or_above(tmp_path: Path) -> None:
    write_lines(tmp_path / "run/rollouts/1.jsonl", ROW)
    (tmp_path / "run/.hydra").mkdir()
    for dtype, reduced in (("bfloat16", True), ("float32", False)):
        (tmp_path / "run/.hydra/config.yaml").write_text(CONFIG.format(dtype=dtype))
        settings = read_run(tmp_path / "run/rollouts").settings
        assert settings.lookup("data.train_batch_size") == 8
        assert (settings.get("bf16"), settings.get("casts_weights")) == (reduced, reduced)
        assert (settings.get("verl_v1"), settings.get("per_device_train_batch_size")) == (True, 4)


def test_checkpoints_are_merged_adapters_or_shards(tmp_path: Path) -> None:
    write_lines(tmp_path / "rollouts/1.jsonl", ROW)
    write_model(tmp_path / "global_step_1/actor/huggingface")
    (tmp_path / "global_step_2/actor/model/dist_ckpt").mkdir(parents=True)
    run = read_run(tmp_path / "rollouts")
    assert [weights.num_updates for weights in run.weights] == [1]
    assert "model_merger merge --backend megatron" in run.unmerged_weights[2].advice
    assert not any("are shards" in sentence for sentence in run.source.missing)


def test_a_step_whose_agent_loop_gave_several_outputs_is_not_recomputed(tmp_path: Path) -> None:
    write_lines(tmp_path / "1.jsonl", ROW, {**ROW, "uid": "a_0_1"})
    assert read_run(tmp_path).notes[1].cause == "several_sequences"


def test_metrics_in_the_folder_are_read_and_are_no_rollouts() -> None:
    run = read_run(LOGS / "verl_metrics")
    assert rewards_of(run) == {"1:a": (1.0, 0.0), "1:b": (0.0, 0.0)}
    assert run.metrics == {1: {"grad_norm": 0.25, "reward": 0.25, "critic/score/max": 1.0}}
    assert not any("trainer.logger" in sentence for sentence in run.source.missing)


def test_metrics_beside_the_folder_count_and_a_repeated_step_takes_the_later_line(tmp_path: Path) -> None:
    write_lines(tmp_path / "rollouts/1.jsonl", ROW)
    lines = [{"step": 1, "data": {"a": value}} for value in (1.0, 2.0, float("nan"))]
    write_lines(
        tmp_path / "log.jsonl", *lines[:2], {"step": 2, "data": {"a": 3.0, "b": "text"}}, {"step": 3, "data": {}}
    )
    run = read_run(tmp_path / "rollouts")
    assert run.metrics == {1: {"a": 2.0}, 2: {"a": 3.0}, 3: {}}
    assert (set_aside(run), run.source.quarantined.lost) == ({}, ())


@pytest.mark.parametrize("line", [{"step": "x", "data": {"a": 1}}, {"step": 1}, {"step": -1, "data": {}}, [1]])
def test_a_line_of_metrics_that_is_none_is_lost(tmp_path: Path, line: Any) -> None:
    write_lines(tmp_path / "rollouts/1.jsonl", ROW)
    write_lines(tmp_path / "log.jsonl", {"step": 1, "data": {"a": 1.0}}, line)
    run = read_run(tmp_path / "rollouts")
    assert (run.metrics, rewards_of(run)) == ({1: {"a": 1.0}}, {"1:a": (1.0,)})
    (lost,) = run.source.quarantined.lost
    assert lost.startswith("1 line of metrics cannot be used: ")


def test_without_metrics_it_is_said_how_to_get_them(tmp_path: Path) -> None:
    run = read_run(write_lines(tmp_path / "rollouts/1.jsonl", ROW).parent)
    assert run.metrics == {}
    assert any("trainer.logger" in sentence for sentence in run.source.missing)


def test_a_metric_that_is_not_finite_is_kept_and_said(tmp_path: Path) -> None:
    write_lines(tmp_path / "rollouts/1.jsonl", ROW)
    lines = [{"step": step, "data": {"actor/grad_norm": value}} for step, value in ((1, math.nan), (2, -math.inf))]
    write_lines(tmp_path / "log.jsonl", *lines)
    run = read_run(tmp_path / "rollouts")
    assert [str(run.metrics[step]["grad_norm"]) for step in (1, 2)] == ["nan", "-inf"]
    sentence = "The trainer logged grad_norm as NaN at step 1 and at 1 more as no finite number."
    assert run.source.missing[-1] == sentence


def experiments(folder: Path, **means: list[float]) -> Path:
    """Two steps of two rollouts, with mean rewards of 0.5 and 1, beside metrics of experiments with these means."""
    for step, rewards in ((1, (1.0, 0.0)), (2, (1.0, 1.0))):
        rows = [{**ROW, "step": step, "score": value, "uid": f"a_{index}_0"} for index, value in enumerate(rewards)]
        write_lines(folder / f"rollouts/{step}.jsonl", *rows)
    for name, values in means.items():
        lines = [{"step": index, "data": {"critic/score/mean": mean}} for index, mean in enumerate(values, start=1)]
        write_lines(folder / f"{name}.jsonl", *lines)
    return folder / "rollouts"


def test_of_two_experiments_the_metrics_are_those_whose_rewards_are_the_rollouts(tmp_path: Path) -> None:
    run = read_run(experiments(tmp_path, first=[0.25, 0.5, 0.5], second=[0.5, 1.00002, 1.0]))
    assert run.metrics[2]["reward"] == 1.00002
    assert run.source.files[-1].endswith("second.jsonl")
    assert "Of 2 files of metrics second.jsonl is that of these rollouts" in run.source.inferred[-1]


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        *[([0.5, 1.0], "2 of them have"), ([0.5], "none of them have"), ([0.25, 1.0], "none of them have")],
        *[([0.5, math.nan], "none of them have"), ([], "none of")],
    ],
)
def test_experiments_that_rewards_mix_up_are_asked_for(tmp_path: Path, second: list[float], reason: str) -> None:
    first = [0.5, 1.0, 1.0] if "2 of" in reason else [0.0, 0.0]
    rollouts = experiments(tmp_path, first=first, second=second or [math.nan, math.nan])
    refusal(rollouts, rf"metrics of 2 experiments \(.*first.jsonl, .*second.jsonl\), and {reason}")
    assert read_run(rollouts, ReadOptions(metric_run="first")).metrics[1]["reward"] == first[0]
    refusal(rollouts, "and none is called so", ReadOptions(metric_run="third"))


@pytest.mark.parametrize(
    ("means", "fits"), [([0.5, 1.0], True), ([0.5, 0.25], True), ([0.25, 0.25], False), ([math.nan, math.nan], True)]
)
def test_one_metrics_file_without_the_rollouts_mean_is_doubted(tmp_path: Path, means: list[float], fits: bool) -> None:
    rollouts = experiments(tmp_path, only=means)
    doubt = "At none of 2 steps is the mean reward in only.jsonl that of the rollouts: it may be of another experiment."
    assert (doubt in read_run(rollouts).source.inferred) != fits
    assert doubt not in read_run(rollouts, ReadOptions(metric_run="only")).source.inferred


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("prompts", "mini_batch", "epochs", "repeats"),
    [(2, 2, 2, {2: 1, 4: 3}), (2, 2, 1, {}), (2, 1, 2, {}), (None, None, 2, {2: 1, 4: 3}), (2, None, 1, {})],
)
def test_epochs_of_a_script_in_verls_names_use_a_batch_again(
    nested: bool, prompts: int | None, mini_batch: int | None, epochs: int, repeats: dict[int, int], tmp_path: Path
) -> None:
    rows = [{"step": step, "prompt": name, "response": "x", "reward": 1.0} for step in (1, 3) for name in "pq"]
    log = write_lines(tmp_path / "log.jsonl", *rows)
    write_lines(tmp_path / "metrics.jsonl", *({"step": step, "grad_norm": 0.5} for step in (1, 2, 3, 4)))
    actor = {"ppo_mini_batch_size": mini_batch, "ppo_epochs": epochs}
    data = {"train_batch_size": prompts}
    inner = {"data": data, "actor_rollout_ref": {"actor": actor, "rollout": {"n": 1}}}
    paths = {"data.train_batch_size": prompts, **{f"actor_rollout_ref.actor.{name}": i for name, i in actor.items()}}
    named = {"trainer": "verl", "verl_version": "0.9.0", **(inner if nested else paths)}
    (tmp_path / "args.json").write_text(json.dumps(named))
    run = read_run(log, ReadOptions(trainer_args=tmp_path / "args.json"))
    assert run.repeats == repeats
    made = objective_of(run.settings)
    assert made.cannot is None
    assert made.importance_ratio == bool(repeats)
