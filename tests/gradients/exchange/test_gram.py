"""Two and three gloo processes against one: the same Gram matrix, whatever the architecture and however rows divide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gradscope.gradients.exchange.gram import own_batches
from tests.gradients.exchange.cases import CASES, LONG, measured, save_models
from tests.gradients.models import DAPO, prepared, tiny_groups, tiny_policy
from tests.launched import finish, start_processes

THREE = (
    "llama_untied_biases",
    "qwen3_gqa_norms",
    "lora with kl",
    "fewer rollouts than processes",
    "traffic",
)
SIZES: dict[int, tuple[str, ...]] = {2: tuple(CASES), 3: THREE}
"""Number of processes -> the cases that they measure."""
_MODULE = ("-m", "tests.gradients.exchange.cases")
REFUSED = {
    "adapter dora": "DoRA takes norms of whole weights",
    "adapter saved head": "it trains copies of whole modules (modules_to_save)",
    "adapter head, tied": "it adapts a tied head",
    "adapter of another kind": "it is not LoRA",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cases")
    save_models(folder)
    return folder


@pytest.fixture(scope="module")
def by_several(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """What each process of a launch found, by the number of processes."""
    found = {}
    for size, names in SIZES.items():
        for code, _, said in finish(start_processes(size, *_MODULE, str(folder), *names)):
            assert code == 0, said
        found[size] = [json.loads((folder / f"{size}_{rank}.json").read_text()) for rank in range(size)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "name"), [(size, name) for size, names in SIZES.items() for name in names if name not in REFUSED]
)
def test_several_processes_find_what_one_finds(
    size: int, name: str, folder: Path, by_several: dict[int, list[dict[str, Any]]]
) -> None:
    one, (main, *others) = measured(folder, name), [found[name] for found in by_several[size]]
    assert main["coverage"] == one["coverage"] == 1.0
    values, expected = np.array(main["singular_values"]), np.array(one["singular_values"])
    # one process takes the output layer in slices, which rounds no logits; several form them whole, as the model does
    assert np.abs(values - expected).max() <= (2e-3 if name == "bfloat16" else 1e-6) * expected.max()
    assert main["relative_row_error"] == pytest.approx(
        one["relative_row_error"], rel=5e-2 if name == "bfloat16" else 1e-3
    )
    assert main["slow"] == one["slow"]
    assert main["squares"] == pytest.approx(one["squares"], rel=1e-2 if name == "bfloat16" else 1e-4, abs=1e-12)
    assert main["trained"] == pytest.approx(one["trained"], rel=2e-2)
    assert main["unchanged"] == one["unchanged"]
    for row, alone in zip(main["logprobs"], one["logprobs"], strict=True):
        np.testing.assert_allclose(row, alone, atol=2e-2 if name == "bfloat16" else 1e-5)
    for other in others:  # to the last bit, or processes would take different decisions
        assert {**other, "sent": 0} == {**main, "sent": 0}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_adapters_that_need_a_whole_base_are_refused(name: str, by_several: dict[int, list[dict[str, Any]]]) -> None:
    assert (
        f"this adapter does not go on a base that several processes share: {REFUSED[name]}."
        in (by_several[2][0][name]["error"])
    )


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_the_shorter_side_goes_to_all_and_the_longer_one_in_pieces(
    size: int, by_several: dict[int, list[dict[str, Any]]]
) -> None:
    """Numbers of float32 that all processes together send, counted by hand for each token and layer."""
    config, groups = LlamaConfig(**LONG), tiny_groups(4, 4)
    width, inner, vocabulary = config.hidden_size, config.intermediate_size, config.vocab_size
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    num_tokens = sum(len(rollout.prompt_ids) + len(rollout.completion_ids) for rollout in rollouts)
    num_predicted = sum(len(rollout.completion_ids) + 1 for rollout in rollouts)
    cut = [(width, width)] * 4 + [(width, inner)] * 3  # q, k, v, o; gate, up, down
    a_token = config.num_hidden_layers * sum(short * (size - 1) + long * (size - 1) / size for short, long in cut)
    a_prediction = width * (size - 1) + vocabulary * (size - 1) / size
    expected = 4 * (num_tokens * a_token + num_predicted * a_prediction)
    sent = sum(found["traffic"]["sent"] for found in by_several[size])
    # beside it: each token's row of the embedding, norms, and what says which row is which
    assert expected < sent < 1.1 * expected


def test_who_has_fewer_batches_repeats_a_row_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    step = prepared(tiny_policy("llama_untied_biases"), tiny_groups(1, 3), DAPO)
    counted = []
    for index in range(2):
        monkeypatch.setattr("gradscope.gradients.exchange.gram.num_connected", lambda: 2)
        monkeypatch.setattr("gradscope.gradients.exchange.gram.connected_index", lambda index=index: index)
        batches = own_batches(step, batch_tokens=1)
        assert len(batches) == 2
        counted += [row for batch, counts in batches if counts for row in batch.rows]
    assert sorted(counted) == [0, 1, 2]
    assert torch.equal(batches[-1][0].input_ids, step.batch([int(np.argmin(step.plan.lengths))]).input_ids)


def test_the_model_of_the_traffic_is_what_the_count_assumes() -> None:
    model = LlamaForCausalLM(LlamaConfig(**LONG))
    assert not any(name.endswith(".bias") for name, _ in model.named_parameters())
