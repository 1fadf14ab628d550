"""Made-up TRL output folders: what the trainer would have written, without training."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def rows(
    prompts: Sequence[Any], rewards: Sequence[float | None], size: int = 2, **columns: Sequence[Any]
) -> list[dict[str, Any]]:
    """Rows of one file, with TRL's group advantages of the rewards."""
    made = []
    numbers = [0.0 if reward is None else reward for reward in rewards]
    for index, (prompt, reward) in enumerate(zip(prompts, rewards, strict=True)):
        group = numbers[index - index % size : index - index % size + size]
        advantage = (numbers[index] - np.mean(group)) / (np.std(group, ddof=1) + 1e-4)
        others = {name: values[index] for name, values in columns.items()}
        made.append(
            {"prompt": prompt, "completion": f"c{index}", "right": reward, **others, "advantage": float(advantage)}
        )
    return made


def write_file(run: Path, step: int, content: Sequence[Mapping[str, Any]]) -> Path:
    path = run / "completions" / f"completions_{step:05d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = {name: [row[name] for row in content] for name in content[0]}
    arrays = {
        name: pa.array(values, pa.float64()) if name == "right" else pa.array(values) for name, values in fields.items()
    }
    pq.write_table(pa.table({"step": pa.array([step] * len(content)), **arrays}), path)
    return path


def write_state(folder: Path, *entries: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    last = max((entry["step"] for entry in entries), default=0)
    path = folder / "trainer_state.json"
    path.write_text(json.dumps({"global_step": last, "log_history": list(entries)}))
    return path


def entry(step: int, **metrics: float) -> dict[str, Any]:
    return {"step": step, "reward": 0.5, "rewards/right/mean": 0.5, "rewards/right/std": 0.5, **metrics}
