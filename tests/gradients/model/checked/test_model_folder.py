"""A model's folder is refused before a loader believes it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from gradscope.errors import InputError
from gradscope.gradients.model.checked.model_folder import require_possible, require_readable, require_same_tensors

CONFIG = {"num_hidden_layers": 2, "vocab_size": 5, "hidden_size": 3}
REPORT: dict[str, Any] = {"mismatched_keys": [], "missing_keys": [], "unexpected_keys": []}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file(
        {"embed": torch.zeros(5, 3), "layers.0": torch.zeros(3), "layers.1": torch.zeros(3)},
        tmp_path / "model.safetensors",
    )
    return tmp_path


def test_a_sound_folder_is_read(folder: Path) -> None:
    require_readable(folder)
    require_possible(folder)
    require_same_tensors(str(folder), REPORT)
    (folder / "config.json").unlink()
    require_possible(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "merges.txt"])
def test_a_pipe_is_never_opened(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match=f"{name} is a pipe"):
        require_readable(folder)


@pytest.mark.parametrize("text", ["{", "3", "[" * 5000 + "]" * 5000, '{"a": %s}' % ("9" * 5000)])
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "generation_config.json", "model.safetensors.index.json"]
)
def test_every_file_of_json_is_bounded(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(InputError, match=f"{name} is not"):
        require_readable(folder)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"num_hidden_layers": 10**9}, "declares 1,000,000,000 layers, and there are 3 tensors"),
        ({"hidden_size": 10**7}, "declares an embedding of 5 by 10,000,000, and the weights are 21 numbers"),
        ({"text_config": CONFIG | {"num_hidden_layers": 4}}, "declares 4 layers"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, r"is quantized \(gptq\)"),
        ({"quantization_config": "x"}, "is quantized:"),
        ({"attention_dropout": 2}, "attention_dropout is '2', and it can only be a number from 0 to 1"),
        ({"resid_pdrop": -0.1}, "resid_pdrop is '-0.1'"),
        ({"attn_pdrop": "x"}, "attn_pdrop is 'x'"),
        ({"hidden_dropout": float("nan")}, "hidden_dropout is 'nan'"),
        ({"text_config": CONFIG | {"attention_dropout": True}}, "attention_dropout is 'True'"),
    ],
)
def test_a_configuration_is_one_of_its_weights(folder: Path, fields: dict[str, Any], why: str) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | fields))
    with pytest.raises(InputError, match=why):
        require_possible(folder)


def test_weights_that_are_cut_off(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(InputError, match=r"model\.safetensors is cut off"):
        require_possible(folder)


def test_a_configuration_is_an_object(folder: Path) -> None:
    (folder / "config.json").write_text("[]")
    with pytest.raises(InputError, match="is not a JSON object"):
        require_possible(folder)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"missing_keys": ["b", "a"]}, "the tensor a and 1 more are missing"),
        ({"unexpected_keys": ["layers.1.q"]}, r"the tensor layers.1.q is of no part of the model in config.json"),
        ({"mismatched_keys": [("a", (2, 3), (2, 4))]}, r"a has the shape \(2, 3\) and the model wants \(2, 4\)"),
    ],
)
def test_tensors_are_those_of_the_configuration(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why) as caught:
        require_same_tensors("folder", REPORT | fields)
    assert caught.value.cause == "weights_unreadable"


def test_buffers_that_are_computed_may_be_left_over() -> None:
    require_same_tensors("folder", REPORT | {"unexpected_keys": ["model.layers.0.self_attn.rotary_emb.inv_freq"]})
