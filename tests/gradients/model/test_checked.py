import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from jinja2 import TemplateError
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast

from gradscope.errors import InputError
from gradscope.gradients.model import checked
from tests.gradients.models import write_tokenizer

PANIC = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
GIVEN_UP = (ValueError, ZeroDivisionError, StrictDataclassError, RuntimeError, Exception, TemplateError, PANIC)


@pytest.mark.parametrize("error", [*(kind("a\n b") for kind in GIVEN_UP), AssertionError()])
def test_a_loader_that_gives_up_is_an_error_of_the_input(error: BaseException) -> None:
    reason = "a b" if error.args else "AssertionError"  # an error without words says its kind
    with (
        pytest.raises(InputError, match=f"folder does not load: {reason}") as caught,
        checked.loading_errors("folder does not load", "Copy it."),
    ):
        raise error
    assert (caught.value.hint, caught.value.cause) == ("Copy it.", "weights_unreadable")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_memory_that_ran_out_is_no_error_of_the_input(error: Exception) -> None:
    assert checked.is_out_of_memory(error)
    with pytest.raises(type(error)), checked.loading_errors("folder"):
        raise error


def test_a_file_of_tensors_that_is_none_is_named_with_a_next_step(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b'\x08\0\0\0\0\0\0\0{"a": 1}')
    with (
        pytest.raises(InputError, match=r"model\.safetensors cannot be read: ") as caught,
        checked.open_safetensors(file),
    ):
        pass
    assert caught.value.hint == "Save it again with save_pretrained()."


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
    (folder / "trainer_state.json").write_text("{")  # no part of the model
    checked.require_readable(folder)
    checked.require_consistent_config(folder)
    checked.require_same_tensors(str(folder), REPORT)
    computed = ["model.layers.0.self_attn.rotary_emb.inv_freq"]
    checked.require_same_tensors(str(folder), REPORT | {"unexpected_keys": computed})
    (folder / "config.json").unlink()
    checked.require_consistent_config(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "merges.txt"])
def test_a_pipe_is_never_opened(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match=f"{name} is a pipe"):
        checked.require_readable(folder)


@pytest.mark.parametrize("text", ["{", "3", "[" * 5000 + "]" * 5000, '{"a": %s}' % ("9" * 5000)])
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "generation_config.json", "model.safetensors.index.json"]
)
def test_every_file_of_json_is_bounded(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(InputError, match=f"{name} is not"):
        checked.require_readable(folder)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"num_hidden_layers": 10**9}, "declares 1,000,000,000 layers, and there are 3 tensors"),
        ({"hidden_size": 10**7}, "declares an embedding of 5 by 10,000,000, and the weights are 21 numbers"),
        ({"intermediate_size": 10**6}, "declares a layer of 1,000,000 by "),
        ({"num_attention_heads": 4, "head_dim": 10**6}, "declares attention of 4,000,000 by "),
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
        checked.require_consistent_config(folder)


