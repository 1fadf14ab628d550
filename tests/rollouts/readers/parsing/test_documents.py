import json
import math
from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing.documents import undecoded_rows
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.tables import read_json_rows
from tests.rollouts.readers.lines import set_aside


@pytest.mark.parametrize(
    ("document", "rows"),
    [
        (b'[{"a": 1}, 2]', [b'{"a": 1}', b"2"]),
        (b'{"a": 1}\n', [b'{"a": 1}']),
        (b'{"rollouts": [{"a": 1}], "lr": 0.1}', [b'{"a": 1}']),
        (b'{"step": 3, "data": [{"a": 1}, {"step": 4}]}', [b'{"step":3,"a": 1}', b'{"step":3,"step": 4}']),
        (b'{"iteration": "step_3", "rows": [{"a": 1}]}', [b'{"iteration":"step_3","a": 1}']),
        (b'{"step": null, "global_step": [3], "rows": [{"a": 1}]}', [b'{"a": 1}']),
        (b'{"data": [], "rows": [1]}', [b'{"data": [], "rows": [1]}']),
        (b'{"data": {"a": 1}}', [b'{"data": {"a": 1}}']),
    ],
)
def test_rows_of_a_document_are_those_of_its_one_list(document: bytes, rows: list[bytes], tmp_path: Path) -> None:
    undecoded = [bytes(row) for row in undecoded_rows(document)]
    assert undecoded == rows
    (tmp_path / "log.json").write_bytes(document)
    decoded = [row for _, row in read_json_rows(tmp_path / "log.json", QuarantineLog())]
    assert decoded == [row for row in map(json.loads, undecoded) if isinstance(row, dict)]


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("layout", ["list", "rollouts", "steps", "samples", "prompts"])
def test_a_number_that_is_not_finite_costs_its_rollout_and_no_more_of_a_document(
    layout: str, indent: int | None, number: float, tmp_path: Path
) -> None:
    samples = [{"completion": "a", "reward": number, "kl": number}, {"completion": "b", "reward": 0.5}]
    rows = [{"prompt": "What is 1 + 1?", **sample} for sample in samples]
    rows += [{"prompt": "And 2 + 2?", **samples[1]} for _ in range(2)]
    documents: dict[str, Any] = {
        "list": [{"step": 3, **row} for row in rows],
        "rollouts": {"step": 3, "loss": number, "rollouts": rows},
        "steps": {"lr": number, "steps": [{"step": 3, "loss": number, "rollouts": rows}]},
        "samples": [{"question": "What is 1 + 1?", "samples": samples}, {"question": "?", "samples": [samples[1]] * 2}],
        "prompts": {"mean": number, "results": {"What is 1 + 1?": samples, "And 2 + 2?": [samples[1]] * 2}},
    }
    (tmp_path / "log.json").write_text(json.dumps(documents[layout], indent=indent))
    for rewards_only in (True, False):
        run = read_run(tmp_path / "log.json", rewards_only=rewards_only)
        assert [group.rewards for group in run.groups] == [(None, 0.5), (0.5, 0.5)]
        assert set_aside(run) == {"the reward is not finite": 1}


@pytest.mark.parametrize("layout", ["history", "by step", "columns"])
def test_a_metric_that_is_not_finite_is_so_at_its_step_alone(layout: str, tmp_path: Path) -> None:
    losses = [0.1 * step if step != 3 else math.nan for step in range(20)]
    rows = [{"step": step, "loss": loss, "reward": 0.5} for step, loss in enumerate(losses)]
    documents: dict[str, Any] = {
        "history": {"best_metric": math.nan, "log_history": rows},
        "by step": {str(row["step"]): row for row in rows},
        "columns": {name: [row[name] for row in rows] for name in rows[0]},
    }
    (tmp_path / "trainer_state.json").write_text(json.dumps(documents[layout], indent=1))
    metrics = read_run(tmp_path / "trainer_state.json", metrics_alone=True).metrics
    assert [step for step, of_step in metrics.items() if not math.isfinite(of_step["loss"])] == [3]
    assert len(metrics) == 20
