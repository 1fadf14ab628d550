from __future__ import annotations

import json
from pathlib import Path

from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.prime_rl.batches import TrainedBatches, batches_in
from tests.rollouts.readers.lines import write_lines
from tests.rollouts.readers.prime_rl.test_traces import prime_row


def test_what_no_batch_holds_is_in_no_loss(tmp_path: Path) -> None:
    trace = prime_row()["traces"][0]
    batches = batches_in([write_lines(tmp_path / "step_3/train/effective/traces.jsonl", prime_row())])
    dropped = batches.as_trained({**trace, "id": "another"}, 3).tokens
    assert dropped is not None
    assert (dropped.mask, dropped.token_advantages) == ((False, False), (0.0, 0.0))
    assert batches.as_trained(trace, 3).tokens is not None
    assert batches.elsewhere == set()


def test_a_trace_of_another_steps_batch_spoils_both_steps(tmp_path: Path) -> None:
    row = json.loads(json.dumps(prime_row()))
    write_lines(tmp_path / "rollouts/step_3/train/all/traces.jsonl", row)
    write_lines(tmp_path / "rollouts/step_4/train/effective/traces.jsonl", row)
    run = read_run(tmp_path)
    assert {step: reason.cause for step, reason in run.notes.items()} == {
        3: "rollouts_missing",
        4: "rollouts_missing",
    }


def test_without_batches_a_trace_is_as_it_is() -> None:
    tokens = TrainedBatches().as_trained(prime_row()["traces"][0], 3).tokens
    assert tokens is not None
    assert all(tokens.mask)
