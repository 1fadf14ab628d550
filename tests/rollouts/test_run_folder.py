import json
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

from gradscope.errors import OutputExistsError
from gradscope.rollouts import run_folder
from gradscope.rollouts.listing import awaited_mark
from tests.rollouts.build import adapter_folder, model_folder, safetensors
from tests.rollouts.readers.lines import refused

MANIFEST = run_folder.RunManifest(
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
WRITTEN = {"schema": run_folder.SCHEMA, "schema_version": 1, **asdict(MANIFEST)}


def test_a_manifest_comes_back_as_written_without_keys_of_the_future(tmp_path: Path) -> None:
    run_folder.write_manifest(tmp_path, MANIFEST)
    assert run_folder.read_manifest(tmp_path) == MANIFEST
    refused("already exists", run_folder.write_manifest, tmp_path, MANIFEST, error=OutputExistsError)
    document = json.loads(run_folder.manifest_path(tmp_path).read_text())
    run_folder.manifest_path(tmp_path).write_text(json.dumps(document | {"new": 1}))
    assert run_folder.read_manifest(tmp_path) == MANIFEST


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"has no readable manifest\.json"),
        ("{", "is not JSON"),
        ("[]", "is not a gradscope manifest"),
        ('{"schema": "gradscope/run", "schema_version": 2}', "has schema version 2; this gradscope reads 1"),
        ('{"schema": "gradscope/run", "schema_version": 1, "run_id": "r"}', "lacks created_at, command"),
        (json.dumps({**WRITTEN, "seed": True}), r"of the wrong kind: Expected `int`, got `bool` - at `\$\.seed`"),
        (json.dumps({**WRITTEN, "notes": [1]}), r"of the wrong kind: Expected `str`, got `int` - at `\$\.notes"),
    ],
)
def test_an_unusable_manifest_says_why(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        run_folder.manifest_path(tmp_path).write_text(content)
    refused(message, run_folder.read_manifest, tmp_path)


def test_the_layout(tmp_path: Path) -> None:
    assert run_folder.step_path(tmp_path, 7) == tmp_path / "rollouts" / "step_00007.parquet"
    assert run_folder.checkpoint_path(tmp_path, 0) == tmp_path / "checkpoints" / "checkpoint-0"
    assert run_folder.heldout_path(tmp_path, "before") == tmp_path / "heldout" / "before.jsonl"


def test_metrics_come_back_by_step_and_the_last_line_of_a_step_counts(tmp_path: Path) -> None:
    assert run_folder.read_metrics(tmp_path) == {}
    run_folder.append_metrics(tmp_path, 1, {"reward": 0.25, "kl": float("nan")})
    run_folder.append_metrics(tmp_path, 2, {"reward": 0.5})
    run_folder.append_metrics(tmp_path, 1, {"reward": 0.75})
    with run_folder.metrics_path(tmp_path).open("a") as stream:
        stream.write('{"step": 3, "rew')
    assert run_folder.read_metrics(tmp_path) == {1: {"reward": 0.75}, 2: {"reward": 0.5}}
    run_folder.append_metrics(tmp_path, 3, {"reward": 1.0})
    assert run_folder.read_metrics(tmp_path)[3] == {"reward": 1.0}


def test_a_metric_that_is_not_finite_comes_back_from_valid_json(tmp_path: Path) -> None:
    run_folder.append_metrics(tmp_path, 1, {"kl": float("nan"), "loss": float("-inf")})
    assert run_folder.metrics_path(tmp_path).read_text() == '{"step": 1, "kl": "NaN", "loss": "-Infinity"}\n'
    assert str(run_folder.read_metrics(tmp_path)) == "{1: {'kl': nan, 'loss': -inf}}"


def test_only_complete_checkpoints_hold_weights(tmp_path: Path) -> None:
    assert run_folder.find_weights(tmp_path) == ()
    for num_updates in (10, 0, 5):
        model_folder(run_folder.checkpoint_path(tmp_path, num_updates))
    cut = run_folder.checkpoint_path(tmp_path, 5) / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-1])
    (run_folder.checkpoint_path(tmp_path, 10) / "optimizer.pt").touch()
    (tmp_path / "checkpoints" / "checkpoint-last").mkdir()
    refs = run_folder.find_weights(tmp_path)
    assert [(ref.num_updates, ref.kind, ref.base) for ref in refs] == [(0, "full", None), (10, "full", None)]


def test_the_base_of_an_adapter_is_that_of_the_run_then_of_its_config_then_of_the_manifest(tmp_path: Path) -> None:
    adapter = adapter_folder(run_folder.checkpoint_path(tmp_path, 0), base=None)
    assert run_folder.find_weights(tmp_path)[0].base is None
    run_folder.write_manifest(tmp_path, replace(MANIFEST, model="org/from-manifest"))
    assert run_folder.find_weights(tmp_path)[0].base == "org/from-manifest"
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "org/from-config"}')
    assert run_folder.find_weights(tmp_path)[0].base == "org/from-config"
    model_folder(run_folder.base_model_path(tmp_path))
    assert run_folder.find_weights(tmp_path)[0].base == str(run_folder.base_model_path(tmp_path))


