"""Ranks of token rows: what each advantage makes of one group's tokens."""

from dataclasses import replace

import numpy as np
import pytest

from gradscope.diagnostics.rank.rows import StepRows
from gradscope.diagnostics.rank.tokens.spectra import _token_weights, token_spectra
from gradscope.errors import InputError
from gradscope.gradients.tokens.measure import TokenGram, _TokenVerification
from gradscope.gradients.tokens.rows import TokenRow, TokenTable
from gradscope.metrics.gram.spectrum import NULLS


def tokens_of(group_id: str, rollouts: list[int], *, num_tokens: int | None = None, logged: bool = True) -> TokenGram:
    """Orthogonal rows of norm 1, of which every fourth part of the trainer's weight is 0.25."""
    count = len(rollouts)
    table = TokenTable(
        step=7,
        group_id=group_id,
        rows=tuple(TokenRow(sequence=rollout, position=index) for index, rollout in enumerate(rollouts)),
        score_weights=np.full(count, 0.25),
        logged_weights=-0.25 * np.where(np.array(rollouts) % 2, -1.0, 1.0) if logged else None,
        num_tokens=num_tokens or count,
    )
    return TokenGram(
        table=table,
        gram=np.eye(count),
        num_columns=50,
        slow_parameters=(),
        verification=_TokenVerification(row_error=0.0, num_rows=3, sum_error=None, tolerance=1e-5),
    )


def rows_of(rewards: list[float], group_ids: list[str], *, advantages: bool = True) -> StepRows:
    count = len(rewards)
    gram = np.eye(count)
    return StepRows(
        step=7,
        gram=gram,
        policy_gram=gram if advantages else None,
        full_gram=gram if advantages else None,
        rewards=np.array(rewards),
        advantages=np.array([-1.0 if index % 2 else 1.0 for index in range(count)]) if advantages else None,
        group_ids=tuple(group_ids),
        samples=tuple(range(count)),
        num_parameters=50,
        relative_row_error=1e-5,
    )


ROWS = rows_of([1, 0, 1, 1], ["a", "a", "b", "b"])
TOKENS = [tokens_of("a", [0, 0, 0, 1]), tokens_of("b", [2, 3])]


def test_orthogonal_tokens_of_equal_weight_are_as_many_directions() -> None:
    spectra, (point,) = token_spectra(ROWS, TOKENS, "logged", None, seed=0)
    assert [spectrum.label.shape for spectrum in spectra] == [(4, 50), (2, 50)]
    assert [spectrum.ranks.effective_rank.value for spectrum in spectra] == pytest.approx([4, 2])
    assert [spectrum.label.rows for spectrum in spectra] == ["token", "token"]
    assert point.method == "exact"
    spectra, _ = token_spectra(ROWS, [tokens_of("a", [0, 0, 0, 0])], "logged", None, seed=0, centered=True)
    assert spectra[0].ranks.numerical_rank.value == 3
    assert (point.num_rows.value, point.effective_rank.value, point.frac_seen) == (3.0, pytest.approx(3.0), 1.0)


def test_a_formulation_weighs_the_tokens_of_its_rollouts_and_groups() -> None:
    spectra, (point,) = token_spectra(ROWS, TOKENS, "dr_grpo", None, seed=0)
    np.testing.assert_allclose(spectra[0].singular_values, [0.125] * 4)
    assert spectra[1].ranks.effective_rank.undefined is not None  # equal rewards, so no advantage
    assert (point.num_dead, point.num_groups) == (1, 2)
    rows = rows_of([1, 0, 1, 0], ["a"] * 4)
    spectra, (point,) = token_spectra(rows, [tokens_of("a", [0, 1, 1, 2, 3, 3])], "dr_grpo", 2, seed=0)
    assert [spectrum.label.shape[0] for spectrum in spectra] == [3, 3]
    assert point.group_size == 2
    table, two = tokens_of("a", [0, 1, 2]).table, np.array([0, 1])  # tokens of other rollouts weigh nothing
    np.testing.assert_allclose(_token_weights(table, two, np.array([1.0, -2.0]), "dr_grpo"), [-0.25, 0.5, 0.0])
    np.testing.assert_allclose(_token_weights(table, two, np.array([9.0, 9.0]), "logged"), [-0.25, 0.25, 0.0])


def test_a_sample_and_a_sketch_say_what_they_are() -> None:
    sampled = tokens_of("a", [0, 0, 1, 1], num_tokens=16)
    spectra, points = token_spectra(ROWS, [sampled, TOKENS[1]], "logged", None, seed=3)
    assert (spectra[0].tokens.method, spectra[0].tokens.frac_seen, spectra[0].tokens.seed) == ("sampled", 0.25, 3)
    assert (points[0].method, points[0].frac_seen) == ("sampled", pytest.approx(6 / 18))
    sketched = [replace(gram, num_buckets=100) for gram in TOKENS]
    spectra, (point,) = token_spectra(ROWS, sketched, "logged", None, seed=3)
    assert (spectra[0].tokens.method, spectra[0].tokens.num_buckets, spectra[0].tokens.frac_seen) == ("sketch", 100, 1)
    assert spectra[0].tokens.energy_error == pytest.approx((1.25 / 100) ** 0.5)  # four equal values
    assert spectra[0].noise_floor == pytest.approx((1.25 / 100) ** 0.25 * 0.5)
    assert (point.method, point.energy_error) == ("sketch", pytest.approx((1.5 / 100) ** 0.5))


def test_tokens_without_logged_weights_or_a_live_group_have_no_rank() -> None:
    with pytest.raises(InputError, match="No advantages were logged at step 7"):
        token_spectra(rows_of([1, 0], ["a", "a"], advantages=False), TOKENS[:1], "logged", None, seed=0)
    rows = rows_of([1, 1, 1, 1], ["a", "a", "b", "b"])
    _, points = token_spectra(rows, TOKENS, "dr_grpo", None, seed=0)
    assert "has a gradient by its advantages" in (points[0].effective_rank.undefined or "")
    (spectrum,), _ = token_spectra(rows_of([1, 1], ["a", "a"]), [tokens_of("a", [0, 1])], "dr_grpo", None, seed=0)
    assert set(spectrum.nulls) == set(NULLS)
    assert all("zero" in str(estimate.undefined) for estimate in spectrum.nulls.values())


def test_every_mean_rank_of_tokens_has_its_nulls() -> None:
    spectra, (point,) = token_spectra(ROWS, TOKENS, "dr_grpo", None, seed=0)
    assert set(spectra[0].nulls) == set(point.nulls) == set(NULLS)
    assert point.nulls["unweighted"].effective_rank.value == pytest.approx(
        4.0
    )  # the one live group: four orthogonal tokens
    rows = rows_of([1, 0, 1, 0], ["a"] * 4)
    _, (halves,) = token_spectra(rows, [tokens_of("a", [0, 1, 1, 2, 3, 3])], "dr_grpo", 2, seed=0)
    assert halves.nulls["unweighted"].effective_rank.value == pytest.approx(3.0)
