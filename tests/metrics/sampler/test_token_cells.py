"""Twelve kinds of tokens, each token in one of them."""

from __future__ import annotations

import numpy as np

from gradscope.metrics.sampler.token_cells import TokenCell, token_cells


def test_every_token_with_an_advantage_is_in_one_cell() -> None:
    rng = np.random.default_rng(0)
    advantages, entropies = rng.choice([-1.0, 0.0, 2.0], 200), rng.exponential(size=200)
    probabilities = rng.choice([0.1, 0.25, 0.5, 0.75, 1.0], 200)
    cells = token_cells(advantages, np.log(probabilities), entropies)
    assert len(cells) == 12
    np.testing.assert_array_equal(np.sum(list(cells.values()), axis=0), (advantages != 0).astype(int))
    top = np.argsort(entropies)[-40:]
    for cell, mask in cells.items():
        assert np.all(advantages[mask] > 0 if cell.sign == "positive" else advantages[mask] < 0)
        bounds = ((0.0, 0.25), (0.25, 0.75), (0.75, 1.1))[cell.probability]
        chosen = np.round(probabilities[mask], 6)
        assert np.all((chosen >= bounds[0]) & (chosen < bounds[1]))
        assert np.isin(np.flatnonzero(mask), top).all() == (cell.entropy == "top_fifth")


def test_equal_entropies_stay_together() -> None:
    cells = token_cells(np.ones(10), np.zeros(10), np.zeros(10))
    assert list(cells) == [TokenCell(sign="positive", probability=2, entropy="top_fifth")]


def test_a_kind_holds_the_cells_that_have_what_it_names() -> None:
    cell = TokenCell(sign="negative", probability=1, entropy="rest")
    assert TokenCell().holds(cell)
    assert TokenCell(probability=1).holds(cell)
    assert not TokenCell(probability=1, entropy="top_fifth").holds(cell)