def test_the_kind_of_a_folder(tmp_path: Path) -> None:
    assert run_folder.weights_kind(model_folder(tmp_path / "model")) == "full"
    assert run_folder.weights_kind(adapter_folder(tmp_path / "adapter")) == "adapter"


def test_all_shards_must_be_there(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "1.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}))
    refused(r"lacks 2\.safetensors", run_folder.weights_kind, folder)
    safetensors(folder / "2.safetensors")
    assert run_folder.weights_kind(folder) == "full"
    index.write_text("[]")
    refused("is not a safetensors index", run_folder.weights_kind, folder)


def test_weights_that_are_still_to_be_copied_count(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    awaited_mark(folder / "model.safetensors").touch()
    assert run_folder.weights_kind(folder) == "full"


def test_a_folder_without_whole_weights_says_what_is_wrong(tmp_path: Path) -> None:
    refused(r"holds neither config\.json nor adapter_config\.json", run_folder.weights_kind, tmp_path)
    refused(r"There is no folder .*gone of weights", run_folder.weights_kind, tmp_path / "gone")
    folder = model_folder(tmp_path / "model")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    refused(r"model\.safetensors is cut off", run_folder.weights_kind, folder)
    file.unlink()
    (folder / "pytorch_model.bin").touch()
    refused(r"lacks model\.safetensors and has pytorch_model\.bin, a pickle", run_folder.weights_kind, folder)


@pytest.mark.parametrize("content", [b"", b"\x02" + bytes(7) + b"{]", b"\x02" + bytes(7) + b"[]", bytes(8)])
def test_other_bytes_are_not_whole(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    assert not run_folder.is_whole(file)


def test_the_base_of_a_moved_run_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    adapter = adapter_folder(run / "checkpoint-5", base="../base")
    assert run_folder.find_base(adapter, run) == "../base"
    model_folder(tmp_path / "cwd" / "base")
    (tmp_path / "cwd" / "here").mkdir()
    monkeypatch.chdir(tmp_path / "cwd" / "here")
    assert run_folder.find_base(adapter, run) == str(tmp_path / "cwd" / "base")
    model_folder(tmp_path / "base")
    assert run_folder.find_base(adapter, run) == str(tmp_path / "base")
    model_folder(run / "base")
    assert run_folder.find_base(adapter, run) == str(run / "base")


@pytest.mark.parametrize("content", ["{", "{}", "[]", '{"base_model_name_or_path": ""}'])
def test_no_name_no_base(tmp_path: Path, content: str) -> None:
    (tmp_path / "adapter_config.json").write_text(content)
    assert run_folder.find_base(tmp_path, tmp_path) is None


def test_the_first_folder_with_a_tokenizer(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    assert run_folder.find_tokenizer(None, tmp_path / "a") is None
    for name in ("b", "c"):
        (tmp_path / name / "tokenizer.json").touch()
    assert run_folder.find_tokenizer(None, tmp_path / "a", tmp_path / "b", tmp_path / "c") == tmp_path / "b"


def _with_adapters(run: Path, step: int, **num_bytes: int) -> None:
    """A checkpoint of several adapters; those of other sizes are other weights."""
    folder = run / f"checkpoint-{step}"
    for name, size in num_bytes.items():
        adapter_folder(folder if name == "default" else folder / name)
        safetensors((folder if name == "default" else folder / name) / "adapter_model.safetensors", size)


@pytest.mark.parametrize(
    ("second", "trained"), [({"default": 8, "second": 4}, ""), ({"default": 4, "second": 8, "ref": 12}, "second")]
)
def test_of_several_adapters_the_changing_one_counts(tmp_path: Path, second: dict[str, int], trained: str) -> None:
    _with_adapters(tmp_path, 1, default=4, second=4, ref=4)
    _with_adapters(tmp_path, 2, **second)
    checkpoints = run_folder.find_checkpoints(tmp_path, lambda _: "base")
    assert [weights.path for weights in checkpoints] == [tmp_path / f"checkpoint-{step}" / trained for step in (1, 2)]
    adapter_folder(tmp_path / "initial")
    adapter_folder(tmp_path / "initial" / "second")
    assert (
        run_folder.with_initial(checkpoints, tmp_path / "initial", lambda _: "base")[0].path
        == tmp_path / "initial" / trained
    )


def test_adapters_that_change_together_are_refused(tmp_path: Path) -> None:
    _with_adapters(tmp_path, 1, default=4, second=4)
    _with_adapters(tmp_path, 2, default=8, second=8)
    damaged: dict[int, str] = {}
    assert (
        run_folder.find_checkpoints(tmp_path, lambda _: "base", damaged)
        == run_folder.find_checkpoints(tmp_path, lambda _: "base")
        == ()
    )
    assert damaged.keys() == {1, 2}
    assert damaged[1].startswith("2 adapters of a checkpoint change")
