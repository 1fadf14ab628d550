import math

import numpy as np
import pytest

from gradscope.rollouts.step_metrics import Numbers, StepMetrics

ROWS = {3: {"b": 1.0}, 1: {"a": 0.5, "b": math.inf}, 2: {}, 7: {"a": 2.0}}


def test_columns_are_a_mapping_of_steps() -> None:
    read = StepMetrics.of(ROWS)
    assert (read == ROWS, list(read), len(read), 2 in read, 4 in read) == (True, [1, 2, 3, 7], 4, True, False)
    assert dict(read.items()) == ROWS
    assert list(read.values()) == [ROWS[step] for step in (1, 2, 3, 7)]
    assert (read[1], read.get(4)) == ({"a": 0.5, "b": math.inf}, None)
    with pytest.raises(KeyError):
        read[9]
    assert StepMetrics.of(read) is read


def test_a_course_is_the_steps_that_have_a_number() -> None:
    steps, values = StepMetrics.of(ROWS).course("a")
    assert (steps.tolist(), values.tolist()) == ([1, 7], [0.5, 2.0])
    assert [len(part) for part in StepMetrics.of(ROWS).course("c")] == [0, 0]


def test_more_steps_than_are_dictionaries_at_once() -> None:
    steps = np.arange(10_000)
    even = Numbers(np.arange(0, 10_000, 2), np.arange(5_000.0))
    metrics = StepMetrics(steps, {"all": Numbers(None, steps * 2.0), "even": even})
    rows = list(metrics.items())
    assert rows[9_998] == (9_998, {"all": 19_996.0, "even": 4_999.0})
    assert rows[9_999] == (9_999, {"all": 19_998.0})
    assert all(metrics[step] == row for step, row in rows[::997])


def test_some_rows_of_a_column() -> None:
    dense, sparse = Numbers(None, np.arange(6.0)), Numbers(np.array([0, 2, 5]), np.array([0.0, 2.0, 5.0]))
    taken_rows = [column.take(np.array([1, 2, 5])) for column in (dense, sparse)]
    assert (taken_rows[0].at, taken_rows[0].values.tolist()) == (None, [1.0, 2.0, 5.0])
    assert (taken_rows[1].at.tolist(), taken_rows[1].values.tolist()) == ([1, 2], [2.0, 5.0])  # type: ignore[union-attr]
