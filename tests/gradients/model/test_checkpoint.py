import json
import socket
import urllib.error
import urllib.request
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import IA3Config, LoHaConfig, LoraConfig, OFTConfig, VBLoRAConfig, VeraConfig
from safetensors.torch import load_file, save_file
from transformers import Emu3ForCausalLM, Emu3TextConfig

from gradscope.diagnostics.rank.weight_updates import _measure_weight_updates
from gradscope.errors import InputError
from gradscope.gradients.model import checkpoint
from gradscope.gradients.model.policy import load_measured_policy
from gradscope.progress import no_progress
from gradscope.rollouts.run import WeightsRef
from gradscope.training.grpo.policy import load_trained_policy
from tests.diagnostics.rank.test_weight_updates import NAME, adapter
from tests.gradients import models
from tests.gradients.adapters import KINDS, adapt, adapt_with, adapted_experts

IDS = torch.tensor([[1, 2, 3, 4, 5]])
Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight"
SAVED = (
    *("rslora", "patterns", "bias all", "lora_bias", "head, tied", "saved head, tied", "saved norms"),
    *("embedding, tied", "dora, rslora, biases", "dora, embedding"),
)


def save(model, base, folder: Path) -> WeightsRef:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft saves the base's embedding too, and says so
        base.save_pretrained(folder / "base")
        model.save_pretrained(folder / "adapter")
    return WeightsRef(num_updates=1, path=folder / "adapter", kind="adapter", base=str(folder / "base"))


def saved(kind: str, folder: Path, *, perturbed: bool = True) -> tuple[torch.nn.Module, WeightsRef]:
    name, options = KINDS[kind]
    model = adapt(models.tiny_model(name), options, perturbed=perturbed)
    return model, save(model, models.tiny_model(name), folder)


def change(weights: WeightsRef, name: str, tensor: torch.Tensor | None) -> None:
    path = weights.path / "adapter_model.safetensors"
    tensors = load_file(path)
    result = next(key for key in tensors if name in key)
    del tensors[result]
    save_file(tensors if tensor is None else tensors | {result: tensor}, path, metadata={"format": "pt"})


def require_same(model: torch.nn.Module, weights: WeightsRef) -> None:
    policy = load_measured_policy(weights, device="cpu")
    expected = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert policy.trainable.keys() == expected.keys()
    assert all(torch.equal(policy.trainable[name], parameter) for name, parameter in expected.items())
    assert torch.equal(policy.model(IDS).logits, model(IDS).logits)
    assert not checkpoint.is_fresh(weights.path)


@pytest.mark.parametrize("kind", SAVED)
def test_an_adapter_comes_back_as_it_was_saved(kind, tmp_path):
    require_same(*saved(kind, tmp_path))


def test_an_adapter_on_fused_experts_comes_back_as_it_was_saved(tmp_path):
    model = adapted_experts("qwen3_moe")
    require_same(model, save(model, models.tiny_experts("qwen3_moe"), tmp_path))


