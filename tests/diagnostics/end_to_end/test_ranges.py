"""No number that a command prints has an interval beyond what the number can be, however odd the rollouts are."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope.catalog.lookup import CATALOG, range_of
from gradscope.diagnostics.compare.measure import compare_runs
from gradscope.results.envelope import to_jsonable
from tests.diagnostics.compared_runs import write_run

DIFFERENCES_OF_SHARES = {"difference", "jensen_gap", "between_prompts", "over_time", "between_policies"}


def estimates(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every estimate of a document that has an interval, with the names that lead to it."""
    if isinstance(node, Mapping) and "num_units" in node and "undefined" in node:
        if node["low"] is not None:
            yield path, dict(node)
    elif isinstance(node, Mapping):
        for name, inner in node.items():
            yield from estimates(inner, (*path, name))
    elif isinstance(node, list | tuple):
        for inner in node:
            yield from estimates(inner, path)


def range_at(path: tuple[str, ...]) -> tuple[float, float] | None:
    """The range of the number at a path: of a catalogue entry, or of a difference of two shares."""
    names = [".".join(path[-2:]), path[-1]]
    defined = [name for name in names if name in CATALOG or name.startswith("pass@")]
    if defined:
        return range_of(defined[0])
    return (-1.0, 1.0) if path[-1] in DIFFERENCES_OF_SHARES else None


def assert_within_ranges(result: object) -> int:
    checked = 0
    for path, estimate in estimates(to_jsonable(result)):
        ends = range_at(path)
        if ends is not None:
            assert ends[0] <= estimate["low"] <= estimate["value"] <= estimate["high"] <= ends[1], (path, estimate)
            checked += 1
    return checked


@pytest.mark.parametrize("seed", range(6))
def test_compared_runs_stay_within_ranges(tmp_path: Path, seed: int) -> None:
    """Five runs near pass@4 = 0.93 read 0.930 [0.83, 1.03] once."""
    rng = np.random.default_rng(seed)
    for index in range(6):
        write_run(
            tmp_path / str(index),
            seed=index % 3,
            advantage="grpo" if index < 3 else "rloo",
            rewards=rng.choice([0.0, 0.9, 1.0], 4).tolist(),
            degenerate=int(rng.integers(3, 5)),
            correct=rng.choice([0, 1, 4], 2).tolist(),
            incoherent=(9, int(rng.integers(0, 9))),
            tokens=int(10 ** rng.uniform(1, 6)),
        )
    comparison = compare_runs(tmp_path)
    assert assert_within_ranges(comparison.cells) >= 4
    for pair in comparison.pairs:
        if pair.difference.interval is not None:
            low, high = range_of(pair.metric)
            assert low - high <= pair.difference.low <= pair.difference.high <= high - low
