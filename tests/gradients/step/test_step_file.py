"""A step on disk."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from gradscope.gradients.step.step_file import read_step, write_step
from tests.gradients.models import DAPO, measured_step, tiny_groups, tiny_policy


def test_a_step_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    groups = tiny_groups()
    logged = measured_step(tiny_policy("gpt2_tied_conv1d"), groups, DAPO)
    bare = [replace(g, rollouts=tuple(replace(r, advantage=None) for r in g.rollouts)) for g in groups]
    for gram in (logged, measured_step(tiny_policy("gpt2_tied_conv1d"), bare, DAPO)):
        write_step(tmp_path / "step", gram, "key")
        assert read_step(tmp_path / "step", "another key") is None
        found = read_step(tmp_path / "step", "key")
        assert found is not None
        for field in fields(gram):
            one, other = (getattr(each, field.name) for each in (gram, found))
            if field.name == "logprobs":
                assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
            else:
                assert type(one) is type(other)
                assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other
    assert read_step(tmp_path / "absent", "key") is None
