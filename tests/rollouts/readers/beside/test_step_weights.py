from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gradscope.errors import InputError
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.beside.step_weights import CheckpointLayout, numbered_folders, saved_weights
from gradscope.rollouts.readers.parsing.request import ReadRequest

LAYOUT = CheckpointLayout(
    patterns=("step_*", "*/step_*"), inside=("hf", "weights/*"), merge=lambda folder: f"Merge {folder.name}."
)


def write_model(folder: Path, *, adapter: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ("adapter_config.json" if adapter else "config.json")).write_text("{}")
    save_file({"w": torch.zeros(1)}, folder / ("adapter_model.safetensors" if adapter else "model.safetensors"))
    return folder


def test_models_inside_checkpoints_are_found_and_the_others_say_what_to_run(tmp_path: Path) -> None:
    write_model(tmp_path / "step_2" / "weights" / "merged")
    write_model(tmp_path / "step_1")
    (tmp_path / "step_3" / "hf").mkdir(parents=True)
    (tmp_path / "step_3" / "hf" / "config.json").write_text("{}")
    (tmp_path / "step_3" / "hf" / "tokenizer.json").write_text("{}")
    found = saved_weights(ReadRequest(path=tmp_path), LAYOUT, [tmp_path])
    assert [(weights.num_updates, weights.path.name) for weights in found.weights] == [(1, "step_1"), (2, "merged")]
    assert {number: (reason.cause, reason.advice) for number, reason in found.unmerged.items()} == {
        3: ("weights_unmerged", "Merge step_3.")
    }


def test_checkpoints_of_two_runs_are_nobodys(tmp_path: Path) -> None:
    for run in ("one", "two"):
        write_model(tmp_path / run / "step_1")
    assert list(numbered_folders(tmp_path, LAYOUT.patterns)) == []
    assert [number for number, _ in numbered_folders(tmp_path / "one", LAYOUT.patterns)] == [1]


def test_the_first_weights_are_those_given_and_of_the_same_kind(tmp_path: Path) -> None:
    write_model(tmp_path / "step_1")
    first = write_model(tmp_path / "first")
    request = ReadRequest(path=tmp_path, options=ReadOptions(initial_weights=first))
    assert [weights.num_updates for weights in saved_weights(request, LAYOUT, [tmp_path]).weights] == [0, 1]
    other = write_model(tmp_path / "other", adapter=True)
    request = ReadRequest(path=tmp_path, options=ReadOptions(initial_weights=other))
    with pytest.raises(InputError, match="adapter"):
        saved_weights(request, LAYOUT, [tmp_path])
