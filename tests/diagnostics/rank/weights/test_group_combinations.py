"""Which sums of a group's gradients are asked for."""

from __future__ import annotations

import numpy as np

from gradscope.diagnostics.rank.rollouts.sub_groups import advantages_of, sub_groups
from gradscope.diagnostics.rank.weights.group_combinations import AdvantagedPart, CombinedGroup, combine_groups
from tests.diagnostics.rank.rollouts.test_step_spectra import make_rows

ROWS, _ = make_rows([0, 1, 0, 0, 1, 1], ["a"] * 4 + ["b"] * 2, advantages=[-0.5, 1.5, -0.5, -0.5, 0, 0])


def combined(*names: str, by_token: bool = False, size: int | None = None) -> tuple[CombinedGroup, ...]:
    asked = []
    for name in names:
        parts = sub_groups(ROWS, size)
        weights = advantages_of(ROWS, parts, name)
        asked += [AdvantagedPart(advantage=name, part=p, weights=w) for p, w in zip(parts, weights, strict=True)]
    return combine_groups(asked, by_token=by_token)


def test_proportional_advantages_are_combined_once() -> None:
    (first, _) = combined("grpo", "dr_grpo", "rloo")
    assert {part.own for part in first.parts} == {first.parts[0].own}
    assert first.combinations.has_null[first.parts[0].own]


def test_nulls_are_the_scores_the_signs_and_dealt_advantages() -> None:
    part, factors = combined("dr_grpo")[0].parts[0], combined("dr_grpo")[0].combinations.factors
    np.testing.assert_allclose(factors[part.nulls["unweighted"][0]], 0.5)
    np.testing.assert_allclose(np.abs(factors[part.nulls["signs"][0]]), 0.5)
    for draw in part.nulls["shuffled"]:
        np.testing.assert_allclose(np.sort(np.abs(factors[draw])), np.sort(np.abs(factors[part.own])))


def test_a_dead_part_has_no_combination() -> None:
    (_, second) = combined("dr_grpo")
    assert [part.own for part in second.parts] == [None]
    assert second.combinations.factors.shape == (0, 2)


def test_a_part_is_zero_at_the_other_rollouts() -> None:
    (first, _) = combined("sign", size=2)
    for part, others in zip(first.parts, ([2, 3], [0, 1]), strict=True):
        assert not first.combinations.factors[part.own][others].any()


def test_advantages_of_tokens_are_a_channel_of_their_own() -> None:
    (first, *_) = combined("dr_grpo", by_token=True)
    assert not first.combinations.by_token
    (first, *_) = combined("logged", by_token=True)
    assert first.combinations.by_token
    own = first.combinations.factors[first.parts[0].own]
    assert not own[:4].any()
    assert own[4:].all()
    assert set(first.parts[0].nulls) == {"unweighted"}
