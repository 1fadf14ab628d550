from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.prime_rl.annotations import Annotations, read_annotations, ship_step
from tests.rollouts.readers.lines import write_lines

NODES = [
    {"token_ids": [5, 9], "mask": [False, False]},
    {"parent": 0, "token_ids": [7, 11], "mask": [False, True]},
    {"parent": 1, "token_ids": [2], "mask": [True]},
    {"parent": 0, "token_ids": [8, 3], "mask": [True, True]},
]
TRACE = {"id": "t", "info": {"kind": "train"}, "nodes": NODES}


def shipped(step: Any, *branches: dict[str, Any], **cells: Any) -> dict[str, Any]:
    return {"version": 1, "trace_id": "t", "info": {"ship": {"step": step}}, "branches": list(branches), **cells}


def read(tmp_path: Path, *rows: Any) -> tuple[Annotations, dict[str, int]]:
    quarantine = QuarantineLog()
    annotations = read_annotations([write_lines(tmp_path / "00000.jsonl", *rows)], quarantine)
    return annotations, {reason.reason: reason.num_rows for reason in quarantine.result().reasons}


def advantages(annotations: Annotations) -> list[Any]:
    return [node.get("advantages") for node in annotations.folded(TRACE)["nodes"]]


def test_each_node_takes_its_part_of_its_branch_and_the_newest_counts(tmp_path: Path) -> None:
    first = shipped(3, {"index": 0, "advantages": [None, None, None, 0.5, 0.5]})
    newer = shipped(4, {"index": 0, "advantages": [0, 0, 0, 0.25, 0.25]}, {"index": 1, "advantages": [0, 0, 1, 1]})
    annotations, set_aside = read(tmp_path, first, newer)
    assert advantages(annotations) == [None, [0.25], [0.25], [1, 1]]
    assert annotations.folded(TRACE)["info"] == {"kind": "train", "ship": {"step": 4}}
    assert (annotations.tell_batches, set_aside) == (True, {})
    assert "advantages" not in NODES[1]


def test_streams_of_several_producers_join(tmp_path: Path) -> None:
    trainers = {"index": 1, "trainer_logprobs": [None, None, -0.5, -0.25], "entropies": [None, None, 0.5, None]}
    annotations, _ = read(tmp_path, shipped(3, {"index": 1, "advantages": [0, 0, 1, 1]}), shipped(3, trainers))
    last = annotations.folded(TRACE)["nodes"][3]
    assert (last["advantages"], last["trainer_logprobs"], last.get("entropies")) == ([1, 1], [-0.5, -0.25], None)


@pytest.mark.parametrize(
    ("branch", "expected"),
    [
        ({"index": 0, "advantages": [0, 0, 0, 0.5]}, [None, [0.5], None, None]),  # cut off before the last node
        ({"index": 0, "advantages": [0, 0, 0, None, 0.5]}, [None, None, [0.5], None]),
        ({"index": 2, "advantages": [1, 1, 1, 1]}, [None] * 4),
        ({"index": -1, "advantages": [1, 1, 1, 1]}, [None] * 4),
        ({"index": True, "advantages": [1, 1, 1, 1]}, [None] * 4),
        ({"index": 0, "advantages": "high"}, [None] * 4),
        ({"advantages": [1]}, [None] * 4),
        (None, [None] * 4),
    ],
)
def test_a_node_takes_only_what_covers_it(tmp_path: Path, branch: Any, expected: list[Any]) -> None:
    assert advantages(read(tmp_path, shipped(3, branch))[0]) == expected


def test_what_is_no_annotation_is_set_aside(tmp_path: Path) -> None:
    annotations, set_aside = read(tmp_path, shipped(3), shipped(4, version=2), shipped(4, trace_id=None), [])
    assert set_aside == {
        "the annotation is not of version 1 or names no trace": 2,
        "the line is not a JSON object": 1,
    }
    assert ship_step(annotations.info["t"]) == 3
    assert annotations.folded({"id": 7}) == {"id": 7}


@pytest.mark.parametrize("step", ["3", 3.5, None, True])
def test_a_step_that_is_no_whole_number_tells_no_batch(tmp_path: Path, step: Any) -> None:
    assert not read(tmp_path, shipped(step))[0].tell_batches


def test_steps_that_come_again_after_others_were_trained_on_by_a_restart(tmp_path: Path) -> None:
    rows = [shipped(step, trace_id=str(at)) for at, step in enumerate((5, 6, 6, 7, 6, 7, 8))]
    assert read(tmp_path, *rows)[0].trained_again == {6, 7}
