"""What a model with dynamic NTK scaling keeps of the batches before a step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gradscope.diagnostics.inputs import longest_batch
from gradscope.diagnostics.inputs.longest_batch import Longest, longest_before, remember_longest


def scaled_model(kind: str = "dynamic"):
    torch.manual_seed(0)
    shape = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    rope = {"rope_type": kind, "factor": 4.0, "rope_theta": 10000.0}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 8}
    model = LlamaForCausalLM(LlamaConfig(**shape, **heads, rope_parameters=rope)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(
    ("widths", "generates", "expected"),
    [
        ([(9, 10), (9, 20), (9, 12)], True, Longest(length=29)),
        ([(9, 20), (4, 6), (9, 12)], True, Longest(length=10)),  # prompts of 4 went back to the pretrained frequencies
        ([(9, 20), (4, 6), (9, 12)], False, Longest(length=29)),  # which a reference never sees alone
        ([(9, 20), (9, 20), (4, 6)], True, Longest()),
        ([None, (9, 12), (9, 10)], True, Longest(length=21, unlogged=1)),
        ([(9, 12)], True, Longest()),
    ],
)
def test_the_longest_batch_since_frequencies_went_back(
    monkeypatch: pytest.MonkeyPatch, widths: list, generates: bool, expected: Longest
) -> None:
    run = SimpleNamespace(groups_at=lambda step: widths[step - 1])
    monkeypatch.setattr(longest_batch, "_widths", lambda run, step, policy, objective: widths[step - 1])
    policy = SimpleNamespace(model=scaled_model())
    assert longest_before(run, len(widths), policy, None, generates=generates) == expected


def test_policy_and_reference_get_the_frequencies_of_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle: the model as it is after a longer batch, in training."""
    ids = torch.arange(12)[None] % 16
    fresh, trained, *models = (scaled_model() for _ in range(4))
    widths = [(9, 11), (9, 3)]
    monkeypatch.setattr(longest_batch, "_widths", lambda run, step, policy, objective: widths[step - 1])
    run = SimpleNamespace(groups_at=lambda step: True, trained_by_trl=True)
    remember_longest(run, 2, SimpleNamespace(model=models[0], reference=models[1]), None)
    with torch.no_grad():
        trained(input_ids=torch.zeros(1, 20, dtype=torch.long))
        expected = trained(input_ids=ids).logits
        assert not torch.allclose(fresh(input_ids=ids).logits, expected, atol=1e-5)
        for model in models:
            model(input_ids=ids[:, :3])  # which a trainer would begin anew with, and a probe must not
            assert torch.equal(model(input_ids=ids).logits, expected)
