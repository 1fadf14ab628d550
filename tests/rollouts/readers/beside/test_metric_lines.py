from __future__ import annotations

import json
from pathlib import Path

from gradscope.rollouts.readers.beside.metric_lines import metric_lines


def test_lines_of_one_step_are_joined_under_common_names(tmp_path: Path) -> None:
    lines = [{"step": 1, "x/norm": 0.5}, {"step": 1, "note": "text", "loss": 2}, {"step": None, "loss": 9}]
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + "{cut")
    assert metric_lines([file], {"x/norm": "grad_norm"}) == {1: {"grad_norm": 0.5, "loss": 2.0}}
