"""The few lines that anybody would write: ``python -m benchmarks.scale.loops NAME FOLDER``."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

Rollouts = Iterator[tuple[int, object, float]]


def main() -> None:
    """Print groups, dead groups and rollouts."""
    name, folder = sys.argv[1:]
    groups: dict[tuple[int, object], list[float]] = {}
    for step, group, reward in {"loop": from_lines, "torch loop": from_archives}[name](Path(folder)):
        groups.setdefault((step, group), []).append(reward)
    num_dead = sum(max(rewards) - min(rewards) <= 1e-8 for rewards in groups.values())
    print(json.dumps([len(groups), num_dead, sum(map(len, groups.values()))]))


def from_lines(folder: Path) -> Rollouts:
    """Of a generic log."""
    for file in folder.glob("*.jsonl"):
        with file.open(encoding="utf-8") as stream:
            for line in stream:
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                yield row["step"], row["group_id"], float(row["reward"])


def from_archives(folder: Path) -> Rollouts:
    """Of slime's dumps, by torch's own reader for plain data."""
    import torch

    for file in folder.glob("rollout_data/*.pt"):
        document = torch.load(file, weights_only=True)
        for sample in document["samples"]:
            yield document["rollout_id"], sample["group_index"], float(sample["reward"])


if __name__ == "__main__":
    main()
