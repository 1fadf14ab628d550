"""Runs that were spoiled on purpose: none of these may be called a match."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pandas as pd  # type: ignore[import-untyped]

from benchmarks.strangers.case import Case, Folders
from benchmarks.strangers.damaged import save_other
from benchmarks.strangers.folders import lora
from benchmarks.strangers.models import of
from benchmarks.strangers.texts import masked_rollouts, with_mask, with_prompts, with_tools


def edit(change: Callable[[Any], None]) -> Callable[[Folders], None]:
    """A change of the table of step 1."""

    def spoil(folders: Folders) -> None:
        table = pd.read_parquet(folders.completions(1))
        change(table)
        table.to_parquet(folders.completions(1))

    return spoil


def other_rewards(table: Any) -> None:
    """Rewards that nobody gave."""
    table["by_ids"] = 1.0 - table["by_ids"]


def other_advantages(table: Any) -> None:
    """One advantage has another sign, one another size."""
    largest = table["advantage"].abs().idxmax()
    table.loc[largest, "advantage"] *= -1.0


def other_token(table: Any) -> None:
    """The first token of every completion is the next one."""
    table["completion_ids"] = [[3 + (int(ids[0]) - 2) % 29, *map(int, ids[1:])] for ids in table["completion_ids"]]


def one_token(table: Any) -> None:
    """A single token of the whole step."""
    largest, rows = table["advantage"].abs().idxmax(), [list(map(int, ids)) for ids in table["completion_ids"]]
    rows[largest][0] = 3 + (rows[largest][0] - 2) % 29
    table["completion_ids"] = rows


def no_eos(table: Any) -> None:
    """The last token of every completion is lost."""
    table["completion_ids"] = [list(map(int, ids))[: max(len(ids) - 1, 1)] for ids in table["completion_ids"]]


def swapped(table: Any) -> None:
    """The ids of the first group's first two completions are exchanged."""
    rows = [list(map(int, ids)) for ids in table["completion_ids"]]
    low, high = table["advantage"].idxmin(), table["advantage"].idxmax()
    rows[low], rows[high] = rows[high], rows[low]
    table["completion_ids"] = rows


def other_prompts(table: Any) -> None:
    """Logged prompts of other words."""
    table["prompt_ids"] = [[3 + (int(one) - 2) % 29 for one in ids] for ids in table["prompt_ids"]]


def other_mask(table: Any) -> None:
    """The mask of the environment's tokens, inverted."""
    table["completion_mask"] = [[1 - int(one) for one in mask] for mask in table["completion_mask"]]


def shift(folders: Folders) -> None:
    """Every checkpoint holds the weights of the one before."""
    for step in (3, 2):
        shutil.copy(folders.checkpoint(step - 1) / "model.safetensors", folders.checkpoint(step) / "model.safetensors")


def other_step(folders: Folders) -> None:
    """The first step's weights are those after the second."""
    for file in ("model.safetensors", "adapter_model.safetensors"):
        if (folders.checkpoint(2) / file).exists():
            shutil.copy(folders.checkpoint(2) / file, folders.checkpoint(1) / file)


def spoiled_cases() -> list[Case]:
    """What must be told from a match."""
    common: dict[str, Any] = {"axis": "spoiled", "expect": "mismatch", "oracle": False}
    first: dict[str, Any] = {**common, "unjudged": (2,)}
    second: dict[str, Any] = {**common, "unjudged": (1,)}
    return [
        Case(name="rewards edited", spoil=edit(other_rewards), **first),
        Case(name="an advantage edited", spoil=edit(other_advantages), **first),
        Case(name="ids altered", spoil=edit(other_token), **first),
        Case(name="one id altered", spoil=edit(one_token), **first),
        Case(name="last ids lost", spoil=edit(no_eos), **first),
        Case(name="ids of two rollouts exchanged", spoil=edit(swapped), **first),
        Case(
            name="checkpoints shifted by one", spoil=shift, **{**common, "args": {"max_steps": 3}, "unjudged": (1, 2)}
        ),
        Case(name="checkpoint of another step", spoil=other_step, **second),
        Case(name="checkpoint of another step, lora", peft=lora(), saved="trainer", spoil=other_step, **second),
        Case(name="learning from other weights", saved="wrong", initial="other", spoil=save_other, **first),
        Case(name="another loss in --run-config", config_change={"loss_type": "grpo"}, **common),
        Case(name="another temperature in --run-config", config_change={"temperature": 0.7}, **common),
        Case(name="beta left out of --run-config", args={"beta": 0.5}, config_change={"beta": 0.0}, **second),
        Case(name="a beta that was not", config_change={"beta": 0.5}, **second),
        Case(
            name="another dr_grpo length",
            args={"loss_type": "dr_grpo"},
            config_change={"max_completion_length": 16},
            **common,
        ),
        Case(name="another scale in --run-config", config_change={"scale_rewards": "none"}, **common),
        Case(
            name="another loss, beta and lora",
            peft=lora(),
            saved="trainer",
            args={"beta": 0.5},
            config_change={"loss_type": "dr_grpo"},
            **common,
        ),
        *_options(common),
        *_in_bf16(first),
    ]


def _options(common: dict[str, Any]) -> list[Case]:
    """Options that --run-config leaves out or has wrong."""
    gpt2 = of("gpt2", num_key_value_heads=None, head_dim=None, intermediate_size=None)
    first: dict[str, Any] = {**common, "unjudged": (2,)}
    return [
        Case(
            name="masked completions left out",
            args={"mask_truncated_completions": True},
            config_change={"mask_truncated_completions": False},
            **common,
        ),
        Case(name="luspo said to be grpo", args={"loss_type": "luspo"}, config_change={"loss_type": "grpo"}, **common),
        Case(name="entropy bonus left out", args={"entropy_coef": 0.3}, config_change={"entropy_coef": 0.0}, **common),
        Case(
            name="entropy quantile left out",
            args={"top_entropy_quantile": 0.5},
            config_change={"top_entropy_quantile": 1.0},
            **common,
        ),
        Case(name="gpt2, ids altered", model=gpt2, spoil=edit(other_token), **first),
        Case(
            name="gpt2, another padding in --run-config", model=gpt2, config_change={"pad_to_multiple_of": 16}, **common
        ),
        Case(
            name="logged prompt_ids altered",
            **with_tools(),
            rewards=(with_prompts,),
            spoil=edit(other_prompts),
            **first,
        ),
        Case(
            name="logged mask altered",
            trainer={"rollout_func": masked_rollouts(logs=True)},
            rewards=(with_mask,),
            spoil=edit(other_mask),
            **first,
        ),
    ]


def _in_bf16(first: dict[str, Any]) -> list[Case]:
    """The spread of bf16 must not cover what is wrong."""
    bf16: dict[str, Any] = {**first, "args": {"bf16": True}}
    return [
        Case(name="bf16, other weights", saved="wrong", initial="other", spoil=save_other, **bf16),
        Case(name="bf16, ids altered", spoil=edit(other_token), **bf16),
        Case(name="bf16, ids of two rollouts exchanged", spoil=edit(swapped), **bf16),
        Case(name="bf16, an advantage edited", spoil=edit(other_advantages), **bf16),
        Case(name="bf16, another loss in --run-config", config_change={"loss_type": "grpo"}, **bf16),
        Case(name="bf16, another temperature in --run-config", config_change={"temperature": 0.9}, **bf16),
        Case(name="bf16, checkpoint of another step", spoil=other_step, **{**bf16, "unjudged": (1,)}),
    ]
