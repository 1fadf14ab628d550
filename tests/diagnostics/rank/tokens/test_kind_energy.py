"""Energy by kind of token, against the tokens' own rows."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gradscope.diagnostics.rank.tokens.kind_energy import (
    KINDS,
    UNDECIDED,
    UNLIKELY,
    EnergyQuestion,
    by_group,
    kind_energies,
    token_energy,
)
from gradscope.diagnostics.rank.tokens.parts import token_kinds
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.tokens.sums import counted_tokens
from gradscope.metrics.sampler.token_cells import TokenCell
from tests.diagnostics.rank.tokens.made_up_parts import made_up
from tests.diagnostics.rank.tokens.test_parts_question import ROWS, off_policy, prepared_of


def test_each_kind_has_the_energy_of_its_tokens_by_group() -> None:
    made = made_up()
    tokens = made.found.tokens
    energy = np.square(tokens.weights[:, None] * made.rows).sum(axis=1)
    np.testing.assert_allclose(token_energy(tokens, made.grams), energy)
    masks = {
        UNDECIDED: tokens.entropies >= np.quantile(tokens.entropies, 0.8),
        UNLIKELY: np.exp(tokens.logprobs) < 0.25,
    }
    for one in kind_energies(7, tokens, made.grams):
        mask = masks[one.kind] & (tokens.advantages != 0)
        np.testing.assert_allclose(one.energy, by_group(tokens, energy * mask))
        np.testing.assert_allclose(one.tokens, by_group(tokens, np.where(mask, 1.0, 0.0)))
        assert one.all_energy.sum() == pytest.approx(energy.sum())
        assert (one.step, one.all_tokens.tolist()) == (7, [18.0] * 4)


def test_shares_are_those_of_the_tables_where_tokens_were_drawn_too() -> None:
    made = made_up(most=9)
    found = {one.kind: one for one in kind_energies(7, made.found.tokens, made.grams)}
    tables = [one for one in token_kinds(7, made.found, made.grams) if one.sign is None]
    (undecided,) = [one for one in tables if one.entropy == "top_fifth"]
    (unlikely,) = [one for one in tables if one.probability is not None and one.probability[0] == 0.0]
    for kind, table in zip(KINDS, (undecided, unlikely), strict=True):
        share = found[kind].energy.sum() / found[kind].all_energy.sum()
        assert share == pytest.approx(table.energy_share.value)
        assert found[kind].tokens.sum() / found[kind].all_tokens.sum() == pytest.approx(table.frac_tokens.value)


def test_the_question_weighs_the_whole_step_beside_the_rows() -> None:
    prepared = prepared_of(off_policy())
    gram = measure_step(prepared)
    rows, found = EnergyQuestion(rows=ROWS).measure(prepared, gram)
    assert rows == ("rows",)
    assert found is not None
    assert list(found.cells) == [TokenCell()]
    expected = counted_tokens(prepared, gram)
    np.testing.assert_array_equal(found.tokens.entropies, expected.entropies)


@pytest.mark.parametrize("whole", [None, np.zeros((2, 2))])
def test_without_a_gradient_there_are_no_tokens(whole: object) -> None:
    answer = EnergyQuestion(rows=ROWS).measure(None, SimpleNamespace(policy_gram=whole))
    assert answer == (("rows",), None)
