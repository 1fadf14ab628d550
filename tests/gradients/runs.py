"""The two real TRL runs as groups and weights, read straight from their files: no reader in between."""

import json
from pathlib import Path

import pyarrow.parquet as pq

from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.rollouts.run import TrainerSettings, WeightsRef

GROUP_SIZE = {"trl_full": 8, "trl_lora": 4}


def settings_of(folder: Path) -> TrainerSettings:
    return TrainerSettings(values=json.loads((folder / "RUN.json").read_text())["args"])


def logged_grad_norm(folder: Path, step: int) -> float:
    history = json.loads((folder / "run/checkpoint-20/trainer_state.json").read_text())["log_history"]
    return next(entry["grad_norm"] for entry in history if entry["step"] == step and "grad_norm" in entry)


def weights_before(folder: Path, step: int) -> WeightsRef:
    full = folder.name == "trl_full"
    first = folder / ("init_model" if full else "init_adapter")
    return WeightsRef(
        num_updates=step - 1,
        path=first if step == 1 else folder / f"run/checkpoint-{step - 1}",
        kind="full" if full else "adapter",
        base=None if full else str(folder / "base_model"),
    )


def groups_of(folder: Path, step: int, *, exact: bool = True) -> list[RolloutGroup]:
    table = pq.read_table(folder / f"run/completions/completions_{step:05d}.parquet").to_pylist()
    true_ids = _true_ids(folder, step)
    size = GROUP_SIZE[folder.name]
    rollouts = [_rollout(row, number, size, step, true_ids if exact else None) for number, row in enumerate(table)]
    return [
        RolloutGroup(
            step=step,
            group_id=f"{step}:{first // size}",
            prompt_id=f"{step}:{first // size}",
            rollouts=tuple(rollouts[first : first + size]),
        )
        for first in range(0, len(rollouts), size)
    ]


def _true_ids(folder: Path, step: int) -> dict[int, list[int]]:
    side_file = folder / "true_completion_ids.parquet"
    if side_file.is_file():
        rows = pq.read_table(side_file).to_pylist()
        return {row["row"]: row["completion_ids"] for row in rows if row["step"] == step}
    table = pq.read_table(folder / f"run/completions/completions_{step:05d}.parquet", columns=["completion_ids"])
    return dict(enumerate(table.column("completion_ids").to_pylist()))


def _rollout(row: dict, number: int, size: int, step: int, ids: dict[int, list[int]] | None) -> Rollout:
    text = isinstance(row["prompt"], str)
    return Rollout(
        group_id=f"{step}:{number // size}",
        sample=number % size,
        row=number,
        prompt=row["prompt"] if text else "\n".join(message["content"] for message in row["prompt"]),
        completion=row["completion"] if text else row["completion"][0]["content"],
        messages=None if text else tuple(row["prompt"]),
        completion_ids=None if ids is None else tuple(ids[number]),
        reward=row["accuracy_reward"],
        advantage=row["advantage"],
    )
