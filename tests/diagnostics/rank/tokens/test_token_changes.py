"""What became of a step's tokens between two checkpoints, against transformers' own forward pass."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from gradscope.diagnostics.rank.tokens.token_changes import token_changes
from gradscope.gradients.engine_options import EngineOptions
from gradscope.gradients.tokens.sums import CountedTokens
from gradscope.rollouts.run import Run, WeightsRef
from tests.diagnostics.made_up_runs import run_of
from tests.diagnostics.rank.tokens.made_up_parts import made_up
from tests.gradients.models import tiny_groups, tiny_model

ON_CPU = EngineOptions(device="cpu")
TEMPERATURE = 0.7


def run_on(folder: Path, *updates: int) -> Run:
    """Four groups of three at step 1, and weights that move."""
    weights = []
    for count in updates:
        model = tiny_model("llama_untied_biases")
        torch.manual_seed(count)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.02 * count * torch.randn_like(parameter))
        model.save_pretrained(folder / str(count))
        weights.append(WeightsRef(num_updates=count, path=folder / str(count), kind="full"))
    run = run_of(*tiny_groups(4, 3), settings={"loss_type": "dapo", "temperature": TEMPERATURE})
    return dataclasses.replace(run, weights=tuple(weights))


def tokens_of(run: Run) -> CountedTokens:
    """All tokens, in the order of the log; of each only what the change looks at."""
    places = [(number, one) for number, group in enumerate(run.groups_at(1)) for one in group.rollouts]
    lengths = [len(one.completion_ids) for _, one in places]
    return dataclasses.replace(
        made_up().found.tokens,
        rollouts=np.repeat(np.arange(len(places)), lengths),
        groups=np.repeat([number for number, _ in places], lengths),
        positions=np.concatenate([np.arange(length) for length in lengths]),
        logprobs=-np.ones(sum(lengths)),
        advantages=np.repeat([one.advantage for _, one in places], lengths),
    )


def plain_outputs(run: Run, folder: Path) -> np.ndarray:
    """Log-probabilities and entropies of all completion tokens, [2, N]."""
    model = AutoModelForCausalLM.from_pretrained(folder).double()
    rows = []
    for group in run.groups_at(1):
        for one in group.rollouts:
            ids = torch.tensor([[*one.prompt_ids, *one.completion_ids]])
            logs = torch.log_softmax(model(input_ids=ids).logits[0] / TEMPERATURE, dim=-1)
            places = range(len(one.prompt_ids), ids.shape[1])
            entropies = -(logs.exp() * logs).sum(dim=-1)
            rows.append([[logs[at - 1, ids[0, at]].item(), entropies[at - 1].item()] for at in places])
    return np.concatenate(rows).T


def test_the_change_is_that_of_the_models_own_forward_passes(tmp_path: Path) -> None:
    run = run_on(tmp_path, 0, 2, 5)
    tokens = tokens_of(run)
    found, missing = token_changes(run, {1: tokens}, ON_CPU)
    logprobs, entropies = plain_outputs(run, tmp_path / "2") - plain_outputs(run, tmp_path / "0")
    assert (list(found), found[1].first, found[1].last, missing) == ([1], 0, 2, {})
    assert found[1].logprobs == pytest.approx(logprobs, abs=1e-5)
    assert found[1].entropies == pytest.approx(entropies, abs=1e-5)


def test_without_later_weights_or_with_unreadable_ones_it_says_why(tmp_path: Path) -> None:
    run = run_on(tmp_path, 0, 2)
    first = dataclasses.replace(run, weights=run.weights[:1])
    assert token_changes(first, {1: tokens_of(run)}, ON_CPU) == ({}, {1: "no weights after its update are on disk"})
    (tmp_path / "2" / "model.safetensors").unlink()
    found, missing = token_changes(run, {1: tokens_of(run)}, ON_CPU)
    assert found == {}
    assert missing[1]
