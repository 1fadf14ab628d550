"""What happens to a run's folder after training: damage, which must be named, and falsehoods, which must be found."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import pandas as pd  # type: ignore[import-untyped]

from benchmarks.strangers.case import Folders
from benchmarks.strangers.models import adapter_config, build


def save_other(folders: Folders) -> None:
    """Weights of the same shape that have nothing to do with the run."""
    build("llama", seed=77).save_pretrained(folders.other)


def cut(name: str, folders: Folders) -> None:
    """The disk was full: half of one file of the run is there."""
    file = folders.run / name
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def lose(name: str, folders: Folders) -> None:
    """One file of the run is gone."""
    (folders.run / name).unlink()


def save_adapter(folders: Folders) -> None:
    """An adapter that the run has nothing to do with."""
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    get_peft_model(AutoModelForCausalLM.from_pretrained(folders.base), adapter_config()).save_pretrained(folders.other)


def in_shards(folders: Folders) -> None:
    """The checkpoint's file is several, as those of large models are."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folders.checkpoint(1))
    (folders.checkpoint(1) / "model.safetensors").unlink()
    model.save_pretrained(folders.checkpoint(1), max_shard_size="20KB")


def drop_first(folders: Folders) -> None:
    """The first checkpoint was deleted."""
    shutil.rmtree(folders.checkpoint(1))


def without_log(folders: Folders) -> None:
    """The norm went to a dashboard alone."""
    for file in folders.run.rglob("trainer_state.json"):
        state = json.loads(file.read_text())
        state["log_history"] = []
        file.write_text(json.dumps(state))


def shift(folders: Folders) -> None:
    """Every checkpoint holds the weights of the one before."""
    for step in (3, 2):
        shutil.copy(folders.checkpoint(step - 1) / "model.safetensors", folders.checkpoint(step) / "model.safetensors")


def other_step(folders: Folders) -> None:
    """The first step's weights are those after the second."""
    for file in ("model.safetensors", "adapter_model.safetensors"):
        if (folders.checkpoint(2) / file).exists():
            shutil.copy(folders.checkpoint(2) / file, folders.checkpoint(1) / file)


def edit(name: str, folders: Folders) -> None:
    """One of the falsehoods, in the table of step 1."""
    TABLES[name](pd.read_parquet(folders.completions(1))).to_parquet(folders.completions(1))


def _other(ids: Iterable[int]) -> list[int]:
    """Each the next word's."""
    return [3 + (int(token) - 2) % 29 for token in ids]


def _ids(table: Any) -> list[list[int]]:
    return [list(map(int, ids)) for ids in table["completion_ids"]]


def _other_advantage(table: Any) -> Any:
    table.loc[table["advantage"].abs().idxmax(), "advantage"] *= -1.0
    return table


def _one_token(table: Any) -> Any:
    rows, largest = _ids(table), table["advantage"].abs().idxmax()
    rows[largest][:1] = _other(rows[largest][:1])
    return table.assign(completion_ids=rows)


def _exchanged(column: str, table: Any) -> Any:
    """Of the rollouts with the least and the largest advantage."""
    values, low, high = list(table[column]), table["advantage"].idxmin(), table["advantage"].idxmax()
    values[low], values[high] = values[high], values[low]
    return table.assign(**{column: values})


TABLES: Mapping[str, Callable[[Any], Any]] = {
    "other_rewards": lambda table: table.assign(by_ids=1.0 - table["by_ids"]),
    "other_advantages": _other_advantage,  # the largest has another sign
    "scaled_advantages": lambda table: table.assign(advantage=table["advantage"] * 1.5),
    # the first token of every completion is the next one; a single token of the whole step; the last of each is lost
    "other_token": lambda table: table.assign(completion_ids=[_other(ids[:1]) + ids[1:] for ids in _ids(table)]),
    "one_token": _one_token,
    "no_eos": lambda table: table.assign(completion_ids=[ids[:-1] or ids for ids in _ids(table)]),
    "swapped": partial(_exchanged, "completion_ids"),
    "texts_exchanged": partial(_exchanged, "completion"),  # their ids stay
    "other_prompts": lambda table: table.assign(prompt_ids=list(map(_other, table["prompt_ids"]))),
    # of the environment's tokens
    "other_mask": lambda table: table.assign(
        completion_mask=[[1 - int(i) for i in m] for m in table["completion_mask"]]
    ),
    "lost_row": lambda table: table.drop(index=3),
    "two_lost_rows": lambda table: table.iloc[1:-1],
    "doubled_row": lambda table: table.iloc[[0, 0, *range(1, len(table))]],
    # a rollout of the first group stands in the last
    "exchanged_rows": lambda table: table.iloc[[-1, *range(1, len(table) - 1), 0]].reset_index(drop=True),
}
"""Falsehoods of a step's table."""
