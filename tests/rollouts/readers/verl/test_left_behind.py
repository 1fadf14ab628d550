from __future__ import annotations

from pathlib import Path

from gradscope.rollouts.readers.detect import read_run
from tests.rollouts.readers.beside.test_step_weights import write_model
from tests.rollouts.readers.lines import write_lines

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
