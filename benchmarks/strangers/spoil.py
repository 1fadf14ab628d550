"""What happens to a run's folder after training: damage, which must be named, and falsehoods, which must be found."""

import json
import shutil
from collections.abc import Callable
from typing import Any

import pandas as pd  # type: ignore[import-untyped]

from benchmarks.strangers.case import Folders
from benchmarks.strangers.models import lora, of


def save_other(folders: Folders) -> None:
    """Weights of the same shape that have nothing to do with the run."""
    of("llama", seed=77)().save_pretrained(folders.other)


def cut(name: str, share: float = 0.5) -> Callable[[Folders], None]:
    """The disk was full: one file of the run is cut off."""

    def spoil(folders: Folders) -> None:
        file = folders.run / name
        content = file.read_bytes()
        file.write_bytes(content[: int(len(content) * share)])

    return spoil


def lose(name: str) -> Callable[[Folders], None]:
    """One file of the run is gone."""

    def spoil(folders: Folders) -> None:
        (folders.run / name).unlink()

    return spoil


def save_adapter(folders: Folders) -> None:
    """An adapter that the run has nothing to do with."""
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    get_peft_model(AutoModelForCausalLM.from_pretrained(folders.base), lora()()).save_pretrained(folders.other)


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


def texts_exchanged(table: Any) -> None:
    """The texts of two rollouts, their ids left where they were."""
    low, high = table["advantage"].idxmin(), table["advantage"].idxmax()
    first, second = table["completion"][low], table["completion"][high]
    table.at[low, "completion"], table.at[high, "completion"] = second, first


def scaled_advantages(table: Any) -> None:
    """Advantages of another size."""
    table["advantage"] = table["advantage"] * 1.5


def rows(change: Callable[[Any], Any]) -> Callable[[Folders], None]:
    """Other rows at step 1."""

    def spoil(folders: Folders) -> None:
        change(pd.read_parquet(folders.completions(1))).to_parquet(folders.completions(1))

    return spoil


def lost_row(table: Any) -> Any:
    """One rollout is not in the log."""
    return table.drop(index=3)


def two_lost_rows(table: Any) -> Any:
    """The first and the last are not."""
    return table.iloc[1:-1]


def doubled_row(table: Any) -> Any:
    """One rollout was logged twice."""
    return table.iloc[[0, 0, *range(1, len(table))]]


def exchanged_rows(table: Any) -> Any:
    """A rollout of the first group stands in the last."""
    order = list(range(len(table)))
    order[0], order[-1] = order[-1], order[0]
    return table.iloc[order].reset_index(drop=True)
