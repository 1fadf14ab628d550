"""Write small logs for tests of readers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradscope.rollouts.run import Run


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