OTHER_METHODS = {
    "IA3": IA3Config(target_modules=["q_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "VeRA": VeraConfig(r=4, target_modules=["q_proj", "v_proj"]),
    "LoHa": LoHaConfig(r=4, target_modules=["q_proj"]),
    "OFT": OFTConfig(oft_block_size=4, target_modules=["q_proj"]),
    "VB-LoRA, one bank for all layers": VBLoRAConfig(
        r=4, num_vectors=6, vector_length=4, topk=2, target_modules=["q_proj"]
    ),
}


@pytest.mark.parametrize("name", OTHER_METHODS)
def test_an_adapter_of_another_method_comes_back_as_it_was_saved(name, tmp_path):
    model = adapt_with(models.tiny_model("llama_untied_biases"), OTHER_METHODS[name])
    weights = save(model, models.tiny_model("llama_untied_biases"), tmp_path)
    require_same(model, weights)
    policy, groups = load_measured_policy(weights, device="cpu"), models.tiny_groups()
    step = models.measured_step(policy, groups, models.DAPO, engine="stream")
    assert models.score_error(step, models.policy_of(model, lora=True), groups) < 1e-5
    assert step.slow_parameters


def test_a_model_is_of_the_class_that_it_was_saved_from(tmp_path):
    """Also one that AutoModelForCausalLM does not know, as of a part of a model that sees too."""
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Emu3TextConfig(vocab_size=models.VOCAB, num_key_value_heads=2, pad_token_id=0, **shape)
    Emu3ForCausalLM(config).save_pretrained(tmp_path)
    weights = WeightsRef(num_updates=0, path=tmp_path, kind="full")
    assert type(load_measured_policy(weights, device="cpu").model) is Emu3ForCausalLM


@pytest.mark.parametrize("named", ["LlamaForSequenceClassification", "AutoTokenizer", "T5ForConditionalGeneration", ""])
def test_a_class_that_writes_no_text_is_not_taken(named, tmp_path):
    model = models.tiny_model("llama_untied_biases")
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"architectures": [named] if named else None, "is_encoder_decoder": named.startswith("T5")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = WeightsRef(num_updates=0, path=tmp_path, kind="full")
    assert type(load_measured_policy(weights, device="cpu").model) is type(model)


MISSING = r"{tensor}\S* has no counterpart|lacks the tensor \S*{tensor}"
OTHER_SHAPE = "the adapter does not fit the base model .* size mismatch for .*{tensor}"


@pytest.mark.parametrize(
    ("kind", "tensor", "instead", "message"),
    [
        ("dora, embedding", "lora_magnitude_vector", None, MISSING),
        ("dora, embedding", "lora_embedding_A", None, MISSING),
        ("saved norms", "q_norm", None, MISSING),
        ("bias all", "q_proj.base_layer.bias", None, MISSING),
        ("dora, embedding", "lora_magnitude_vector", torch.zeros(2), OTHER_SHAPE),
        ("dora, embedding", "lora_embedding_B", torch.zeros(2), OTHER_SHAPE),
        ("saved norms", "q_norm", torch.zeros(2), OTHER_SHAPE),
    ],
)
def test_a_tensor_that_is_missing_or_of_another_shape_is_named(kind, tensor, instead, message, tmp_path):
    _, weights = saved(kind, tmp_path)
    change(weights, tensor, instead)
    with pytest.raises(InputError, match=message.format(tensor=tensor)):
        load_measured_policy(weights, device="cpu")


@pytest.mark.parametrize(
    ("kind", "fresh"), [("rslora", True), ("bias all", True), ("embedding, tied", True), ("saved norms", False)]
)
def test_an_adapter_is_fresh_while_it_changes_nothing(kind, fresh, tmp_path):
    _, weights = saved(kind, tmp_path, perturbed=False)
    assert checkpoint.is_fresh(weights.path) == fresh


@pytest.mark.slow
def test_the_reference_of_a_run_with_magnitudes_is_the_adapter_it_started_from(tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "later").mkdir()
    model, first = saved("dora", tmp_path / "first", perturbed=False)
    _, later = saved("dora", tmp_path / "later")
    policy = load_measured_policy(later, device="cpu", reference=[(first, 1.0)])
    with policy.as_reference() as reference:
        assert torch.equal(reference(IDS).logits, model(IDS).logits)


HUB_NAME = "nobody/no-such-model"


@pytest.fixture(autouse=True)
def an_empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_ENDPOINT", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(checkpoint, "_is_cached", lambda name: False)


def answering(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def urlopen(*arguments: Any, **named: Any) -> None:
        raise error

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)


UNREACHABLE = urllib.error.URLError(ConnectionRefusedError())


@pytest.mark.parametrize(
    "error", [urllib.error.URLError(socket.gaierror(-2, "Name or service not known")), UNREACHABLE]
)
def test_without_network_the_variable_is_named(monkeypatch: pytest.MonkeyPatch, error: urllib.error.URLError) -> None:
    answering(monkeypatch, error)
    with pytest.raises(InputError, match=r"huggingface\.co cannot be reached") as caught:
        load_trained_policy(HUB_NAME, dtype="float32", chat=False)
    assert "\n" not in caught.value.message
    assert "HF_HUB_OFFLINE=1" in (caught.value.hint or "")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="HF_HUB_OFFLINE is set") as caught:
        checkpoint.require_hub(HUB_NAME)
    assert (caught.value.hint or "").startswith("Unset HF_HUB_OFFLINE")


def test_cached_proxied_and_local_names_need_no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answering(monkeypatch, UNREACHABLE)
    for name in (str(tmp_path), "./absent/folder", "/absent"):
        checkpoint.require_hub(name)
    for answer in (urllib.error.HTTPError("", 403, "Forbidden", None, None), TimeoutError()):
        with monkeypatch.context() as replying:  # an answer, if anything, is left to the loaders
            answering(replying, answer)
            checkpoint.require_hub(HUB_NAME)
    with monkeypatch.context() as cached:
        cached.setattr(checkpoint, "_is_cached", lambda name: True)
        checkpoint.require_hub(HUB_NAME)
    monkeypatch.setenv("ALL_PROXY", "socks5://localhost:1")
    checkpoint.require_hub(HUB_NAME)


def test_a_hub_is_not_asked_for_what_only_a_file_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answering(monkeypatch, AssertionError("not to be asked"))
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("not to be asked"))
    weights = WeightsRef(num_updates=1, path=tmp_path, kind="adapter", base=HUB_NAME)
    lora = {"r": 1, "target_modules": ["q_proj"], "peft_type": "LORA", "base_model_name_or_path": HUB_NAME}
    (tmp_path / "adapter_config.json").write_text(json.dumps(lora))
    save_file({"base_model.model.q_proj.lora_A.weight": torch.zeros(1, 1)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(InputError, match="the hub's cache does not hold it") as caught:
        checkpoint.load_adapter(weights, None)
    assert caught.value.hint == f"Name its folder, or let it be downloaded: --model {HUB_NAME}"


def test_a_transposed_adapter_is_turned_and_bfloat16_sees_part_of_a_change(tmp_path: Path) -> None:
    ref = adapter(tmp_path / "a", 1, torch.ones(6, 2), torch.ones(2, 4), fan_in_fan_out=True)
    assert checkpoint.open_checkpoint(ref).matrices[NAME]().shape == (4, 6)
    before = np.array([[1.0, 1.0]])  # bfloat16 sees large changes alone
    assert checkpoint.changed_in_bfloat16(before, before + np.array([[1e-4, 1e-1]])) == 0.5


@pytest.mark.parametrize(
    ("dtype", "knows_start", "cause"),
    [(torch.float32, True, None), (torch.float32, False, "first_weights_missing"), (torch.bfloat16, True, "precision")],
)
def test_a_base_that_a_random_start_changed_is_had_from_the_first_adapter(
    dtype: torch.dtype, knows_start: bool, cause: str | None, tmp_path: Path
) -> None:
    name, (model, base) = "llama_untied_biases", (models.tiny_model("llama_untied_biases") for _ in range(2))
    config = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights="pissa_niter_2")
    model = adapt_with(model.to(dtype), config, perturbed=False)
    weights = save(model, base, tmp_path)
    if cause is None:
        loaded = checkpoint.load_adapter(weights, torch.float32, weights.path)
        torch.testing.assert_close(loaded(IDS).logits, models.tiny_model(name)(IDS).logits)
        assert not torch.equal(loaded.state_dict()[Q_PROJ], base.state_dict()["model.layers.0.self_attn.q_proj.weight"])
        torch.testing.assert_close(loaded.state_dict()[Q_PROJ], model.state_dict()[Q_PROJ])
        return
    with pytest.raises(InputError, match="pissa_niter_2") as caught:
        checkpoint.load_adapter(weights, torch.float32, weights.path if knows_start else None)
    assert caught.value.cause == cause


@pytest.mark.parametrize("config", [{"use_dora": True}, {"rank_pattern": {"q_proj": 4}}, {"peft_type": "IA3"}])
def test_an_adapter_of_another_kind_is_refused(tmp_path: Path, config: dict[str, object]) -> None:
    refs = [adapter(tmp_path / f"a{t}", t, torch.ones(6, 2), torch.ones(2, 4), **config) for t in (0, 5)]
    with pytest.raises(InputError, match="this adapter is not one product of two factors"):
        _measure_weight_updates(refs, no_progress)


def test_an_adapter_with_other_tensors_is_refused(tmp_path: Path) -> None:
    ref = adapter(tmp_path / "a", 1, torch.ones(6, 2), torch.ones(2, 4))
    save_file({"extra.weight": torch.ones(2, 2)}, ref.path / "adapter_model.safetensors")
    with pytest.raises(InputError, match=r"extra\.weight is no factor of a LoRA adapter"):
        checkpoint.open_checkpoint(ref)
