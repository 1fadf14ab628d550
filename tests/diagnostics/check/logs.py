"""Logs of groups, as files."""

import json
from pathlib import Path


def write_log(path: Path, rewards_of: dict[str, list[int]]) -> Path:
    rows = [
        {"prompt_id": prompt, "step": 1, "reward": reward}
        for prompt, rewards in rewards_of.items()
        for reward in rewards
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
