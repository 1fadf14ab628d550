from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.results.source import Source
from gradscope.rollouts.run import Run, TrainerSettings, WeightsRef
from tests.rollouts.build import group

RUN = Run(
    path=Path("run"),
    source=Source(path="run", format="made-up", recognized="", files=(), num_rows=6),
    groups=(group(3, "a"), group(1, "a"), group(3, "b")),
    weights=tuple(WeightsRef(num_updates=number, path=Path(f"w{number}"), kind="full") for number in (0, 2)),
)


def test_steps_are_those_that_have_rollouts_in_order() -> None:
    assert RUN.steps == (1, 3)


def test_groups_of_a_step_keep_the_order_of_the_log() -> None:
    assert [found.group_id for found in RUN.groups_at(3)] == ["3:a", "3:b"]
    assert RUN.groups_at(2) == ()


@pytest.mark.parametrize(("step", "path"), [(1, Path("w0")), (2, None), (3, Path("w2"))])
def test_the_weights_before_a_step_have_one_update_less(step: int, path: Path | None) -> None:
    weights = RUN.weights_before(step)
    assert (None if weights is None else weights.path) == path


def test_an_argument_that_is_null_is_not_known() -> None:
    settings = TrainerSettings(values={"beta": 0.0, "delta": None}, origin="a file")
    assert (settings.get("beta", 1.0), settings.get("delta", 1.0), settings.get("epsilon")) == (0.0, 1.0, None)
