from __future__ import annotations

import shlex

import pytest

from gradscope.diagnostics.check.step_selectors import split_metric
from gradscope.diagnostics.replay.equivalent_check import equivalent_check
from gradscope.gradients.engine_options import EngineOptions
from gradscope.rollouts.read_options import ReadOptions


@pytest.mark.parametrize("steps", [(1,), (6,), (1, 2, 3), (1, 6, 11, 12, 13), (1, 2, 9)])
def test_the_selector_chooses_the_very_steps(steps: tuple[int, ...]) -> None:
    requirement = shlex.split(equivalent_check("run", steps, ReadOptions(), EngineOptions()))[-1]
    name, selector = split_metric(requirement.removesuffix(" == 0"))
    assert name == "frac_replay_mismatch"
    assert selector is not None
    assert selector.choose(range(1, 21)) == steps


def test_options_of_reading_and_of_the_engine_are_carried() -> None:
    read = ReadOptions(initial_weights="init model", trainer_args="args.json")
    line = equivalent_check("my run", None, read, EngineOptions(device="cpu", batch_tokens=64, engine="loop"))
    assert shlex.split(line)[:3] == ["gradscope", "check", "my run"]
    assert "--initial 'init model' --run-config args.json --device cpu --batch-tokens 64 --require" in line
    assert "--engine" not in line
    assert line.endswith("'frac_replay_mismatch == 0'")
