import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from gradscope import measure_rank, replay_run
from gradscope.errors import GradscopeError
from gradscope.rollouts.run_folder import read_metrics
from gradscope.rollouts.store import read_steps
from tests.launched import by_two
from tests.training.stock import answer, record

pytestmark = pytest.mark.slow  # whole runs of TRL

SCRIPT = """
import sys
from pathlib import Path
import torch
from gradscope.training import RolloutRecorder
from tests.training.stock import stock_trainer, train
from tests.training.two_processes import shard_on_the_cpu

name, sharded, adapter, every = sys.argv[1], sys.argv[2] == "fsdp", sys.argv[3] == "lora", int(sys.argv[4]) or None
if sharded:
    shard_on_the_cpu()
more = {}
if adapter:
    from peft import LoraConfig
    more = {"peft_config": LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)}
trainer = stock_trainer(Path(name) / "trl", per_device_train_batch_size=8, max_steps=2, **more)
assert trainer.is_fsdp_enabled == sharded and trainer.accelerator.num_processes == 2
RolloutRecorder(trainer, f"{name}/run", weights_every=None if adapter else 1, gradients_every=every)
torch.manual_seed(trainer.accelerator.process_index)
train(trainer)
trainer.save_model(f"{name}/end")
torch.distributed.destroy_process_group()  # else its threads may still run when the interpreter ends, which aborts
"""


def test_dead_groups_and_gradients_are_in_the_trainers_own_log(tmp_path: Path) -> None:
    trainer, run = record(tmp_path, gradients_every=2, rewards=answer, per_device_train_batch_size=48)
    entries = trainer.state.log_history[:3]
    groups = [[group for group in read_steps(run) if group.step == step] for step in (1, 2, 3)]
    for entry, step_groups in zip(entries, groups, strict=True):
        rates = [sum(reward or 0 for reward in group.rewards) / group.size for group in step_groups]
        assert entry["gradscope/frac_all_fail"] == rates.count(0) / 12
        assert entry["gradscope/frac_all_pass"] == rates.count(1) / 12
        share = entry["frac_reward_zero_std"]  # TRL's is float32
        assert entry["gradscope/frac_reward_zero_std"] == pytest.approx(share)
    assert "gradscope/effective_rank" not in entries[1]
    report = measure_rank(run, steps=[1, 3], advantages=["logged"])
    for entry, step in zip((entries[0], entries[2]), (1, 3), strict=True):
        assert entry["gradscope/grad_norm"] == pytest.approx(entry["grad_norm"], rel=1e-5)
        (point,) = [p for p in report.curve if p.step == step and p.group_size == 4]
        (geometry,) = [s for s in report.steps if s.step == step]
        (update,) = [u for u in report.formulations if u.step == step]
        assert entry["gradscope/effective_rank"] == pytest.approx(point.effective_rank.value, rel=1e-4)
        assert entry["gradscope/cancellation"] == pytest.approx(geometry.cancellation.value, rel=1e-4)
        ratio = update.signal_to_noise.value  # undefined where one group alone has a gradient
        assert entry.get("gradscope/signal_to_noise") == (None if ratio is None else pytest.approx(ratio, rel=1e-3))
    assert "gradscope/signal_to_noise" in entries[0] | entries[2]
    assert read_metrics(run)[3]["gradscope/effective_rank"] == entries[2]["gradscope/effective_rank"]


def test_a_measurement_that_fails_does_not_end_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise GradscopeError("the batch does not fit.")

    warned: list[str] = []
    monkeypatch.setattr("gradscope.training.recording.recorder.measure_live", fail)
    monkeypatch.setattr(logging.getLogger("gradscope"), "warning", lambda text, *args: warned.append(text % args))
    _, run = record(tmp_path, gradients_every=2, weights_every=None)
    assert warned == [f"step {step}: no gradient was measured: the batch does not fit." for step in (1, 3)]
    assert sorted(read_metrics(run)) == [1, 2, 3]


@pytest.mark.parametrize(("way", "trained"), [("ddp", "full"), ("fsdp", "lora")])
def test_several_processes_measure_what_they_update_and_do_not_notice(way: str, trained: str, tmp_path: Path) -> None:
    """The main process measures the rollouts of both; the norm is that which the trainer logs."""
    (tmp_path / "script.py").write_text(SCRIPT)
    for name, interval in (("with", 1), ("without", 0)):
        code, output = by_two(tmp_path, "script.py", name, way, trained, str(interval))
        assert code == 0, output
    run = tmp_path / "with" / "run"
    metrics = read_metrics(run)
    assert sorted(metrics) == [1, 2]
    for entry in metrics.values():
        assert entry["grad_norm"] > 0.001
        assert entry["gradscope/grad_norm"] == pytest.approx(entry["grad_norm"], rel=1e-5)
        assert 1 <= entry["gradscope/effective_rank"] <= 4
    ends = [load_file(next((tmp_path / name / "end").glob("*.safetensors"))) for name in ("with", "without")]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][tensor], ends[1][tensor]) for tensor in ends[0])
    assert [path.name for path in run.iterdir() if path.name.startswith(".")] == []
    groups = read_steps(run)
    assert [group.group_id for group in groups[:4]] == [f"00001-{index:03d}" for index in range(4)]
    assert all(len({rollout.prompt_ids for rollout in group.rollouts}) == 1 for group in groups)
    if trained == "full":
        report = replay_run(run)
        assert report.verdict == "match"
        assert all(step.relative_error["grad_norm"] < 1e-5 for step in report.steps)
