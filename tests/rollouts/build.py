"""Made-up rollouts for tests of what is on disk."""

import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gradscope.rollouts.groups import Rollout, RolloutGroup


def group(
    step: int = 1, name: str = "a", rewards: tuple[float | None, ...] = (1.0, 0.0), **fields: Any
) -> RolloutGroup:
    rollouts = tuple(
        Rollout(
            group_id=f"{step}:{name}",
            sample=sample,
            row=sample,
            prompt=f"{name}?",
            completion=f"{name}{sample}",
            reward=reward,
            **fields,
        )
        for sample, reward in enumerate(rewards)
    )
    return RolloutGroup(step=step, group_id=f"{step}:{name}", prompt_id=name, rollouts=rollouts)


def three_groups() -> tuple[RolloutGroup, ...]:
    """Of two steps, with what a table tells of rollouts: policies, times, tokens, rewards by function."""
    first = group(1, "a", (1.0, None))
    second = group(1, "b", (0.5,), policy="base", seconds=2.0, completion_ids=(7, 8, 9), mask=(True,) * 3)
    third = replace(group(2, "a", (0.0, 1.0)), prompt_id="b")
    rollouts = tuple(replace(rollout, rewards={"format": 0.25, "score": None}) for rollout in third.rollouts)
    return first, second, replace(third, rollouts=rollouts)


def safetensors(path: Path, num_bytes: int = 4) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [num_bytes // 4], "data_offsets": [0, num_bytes]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(num_bytes))


def model_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    safetensors(path / "model.safetensors")
    return path


def adapter_folder(path: Path, base: str | None = "some/base") -> Path:
    path.mkdir(parents=True)
    (path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    safetensors(path / "adapter_model.safetensors")
    return path
