import functools
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from gradscope.errors import InputError
from gradscope.rollouts.run_folder import checkpoint_path, find_weights
from gradscope.training.checkpoints import MARKER, MEMORY, MEMORY_ARRAYS, rewind
from gradscope.training.train import train
from tests.trained import MakeRun
from tests.training.interrupted import config_for, interrupted


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    """A run that Ctrl-C ended after three steps, one a formulation, to be copied."""

    @functools.cache
    def stop(advantage: str) -> Path:
        return Path(interrupted(tmp_path_factory.mktemp("stopped") / "run", (3, "steps"), advantage=advantage).output)

    return stop


NARROW = dict.fromkeys(("head", "exp_avg", "exp_avg_sq"), np.zeros(3, np.float32))
DAMAGES = {
    "no critic": ("token_critic", "safetensors", lambda folder: (folder / MEMORY_ARRAYS).unlink()),
    "garbled": ("token_critic", "safetensors", lambda folder: (folder / MEMORY_ARRAYS).write_bytes(b"\x07")),
    "narrow": ("token_critic", "safetensors", lambda folder: save_file(NARROW, folder / MEMORY_ARRAYS)),
    "uncounted": ("token_critic", "safetensors", lambda folder: (folder / MEMORY).write_text("{}")),
    "no means": ("spo", "json", lambda folder: (folder / MEMORY).unlink()),
    "a list": ("spo", "json", lambda folder: (folder / MEMORY).write_text("[1]")),
    "null": ("spo", "json", lambda folder: (folder / MEMORY).write_text('{"a": null}')),
    "no optimizer": ("spo", None, lambda folder: (folder / "optimizer.pt").unlink()),
    "no JSON": ("spo", "json", lambda folder: (folder / MEMORY).write_text("{")),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_resume_without_the_optimizers_state_or_what_a_formulation_remembers(
    stopped: MakeRun, tmp_path: Path, damage: str
) -> None:
    name, suffix, spoil = DAMAGES[damage]
    memory = rf"gradscope_advantage\.{suffix} cannot be read, so the run cannot go on"
    run = shutil.copytree(stopped(name), tmp_path / "run")
    spoil(checkpoint_path(run, 2))
    with pytest.raises(InputError, match=memory if suffix else r"checkpoint-2 lacks optimizer\.pt"):
        train(config_for(run, advantage=name), resume=True)


def test_checkpoints_begin_before_the_first_update(short_run: MakeRun) -> None:
    from safetensors.numpy import load_file

    from gradscope.training.grpo.policy import EMBEDDED_FOLDER

    run = short_run()
    assert [weights.num_updates for weights in find_weights(run)] == [0, 2, 3]
    packaged, before = (load_file(path / "model.safetensors") for path in (EMBEDDED_FOLDER, checkpoint_path(run, 0)))
    after = load_file(checkpoint_path(run, 3) / "model.safetensors")
    assert packaged.keys() == before.keys() == after.keys()
    assert all(np.array_equal(packaged[name], before[name]) for name in packaged)
    assert not any(np.array_equal(before[name], after[name]) for name in packaged)
    # nothing is pickled but the newest state
    pickles = {p.relative_to(run).as_posix() for kind in ("*.pt", "*.pth", "*.bin", "*.pkl") for p in run.rglob(kind)}
    assert pickles == {f"checkpoints/checkpoint-3/{name}" for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth")}
    assert [path.parent.name for path in run.rglob("trainer_state.json")] == ["checkpoint-3"]
    assert not list(run.rglob("README.md"))


def test_going_back_changes_no_byte_of_what_stays(tmp_path: Path) -> None:
    lines = [
        b'{"step": 1, "num_tokens": 16,  "loss": 1e0}\n',
        b"damage that a reader tells\n",
        b'{"step": 2, "loss": 0.5}\n',
        b'{"step": 3, "loss": 0.25}\n',
        b'{"step": 2, "loss": 0.50}\n',
        b'{"step": 4, "lo',
    ]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(lines))
    for name in (".manifest.json.17-0a1b2c.partial", "rollouts/.step_00003.parquet.17-0a1b2c.partial"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "checkpoints" / ".checkpoint-4.partial").mkdir(parents=True)
    rewind(tmp_path, 2)
    assert (tmp_path / "metrics.jsonl").read_bytes() == lines[0] + lines[1] + lines[4]
    assert not [*(tmp_path / "rollouts").iterdir(), *(tmp_path / "checkpoints").iterdir()]
    rewind(tmp_path, 2)
    assert (tmp_path / "metrics.jsonl").read_bytes() == lines[0] + lines[1] + lines[4]


def test_what_was_left_of_older_checkpoints_states_goes(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        folder = tmp_path / "checkpoints" / f"checkpoint-{number}"
        folder.mkdir(parents=True)
        for name in (MARKER, "model.safetensors", "rng_state.pth"):
            (folder / name).touch()
    rewind(tmp_path, 3)
    assert [path.parent.name for path in tmp_path.rglob("rng_state.pth")] == ["checkpoint-3"]
    assert len([*tmp_path.rglob("model.safetensors"), *tmp_path.rglob(MARKER)]) == 6
