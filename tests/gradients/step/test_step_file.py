"""A step on disk."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from gradscope.gradients.step.step_file import read_step, write_step
from gradscope.gradients.step.step_norm import measure_norm
from tests.gradients.models import DAPO, measured_step, prepared, tiny_groups, tiny_policy


def test_a_step_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    groups = tiny_groups()
    logged = measured_step(tiny_policy("gpt2_tied_conv1d"), groups, DAPO)
    bare = [replace(g, rollouts=tuple(replace(r, advantage=None) for r in g.rollouts)) for g in groups]
    norm = measure_norm(prepared(tiny_policy("gpt2_tied_conv1d"), groups, DAPO))
    for step in (logged, measured_step(tiny_policy("gpt2_tied_conv1d"), bare, DAPO), replace(norm, other_texts=(1, 2))):
        write_step(tmp_path / "step", step, "key")
        assert read_step(tmp_path / "step", "another key") is None
        found = read_step(tmp_path / "step", "key")
        assert found is not None
        assert type(found) is type(step)
        for field in fields(step):
            one, other = (getattr(each, field.name) for each in (step, found))
            if field.name == "logprobs":
                assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
            else:
                assert type(one) is type(other)
                assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other
    assert read_step(tmp_path / "absent", "key") is None
