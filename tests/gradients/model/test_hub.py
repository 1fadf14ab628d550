from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from gradscope.errors import InputError
from gradscope.gradients.model import hub
from gradscope.gradients.model.checkpoint import load_adapter
from gradscope.gradients.model.hub import require_hub
from gradscope.rollouts.run import WeightsRef
from gradscope.training.grpo.policy import load_trained_policy

NAME = "nobody/no-such-model"


@pytest.fixture(autouse=True)
def an_empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_ENDPOINT", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hub, "_is_cached", lambda name: False)


def answering(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def urlopen(*arguments: Any, **named: Any) -> None:
        raise error

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)


@pytest.mark.parametrize("reason", [socket.gaierror(-2, "Name or service not known"), ConnectionRefusedError()])
def test_without_network_one_line_says_so_and_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, reason: OSError
) -> None:
    answering(monkeypatch, urllib.error.URLError(reason))
    with pytest.raises(InputError, match=r"huggingface\.co cannot be reached") as caught:
        load_trained_policy(NAME, dtype="float32", chat=False)
    assert "\n" not in caught.value.message
    assert "HF_HUB_OFFLINE=1" in (caught.value.hint or "")


def test_offline_by_wish_is_said_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="HF_HUB_OFFLINE is set") as caught:
        require_hub(NAME)
    assert (caught.value.hint or "").startswith("Unset HF_HUB_OFFLINE")


@pytest.mark.parametrize(
    "error",
    [
        urllib.error.HTTPError("https://huggingface.co", 403, "Forbidden", None, None),  # type: ignore[arg-type]
        urllib.error.URLError(TimeoutError()),
        TimeoutError(),
    ],
)
def test_whatever_may_be_an_answer_is_left_to_the_loaders(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    answering(monkeypatch, error)
    require_hub(NAME)


def test_what_is_cached_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, urllib.error.URLError(ConnectionRefusedError()))
    monkeypatch.setattr(hub, "_is_cached", lambda name: True)
    require_hub(NAME)


def test_behind_a_socks_proxy_the_loaders_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://localhost:1")
    answering(monkeypatch, urllib.error.URLError(ConnectionRefusedError()))
    require_hub(NAME)


def test_a_folder_and_what_is_no_hub_id_are_not_looked_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answering(monkeypatch, AssertionError("not to be asked"))
    require_hub(str(tmp_path))
    require_hub("./absent/folder")
    require_hub("/absent")


def test_a_hub_is_not_asked_for_what_only_a_file_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answering(monkeypatch, AssertionError("not to be asked"))
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("not to be asked"))
    weights = WeightsRef(num_updates=1, path=tmp_path, kind="adapter", base=NAME)
    lora = {"r": 1, "target_modules": ["q_proj"], "peft_type": "LORA", "base_model_name_or_path": NAME}
    (tmp_path / "adapter_config.json").write_text(json.dumps(lora))
    save_file({"base_model.model.q_proj.lora_A.weight": torch.zeros(1, 1)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(InputError, match="the hub's cache does not hold it") as caught:
        load_adapter(weights, None)
    assert caught.value.hint == f"Name its folder, or let it be downloaded: --model {NAME}"
