"""From a Gram matrix to ranks, their means, nulls and differences, worked by hand."""

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.rank.rollout_spectra import step_spectra
from gradscope.diagnostics.rank.spectrum import (
    MeanRanks,
    ScoreVectors,
    compare_formulations,
    drawn_counts,
    mean_null_ranks,
    null_values,
    profile,
    spectrum_of,
)
from gradscope.estimate import Estimate
from gradscope.metrics.gram import spectrum as gram_spectrum
from gradscope.results.rank import GradientSpectrum, Ranks, SpectrumLabel
from tests.diagnostics.rank.test_rollout_spectra import NUM_PARAMETERS, make_rows

GRAM = np.diag([9.0, 16.0])  # of two orthogonal rows of norm 3 and 4


def label(*, centered: bool = False) -> SpectrumLabel:
    return SpectrumLabel(step=1, rows="rollout", advantage="rloo", group_size=2, shape=(2, 50), centered=centered)


def test_the_floor_is_the_row_error_times_the_frobenius_norm_or_that_of_float64() -> None:
    spectrum = spectrum_of(GRAM, label(), relative_row_error=0.7)
    assert spectrum.singular_values == (4.0, 3.0)
    assert spectrum.noise_floor == pytest.approx(0.7 * 5.0)
    assert spectrum.ranks.numerical_rank.value == 1
    assert spectrum.ranks.frac_energy_below_floor.value == pytest.approx(9 / 25)
    assert spectrum.label == label()
    exact = spectrum_of(GRAM, label(), relative_row_error=0.0)
    assert exact.noise_floor == pytest.approx((2 * np.finfo(np.float64).eps) ** 0.5 * 4.0)
    assert exact.ranks.numerical_rank.value == 2
    nulls = {"gaussian": Estimate.exact(2.0)}
    computed = spectrum_of(GRAM, label(), relative_row_error=0.0, values=np.array([2.0, 2.0]), nulls=nulls)
    assert (computed.ranks.stable_rank.value, computed.nulls) == (pytest.approx(2.0), nulls)
    # the mean row is subtracted only where the label says so
    same = np.full((2, 2), 4.0)
    assert spectrum_of(same, label(), relative_row_error=0.0).singular_values[0] == pytest.approx(8**0.5)
    centered = spectrum_of(same, label(centered=True), relative_row_error=0.0)
    assert centered.singular_values == (0.0, 0.0)
    assert centered.ranks.effective_rank.undefined == gram_spectrum.ZERO_MATRIX


def test_every_rank_of_two_values_by_hand() -> None:
    ranks = Ranks(**gram_spectrum.rank_estimates(np.array([3.0, 1.0]), 0.5))
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert ranks.effective_rank.value == pytest.approx(np.exp(entropy))
    assert ranks.spectral_entropy_rank.value == pytest.approx(np.exp(-(0.9 * np.log(0.9) + 0.1 * np.log(0.1))))
    assert ranks.stable_rank.value == pytest.approx(10 / 9)
    assert ranks.participation_ratio.value == pytest.approx(100 / 82)
    assert (ranks.numerical_rank.value, ranks.energy_rank_90.value, ranks.energy_rank_99.value) == (2, 1, 2)
    assert ranks.frac_energy_below_floor.value == 0


REWARDS = [0.0, 1.0, 1.0, 0.0] * 6
GROUPS = [f"g{group}" for group in range(6) for _ in range(4)]


DEALT_NULLS = ("unweighted", "shuffled", "signs")


