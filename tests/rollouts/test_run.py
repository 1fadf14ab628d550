import math
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.results.source import Source
from gradscope.rollouts.groups import GroupsOnDisk, RewardTable, RolloutGroup
from gradscope.rollouts.run import UNKNOWN_TRL, Numbers, Run, StepMetrics, TrainerSettings, TrlVersion, WeightsRef
from tests.rollouts.build import group


@pytest.mark.parametrize(("text", "numbers"), [("1.16.0", (1, 16)), ("0.28.0.dev0", (0, 28)), ("1", ()), (None, ())])
def test_a_version_is_read_as_far_as_it_matters(text, numbers):
    assert TrlVersion.parse(text).numbers == numbers


def test_versions_are_compared_by_number_and_an_unknown_one_is_new() -> None:
    assert TrlVersion((1, 9)).is_before(1, 10)
    assert not TrlVersion((1, 10)).is_before(1, 10)
    assert not UNKNOWN_TRL.is_known
    assert not UNKNOWN_TRL.is_before(99)


RUN = Run(
    path=Path("run"),
    source=Source(path="run", format="made-up", recognized="", files=(), num_rows=6),
    groups=(group(3, "a"), group(1, "a"), group(3, "b")),
    weights=tuple(WeightsRef(num_updates=number, path=Path(f"w{number}"), kind="full") for number in (0, 2)),
)


def test_steps_with_rollouts_ascend_and_their_groups_keep_the_order_of_the_log() -> None:
    assert RUN.steps == (1, 3)
    assert [group.group_id for group in RUN.groups_at(3)] == ["3:a", "3:b"]
    assert RUN.groups_at(2) == ()
    steps = [(step, [group.group_id for group in groups]) for step, groups in RUN.by_step()]
    assert steps == [(1, ["1:a"]), (3, ["3:a", "3:b"])]


def test_groups_on_disk_are_read_a_step_at_a_time() -> None:
    read: list[int] = []

    def read_back(step: int) -> tuple[RolloutGroup, ...]:
        read.append(step)
        return RUN.groups_at(step)

    groups = sorted(RUN.groups, key=lambda group: group.step)
    run = replace(RUN, groups=GroupsOnDisk(RewardTable.from_groups(groups), read_back), repeats={4: 3})
    assert list(run.by_step()) == list(RUN.by_step())
    assert [group.step for group in run.groups_at(4)] == [4, 4]
    assert run.groups_at(2) == ()
    assert read == [1, 3]


@pytest.mark.parametrize(("step", "path"), [(1, Path("w0")), (2, None), (3, Path("w2"))])
def test_the_weights_before_a_step_have_one_update_less(step: int, path: Path | None) -> None:
    weights = RUN.weights_before(step)
    assert (None if weights is None else weights.path) == path


@pytest.mark.parametrize(("step", "path"), [(1, Path("w2")), (2, Path("w2")), (3, None)])
def test_the_weights_after_a_step_are_the_first_that_have_had_its_update(step: int, path: Path | None) -> None:
    later = WeightsRef(num_updates=4, path=Path("w4"), kind="full")
    weights = RUN.weights_after(step)
    assert (None if weights is None else weights.path) == path
    grown = replace(RUN, weights=(later, *RUN.weights)).weights_after(step)
    assert grown is not None
    assert grown.path == (path or Path("w4"))


def test_an_argument_that_is_null_is_not_known() -> None:
    settings = TrainerSettings(values={"beta": 0.0, "delta": None}, origin="a file")
    assert (settings.get("beta", 1.0), settings.get("delta", 1.0), settings.get("epsilon")) == (0.0, 1.0, None)


def test_a_run_shows_itself_without_its_rollouts() -> None:
    assert repr(RUN) == "<Run of run: ; 2 steps, 3 groups>"


ROWS = {3: {"b": 1.0}, 1: {"a": 0.5, "b": math.inf}, 2: {}, 7: {"a": 2.0}}


def test_columns_are_a_mapping_of_steps() -> None:
    read = StepMetrics.from_mapping(ROWS)
    assert (read == ROWS, list(read), len(read), 2 in read, 4 in read) == (True, [1, 2, 3, 7], 4, True, False)
    assert dict(read.items()) == ROWS
    assert list(read.values()) == [ROWS[step] for step in (1, 2, 3, 7)]
    assert (read[1], read.get(4)) == ({"a": 0.5, "b": math.inf}, None)
    with pytest.raises(KeyError):
        read[9]
    assert StepMetrics.from_mapping(read) is read


def test_a_course_is_the_steps_that_have_a_number() -> None:
    steps, values = StepMetrics.from_mapping(ROWS).series("a")
    assert (steps.tolist(), values.tolist()) == ([1, 7], [0.5, 2.0])
    assert [len(part) for part in StepMetrics.from_mapping(ROWS).series("c")] == [0, 0]


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
    assert (taken_rows[0].rows, taken_rows[0].values.tolist()) == (None, [1.0, 2.0, 5.0])
    assert (taken_rows[1].rows.tolist(), taken_rows[1].values.tolist()) == ([1, 2], [2.0, 5.0])  # type: ignore[union-attr]
