"""A step's Gram matrix on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from gradscope.diagnostics.rank.rollouts.gram_file import write_gram
from tests.diagnostics.rank.rollouts.test_step_spectra import make_rows


def test_everything_that_is_known_is_written(tmp_path: Path) -> None:
    rows, scores = make_rows([0.0, 1.0, 1.0], ["b", "a", "b"], advantages=[-1.0, 2.0, 0.5])
    assert write_gram(tmp_path / "out", rows) == "gram_step_00003.safetensors"
    arrays = load_file(tmp_path / "out" / "gram_step_00003.safetensors")
    np.testing.assert_allclose(arrays["score_gram"], scores @ scores.T)
    np.testing.assert_array_equal(arrays["gradient_gram"], rows.full_gram)
    assert arrays["rewards"].tolist() == [0.0, 1.0, 1.0]
    assert arrays["advantages"].tolist() == [-1.0, 2.0, 0.5]
    assert arrays["group_index"].tolist() == [1, 0, 1]  # groups by name


def test_what_was_not_logged_is_left_out(tmp_path: Path) -> None:
    rows, _ = make_rows([0.0, 1.0], ["a", "a"])
    name = write_gram(tmp_path, replace(rows, step=12))
    assert set(load_file(tmp_path / name)) == {"score_gram", "rewards", "group_index"}
