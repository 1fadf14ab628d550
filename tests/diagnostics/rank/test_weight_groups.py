"""Which sums of a group's gradients are asked for, and their ranks."""

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.diagnostics.rank import weight_groups
from gradscope.diagnostics.rank.options import RankOptions
from gradscope.diagnostics.rank.rows import RankRequest, advantages_of, sub_groups
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.directions import Combinations, GroupWeightRanks
from gradscope.gradients.step.measure import measure_step
from gradscope.rollouts.groups import RolloutGroup
from tests.diagnostics.made_up_runs import with_fields
from tests.diagnostics.rank.test_rollout_spectra import make_rows
from tests.gradients.models import DAPO, tiny_groups, tiny_policy

ROWS, _ = make_rows([0, 1, 0, 0, 1, 1], ["a"] * 4 + ["b"] * 2, advantages=[-0.5, 1.5, -0.5, -0.5, 0, 0])


def combined(*names: str, by_token: bool = False, size: int | None = None) -> tuple[weight_groups.CombinedGroup, ...]:
    advantaged = []
    for name in names:
        parts = sub_groups(ROWS, size)
        weights = advantages_of(ROWS, parts, name)
        advantaged += [
            weight_groups.AdvantagedPart(advantage=name, part=p, weights=w) for p, w in zip(parts, weights, strict=True)
        ]
    return weight_groups._combine_groups(advantaged, by_token=by_token)


def test_proportional_advantages_are_combined_once() -> None:
    (first, _) = combined("grpo", "dr_grpo", "rloo")
    assert {part.matrix for part in first.parts} == {first.parts[0].matrix}
    assert first.combinations.has_null[first.parts[0].matrix]
    (halves, _) = combined("sign", size=2)
    for part, rest in zip(halves.parts, ([2, 3], [0, 1]), strict=True):  # zero at the other rollouts
        assert not halves.combinations.factors[part.matrix][rest].any()
    (_, dead) = combined("dr_grpo")
    assert [part.matrix for part in dead.parts] == [None]
    assert dead.combinations.factors.shape == (0, 2)
    # nulls are the scores the signs and dealt advantages
    part, factors = combined("dr_grpo")[0].parts[0], combined("dr_grpo")[0].combinations.factors
    np.testing.assert_allclose(factors[part.nulls["unweighted"][0]], 0.5)
    np.testing.assert_allclose(np.abs(factors[part.nulls["signs"][0]]), 0.5)
    for draw in part.nulls["shuffled"]:
        np.testing.assert_allclose(np.sort(np.abs(factors[draw])), np.sort(np.abs(factors[part.matrix])))


def test_advantages_of_tokens_are_a_channel_of_their_own() -> None:
    (first, *_) = combined("dr_grpo", by_token=True)
    assert not first.combinations.by_token
    (first, *_) = combined("logged", by_token=True)
    assert first.combinations.by_token
    factors = first.combinations.factors[first.parts[0].matrix]
    assert not factors[:4].any()
    assert factors[4:].all()
    assert set(first.parts[0].nulls) == {"unweighted"}


def answer_of(groups: list[RolloutGroup], *advantages: str, limit: int | None = None) -> weight_groups.WeightAnswer:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), groups, DAPO)
    gram = measure_step(prepared)
    request = RankRequest(rows="weight", advantages=advantages, group_sizes=(2,))
    return weight_groups.weight_rows(prepared, gram, request=request, max_weights=limit)


@pytest.mark.slow
def test_drawn_weights_have_the_numbers_that_they_have_among_all() -> None:
    full, drawn = (answer_of(tiny_groups(), "dr_grpo", limit=limit) for limit in (None, 3))
    names = {rank.tensor for rank in drawn.ranks}
    assert len(names) in (3, 4)
    assert "lm_head.weight" in names
    assert {spectrum.tensor for spectrum in drawn.spectra} == names
    assert drawn.num_weights == full.num_weights > 4
    of_all = {(first.group_id, first.tensor): first for first in full.ranks}
    for first in drawn.ranks:
        np.testing.assert_array_equal(first.counts, of_all[first.group_id, first.tensor].counts)


@pytest.mark.slow
def test_the_step_as_the_optimizer_saw_it_and_every_group() -> None:
    groups = tiny_groups()
    answer = answer_of(groups, "logged", "sign")
    prepared = prepare_step(tiny_policy("llama_untied_biases"), groups, DAPO)
    matrices = {name for name, p in prepared.policy.model.named_parameters() if p.ndim == 2}
    assert {spectrum.tensor for spectrum in answer.spectra} == matrices
    energy = sum(float(np.sum(spectrum.singular_values**2)) for spectrum in answer.spectra)
    assert 0 < energy <= measure_step(prepared).policy_gram.sum() * (1 + 1e-5)
    assert {rank.tensor for rank in answer.ranks} == matrices
    assert len(answer.groups) == len(groups)