@pytest.mark.parametrize(
    ("scores", "advantage", "centered", "rank", "nulls"),
    [
        (np.ones((24, NUM_PARAMETERS)), "dr_grpo", False, 1.0, DEALT_NULLS),
        (np.eye(2, NUM_PARAMETERS)[np.array(REWARDS, dtype=int)], "dr_grpo", False, 2.0, ("shuffled",)),
        (np.eye(24), "dr_grpo", False, 4.0, DEALT_NULLS),
        (np.eye(24), "sign", True, 3.0, ("unweighted",)),
    ],
    ids=["identical", "two clusters", "orthonormal", "centered"],
)
def test_rows_of_a_plain_rank_keep_it_under_every_null_but_gaussian_rows(
    scores: np.ndarray, advantage: str, centered: bool, rank: float, nulls: tuple[str, ...]
) -> None:
    rows = make_rows(REWARDS, GROUPS)[0]
    rows = replace(rows, gram=scores @ scores.T, num_parameters=scores.shape[1])
    (point,) = step_spectra(rows, advantage, None, by_group=False, centered=centered)[1]
    assert point.effective_rank.value == pytest.approx(rank, abs=1e-6)
    for name in nulls:
        assert point.nulls[name].effective_rank.value == pytest.approx(rank, abs=1e-6)
    if rank < 3:
        assert point.nulls["gaussian"].effective_rank.value > 3.5
    for null in point.nulls.values():
        assert null.difference.value == pytest.approx(point.effective_rank.value - null.effective_rank.value)


def test_nulls_equal_those_of_fresh_rows() -> None:
    rows, scores = make_rows(REWARDS, GROUPS)
    advantages = np.array(REWARDS) - 0.5
    (spectrum, *_), _ = step_spectra(rows, "dr_grpo", None, by_group=False)
    values = np.linalg.svd(np.sign(advantages)[:, None] * scores, compute_uv=False)
    shares = values / values.sum()
    assert spectrum.nulls["signs"].value == pytest.approx(np.exp(-np.sum(shares * np.log(shares))), rel=1e-6)


def test_profiles_add_up_to_one_and_fall_and_differences_have_intervals() -> None:
    (point,) = step_spectra(make_rows(REWARDS, GROUPS)[0], "dr_grpo", None, by_group=False)[1]
    for shares in (point.profile, *(null.profile for null in point.nulls.values())):
        assert sum(shares) == pytest.approx(1.0)
        assert list(shares) == sorted(shares, reverse=True)
    assert point.nulls["gaussian"].difference.low is not None
    (spectrum,), _ = step_spectra(make_rows(REWARDS, GROUPS)[0], "dr_grpo", None, by_group=True)
    assert set(spectrum.nulls) == set(gram_spectrum.NULLS)
    assert spectrum.nulls["gaussian"].value <= 6


def test_dead_groups_and_token_advantages_take_no_part_in_a_null() -> None:
    spectrum = step_spectra(make_rows([0, 1, 1, 1], list("aabb"))[0], "dr_grpo", None, by_group=False)[0][0]
    assert spectrum.nulls["unweighted"].value <= 2
    assert spectrum.nulls["unweighted"].num_units == 1
    (spectrum, *_), (point,) = step_spectra(make_rows([1, 1], ["a", "a"])[0], "dr_grpo", None, by_group=False)
    assert point.nulls == {}
    assert all("zero" in str(null.undefined) for null in spectrum.nulls.values())
    rows, _ = make_rows(REWARDS, GROUPS, advantages=REWARDS)
    (spectrum, *_), (point,) = step_spectra(replace(rows, advantages=None), LOGGED, None, by_group=False)
    for null in (spectrum.nulls["shuffled"], point.nulls["shuffled"].effective_rank, point.nulls["signs"].difference):
        assert "each token has its own advantage" in str(null.undefined)
    assert point.nulls["unweighted"].effective_rank.value is not None


OWNERS = np.array([0, 0, 1, 1, 1, 2])
ADVANTAGES = np.array([1.0, -2.0, 0.0])
SCORE_WEIGHTS = np.array([0.1, 0.1, 0.2, 0.2, 0.2, 0.3])
ROWS_OF_TOKENS = np.random.default_rng(0).normal(size=(6, 30))


def nulls(advantages: np.ndarray | None = ADVANTAGES, *, centered: bool = False):
    """The nulls of six token rows of three rollouts."""
    norms = np.abs(SCORE_WEIGHTS * ADVANTAGES[OWNERS]) * np.linalg.norm(ROWS_OF_TOKENS, axis=1)
    values = null_values(
        ScoreVectors(gram=(ROWS_OF_TOKENS @ ROWS_OF_TOKENS.T)[None]),
        norms[None],
        None if advantages is None else advantages[None],
        np.zeros((1, 3), dtype=np.int64),
        num_columns=30,
        centered=centered,
        spread=np.eye(3)[OWNERS] * SCORE_WEIGHTS[:, None],
    )
    return mean_null_ranks(values)


