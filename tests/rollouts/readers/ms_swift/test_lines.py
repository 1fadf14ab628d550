from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope.rollouts.readers.ms_swift.lines import Line, finite_numbers, read_lines, row_prompts, without_repeats
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.scalars import digest
from tests.rollouts.readers.lines import write_lines


def of_step(step: int, **columns: list[Any]) -> Line:
    cells = {"step": [step], "prompt": ["q"], "completion": ["a"], "advantages": [0.0], **columns}
    return Line(path=Path("log"), location="log:1", step=step, columns=cells)


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        ([1, 0.5, True, None], [1.0, 0.5, 1.0, math.nan]),
        ([1.0, math.inf, math.nan, -math.inf], [1.0, math.nan, math.nan, math.nan]),
        ([1.0, 10**400], [1.0, math.nan]),
        ([1.0, "2.0", [3.0], {}], [1.0, math.nan, math.nan, math.nan]),
        ([], []),
    ],
)
def test_numbers_of_a_list(cells: list[Any], wanted: list[float]) -> None:
    found = finite_numbers(cells)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, wanted)


def test_prompts_are_told_apart_by_what_they_hold() -> None:
    for cells in (["p", "q", "p"], ["p", None, ["p"], None], ["\ud800", "p"]):
        prompts = row_prompts(cells)
        assert [prompts.ids[at] for at in prompts.of_row] == list(map(digest, cells))
        assert len(set(prompts.ids)) == len(prompts.ids)


def test_the_steps_of_a_line_are_lines_of_their_own(tmp_path: Path) -> None:
    quarantine = QuarantineLog()
    row = {"step": ["2", 1, "2.0"], "prompt": ["p", "q", "r"], "completion": ["a", "b", "c"], "advantages": [0, 1, 2]}
    log = write_lines(tmp_path / "completions.jsonl", {**row, "extra": [1], "note": "x"}, {**row, "step": [True] * 3})
    first, second = read_lines(log, quarantine.of_lines())
    assert (first.step, first.size, first.row(1)["prompt"]) == (2, 2, "r")
    assert (second.step, second.columns["completion"]) == (1, ["b"])
    (reason,) = quarantine.result().reasons
    assert (reason.reason, reason.first) == ("the step is not a whole number", f"{log}:2")


def test_what_stands_behind_the_advantages_tells_no_batch_from_another() -> None:
    lines = [of_step(1), of_step(2, entropy=[0.5]), of_step(3, prompt=["r"]), of_step(4)]
    assert [(line.step, again) for line, again in without_repeats(lines)] == [(1, 1), (3, 0), (4, 0)]