def test_weights_that_are_cut_off(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(InputError, match=r"model\.safetensors is cut off"):
        checked.require_consistent_config(folder)


@pytest.mark.slow
def test_a_configuration_is_a_small_object(folder: Path) -> None:
    large = json.dumps(CONFIG | {"id2label": dict.fromkeys(map(str, range(400_000)), "x")})
    for text, why in ((large, "is larger than 4 MiB"), ("[]", "is not a JSON object")):
        (folder / "config.json").write_text(text)
        with pytest.raises(InputError, match=rf"config\.json {why}"):
            checked.require_consistent_config(folder)


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
        checked.require_same_tensors("folder", REPORT | fields)
    assert caught.value.cause == "weights_unreadable"


def test_the_first_intact_tokenizer_is_loaded_else_the_first_is_named(tmp_path: Path) -> None:
    empty, broken, full, other = (tmp_path / name for name in "abcd")
    empty.mkdir()
    for size, folder in enumerate((broken, full, other), start=5):
        write_tokenizer(folder, size)
    (broken / "tokenizer.json").write_text("{")
    tokenizer = checked.load_tokenizer([empty, broken, full, other])
    assert (type(tokenizer), len(tokenizer)) == (PreTrainedTokenizerFast, 6)  # the class for any tokenizer
    assert checked.load_tokenizer([empty]) is None
    (full / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match=r"b/tokenizer\.json is not JSON"):
        checked.load_tokenizer([broken, full])


GOOD = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], "use_dora": False}
READ = (
    "all-linear",
    r".*\.(q_proj|k_proj)",
    r"^(?!.*visual).*(?:q_proj|k_proj|v_proj|o_proj)$",
    r"model\.layers\.\d+\.(self_attn|mlp)\.(q|k|v|o|gate|up|down)_proj",
    r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:k_proj|v_proj|down_proj).*?)"
    r"|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|mlp)\.(?:(?:k_proj|v_proj)))",
    r"model\.layers\.(1[0-9]|2[0-3])\.self_attn\.q_proj",
    r"(?i).*(layers|blocks)(?:a|.b).*x{1}_(?P<part>q|k)[.].*z",
    r".*e.*e.*e.*eQ",
)
BETWEEN = (
    *(".", r"\b", "a?", "a*", "(a|)", "(a|.)", "(a)?", "(?!a)", "(?<!a)"),
    *("(?P<a>.)", "(?:.)", "(?#a)", "(?i:.)", "[ab]"),
)
"""What lets two wildcards take the same letters."""
UNBOUNDED = (
    *((pattern, "repeats a group") for pattern in ("(a*)*b", r"^(([a-z_.0-9])+)+$", r"(?:x|xx){2,}y", r"(a|aa)+$")),
    *((pattern, "a wildcard beside a wildcard") for pattern in (r".*.*.*.*z", r"[a-z]+\w+x")),
    *((f".*{between}.*z", "a wildcard beside a wildcard") for between in BETWEEN),
    (r".*a.*b.*c.*d.*e", "more than 4 wildcards"),
    ("(?x).* # a\n .*", "has the flag x"),
    *((pattern, "refers to a group") for pattern in (r"(.*)\.\1", r"(?P<a>.)(?P=a)")),
    ("(", "is none"),
    ("a" * 5000, "more than 4096 letters"),
)


PATTERNS = ("target_modules", "exclude_modules", "layers_pattern", "rank_pattern", "alpha_pattern")
NAMES = [f"model.layers.{layer}.self_attn.{part}_proj_" + "a" * 40 for layer in range(4) for part in "qkvo"]


def write(folder: Path, **fields: Any) -> Path:
    (folder / "adapter_config.json").write_text(json.dumps(GOOD | fields))
    return folder


@pytest.mark.parametrize("pattern", READ)
def test_what_adapters_have_is_read_and_ends(tmp_path: Path, pattern: str) -> None:
    assert checked._why_unbounded(pattern) is None
    began = time.process_time()
    assert [bool(re.fullmatch(pattern, name)) for name in NAMES]
    assert time.process_time() - began < 1
    assert checked.read_adapter_config(write(tmp_path, target_modules=pattern))["target_modules"] == pattern


@pytest.mark.parametrize(
    ("name", "pattern", "why"), [(PATTERNS[i % len(PATTERNS)], *case) for i, case in enumerate(UNBOUNDED)]
)
def test_an_expression_that_may_not_end_is_refused(tmp_path: Path, name: str, pattern: str, why: str) -> None:
    value = {pattern: 4} if name in ("rank_pattern", "alpha_pattern") else pattern
    with pytest.raises(InputError, match=f"the regular expression of {name} .*{why}"):
        checked.read_adapter_config(write(tmp_path, **{name: value}))


IMPOSSIBLE = {
    "r": (0, 2.5, True, "8", 10**9, None),
    "lora_alpha": ("x", float("nan"), 10**400, None),
    "peft_type": (3,),
    "target_modules": ([1], 3),
    "modules_to_save": ("x",),
    "rank_pattern": ({"q_proj": "x"},),
    "use_dora": ("x",),
    "fan_in_fan_out": (1,),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in IMPOSSIBLE.items() for value in values])
def test_a_field_is_what_it_can_be(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{name} is .*, and it can only be"):
        checked.read_adapter_config(write(tmp_path, **{name: value}))


@pytest.mark.parametrize("rank", [0, None])
def test_other_kinds_than_lora_may_have_no_rank(tmp_path: Path, rank: int | None) -> None:
    config = checked.read_adapter_config(write(tmp_path, peft_type="SUPERTUNING", r=rank, lora_alpha=None))
    assert config["r"] is rank


@pytest.mark.parametrize("text", ["[]", "{", '{"a":' * 5000 + "1" + "}" * 5000])
def test_a_file_that_holds_no_configuration(tmp_path: Path, text: str) -> None:
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(InputError, match=r"adapter_config\.json"):
        checked.read_adapter_config(tmp_path)