def rank_of(factors: np.ndarray, *, centered: bool = False) -> float:
    rows = (SCORE_WEIGHTS * factors)[:, None] * ROWS_OF_TOKENS
    rows = rows - rows.mean(axis=0) if centered else rows
    return gram_spectrum.effective_rank(np.linalg.svd(rows, compute_uv=False)).value or 0.0


@pytest.mark.parametrize("centered", [False, True])
def test_nulls_of_tokens_equal_those_of_fresh_rows(centered: bool) -> None:
    drawn = nulls(centered=centered)
    dealt = gram_spectrum.shuffled_within(ADVANTAGES, np.zeros(3, dtype=np.int64), gram_spectrum.num_draws(6))
    shuffled = np.mean([rank_of(draw[OWNERS], centered=centered) for draw in dealt])
    assert drawn["unweighted"].value == pytest.approx(rank_of(np.ones(6), centered=centered), rel=1e-5)
    assert drawn["signs"].value == pytest.approx(rank_of(np.sign(ADVANTAGES)[OWNERS], centered=centered), rel=1e-5)
    assert drawn["shuffled"].value == pytest.approx(shuffled, rel=1e-5)
    assert 1.0 < drawn["gaussian"].value <= 5.0  # five tokens have a weight


def test_a_draw_without_a_rank_takes_no_part_in_the_mean() -> None:
    ranks = mean_null_ranks({}, num_units=4)
    assert set(ranks) == set(gram_spectrum.NULLS)
    assert all(rank.undefined == gram_spectrum.ZERO_MATRIX for rank in ranks.values())
    drawn = np.array([[[1.0, 1.0]], [[0.0, 0.0]]])
    ranks = mean_null_ranks(dict.fromkeys(gram_spectrum.NULLS, drawn) | {"gaussian": np.zeros((1, 1, 2))}, num_units=4)
    assert (ranks["shuffled"].value, ranks["shuffled"].num_units) == (pytest.approx(2.0), 4)
    assert ranks["gaussian"].undefined == gram_spectrum.ZERO_MATRIX
    assert drawn_counts(drawn).tolist() == [[2.0, 2.0, 2.0, 1.0]]
    assert profile(drawn[1]) == ()
    empty = MeanRanks(counts=np.zeros((0, 4)), nulls={}, group_ids=[], max_rank=4, by_group=False)
    assert "no group of this step has a gradient" in str(empty.means()["effective_rank"].undefined)
    assert empty.null_ranks() == {}


def mean_of(values: list[list[float]], groups: list[str], *, by_group: bool = False, nulls: float = 1.0) -> MeanRanks:
    counts = gram_spectrum.rank_counts(np.array(values))
    return MeanRanks(
        counts=counts,
        nulls={"gaussian": counts * nulls},
        group_ids=groups,
        max_rank=np.array(values).shape[1],
        by_group=by_group,
    )


EQUAL, LONE = [1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0]


def test_parts_weigh_alike_or_groups_do_and_shares_end_at_one() -> None:
    parts = [EQUAL, EQUAL, EQUAL, LONE]
    assert mean_of(parts, ["a", "a", "a", "b"]).means()["effective_rank"].value == pytest.approx(3.25)
    assert mean_of(parts, ["a", "a", "a", "b"], by_group=True).means()["effective_rank"].value == pytest.approx(2.5)
    assert mean_of([EQUAL, LONE], ["a", "b"]).means()["two_direction_energy"].value == pytest.approx(0.75)
    pair = mean_of([[2.0, 1.0], [1.0, 1.0]], ["a", "b"]).means()["two_direction_energy"]
    assert (pair.value, pair.interval) == (1.0, None)


def test_a_null_has_a_difference_and_a_ratio() -> None:
    groups = [str(index) for index in range(12)]
    null = mean_of([EQUAL, LONE] * 6, groups, nulls=0.5).null_ranks()["gaussian"]
    assert null.difference.value == pytest.approx(1.25)
    assert null.ratio.value == pytest.approx(2.0)
    assert null.ratio.interval == pytest.approx((2.0, 2.0)) or null.ratio.interval is None


