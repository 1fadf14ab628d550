"""Sparsity of token rows and of the entries of weights' gradients, on sizes that are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradscope.diagnostics.rank.sparsity import token_sparsity, weight_sparsity
from gradscope.findings.rank.sparsity import sparsity_findings
from gradscope.gradients.step.directions import WeightSpectrum
from gradscope.metrics.gram.sparsity import row_sparsity
from tests.diagnostics.rank.tokens.test_token_spectra import tokens_of


def tokens_with(weights: list[float], norms: list[float], *, num_tokens: int | None = None):
    """A group whose token rows have these norms before they are weighed."""
    found = tokens_of("a", [0] * len(weights), num_tokens=num_tokens)
    return replace(found, gram=np.diag(np.square(norms)), table=replace(found.table, logged_weights=np.array(weights)))


def test_tokens_of_all_groups_are_measured_on_one_scale() -> None:
    groups = [tokens_with([2.0, 0.0], [3.0, 1.0]), tokens_with([-1.0, 1.0], [0.05, 8.0])]
    (found,) = token_sparsity(7, groups)
    expected = row_sparsity([6.0, 0.0, 0.05, 8.0])
    assert (found.step, found.parts, found.num_parts, found.frac_seen) == (7, "tokens", 4, 1.0)
    assert (found.zero.value, found.small.value) == (0.25, 0.5)
    assert (found.hoyer, found.gini) == (expected["hoyer"], expected["gini"])
    assert "50% of the tokens have a row below 1 % of the largest, 25% exactly zero" in sparsity_findings([found])[0]


def test_drawn_tokens_say_how_many_they_stand_for() -> None:
    (found,) = token_sparsity(7, [tokens_with([1.0, 1.0], [1.0, 1.0], num_tokens=8)])
    assert (found.num_parts, found.frac_seen, found.gini.value) == (8, 0.25, 0.0)


def test_without_advantages_or_tokens_there_is_nothing_to_weigh() -> None:
    assert token_sparsity(7, []) == []
    assert token_sparsity(7, [tokens_of("a", [0, 0], logged=False)]) == []
    (dead,) = token_sparsity(7, [tokens_with([0.0, 0.0], [1.0, 1.0])])
    assert (dead.zero.value, dead.gini.undefined) == (1.0, "every row is zero")
    assert sparsity_findings([dead]) == ()
    assert sparsity_findings([]) == ()


def test_each_weight_has_the_sparsity_of_its_entries() -> None:
    sizes = {"even": [1.0] * 6, "single": [0.0, 0.0, 0.0, 0.0, 0.0, 5.0]}
    spectra = [
        WeightSpectrum(tensor=name, shape=(2, 3), singular_values=np.ones(2), entries=row_sparsity(values))
        for name, values in sizes.items()
    ]
    even, single = weight_sparsity(3, spectra)
    assert (even.parts, even.tensor, even.num_parts, even.gini.value) == ("entries", "even", 6, 0.0)
    assert (single.zero.value, single.hoyer.value) == (pytest.approx(5 / 6), pytest.approx(1.0))
    assert "most even in even (Gini 0.00, 0% below" in sparsity_findings([even, single])[0]
    assert "least in single (0.83, 83%)" in sparsity_findings([even, single])[0]
