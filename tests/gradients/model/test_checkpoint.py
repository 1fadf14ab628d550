"""Every kind of adapter as peft saves it, read back by the project's own loader."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gradscope.errors import InputError
from gradscope.gradients.model.checkpoint import is_fresh
from gradscope.gradients.model.policy import load_measured_policy
from gradscope.rollouts.run import WeightsRef
from tests.gradients.adapters import KINDS, adapt, adapted_experts
from tests.gradients.models import tiny_experts, tiny_model

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
