"""An adapter's configuration is refused where PEFT would fail over it or never end."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.gradients.model.checked.adapter import read_adapter_config, why_unbounded

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
    ".",
    r"\b",
    "a?",
    "a*",
    "(a|)",
    "(a|.)",
    "(a)?",
    "(?!a)",
    "(?<!a)",
    "(?P<a>.)",
    "(?:.)",
    "(?#a)",
    "(?i:.)",
    "[ab]",
)
"""What lets two wildcards take the same letters."""
UNBOUNDED = (
    ("(a*)*b", "repeats a group"),
    (r"^(([a-z_.0-9])+)+$", "repeats a group"),
    (r"(?:x|xx){2,}y", "repeats a group"),
    (r"(a|aa)+$", "repeats a group"),
    (r".*.*.*.*z", "a wildcard beside a wildcard"),
    (r"[a-z]+\w+x", "a wildcard beside a wildcard"),
    (r".*a.*b.*c.*d.*e", "more than 4 wildcards"),
    *((f".*{between}.*z", "a wildcard beside a wildcard") for between in BETWEEN),
    ("(?x).* # a\n .*", "has the flag x"),
    (r"(.*)\.\1", "refers to a group"),
    (r"(?P<a>.)(?P=a)", "refers to a group"),
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
    assert why_unbounded(pattern) is None
    began = time.process_time()
    assert [bool(re.fullmatch(pattern, name)) for name in NAMES]
    assert time.process_time() - began < 1
    assert read_adapter_config(write(tmp_path, target_modules=pattern))["target_modules"] == pattern


@pytest.mark.parametrize(("pattern", "why"), UNBOUNDED)
@pytest.mark.parametrize(
    "name", ["target_modules", "exclude_modules", "layers_pattern", "rank_pattern", "alpha_pattern"]
)
def test_an_expression_that_may_not_end_is_refused(tmp_path: Path, name: str, pattern: str, why: str) -> None:
    value = {pattern: 4} if name in ("rank_pattern", "alpha_pattern") else pattern
    with pytest.raises(InputError, match=f"the regular expression of {name} .*{why}"):
        read_adapter_config(write(tmp_path, **{name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("r", 0),
        ("r", 2.5),
        ("r", True),
        ("r", "8"),
        ("r", 10**9),
        ("r", None),
        ("lora_alpha", "x"),
        ("lora_alpha", float("nan")),
        ("lora_alpha", 10**400),
        ("lora_alpha", None),
        ("peft_type", 3),
        ("target_modules", [1]),
        ("target_modules", 3),
        ("modules_to_save", "x"),
        ("rank_pattern", {"q_proj": "x"}),
        ("use_dora", "x"),
        ("fan_in_fan_out", 1),
    ],
)
def test_a_field_is_what_it_can_be(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{name} is .*, and it can only be"):
        read_adapter_config(write(tmp_path, **{name: value}))


@pytest.mark.parametrize("rank", [0, None])
def test_other_kinds_than_lora_may_have_no_rank(tmp_path: Path, rank: int | None) -> None:
    config = read_adapter_config(write(tmp_path, peft_type="SUPERTUNING", r=rank, lora_alpha=None))
    assert config["r"] is rank


@pytest.mark.parametrize("text", ["[]", "{", '{"a":' * 5000 + "1" + "}" * 5000])
def test_a_file_that_holds_no_configuration(tmp_path: Path, text: str) -> None:
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(InputError, match=r"adapter_config\.json"):
        read_adapter_config(tmp_path)
