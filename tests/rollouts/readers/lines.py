"""Write small logs for tests of readers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradscope.rollouts.run import Run

IDS = {"prompt_ids": [5, 9], "completion_ids": [7, 11, 2], "completion_mask": [1, 0, 1], "logprobs": [-0.5, 0, -1.5]}
"""The exact tokens of a completion, as TRL names them."""


def write_lines(path: Path, *rows: Any) -> Path:
    """Write JSON lines, one a row or text as it is, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def rewards_of(run: Run) -> dict[str, tuple[float | None, ...]]:
    """Group id -> rewards."""
    return {group.group_id: group.rewards for group in run.groups}


def set_aside(run: Run) -> Mapping[str, int]:
    """Reason -> rows that were set aside."""
    return {reason.reason: reason.num_rows for reason in run.source.quarantined.reasons}


def steps_logged(step: int) -> list[dict[str, Any]]:
    """Two groups of two, whose ids are those of every other step."""
    return [
        {"group_id": g, "prompt": f"{step} {g}", "sample": n, "reward": float(n * g)} for g in (0, 1) for n in (0, 1)
    ]
