import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gradscope import replay_run
from gradscope.__main__ import main
from gradscope.errors import InputError, UsageError
from gradscope.rollouts.run_folder import checkpoint_path, heldout_path, read_manifest, read_metrics, step_path
from gradscope.rollouts.store import read_steps
from gradscope.training import processes
from gradscope.training.config import TrainConfig
from gradscope.training.grid import train_grid
from gradscope.training.train import resume_command, train
from tests.launched import by_two, finish, start_processes
from tests.trained import MakeRun
from tests.training.conftest import short_config
from tests.training.interrupted import assert_same_run
from tests.training.stock import assert_reproduced

SIZES = ["--num-prompts", "4", "--group-size", "4", "--train-prompts", "8", "--heldout-prompts", "2", "--steps", "6"]
SETTINGS = [*SIZES, "--heldout-samples", "4", "--checkpoint-every", "2", "--device", "cpu"]
TRAIN = ["-m", "gradscope", "train", "--output", "run"]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    code, output = by_two(folder, *TRAIN, *SETTINGS)
    assert code == 0, output
    assert output.count("wrote the run run") == 1
    return folder / "run"


def test_two_processes_make_one_run_of_whole_groups(finished_run: Path, short_run: MakeRun) -> None:
    groups = read_steps(finished_run)
    assert [group.step for group in groups] == [step for step in range(1, 7) for _ in range(4)]
    assert all([rollout.sample for rollout in group.rollouts] == [0, 1, 2, 3] for group in groups)
    assert all(len({rollout.prompt_ids for rollout in group.rollouts}) == 1 for group in groups)
    assert [rollout.row for group in groups[:4] for rollout in group.rollouts] == list(range(16))
    expected = read_steps(short_run(steps=3))
    assert [group.prompt_id for group in groups[:12]] == [group.prompt_id for group in expected]
    assert sorted(read_metrics(finished_run)) == [1, 2, 3, 4, 5, 6]
    assert read_manifest(finished_run).trainer_arguments["per_device_train_batch_size"] == 8
    assert heldout_path(finished_run, "after").read_text().count("\n") == 8


@pytest.mark.slow
def test_the_norm_of_both_is_reproduced(finished_run: Path) -> None:
    assert_reproduced(replay_run(finished_run, steps=(1, 3, 5)), steps=(1, 3, 5))


@pytest.mark.slow
def test_ctrl_c_ends_both_and_they_go_on_as_if_nothing_had_been(finished_run: Path, tmp_path: Path) -> None:
    pair = start_processes(2, *TRAIN, *SETTINGS, cwd=tmp_path)
    while not step_path(tmp_path / "run", 3).exists() and pair[0].poll() is None:
        time.sleep(0.02)
    for process in pair:
        process.send_signal(signal.SIGINT)
    codes, *streams = zip(*finish(pair), strict=True)
    output = "".join(map("".join, streams))
    assert 0 not in codes
    assert output.count("stopped; continue with `torchrun --nproc-per-node 2 -m gradscope train --resume") == 1
    assert output.count("interrupted") == 1
    code, output = by_two(tmp_path, *TRAIN, "--resume", *SETTINGS)
    assert code == 0, output
    assert_same_run(tmp_path / "run", finished_run)
    left = {path.name for path in checkpoint_path(finished_run, 6).glob("rng_state*")}
    assert left == {"rng_state_0.pth", "rng_state_1.pth"}
    assert not list(checkpoint_path(finished_run, 4).glob("rng_state*"))
    config = read_manifest(finished_run).config
    with pytest.raises(UsageError, match="run was made with 2 at a time, and the number of processes is 1"):
        train(TrainConfig.from_json({**config, "output": str(finished_run)}), resume=True)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Become one of two processes."""

    def become(index: int) -> None:
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", str(index))

    return become


def test_bad_launches_are_refused(two: Callable[[int], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two(0)
    with pytest.raises(UsageError, match="3 rollouts a step do not divide among 2 processes"):
        train(short_config(tmp_path / "run", num_prompts=1, group_size=3))
    with pytest.raises(UsageError, match="16 rollouts a step do not divide among 2 processes of 16 parts"):
        processes.check_launch(16, 16)
    with pytest.raises(UsageError, match="A grid is made by one process, and a launcher started 2"):
        train_grid([TrainConfig(output=str(tmp_path / "cell"))])
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(UsageError, match="DeepSpeed keeps weights and optimizer in checkpoints of its own form"):
        processes.check_launch(16, 1)
    command = "torchrun --nproc-per-node 2 -m gradscope train --resume --config r/manifest.json --output r"
    assert resume_command(Path("r")) == command


def test_the_others_end_silently(
    two: Callable[[int], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two(1)
    assert main(["train", "--output", str(tmp_path / "grid"), "--seeds", "0-1"]) == 2
    assert capsys.readouterr() == ("", "")


def fail() -> None:
    raise InputError("no such file.")


def test_one_of_those_that_fail_tells_why(two: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    for failed, index, reported in (([True, True], 0, True), ([True, True], 1, False), ([False, True], 1, True)):
        two(index)
        monkeypatch.setattr(processes, "gather", lambda values, failed=failed: failed)
        with pytest.raises(InputError if reported else SystemExit):
            processes.run_everywhere(fail)
    two(0)
    with pytest.raises(SystemExit):
        processes.run_everywhere(lambda: None)


@pytest.mark.parametrize("index", [0, 1])
def test_errors_end_all_processes(two: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    left: list[int] = []
    two(index)
    monkeypatch.setattr(processes, "gather", lambda values: [True, True])
    monkeypatch.setattr(processes, "end_group", lambda: left.append(processes.process_index()))
    with pytest.raises((InputError, SystemExit)) as caught:
        processes.run_everywhere(fail)
    assert (left, caught.type is InputError) == ([index], index == 0)
    monkeypatch.setattr(processes, "gather", lambda values: [False, False])
    assert processes.run_everywhere(lambda: 7) == 7
    assert left == [index]


def test_each_process_has_its_part(two: Callable[[int], None]) -> None:
    processes.end_group()
    assert list(range(8))[processes.own_part(8)] == list(range(8))
    two(1)
    assert list(range(8))[processes.own_part(8)] == [4, 5, 6, 7]
    processes.end_group()  # without a group there is nothing to leave
