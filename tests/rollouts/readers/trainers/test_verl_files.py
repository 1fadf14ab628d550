import math
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import rewards_of, set_aside, write_lines
from tests.rollouts.readers.test_run_files import write_model

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
        assert settings.at("data.train_batch_size") == 8
        assert (settings.get("bf16"), settings.get("casts_weights")) == (reduced, reduced)
        assert (settings.get("verl_v1"), settings.get("per_device_train_batch_size")) == (True, 4)


def test_checkpoints_are_merged_adapters_or_shards(tmp_path: Path) -> None:
    write_lines(tmp_path / "rollouts/1.jsonl", ROW)
    write_model(tmp_path / "global_step_1/actor/huggingface")
    (tmp_path / "global_step_2/actor/model/dist_ckpt").mkdir(parents=True)
    run = read_run(tmp_path / "rollouts")
    assert [weights.num_updates for weights in run.weights] == [1]
    assert "model_merger merge --backend megatron" in run.unmerged_weights[2].advice
    assert not any("are shards" in said for said in run.source.missing)


def test_a_step_whose_agent_loop_gave_several_outputs_is_not_recomputed(tmp_path: Path) -> None:
    write_lines(tmp_path / "1.jsonl", ROW, {**ROW, "uid": "a_0_1"})
    assert read_run(tmp_path).notes[1].cause == "several_sequences"


LOGS = REPOSITORY / "fixtures" / "logs"


def test_metrics_in_the_folder_are_read_and_are_no_rollouts() -> None:
    run = read_run(LOGS / "verl_metrics")
    assert rewards_of(run) == {"1:a": (1.0, 0.0), "1:b": (0.0, 0.0)}
    assert run.metrics == {1: {"grad_norm": 0.25, "reward": 0.25, "critic/score/max": 1.0}}
    assert not any("trainer.logger" in said for said in run.source.missing)


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
    assert any("trainer.logger" in said for said in run.source.missing)


def test_a_metric_that_is_not_finite_is_kept_and_said(tmp_path: Path) -> None:
    write_lines(tmp_path / "rollouts/1.jsonl", ROW)
    lines = [{"step": step, "data": {"actor/grad_norm": value}} for step, value in ((1, math.nan), (2, -math.inf))]
    write_lines(tmp_path / "log.jsonl", *lines)
    run = read_run(tmp_path / "rollouts")
    assert [str(run.metrics[step]["grad_norm"]) for step in (1, 2)] == ["nan", "-inf"]
    said = "The trainer logged grad_norm as NaN at step 1 and at 1 more as no finite number."
    assert run.source.missing[-1] == said


def experiments(folder: Path, **means: list[float]) -> Path:
    """Two steps of two rollouts, with mean rewards of 0.5 and 1, beside metrics of experiments with these means."""
    for step, rewards in ((1, (1.0, 0.0)), (2, (1.0, 1.0))):
        rows = [{**ROW, "step": step, "score": one, "uid": f"a_{at}_0"} for at, one in enumerate(rewards)]
        write_lines(folder / f"rollouts/{step}.jsonl", *rows)
    for name, values in means.items():
        lines = [{"step": at, "data": {"critic/score/mean": mean}} for at, mean in enumerate(values, start=1)]
        write_lines(folder / f"{name}.jsonl", *lines)
    return folder / "rollouts"


def test_of_two_experiments_the_metrics_are_those_whose_rewards_are_the_rollouts(tmp_path: Path) -> None:
    run = read_run(experiments(tmp_path, first=[0.25, 0.5, 0.5], second=[0.5, 1.00002, 1.0]))
    assert run.metrics[2]["reward"] == 1.00002
    assert run.source.files[-1].endswith("second.jsonl")
    assert "Of 2 files of metrics second.jsonl is that of these rollouts" in run.source.inferred[-1]


@pytest.mark.parametrize(
    ("second", "which"),
    [
        *[([0.5, 1.0], "2 of them have"), ([0.5], "none of them have"), ([0.25, 1.0], "none of them have")],
        *[([0.5, math.nan], "none of them have"), ([], "none of")],
    ],
)
def test_experiments_that_rewards_do_not_tell_apart_are_asked_for(
    tmp_path: Path, second: list[float], which: str
) -> None:
    first = [0.5, 1.0, 1.0] if "2 of" in which else [0.0, 0.0]
    rollouts = experiments(tmp_path, first=first, second=second or [math.nan, math.nan])
    with pytest.raises(InputError, match=rf"metrics of 2 experiments \(.*first.jsonl, .*second.jsonl\), and {which}"):
        read_run(rollouts)
    assert read_run(rollouts, ReadOptions(metric_run="first")).metrics[1]["reward"] == first[0]
    with pytest.raises(InputError, match="and none is called so"):
        read_run(rollouts, ReadOptions(metric_run="third"))


@pytest.mark.parametrize(
    ("means", "fits"), [([0.5, 1.0], True), ([0.5, 0.25], True), ([0.25, 0.25], False), ([math.nan, math.nan], True)]
)
def test_one_file_of_metrics_with_no_mean_of_the_rollouts_is_doubted(
    tmp_path: Path, means: list[float], fits: bool
) -> None:
    rollouts = experiments(tmp_path, only=means)
    doubt = "At none of 2 steps is the mean reward in only.jsonl that of the rollouts: it may be of another experiment."
    assert (doubt in read_run(rollouts).source.inferred) != fits
    assert doubt not in read_run(rollouts, ReadOptions(metric_run="only")).source.inferred
