import json
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError, UsageError
from gradscope.training.config import TrainConfig, read_config


def test_round_trip_keeps_nulls_and_a_fraction_may_be_a_whole_number() -> None:
    config = TrainConfig(task="jsonl", data="x.jsonl", lora_rank=4, learning_rate=1e-5)
    assert TrainConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert config.to_json()["lora_alpha"] is None
    assert TrainConfig.from_json({"temperature": 1, "beta": 0}).temperature == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"group_size": "4"}, "group_size = '4', which does not fit"),
        ({"group_size": True}, "group_size = True, which does not fit"),
        ({"loss_type": "ppo"}, "loss_type = 'ppo', which does not fit"),
        ({"group_size": 1}, "group_size is 1; the least is 2"),
        ({"steps": 0}, "steps is 0; the least is 1"),
        *(
            ({"learning_rate": rate}, f"learning_rate is {rate}; it must be above zero")
            for rate in (0.0, float("nan"), float("inf"))
        ),
        *(
            ({"lora_rank": 4, name: 0.0}, f"{name} is 0.0; it must be above zero")
            for name in ("lora_alpha", "match_grad_norm", "critic_learning_rate", "temperature")
        ),
        ({"beta": float("nan")}, "beta is nan; the least is 0"),
        ({"task": "gsm8k"}, "The task gsm8k needs a file of prompts"),
        *(({name: "x.jsonl"}, "makes its own prompts and reads no data") for name in ("data", "heldout_data")),
        ({"lora_alpha": 16.0}, "lora_alpha is given without lora_rank"),
        ({"gradient_accumulation_steps": 3}, "16 prompts x 8 rollouts do not divide into 3 parts"),
        ({"max_resampling": 2}, "max_resampling is given, and fixed sampling has no rounds of replacing"),
        ({"sampling": "dynamic", "max_resampling": 0}, "max_resampling is 0; the least is 1"),
        ({"vllm": "server"}, "vllm = 'server', which does not fit"),
        ({"sampling": "reallocated", "vllm": {}}, "TRL asks vLLM for groups of one size"),
        *(({"sampling": "reallocated", "group_size": n}, f"16 prompts x {n} rollouts do not") for n in (5, 2)),
        ({"sampling": "reallocated", "num_prompts": 1}, "1 prompts x 8 rollouts do not allow that"),
    ],
)
def test_refusals(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainConfig.from_json(values)


def test_reads_a_manifest_a_run_folder_and_a_bare_configuration(tmp_path: Path) -> None:
    config = TrainConfig(steps=7)
    (tmp_path / "manifest.json").write_text(json.dumps({"schema": "gradscope/run", "config": config.to_json()}))
    (tmp_path / "bare.json").write_text('{"steps": 7}')
    for path in (tmp_path, tmp_path / "manifest.json", tmp_path / "bare.json"):
        assert read_config(path) == config


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), ("{", "is not JSON"), ("[1]", "holds no configuration"), ('{"config": 3}', "holds no")],
)
def test_unusable_files(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_config(path)


def test_unknown_key_names_the_nearest_and_its_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown key 'group_sise'") as caught:
        TrainConfig.from_json({"group_sise": 4})
    assert caught.value.hint == "Did you mean 'group_size'?"
    (tmp_path / "c.json").write_text('{"stepz": 3}')
    with pytest.raises(UsageError, match=r"c\.json has an unknown key 'stepz'"):
        read_config(tmp_path / "c.json")
