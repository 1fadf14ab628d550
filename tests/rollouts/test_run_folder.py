import json
from dataclasses import replace
from pathlib import Path

import pytest

from gradscope.errors import InputError, OutputExistsError
from gradscope.rollouts.run_folder import (
    RunManifest,
    append_metrics,
    base_model_path,
    checkpoint_path,
    find_weights,
    heldout_path,
    manifest_path,
    metrics_path,
    read_manifest,
    read_metrics,
    step_path,
    write_manifest,
)
from tests.rollouts.build import adapter_folder, model_folder

MANIFEST = RunManifest(
    run_id="r1",
    created_at="2026-01-02T03:04:05+00:00",
    command="gradscope train",
    config={"steps": 3, "data": None},
    seed=0,
    model="some/model",
    task="chain",
    versions={"torch": "2.13.0"},
    commit=None,
    trainer_arguments={"beta": 0.0, "num_generations": 4},
    advantage="dr_grpo",
)


def test_a_manifest_comes_back_as_written_without_keys_of_the_future(tmp_path: Path) -> None:
    write_manifest(tmp_path, MANIFEST)
    assert read_manifest(tmp_path) == MANIFEST
    with pytest.raises(OutputExistsError, match="already exists"):
        write_manifest(tmp_path, MANIFEST)
    document = json.loads(manifest_path(tmp_path).read_text())
    manifest_path(tmp_path).write_text(json.dumps(document | {"new": 1}))
    assert read_manifest(tmp_path) == MANIFEST


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"has no readable manifest\.json"),
        ("{", "is not JSON"),
        ("[]", "is not a gradscope manifest"),
        ('{"schema": "gradscope/run", "schema_version": 2}', "has schema version 2; this gradscope reads 1"),
        ('{"schema": "gradscope/run", "schema_version": 1, "run_id": "r"}', "lacks created_at, command"),
    ],
)
def test_an_unusable_manifest_says_why(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        manifest_path(tmp_path).write_text(content)
    with pytest.raises(InputError, match=message):
        read_manifest(tmp_path)


def test_the_layout(tmp_path: Path) -> None:
    assert step_path(tmp_path, 7) == tmp_path / "rollouts" / "step_00007.parquet"
    assert checkpoint_path(tmp_path, 0) == tmp_path / "checkpoints" / "checkpoint-0"
    assert heldout_path(tmp_path, "before") == tmp_path / "heldout" / "before.jsonl"


def test_metrics_come_back_by_step_and_the_last_line_of_a_step_counts(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == {}
    append_metrics(tmp_path, 1, {"reward": 0.25, "kl": float("nan")})
    append_metrics(tmp_path, 2, {"reward": 0.5})
    append_metrics(tmp_path, 1, {"reward": 0.75})
    with metrics_path(tmp_path).open("a") as stream:
        stream.write('{"step": 3, "rew')
    assert read_metrics(tmp_path) == {1: {"reward": 0.75}, 2: {"reward": 0.5}}
    append_metrics(tmp_path, 3, {"reward": 1.0})
    assert read_metrics(tmp_path)[3] == {"reward": 1.0}


def test_a_metric_that_is_not_finite_comes_back_from_valid_json(tmp_path: Path) -> None:
    append_metrics(tmp_path, 1, {"kl": float("nan"), "loss": float("-inf")})
    assert metrics_path(tmp_path).read_text() == '{"step": 1, "kl": "NaN", "loss": "-Infinity"}\n'
    assert str(read_metrics(tmp_path)) == "{1: {'kl': nan, 'loss': -inf}}"


def test_only_complete_checkpoints_hold_weights(tmp_path: Path) -> None:
    assert find_weights(tmp_path) == ()
    for num_updates in (10, 0, 5):
        model_folder(checkpoint_path(tmp_path, num_updates))
    cut = checkpoint_path(tmp_path, 5) / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-1])
    (checkpoint_path(tmp_path, 10) / "optimizer.pt").touch()
    (tmp_path / "checkpoints" / "checkpoint-last").mkdir()
    refs = find_weights(tmp_path)
    assert [(weights.num_updates, weights.kind, weights.base) for weights in refs] == [
        (0, "full", None),
        (10, "full", None),
    ]


def test_the_base_of_an_adapter_is_that_of_the_run_then_of_its_config_then_of_the_manifest(tmp_path: Path) -> None:
    adapter = adapter_folder(checkpoint_path(tmp_path, 0), base=None)
    assert find_weights(tmp_path)[0].base is None
    write_manifest(tmp_path, replace(MANIFEST, model="org/from-manifest"))
    assert find_weights(tmp_path)[0].base == "org/from-manifest"
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "org/from-config"}')
    assert find_weights(tmp_path)[0].base == "org/from-config"
    model_folder(base_model_path(tmp_path))
    assert find_weights(tmp_path)[0].base == str(base_model_path(tmp_path))
