import json
from pathlib import Path

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.checkpoint_folders import (
    find_base,
    find_checkpoints,
    find_tokenizer,
    is_whole,
    weights_kind,
    with_initial,
)
from gradscope.rollouts.listing import awaited_mark
from tests.rollouts.build import adapter_folder, model_folder, safetensors


def test_the_kind_of_a_folder(tmp_path: Path) -> None:
    assert weights_kind(model_folder(tmp_path / "model")) == "full"
    assert weights_kind(adapter_folder(tmp_path / "adapter")) == "adapter"


def test_all_shards_must_be_there(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "1.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}))
    with pytest.raises(InputError, match=r"lacks 2\.safetensors"):
        weights_kind(folder)
    safetensors(folder / "2.safetensors")
    assert weights_kind(folder) == "full"
    index.write_text("[]")
    with pytest.raises(InputError, match="is not a safetensors index"):
        weights_kind(folder)


def test_weights_that_are_still_to_be_copied_count(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    awaited_mark(folder / "model.safetensors").touch()
    assert weights_kind(folder) == "full"


def test_a_folder_without_whole_weights_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds neither config\.json nor adapter_config\.json"):
        weights_kind(tmp_path)
    with pytest.raises(InputError, match=r"There is no folder .*gone of weights"):
        weights_kind(tmp_path / "gone")
    folder = model_folder(tmp_path / "model")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"model\.safetensors is cut off"):
        weights_kind(folder)
    file.unlink()
    (folder / "pytorch_model.bin").touch()
    with pytest.raises(InputError, match=r"lacks model\.safetensors"):
        weights_kind(folder)


@pytest.mark.parametrize("content", [b"", b"\x02" + bytes(7) + b"{]", b"\x02" + bytes(7) + b"[]", bytes(8)])
def test_other_bytes_are_not_whole(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    assert not is_whole(file)


def test_the_base_of_a_moved_run_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    adapter = adapter_folder(run / "checkpoint-5", base="../base")
    assert find_base(adapter, run) == "../base"
    model_folder(tmp_path / "cwd" / "base")
    (tmp_path / "cwd" / "here").mkdir()
    monkeypatch.chdir(tmp_path / "cwd" / "here")
    assert find_base(adapter, run) == str(tmp_path / "cwd" / "base")
    model_folder(tmp_path / "base")
    assert find_base(adapter, run) == str(tmp_path / "base")
    model_folder(run / "base")
    assert find_base(adapter, run) == str(run / "base")


@pytest.mark.parametrize("content", ["{", "{}", "[]", '{"base_model_name_or_path": ""}'])
def test_no_name_no_base(tmp_path: Path, content: str) -> None:
    (tmp_path / "adapter_config.json").write_text(content)
    assert find_base(tmp_path, tmp_path) is None


def test_the_first_folder_with_a_tokenizer(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    assert find_tokenizer(None, tmp_path / "a") is None
    for name in ("b", "c"):
        (tmp_path / name / "tokenizer.json").touch()
    assert find_tokenizer(None, tmp_path / "a", tmp_path / "b", tmp_path / "c") == tmp_path / "b"


def _with_adapters(run: Path, step: int, **num_bytes: int) -> None:
    """A checkpoint of several adapters; those of other sizes are other weights."""
    folder = run / f"checkpoint-{step}"
    for name, size in num_bytes.items():
        adapter_folder(folder if name == "default" else folder / name)
        safetensors((folder if name == "default" else folder / name) / "adapter_model.safetensors", size)


@pytest.mark.parametrize(
    ("second", "trained"), [({"default": 8, "second": 4}, ""), ({"default": 4, "second": 8, "ref": 12}, "second")]
)
def test_of_several_adapters_the_one_that_changes_was_trained(
    tmp_path: Path, second: dict[str, int], trained: str
) -> None:
    _with_adapters(tmp_path, 1, default=4, second=4, ref=4)
    _with_adapters(tmp_path, 2, **second)
    checkpoints = find_checkpoints(tmp_path, lambda _: "base")
    assert [weights.path for weights in checkpoints] == [tmp_path / f"checkpoint-{step}" / trained for step in (1, 2)]
    adapter_folder(tmp_path / "initial")
    adapter_folder(tmp_path / "initial" / "second")
    assert with_initial(checkpoints, tmp_path / "initial", lambda _: "base")[0].path == tmp_path / "initial" / trained


def test_adapters_that_change_together_are_refused(tmp_path: Path) -> None:
    _with_adapters(tmp_path, 1, default=4, second=4)
    _with_adapters(tmp_path, 2, default=8, second=8)
    damaged: dict[int, str] = {}
    assert find_checkpoints(tmp_path, lambda _: "base", damaged) == find_checkpoints(tmp_path, lambda _: "base") == ()
    assert damaged.keys() == {1, 2}
    assert damaged[1].startswith("2 adapters of a checkpoint change")
