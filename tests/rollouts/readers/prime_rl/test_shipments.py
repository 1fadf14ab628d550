"""Batches read from annotations as columns are those that the row reader finds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.prime_rl.annotations import read_annotations, ship_step
from gradscope.rollouts.readers.prime_rl.shipments import Shipments, digest_halves, digests, read_shipments
from tests.rollouts.readers.reduced import every_log_is_large, mutated, write_lines


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    every_log_is_large(monkeypatch, block=300)


def told(name: Any, step: Any, **info: Any) -> dict[str, Any]:
    return {"version": 1, "trace_id": name, "info": {"ship": {"step": step}} | info}


NAMES = ("a", "b", "ü\u0000😀", 'quo"te', "\ud800", "")


def assert_same_batches(files: Sequence[Path]) -> Shipments:
    """Hold what columns tell to the row reader."""
    aside, aside_by_row = QuarantineLog(), QuarantineLog()
    found, by_row = read_shipments(files, aside), read_annotations(files, aside_by_row)
    names = (*by_row.info, "nobody")
    wanted = [ship_step(by_row.info.get(name, {})) for name in names]
    halves = np.array([digest_halves(name) for name in names], dtype=np.float64)
    np.testing.assert_array_equal(
        found.steps_of(digests(*halves.T)), [math.nan if step is None else step for step in wanted], str(names)
    )
    assert (len(found.keys) > 0) == by_row.tell_batches
    assert found.trained_again == by_row.trained_again
    dispatches = {name: info["dispatch"] for name, info in by_row.info.items() if "dispatch" in info}
    assert str({name: info["dispatch"] for name, info in found.dispatches.items()}) == str(dispatches)
    assert aside.result() == aside_by_row.result()
    return found


@pytest.mark.slow
def test_damaged_annotations_tell_what_the_row_reader_finds(tmp_path: Path) -> None:
    rows = [told(name, step) for name in NAMES for step in (1, 2, None)]
    rows += [told("a", 3, dispatch={"step": 1}), {"version": 1, "trace_id": "b", "info": {"advantage": 1.0}}]
    for seed in range(50):
        lines = [mutated(rows, 2 * seed + at, within=("info", "ship")) for at in range(1 + seed % 2)]
        files = [write_lines(tmp_path / f"{seed}-{at}.jsonl", found) for at, found in enumerate(lines)]
        assert_same_batches(files)


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_is_found_whatever_its_name(tmp_path: Path, name: str) -> None:
    file = write_lines(tmp_path / "0.jsonl", [json.dumps(told(name, 4)), json.dumps(told("other", 5))])
    assert assert_same_batches([file]).steps.size == 2


@pytest.mark.parametrize(
    ("steps", "again"),
    [((1, 1, 2), set()), ((1, 2, 1), {1}), ((1, 2, 2, 1, 2), {1, 2}), ((0, 3, 0), {0}), ((), set())],
)
def test_a_step_is_trained_again_where_another_was_between(
    tmp_path: Path, steps: Sequence[int], again: set[int]
) -> None:
    for names in ("abcde", "aaaaa"):
        file = write_lines(tmp_path / "0.jsonl", [json.dumps(told(*row)) for row in zip(names, steps, strict=False)])
        assert assert_same_batches([file]).trained_again == again
