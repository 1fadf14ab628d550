"""Every kind of adapter as peft saves it, read back by the project's own loader."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from peft import IA3Config, LoHaConfig, OFTConfig, VBLoRAConfig, VeraConfig
from safetensors.torch import load_file, save_file
from transformers import Emu3ForCausalLM, Emu3TextConfig

from gradscope.errors import InputError
from gradscope.gradients.model.checkpoint import is_fresh
from gradscope.gradients.model.policy import load_measured_policy
from gradscope.rollouts.run import WeightsRef
from tests.gradients.adapters import KINDS, adapt, adapt_with, adapted_experts
from tests.gradients.models import (
    DAPO,
    VOCAB,
    measured_step,
    naive_rows,
    policy_of,
    relative,
    tiny_experts,
    tiny_groups,
    tiny_model,
    weight_of,
)

IDS = torch.tensor([[1, 2, 3, 4, 5]])
SAVED = (
    "rslora",
    "patterns",
    "bias all",
    "lora_bias",
    "head, tied",
    "saved head, tied",
    "saved norms",
    "embedding, tied",
    "dora, rslora, biases",
    "dora, embedding",
)


def save(model, base, folder: Path) -> WeightsRef:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft saves the base's embedding too, and says so
        base.save_pretrained(folder / "base")
        model.save_pretrained(folder / "adapter")
    return WeightsRef(num_updates=1, path=folder / "adapter", kind="adapter", base=str(folder / "base"))


def saved(kind: str, folder: Path, *, perturbed: bool = True) -> tuple[torch.nn.Module, WeightsRef]:
    name, options = KINDS[kind]
    model = adapt(tiny_model(name), options, perturbed=perturbed)
    return model, save(model, tiny_model(name), folder)


def change(weights: WeightsRef, name: str, tensor: torch.Tensor | None) -> None:
    path = weights.path / "adapter_model.safetensors"
    tensors = load_file(path)
    found = next(key for key in tensors if name in key)
    del tensors[found]
    save_file(tensors if tensor is None else tensors | {found: tensor}, path, metadata={"format": "pt"})


def require_same(model: torch.nn.Module, weights: WeightsRef) -> None:
    policy = load_measured_policy(weights, device="cpu")
    expected = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert policy.trainable.keys() == expected.keys()
    assert all(torch.equal(policy.trainable[name], parameter) for name, parameter in expected.items())
    assert torch.equal(policy.model(IDS).logits, model(IDS).logits)
    assert not is_fresh(weights.path)


@pytest.mark.parametrize("kind", SAVED)
def test_an_adapter_comes_back_as_it_was_saved(kind, tmp_path):
    require_same(*saved(kind, tmp_path))


def test_an_adapter_on_fused_experts_comes_back_as_it_was_saved(tmp_path):
    model = adapted_experts("qwen3_moe")
    require_same(model, save(model, tiny_experts("qwen3_moe"), tmp_path))


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
    model = adapt_with(tiny_model("llama_untied_biases"), OTHER_METHODS[name])
    weights = save(model, tiny_model("llama_untied_biases"), tmp_path)
    require_same(model, weights)
    found = measured_step(load_measured_policy(weights, device="cpu"), tiny_groups(), DAPO, engine="stream")
    rows = naive_rows(policy_of(model, lora=True), tiny_groups(), weight_of(tiny_groups()))
    assert relative(found.score_gram, rows @ rows.T) < 1e-5
    assert found.slow_parameters


def test_a_model_is_of_the_class_that_it_was_saved_from(tmp_path):
    """Also one that AutoModelForCausalLM does not know, as of a part of a model that sees too."""
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Emu3TextConfig(vocab_size=VOCAB, num_key_value_heads=2, pad_token_id=0, **shape)
    Emu3ForCausalLM(config).save_pretrained(tmp_path)
    weights = WeightsRef(num_updates=0, path=tmp_path, kind="full")
    assert type(load_measured_policy(weights, device="cpu").model) is Emu3ForCausalLM


@pytest.mark.parametrize("named", ["LlamaForSequenceClassification", "AutoTokenizer", "T5ForConditionalGeneration", ""])
def test_a_class_that_writes_no_text_is_not_taken(named, tmp_path):
    model = tiny_model("llama_untied_biases")
    model.save_pretrained(tmp_path)
    document = json.loads((tmp_path / "config.json").read_text())
    encoder_decoder = {"is_encoder_decoder": True} if named.startswith("T5") else {}
    document |= {"architectures": [named] if named else None, **encoder_decoder}
    (tmp_path / "config.json").write_text(json.dumps(document))
    weights = WeightsRef(num_updates=0, path=tmp_path, kind="full")
    assert type(load_measured_policy(weights, device="cpu").model) is type(model)


@pytest.mark.parametrize(
    ("kind", "tensor"),
    [
        ("dora, embedding", "lora_magnitude_vector"),
        ("dora, embedding", "lora_embedding_A"),
        ("saved norms", "q_norm"),
        ("bias all", "q_proj.base_layer.bias"),
    ],
)
def test_a_missing_tensor_is_named(kind, tensor, tmp_path):
    _, weights = saved(kind, tmp_path)
    change(weights, tensor, None)
    with pytest.raises(InputError, match=rf"{tensor}\S* has no counterpart|lacks the tensor \S*{tensor}"):
        load_measured_policy(weights, device="cpu")


@pytest.mark.parametrize(
    ("kind", "tensor"),
    [("dora, embedding", "lora_magnitude_vector"), ("dora, embedding", "lora_embedding_B"), ("saved norms", "q_norm")],
)
def test_a_wrong_shape_is_named(kind, tensor, tmp_path):
    _, weights = saved(kind, tmp_path)
    change(weights, tensor, torch.zeros(2))
    with pytest.raises(InputError, match=f"the adapter does not fit the base model .* size mismatch for .*{tensor}"):
        load_measured_policy(weights, device="cpu")


@pytest.mark.parametrize(
    ("kind", "fresh"), [("rslora", True), ("bias all", True), ("embedding, tied", True), ("saved norms", False)]
)
def test_an_adapter_is_fresh_while_it_changes_nothing(kind, fresh, tmp_path):
    _, weights = saved(kind, tmp_path, perturbed=False)
    assert is_fresh(weights.path) == fresh


def test_the_reference_of_a_run_with_magnitudes_is_the_adapter_it_started_from(tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "later").mkdir()
    model, first = saved("dora", tmp_path / "first", perturbed=False)
    _, later = saved("dora", tmp_path / "later")
    policy = load_measured_policy(later, device="cpu", initial=first)
    with policy.as_reference() as reference:
        assert torch.equal(reference(IDS).logits, model(IDS).logits)
