"""Spectra of rollouts and their averages, against the rows that they stand for."""

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.advantages.registry import LOGGED, compute_advantages
from gradscope.diagnostics.rank.rollout_spectra import _token_weights, step_spectra, token_spectra
from gradscope.diagnostics.rank.rows import StepRows, formulated
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.gradients.tokens.measure import TokenGram
from gradscope.gradients.tokens.rows import TokenRow, TokenTable
from gradscope.metrics.gram.geometry import CHANNELS
from gradscope.metrics.gram.spectrum import NULLS, effective_rank
from gradscope.metrics.uncertainty.intervals import jackknife
from tests.metrics.gram.test_geometry import channels_of_rows

REWARDS = [0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0]
GROUPS = ["a"] * 6 + ["b"] * 6


def given_prompts(advantage: str, rewards: list[float], groups: list[str], size: int | None = None) -> Estimate:
    rows, _ = make_rows(rewards, groups, advantages=[1.0, -1.0] * (len(rewards) // 2))
    _, (point,) = step_spectra(rows, advantage, size, by_group=False)
    return point.given_prompts


@pytest.mark.parametrize("advantage", ["dr_grpo", "optimal_baseline", "opo"])
def test_it_is_the_jackknife_of_fresh_rows(advantage: str) -> None:
    rows, scores = make_rows(REWARDS, GROUPS)
    rows = replace(rows, lengths=np.arange(1.0, 13.0))
    spectrum = step_spectra(rows, advantage, None, by_group=False)[1][0].given_prompts

    def rank(index: list[int]) -> float:
        weights = (np.arange(1.0, 13.0) if advantage == "opo" else np.diag(rows.gram))[index]
        fresh = formulated(advantage, rows.rewards[None, index], weights[None])[0][:, None] * scores[index]
        return effective_rank(np.linalg.svd(fresh, compute_uv=False)).value or 0.0

    groups = [list(range(6)), list(range(6, 12))]
    ranks = [rank(index) for index in groups]
    left_out = [
        [(rank([other for other in index if other != row]) + ranks[1 - number]) / 2 for row in index]
        for number, index in enumerate(groups)
    ]
    expected = jackknife(float(np.mean(ranks)), left_out, low=1.0, high=6.0)
    assert spectrum.value == pytest.approx(expected.value)
    assert (spectrum.low, spectrum.high) == pytest.approx((expected.low, expected.high), rel=1e-5)


@pytest.mark.parametrize(("num_live", "rank"), [(0, None), (1, 1.0)])
def test_groups_whose_gradients_cancel_span_nothing(num_live: int, rank: float | None) -> None:
    rows, scores = make_rows(REWARDS, GROUPS, advantages=[0.1, 0.2, -0.3] * 4)
    scores[6 * num_live :] = scores[-1]  # the same completion, whose advantages add up to rounding
    rows = replace(rows, gram=scores @ scores.T, policy_gram=None)
    (spectrum,), _ = step_spectra(rows, LOGGED, None, by_group=True)
    assert spectrum.ranks.effective_rank.value == (rank if rank is None else pytest.approx(rank))


def test_a_lone_success_that_carries_the_only_live_group_leaves_no_interval() -> None:
    lone = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    single = given_prompts("dr_grpo", lone, ["a"] * 6)
    assert single.undefined == "it hangs on a single unit, without which it does not exist"
    assert given_prompts("dr_grpo", [*lone, *REWARDS[:6]], GROUPS).low is not None


@pytest.mark.parametrize(
    ("advantage", "size", "reason"),
    [
        ("logged", None, "the logged advantages are relative to all rollouts of a group; name their formulation"),
        ("batch_mean", None, "batch_mean is relative to more than a group"),
        ("pass_at_2", 2, "pass_at_2 needs groups of at least 2, and leaving one out leaves 1"),
        ("dr_grpo", 2, "leaving one of 2 out leaves too little"),
    ],
)
def test_what_has_no_such_interval_says_why(advantage: str, size: int | None, reason: str) -> None:
    assert reason in str(given_prompts(advantage, REWARDS, GROUPS, size).undefined)


def test_the_curve_counts_dead_groups_apart() -> None:
    rows, _ = make_rows([0, 1, 1, 1, 0, 0, 1, 0], ["a", "a", "b", "b", "c", "c", "d", "d"])
    (point,) = step_spectra(rows, "dr_grpo", None, by_group=False)[1]
    assert (point.num_groups, point.num_dead) == (4, 2)
    uneven = make_rows([0, 1, 0, 1, 1], ["a", "a", "b", "b", "b"])[0]
    assert [point.group_size for point in step_spectra(uneven, "dr_grpo", None, by_group=False)[1]] == [2, 3]
    assert step_spectra(uneven, "dr_grpo", 4, by_group=False) == ([], [])
    with pytest.raises(InputError, match="group a at step 3 has no reward"):
        step_spectra(make_rows([0, float("nan")], ["a", "a"])[0], "dr_grpo", None, by_group=False)
    assert point.effective_rank.value == pytest.approx(1.8, abs=0.25)  # two nearly orthogonal rows
    assert point.effective_rank.num_units == 2


@pytest.mark.parametrize("centered", [False, True])
def test_the_energy_of_the_sum_is_that_of_the_rows_themselves(centered: bool) -> None:
    rewards, groups = [0, 1, 1, 1, 0, 0, 1, 0, 0, 1, 1, 0], [name for name in "abc" for _ in range(4)]
    rows, scores = make_rows(rewards, groups)
    (point,) = step_spectra(rows, "sign", None, by_group=False, centered=centered)[1]
    gradients = ((2 * rows.rewards - 1)[:, None] * scores).reshape(3, 4, -1)
    expected = [np.sum(part.sum(axis=0) ** 2) / np.sum(part**2) for part in gradients]
    assert point.summed_energy.value == pytest.approx(np.mean(expected))
    assert 0.0 <= point.summed_energy.low < point.summed_energy.value < point.summed_energy.high <= 4.0
    (dead,) = step_spectra(make_rows([1, 1], ["a", "a"])[0], "dr_grpo", None, by_group=False)[1]
    assert "has a gradient by its advantages" in str(dead.summed_energy.undefined)


@pytest.mark.parametrize("advantage", ["reinforce", "positive_only"])
def test_one_score_vector_among_many_has_a_rank_and_no_shuffle(advantage: str) -> None:
    """As where all completions but one were cut off and are masked."""
    size = 64
    rows, scores = make_rows([1.0] + [0.0] * (size - 1), ["a"] * size)
    scores[1:] = 0.0
    ((spectrum, *_), (point,)) = step_spectra(replace(rows, gram=scores @ scores.T), advantage, None, by_group=False)
    assert spectrum.ranks.effective_rank.value == pytest.approx(1.0)
    assert point.effective_rank.value == pytest.approx(1.0)
    assert point.nulls["unweighted"].effective_rank.value == pytest.approx(1.0)
    assert "without a score vector" in str(point.nulls["shuffled"].effective_rank.undefined)


@pytest.mark.parametrize("centered", [False, True])
def test_channels_are_means_over_the_groups_that_have_them(centered: bool) -> None:
    rewards, groups = [0, 1, 1, 1, 0, 0, 1, 0, 0, 1, 1, 0, 1, 0], list("aaaabbbbccccdd")
    rows, scores = make_rows(rewards, groups)
    scores = scores + 1.0
    rows = replace(rows, gram=scores @ scores.T)
    point = step_spectra(rows, "sign", None, by_group=False, centered=centered)[1][-1]
    gradients = ((2 * rows.rewards - 1)[:, None] * scores)[:12].reshape(3, 4, -1)
    expected = np.mean([channels_of_rows(part) for part in gradients], axis=0)
    assert [getattr(point, name).value for name in CHANNELS] == pytest.approx(expected.tolist())
    assert 0.0 <= point.shared_kept.low < point.shared_kept.value < point.shared_kept.high <= 4.0
    (dead,) = step_spectra(make_rows([1, 1], ["a", "a"])[0], "dr_grpo", None, by_group=False)[1]
    assert all("has a gradient by its advantages" in str(getattr(dead, name).undefined) for name in CHANNELS)


def test_a_channel_that_no_group_has_says_so() -> None:
    rows, _ = make_rows([0, 1, 1, 0], ["a", "a", "b", "b"])
    (point,) = step_spectra(replace(rows, gram=np.ones((4, 4))), "sign", None, by_group=False)[1]
    assert point.shared_energy.value == pytest.approx(1.0)
    assert point.shared_kept.value == pytest.approx(0.0, abs=1e-9)
    assert point.residual_kept.undefined == "the rows of every group lie on the directions that they share"
    assert point.shared_sum.undefined == "the gradients of every group cancel altogether"
    (orthogonal,) = step_spectra(replace(rows, gram=np.eye(4)), "sign", None, by_group=False)[1]
    assert orthogonal.shared_kept.undefined == "the rows of no group share a direction"
    assert orthogonal.residual_kept.value == pytest.approx(1.0)


NUM_PARAMETERS = 40


def make_rows(
    rewards: list[float], group_ids: list[str], *, seed: int = 0, advantages: list[float] | None = None
) -> tuple[StepRows, np.ndarray]:
    scores = np.random.default_rng(seed).normal(size=(len(rewards), NUM_PARAMETERS))
    logged = None if advantages is None else np.array(advantages)
    policy = None if logged is None else np.outer(logged, logged) * (scores @ scores.T)
    seen: dict[str, int] = {}
    samples = [seen.update({name: seen.get(name, -1) + 1}) or seen[name] for name in group_ids]
    rows = StepRows(
        step=3,
        gram=scores @ scores.T,
        policy_gram=policy,
        full_gram=policy,
        rewards=np.array(rewards),
        advantages=logged,
        group_ids=tuple(group_ids),
        samples=tuple(samples),
        num_parameters=NUM_PARAMETERS,
        relative_row_error=1e-7,
    )
    return rows, scores


@pytest.mark.parametrize("advantage", ["grpo", "rloo", "sign"])
@pytest.mark.parametrize("size", [2, None])
def test_spectra_equal_those_of_fresh_rows(advantage: str, size: int | None) -> None:
    rewards = [0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    rows, scores = make_rows(rewards, ["a"] * 8)
    spectra, _ = step_spectra(rows, advantage, size, by_group=False)
    for spectrum in spectra[1:]:
        index = list(spectrum.label.samples)
        fresh = compute_advantages(advantage, rows.rewards[index])[:, None] * scores[index]
        expected = np.linalg.svd(fresh, compute_uv=False)
        np.testing.assert_allclose(spectrum.singular_values, expected, rtol=1e-6, atol=1e-6 * expected[0] + 1e-12)
        assert spectrum.label.shape == (len(index), NUM_PARAMETERS)


def test_a_step_holds_all_rows_and_group_rows_are_sums_over_rollouts() -> None:
    rows, scores = make_rows([0, 1, 1, 0], ["a", "a", "b", "b"])
    spectrum, *_ = step_spectra(rows, "reinforce", None, by_group=False)[0]
    expected = np.linalg.svd(rows.rewards[:, None] * scores, compute_uv=False)
    assert spectrum.label.group_id is None
    np.testing.assert_allclose(spectrum.singular_values, expected, atol=1e-6 * expected[0])
    (spectrum,), curve = step_spectra(rows, "dr_grpo", None, by_group=True)
    gradient = np.array([-0.5, 0.5, 0.5, -0.5])[:, None] * scores
    sums = np.stack([gradient[:2].sum(0), gradient[2:].sum(0)])
    np.testing.assert_allclose(spectrum.singular_values, np.linalg.svd(sums, compute_uv=False), rtol=1e-7)
    assert (spectrum.label.rows, spectrum.label.shape, curve) == ("group", (2, NUM_PARAMETERS), [])


def test_logged_rows_keep_what_the_optimizer_saw_and_centering_removes_the_mean() -> None:
    rows, scores = make_rows([0, 1], ["a", "a"], advantages=[-3.0, 0.25])
    _, part = step_spectra(rows, LOGGED, None, by_group=False)[0]
    expected = np.linalg.svd(np.array([-3.0, 0.25])[:, None] * scores, compute_uv=False)
    np.testing.assert_allclose(part.singular_values, expected, rtol=1e-7)
    rows, scores = make_rows([1, 1, 1, 1], ["a"] * 4)
    _, part = step_spectra(rows, "reinforce", None, by_group=False, centered=True)[0]
    expected = np.linalg.svd(scores - scores.mean(0), compute_uv=False)
    np.testing.assert_allclose(part.singular_values[:3], expected[:3], rtol=1e-6)
    assert part.label.centered
    assert part.ranks.numerical_rank.value == 3
    assert 0 <= (part.ranks.frac_energy_below_floor.value or 0.0) < 1e-14


def tokens_of(group_id: str, rollouts: list[int], *, num_tokens: int | None = None, logged: bool = True) -> TokenGram:
    """Orthogonal rows of norm 1, of which every fourth part of the trainer's weight is 0.25."""
    count = len(rollouts)
    table = TokenTable(
        group_id=group_id,
        rows=tuple(TokenRow(sequence=rollout, position=index) for index, rollout in enumerate(rollouts)),
        score_weights=np.full(count, 0.25),
        logged_weights=-0.25 * np.where(np.array(rollouts) % 2, -1.0, 1.0) if logged else None,
        num_tokens=num_tokens or count,
    )
    return TokenGram(table=table, gram=np.eye(count), num_columns=50, slow_parameters=())


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
    _, points = token_spectra(rows_of([1, 1, 1, 1], ["a", "a", "b", "b"]), TOKENS, "dr_grpo", None, seed=0)
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
