"""A loop over slime's dumps, as DuckDB reads no pickles: ``python -m benchmarks.scale.torch_loop FOLDER``."""

import json
import sys
from pathlib import Path

import torch

groups: dict[tuple[int, int], list[float]] = {}
for file in Path(sys.argv[1]).glob("rollout_data/*.pt"):
    document = torch.load(file, weights_only=True)
    for sample in document["samples"]:
        groups.setdefault((document["rollout_id"], sample["group_index"]), []).append(float(sample["reward"]))
num_dead = sum(max(rewards) - min(rewards) <= 1e-8 for rewards in groups.values())
print(json.dumps([len(groups), num_dead, sum(map(len, groups.values()))]))
