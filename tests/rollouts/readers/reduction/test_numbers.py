import math
from typing import Any

import numpy as np
import pytest
from msgspec import UNSET

from gradscope.rollouts.arrays import index_names
from gradscope.rollouts.readers.parsing.cells import finite_or_none, whole_number
from gradscope.rollouts.readers.reduction import numbers
from tests.rollouts.readers.reduced import STRANGE


@pytest.mark.parametrize("cells", [[1, 2.5, True, None], [10**400, 1.0], list(STRANGE), [UNSET, 1], []])
def test_numbers_steps_and_ids_are_those_of_the_row_reader(cells: list[Any]) -> None:
    expected = [finite_or_none(None if cell is UNSET else cell) for cell in cells]
    np.testing.assert_array_equal(
        numbers.numbers_of(cells), [math.nan if value is None else value for value in expected]
    )
    steps = [whole_number(cell) for cell in cells]
    assert numbers.step_numbers(cells).tolist() == [-1 if step is None else step for step in steps]
    assert index_names(numbers.step_numbers(cells)) == ["" if step is None else str(step) for step in steps]


def test_steps_that_no_float_tells_apart_are_none() -> None:
    assert numbers.step_numbers([1, 1 << 53, (1 << 53) + 1, 1 << 70, -1]).tolist() == [1, 1 << 53, -1, -1, -1]


def test_objects_of_rewards_become_columns() -> None:
    rewards = numbers.rewards_of([{"a": 1, "note": "x"}, None, {"b": True, "a": "x"}, {"a": None}, [1]])
    assert list(rewards) == ["reward/a", "reward/b"]
    np.testing.assert_array_equal(rewards["reward/a"], [1.0, math.nan, math.nan, math.nan, math.nan])
    np.testing.assert_array_equal(rewards["reward/b"], [math.nan, math.nan, 1.0, math.nan, math.nan])
