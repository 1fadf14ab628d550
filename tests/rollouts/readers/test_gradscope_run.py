import json
from pathlib import Path

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run_folder import checkpoint_path, manifest_path, metrics_path, write_manifest
from gradscope.rollouts.store import write_step_rollouts
from tests.rollouts.build import adapter_folder, group, model_folder
from tests.rollouts.test_run_folder import MANIFEST


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    write_manifest(path, MANIFEST)
    write_step_rollouts(path, 1, [group(1)])
    return path


def test_nothing_is_inferred(run: Path) -> None:
    metrics_path(run).touch()
    source = read_run(run).source
    assert (source.format, source.inferred, source.num_rows) == ("gradscope", (), 2)
    assert [Path(file).name for file in source.files] == ["step_00001.parquet", "manifest.json", "metrics.jsonl"]
    assert source.missing == ("No complete checkpoint is in the folder.",)
    assert "gradscope run r1, 1 step" in source.recognized


def test_weights_and_tokenizer_are_those_of_the_checkpoints(run: Path) -> None:
    model_folder(checkpoint_path(run, 1))
    (checkpoint_path(run, 1) / "tokenizer.json").touch()
    loaded = read_run(run)
    assert [ref.num_updates for ref in loaded.weights] == [1]
    assert loaded.tokenizer == checkpoint_path(run, 1)
    assert loaded.source.missing == ()


def test_given_weights_and_arguments_win(run: Path, tmp_path: Path) -> None:
    for num_updates in (0, 1):
        adapter_folder(checkpoint_path(run, num_updates))
    initial = adapter_folder(tmp_path / "init")
    config = tmp_path / "args.json"
    config.write_text(json.dumps({"beta": 0.5}))
    loaded = read_run(run, ReadOptions(initial_weights=initial, model="org/base", trainer_args=config))
    assert [(ref.num_updates, ref.path, ref.base) for ref in loaded.weights] == [
        (0, initial, "org/base"),
        (1, checkpoint_path(run, 1), "org/base"),
    ]
    assert loaded.settings.values == {"beta": 0.5, "num_generations": 4, "advantage": "dr_grpo"}
    assert loaded.settings.origin == str(config)


def test_rollouts_without_their_manifest_say_so(run: Path) -> None:
    manifest_path(run).unlink()
    with pytest.raises(InputError, match=r"has no readable manifest\.json"):
        read_run(run)


def test_a_joined_file_that_is_gone_or_lacks_groups_is_reported(run: Path) -> None:
    for step in range(2, 42):
        write_step_rollouts(run, step, [group(step)])
    lines = [{"step": step, "num_groups": 2 if step == 22 else 1} for step in range(1, 42)]
    metrics_path(run).write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = read_run(run).source
    assert "gradscope run r1, 41 steps" in source.recognized
    (lost,) = source.quarantined.lost
    assert "steps_00021-00040.parquet has 1 groups of step 22, and the metrics tell of 2" in lost
    (run / "rollouts" / "steps_00001-00020.parquet").unlink()
    assert (
        "steps_00001-00020.parquet is gone: the run wrote rollouts at steps 1 to 20."
        in read_run(run).source.quarantined.lost[0]
    )