def test_what_these_rollouts_do_not_have_is_refused_with_its_reason() -> None:
    unusual = with_fields(tiny_groups(1, 3)[0], reward=0.3, advantage=None)
    answer = answer_of([unusual], "logged", "sign", "reinforce")
    assert set(answer.refused) == {"logged", "sign"}
    assert answer.spectra == ()
    assert {part.advantage for group in answer.groups for part in group.parts} == {"reinforce"}


@pytest.mark.slow
@pytest.mark.parametrize("paired", [False, True])
def test_paired_groups_are_those_that_live_at_every_size(paired: bool) -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(2, 4), DAPO)
    options = RankOptions(pair_groups=paired)
    request = RankRequest(rows="weight", advantages=("dr_grpo",), group_sizes=(2,), options=options)
    gram = measure_step(prepared)
    gram = replace(gram, rewards=np.array([0, 1, 0, 1, 0, 0, 1, 1.0]))
    assert len(weight_groups.weight_rows(prepared, gram, request=request).groups) == (1 if paired else 2)


def group_of(group_id: str, *parts: weight_groups.CombinedPart) -> weight_groups.CombinedGroup:
    empty = Combinations(
        group_id=group_id, rollouts=(0,), by_token=False, factors=np.eye(2), has_null=np.array([True, True])
    )
    return weight_groups.CombinedGroup(
        combinations=empty, parts=tuple(replace(member, group_id=group_id) for member in parts)
    )


def part(matrix: int | None, size: int = 4) -> weight_groups.CombinedPart:
    nulls = {} if matrix is None else {"unweighted": (0,), "shuffled": (0, 1), "signs": (1,)}
    return weight_groups.CombinedPart(group_id="", advantage="dr_grpo", group_size=size, matrix=matrix, nulls=nulls)


def ranks_of(group_id: str, tensor: str, *ranks: float) -> GroupWeightRanks:
    counts = np.array([[rank, rank, rank, 1.0] for rank in ranks])
    return GroupWeightRanks(group_id=group_id, tensor=tensor, shape=(8, 6), counts=counts, gaussian=counts * 2)


def test_weights_are_averaged_within_a_group_and_groups_after_that() -> None:
    groups = [group_of("a", part(0)), group_of("b", part(1)), group_of("c", part(None))]
    ranks = [
        ranks_of("a", "q", 2.0, 9.0),
        ranks_of("a", "k", 4.0, 9.0),
        ranks_of("b", "q", 9.0, 1.0),
        ranks_of("b", "k", 9.0, 2.0),
    ]
    over_all, query, key = weight_groups.weight_curve(7, groups, ranks)
    assert [point.tensor for point in (over_all, query, key)] == [None, "q", "k"]
    assert over_all.effective_rank.value == pytest.approx((3.0 + 1.5) / 2)
    assert (query.effective_rank.value, key.effective_rank.value) == (pytest.approx(1.5), pytest.approx(3.0))
    assert (over_all.num_groups, over_all.num_dead, query.shape) == (3, 1, (8, 6))
    assert query.nulls["gaussian"].ratio.value == pytest.approx(0.5)
    assert query.nulls["shuffled"].effective_rank.value == pytest.approx(min((5.5 + 5.0) / 2, 6.0))


def test_parts_weigh_alike_or_groups_do() -> None:
    groups = [group_of("a", part(0), part(0)), group_of("b", part(1))]
    ranks = [ranks_of("a", "q", 2.0, 2.0), ranks_of("b", "q", 5.0, 5.0)]
    assert weight_groups.weight_curve(7, groups, ranks)[1].effective_rank.value == pytest.approx(3.0)
    assert weight_groups.weight_curve(7, groups, ranks, by_group=True)[1].effective_rank.value == pytest.approx(3.5)
    ranks = [ranks_of("a", "q", np.nan, np.nan), ranks_of("a", "k", 4.0, 4.0)]
    over_all, query, _ = weight_groups.weight_curve(7, [group_of("a", part(0))], ranks)  # a weight without a gradient
    assert over_all.effective_rank.value == pytest.approx(4.0)
    assert query.effective_rank.undefined
    (point,) = weight_groups.weight_curve(7, [group_of("a", part(None))], [])
    assert point.effective_rank.undefined
    assert (point.num_groups, point.num_dead) == (1, 1)
