import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.prime_rl.annotations import Annotations, read_annotations
from tests.rollouts.readers.lines import write_lines
from tests.rollouts.readers.reduced import in_small_blocks, mutated
from tests.rollouts.readers.reduced import write_lines as write_damaged

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
    assert set_aside == {"the annotation is not of version 1 or names no trace": 2, "the line is not a JSON object": 1}
    assert annotations.trained_at(["t"], [None]).tolist() == [3.0]
    assert annotations.folded({"id": 7}) == {"id": 7}


@pytest.mark.parametrize("step", ["3", 3.5, None, True])
def test_a_step_that_is_no_whole_number_tells_no_batch(tmp_path: Path, step: Any) -> None:
    assert not read(tmp_path, shipped(step))[0].tell_batches


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_blocks(monkeypatch, block=300)


NAMES = ("a", "b", "ü\u0000😀", 'quo"te', "\ud800", "")


def annotation(name: Any, step: Any, **info: Any) -> dict[str, Any]:
    return {"version": 1, "trace_id": name, "info": {"ship": {"step": step}} | info}


@pytest.mark.slow
def test_damaged_annotations_give_the_same_steps_whether_or_not_all_are_stored(tmp_path: Path) -> None:
    rows = [annotation(name, step) for name in NAMES for step in (1, 2, None)]
    rows += [annotation("a", 3, dispatch={"step": 1}), {"version": 1, "trace_id": "b", "info": {"advantage": 1.0}}]
    for seed in range(50):
        lines = [mutated(rows, 2 * seed + at, within=("info", "ship")) for at in range(1 + seed % 2)]
        files = [write_damaged(tmp_path / f"{seed}-{at}.jsonl", damaged) for at, damaged in enumerate(lines)]
        asides = QuarantineLog(), QuarantineLog()
        full, steps = (read_annotations(files, aside, is_whole=not at) for at, aside in enumerate(asides))
        assert asides[0].result() == asides[1].result()
        assert full.trained_again == steps.trained_again
        wanted = full.trained_at(names := (*NAMES, "nobody"), [None] * len(names))
        np.testing.assert_array_equal(steps.trained_at(names, [None] * len(names)), wanted)
        dispatched = {name: info for name, info in full.info.items() if "dispatch" in info}
        assert {name: repr(steps.info[name].get("dispatch")) for name in dispatched} == {
            name: repr(info["dispatch"]) for name, info in dispatched.items()
        }


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_with_any_name_has_its_step(tmp_path: Path, name: str) -> None:
    write_damaged(tmp_path / "0.jsonl", [json.dumps(annotation(name, 4)), json.dumps(annotation("other", 5))])
    annotations = read_annotations([tmp_path / "0.jsonl"], QuarantineLog(), is_whole=False)
    assert annotations.trained_at((name, "other", "nobody", 7), (None, None, {"step": 6}, {"step": "6"}))[
        :3
    ].tolist() == [*(4.0, 5.0, 6.0)]


@pytest.mark.parametrize(
    ("steps", "again"), [((1, 1, 2), set()), ((1, 2, 1), {1}), ((1, 2, 2, 1, 2), {1, 2}), ((0, 3, 0), {0}), ((), set())]
)
@pytest.mark.parametrize("names", ["abcde", "aaaaa"])
def test_a_step_is_trained_again_where_another_was_between(
    tmp_path: Path, names: str, steps: Sequence[int], again: set[int]
) -> None:
    annotations, _ = read(tmp_path, *(annotation(*row) for row in zip(names, steps, strict=False)))
    assert annotations.trained_again == again