def test_a_matrix_that_every_draw_leaves_empty_is_left_out_of_that_null_alone() -> None:
    counts = drawn_counts(np.array([[EQUAL, [0.0] * 4, LONE]] * 3))
    assert np.isnan(counts).any(axis=1).tolist() == [False, True, False]
    mean = mean_of([EQUAL, LONE, EQUAL], ["a", "b", "c"])
    full = {"gaussian": mean.counts, "unweighted": mean.counts}
    nulls = replace(mean, nulls={**full, "shuffled": counts}).null_ranks()
    assert nulls["shuffled"].effective_rank.value == pytest.approx(2.5)  # of the first and the third
    assert nulls["shuffled"].difference.value == pytest.approx(1.5)
    assert nulls["gaussian"].effective_rank.value == nulls["unweighted"].effective_rank.value == pytest.approx(3.0)
    nowhere = replace(mean, nulls={**full, "shuffled": np.full((3, 4), np.nan)}).null_ranks()["shuffled"]
    for estimate in (nowhere.effective_rank, nowhere.difference, nowhere.ratio, nowhere.two_direction_energy):
        assert "to rollouts without a score vector" in str(estimate.undefined)


def test_another_number_is_averaged_over_the_matrices_that_have_it() -> None:
    mean = mean_of([EQUAL, EQUAL, LONE], ["a", "a", "b"])
    assert mean.mean_up_to(4.0, np.array([1.0, 2.0, np.nan])).value == pytest.approx(1.5)
    assert mean.mean_up_to(4.0, np.array([1.0, np.nan, 3.0])).num_units == 2
    unknown = mean.mean_up_to(4.0, np.full(3, np.nan), "nobody has it")
    assert (unknown.undefined, unknown.num_units) == ("nobody has it", 2)


def spectra(*names: str) -> list[GradientSpectrum]:
    rewards = [0.0, 1.0, 1.0, 0.0] * 4 + [0.0, 1.0, 0.0, 0.0] * 4 + [1.0, 1.0, 1.0, 0.0] * 4
    rows, _ = make_rows(rewards, [f"g{group}" for group in range(12) for _ in range(4)])
    return [spectrum for name in names for spectrum in step_spectra(rows, name, None, by_group=False)[0]]


def test_formulations_are_compared_on_common_live_groups() -> None:
    (pair,) = compare_formulations(spectra("dr_grpo", "positive_only"))
    assert (pair.first, pair.second, pair.group_size, pair.step) == ("dr_grpo", "positive_only", 4, 3)
    assert pair.difference.high < 0
    assert compare_formulations(spectra("dr_grpo", "rloo")) == ()  # which differ by a factor
    assert compare_formulations([]) == ()
    rows, _ = make_rows([1.0] * 4 + [0.0] * 4, ["a"] * 4 + ["b"] * 4)
    one_sided = [
        s for name in ("positive_only", "negative_only") for s in step_spectra(rows, name, None, by_group=False)[0]
    ]
    (pair,) = compare_formulations(one_sided)
    assert pair.difference.undefined == "no group is live under both"


def test_a_difference_of_ranks_of_four_rows_is_at_most_three() -> None:
    """Five groups, four with one rank under both and a fifth with all there is: Student's interval would end beyond."""

    def ranked(advantage: str, ranks: list[float]) -> list[GradientSpectrum]:
        (first, *_) = [spectrum for spectrum in spectra("dr_grpo") if spectrum.label.group_id is not None]
        return [
            replace(
                first,
                label=replace(first.label, advantage=advantage, group_id=f"g{index}"),
                ranks=replace(first.ranks, effective_rank=Estimate.exact(rank)),
            )
            for index, rank in enumerate(ranks)
        ]

    (pair,) = compare_formulations(ranked("dr_grpo", [1.0] * 5) + ranked("sign", [4.0, 4.0, 4.0, 4.0, 1.0]))
    assert pair.difference.value == 2.4
    assert pair.difference.high == 3.0
