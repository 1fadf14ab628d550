"""A run whose model accelerate shards (FSDP2): two processes on the CPU, and what is refused of such a launch."""

import json
from pathlib import Path

import pytest

from gradscope import replay_run
from gradscope.errors import InputError, UsageError
from gradscope.rollouts.run_folder import checkpoint_path, heldout_path, read_manifest
from gradscope.training import processes
from gradscope.training.checkpoints import resumable
from gradscope.training.config import TrainConfig
from gradscope.training.grpo.policy import HeldoutSampling, load_trained_policy, sample
from gradscope.training.run_checks import SHARDED_NOTE, check_settings
from gradscope.training.tasks.load import load_task
from gradscope.training.train import resume_command
from tests.launched import by_two
from tests.training.interrupted import assert_same_run
from tests.training.stock import assert_reproduced

SCRIPT = """
import os, sys
from tests.training.two_processes import shard_on_the_cpu
shard_on_the_cpu()
os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "true"  # as accelerate launch sets it
from gradscope.__main__ import main
from gradscope.training.grpo.trainer import StepCallback
logged, last = StepCallback.on_log, int(sys.argv[1])
def log(self, args, state, control, **more):
    logged(self, args, state, control, **more)
    if state.global_step == last:
        os._exit(7)
StepCallback.on_log = log
sys.exit(main(["train", *sys.argv[2:]]))
"""
SIZES = ["--num-prompts", "4", "--group-size", "4", "--train-prompts", "8", "--heldout-prompts", "2", "--steps", "4"]
SETTINGS = [*SIZES, "--heldout-samples", "4", "--checkpoint-every", "2", "--device", "cpu"]


def launched(folder: Path, *arguments: str, until: int = 0) -> tuple[int, str]:
    (folder / "script.py").write_text(SCRIPT)
    return by_two(folder, "script.py", str(until), "--output", "run", *arguments)


@pytest.fixture(scope="module")
def sharded_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    code, output = launched(folder, *SETTINGS)
    assert code == 0, output
    assert output.count("wrote the run run") == 1
    return folder / "run"


@pytest.mark.slow
def test_a_sharded_run_is_read_like_any_other(sharded_run: Path) -> None:
    assert_reproduced(replay_run(sharded_run, steps=(1, 3)), steps=(1, 3))
    assert SHARDED_NOTE in read_manifest(sharded_run).notes


@pytest.mark.slow
@pytest.mark.parametrize(("when", "num_updates"), [("before", 0), ("after", 4)])
def test_its_held_out_samples_are_of_whole_checkpoints(sharded_run: Path, when: str, num_updates: int) -> None:
    policy = load_trained_policy(str(checkpoint_path(sharded_run, num_updates)), dtype="float32", chat=False)
    task = load_task(TrainConfig.from_json(read_manifest(sharded_run).config))
    sampling = HeldoutSampling(num_samples=4, batch_size=16, max_completion_length=27, temperature=1.0, seed=0)
    lines = heldout_path(sharded_run, when).read_text().splitlines()  # type: ignore[arg-type]
    assert [json.loads(line)["completion"] for line in lines] == sample(policy, task.heldout, sampling)


@pytest.mark.slow
def test_a_sharded_run_that_was_cut_off_goes_on_as_if_nothing_had_been(sharded_run: Path, tmp_path: Path) -> None:
    assert launched(tmp_path, *SETTINGS, until=3)[0] != 0
    assert (checkpoint_path(tmp_path / "run", 2) / "optimizer.bin").is_file()
    assert not checkpoint_path(tmp_path / "run", 4).exists()
    code, output = launched(tmp_path, "--resume", *SETTINGS)
    assert code == 0, output
    assert_same_run(tmp_path / "run", sharded_run)
    left = {path.name for path in checkpoint_path(tmp_path / "run", 2).iterdir()}
    assert not left & {"optimizer.bin", "pytorch_model_fsdp.bin", "rng_state_0.pth"}


@pytest.fixture
def sharded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Become the first of two processes that share a model."""
    reported = {"FSDP_VERSION": "2", "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT", "WORLD_SIZE": "2", "RANK": "0"}
    for name, value in ({"ACCELERATE_USE_FSDP": "true"} | reported).items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("sharded")
@pytest.mark.parametrize(("name", "value"), [("FSDP_VERSION", "1"), ("FSDP_STATE_DICT_TYPE", "SHARDED_STATE_DICT")])
def test_another_way_to_shard_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    processes.check_launch(16, 1)
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="FSDP is told to shard in its first version, or to save a piece"):
        processes.check_launch(16, 1)


@pytest.mark.usefixtures("sharded")
@pytest.mark.parametrize("settings", [{"reward": "answer_probability"}, {"match_grad_norm": 1.0}])
def test_what_needs_the_whole_model_is_refused(settings: dict[str, object]) -> None:
    check_settings(TrainConfig())
    with pytest.raises(UsageError, match="need the whole model in every process, and FSDP shards it"):
        check_settings(TrainConfig.from_json(settings))


@pytest.mark.usefixtures("sharded")
def test_how_a_sharded_run_goes_on(tmp_path: Path) -> None:
    assert resume_command(Path("r")) == (
        "accelerate launch --use_fsdp --fsdp_version 2 --fsdp_state_dict_type FULL_STATE_DICT "
        "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP --num_processes 2 -m gradscope train --resume "
        "--config r/manifest.json --output r"
    )
    with pytest.raises(InputError, match=r"lacks optimizer\.bin, pytorch_model_fsdp\.bin, scheduler\.pt"):
        resumable(tmp_path, 2, 2)
