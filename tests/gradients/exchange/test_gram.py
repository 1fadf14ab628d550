"""Two and four gloo processes against one: the same Gram matrix, whatever the architecture and however rows divide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gradscope.gradients.exchange.gram import own_batches
from tests.gradients.exchange.cases import (
    CASES,
    COMPLETION,
    LONG,
    MANY_WORDS,
    WITH_NORMS,
    groups_of,
    measured,
    norms,
    objective_of,
    policy_of_case,
    save_models,
)
from tests.gradients.models import DAPO, naive_rows, prepared, tiny_groups, tiny_policy, weight_of
from tests.launched import finish, start_processes

FOUR = ("tied, small batches", "qwen3_moe", "lora with kl", "fewer rollouts than processes", "many words", "traffic")
SIZES: dict[int, tuple[str, ...]] = {2: tuple(CASES), 4: FOUR}
"""Number of processes -> the cases that they measure."""
IN_FLOAT64 = (
    "llama_untied_biases",
    "qwen3_gqa_norms",
    "tied, small batches",
    "qwen3_moe",
    "lora with kl",
    "temperature",
    "entropies",
    "soft cap, float64",
    "scaled logits",
    "head with a bias, a unit of its own",
    "head with a bias, in the root",
    "few words",
    "many words",
    "uneven",
)
"""Cases whose score vectors are held to backward passes in float64."""
WHOLE = ("adapter head", "one finds another scale", "one finds other gradients")
"""Cases in which several processes form logits whole."""
_MODULE = ("-m", "tests.gradients.exchange.cases")
_FAILING = """
import os, sys
from pathlib import Path
from gradscope.gradients.model import forward
from tests.gradients.exchange import cases

def fail(*given, **more):
    raise RuntimeError("No room for slices.")

if os.environ["RANK"] == "1":
    forward.sliced_outputs = fail
cases.main(Path(sys.argv[1]), ["qwen3_gqa_norms"])
"""
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
    assert np.abs(values - expected).max() <= 1e-6 * expected.max()
    assert main["relative_row_error"] == pytest.approx(one["relative_row_error"], rel=1e-3)
    assert main["slow"] == one["slow"]
    for row, alone in zip(main["logprobs"], one["logprobs"], strict=True):
        np.testing.assert_allclose(row, alone, atol=1e-5)
    own = {"sent": 0, "largest": 0}
    for other in others:  # to the last bit, or processes would take different decisions
        assert other | own == main | own


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "name"), [(size, name) for size, names in SIZES.items() for name in WITH_NORMS if name in names]
)
def test_several_processes_find_the_norms_that_one_finds(
    size: int, name: str, folder: Path, by_several: dict[int, list[dict[str, Any]]]
) -> None:
    one, found = norms(folder, name, policy_of_case(folder, name)), by_several[size][0][name]["norms"]
    assert found["squares"] == pytest.approx(one["squares"], rel=1e-4, abs=1e-12)
    assert found["trained"] == pytest.approx(one["trained"], rel=2e-2 if "bfloat16" in name else 1e-4)
    assert found["head_alone"] == pytest.approx(one["head_alone"], rel=2e-2 if "bfloat16" in name else 1e-5)
    assert found["unchanged"] == one["unchanged"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "name"), [(size, name) for size, names in SIZES.items() for name in IN_FLOAT64 if name in names]
)
def test_score_vectors_are_those_of_backward_passes_in_float64(
    size: int, name: str, folder: Path, by_several: dict[int, list[dict[str, Any]]]
) -> None:
    policy, groups, temperature = policy_of_case(folder, name), groups_of(name), objective_of(name).temperature
    policy.model.config._experts_implementation = "eager"
    expected = np.linalg.svd(naive_rows(policy, groups, weight_of(groups), temperature), compute_uv=False)
    assert np.abs(by_several[size][0][name]["singular_values"] - expected).max() <= 1e-6 * expected.max()


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_several_processes_take_the_output_layer_in_slices_or_all_of_them_do_not(
    size: int, by_several: dict[int, list[dict[str, Any]]]
) -> None:
    for found in by_several[size]:
        measured_ones = {name: case["in_slices"] for name, case in found.items() if name not in REFUSED}
        assert measured_ones == {name: name not in WHOLE for name in measured_ones}


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_no_process_makes_a_tensor_of_one_rollouts_tokens_by_vocabulary(
    size: int, by_several: dict[int, list[dict[str, Any]]]
) -> None:
    largest = max(found["many words"]["largest"] for found in by_several[size])
    assert largest < COMPLETION * MANY_WORDS["vocab_size"] / 2


@pytest.mark.slow
def test_an_error_of_one_process_within_the_output_layer_ends_the_others(folder: Path) -> None:
    (code, _, said), (other_code, _, other_said) = finish(start_processes(2, "-c", _FAILING, str(folder)))
    assert (code, other_code) == (1, 1)
    assert "LaunchError: Another process of this command ended" in said
    assert other_said.endswith("RuntimeError: No room for slices.\n")


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
    width, inner = config.hidden_size, config.intermediate_size
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    num_tokens = sum(len(rollout.prompt_ids) + len(rollout.completion_ids) for rollout in rollouts)
    num_predicted = sum(len(rollout.completion_ids) for rollout in rollouts)
    cut = [(width, width)] * 4 + [(width, inner)] * 3  # q, k, v, o; gate, up, down
    a_token = config.num_hidden_layers * sum(short * (size - 1) + long * (size - 1) / size for short, long in cut)
    a_prediction = (width + 6) * (size - 1)  # its hidden state, four numbers, and an id of twice the bytes
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
