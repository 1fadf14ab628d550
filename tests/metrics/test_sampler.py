import math

import numpy as np
import pytest

from gradscope.metrics.sampler import (
    NAMES,
    TokenCell,
    first_step,
    joined_sums,
    lag_estimates,
    mismatch_estimates,
    sequence_sums,
    token_cells,
    token_mean,
)
from gradscope.metrics.uncertainty.intervals import Resampling


def test_an_advantage_that_is_not_known_leaves_clipping_unknown() -> None:
    assert np.isnan(sequence_sums([0.5, 0.5], [2], [1.0, math.nan]).num_clipped).all()
    sums = sequence_sums([0.5, 0.5], [2])
    assert np.isnan(sums.num_clipped).all()
    reason = "the log does not have the advantage of every token"
    assert mismatch_estimates(sums, ["a"])["frac_clipped"].undefined == reason


def test_parts_join_in_order_and_none_join_to_none() -> None:
    first, second = sequence_sums([0.1, 0.2], [2]), sequence_sums([0.3], [1])
    assert joined_sums([first, second]).num_tokens.tolist() == [2.0, 1.0]
    assert joined_sums([]).num_tokens.shape == (0,)


@pytest.mark.parametrize(("ratios", "lengths"), [([0.1], [2]), ([0.1], [1, 0]), ([math.nan], [1]), ([math.inf], [1])])
def test_what_is_no_table_of_tokens_is_refused(ratios: list[float], lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="need as many finite log-ratios"):
        sequence_sums(ratios, lengths)


FEW = Resampling(num_resamples=200)


def by_hand(sequences: list[list[float]], advantages: list[list[float]]) -> dict[str, float]:
    tokens = [d for sequence in sequences for d in sequence]
    signs = [a for sequence in advantages for a in sequence]
    weights = [math.exp(d) for d in tokens]
    wholes = [math.exp(sum(sequence)) for sequence in sequences]
    number = len(tokens)
    return {
        "token_ess": sum(weights) ** 2 / (number * sum(w * w for w in weights)),
        "sequence_ess": sum(wholes) ** 2 / (len(wholes) * sum(w * w for w in wholes)),
        "logprob_gap": sum(abs(d) for d in tokens) / number,
        "kl_k1": -sum(tokens) / number,
        "kl_k3": sum(w - 1 - math.log(w) for w in weights) / number,
        "chi2_token": sum(w * w for w in weights) / number - 1,
        "chi2_sequence": sum(w * w for w in wholes) / len(wholes) - 1,
        "frac_beyond_2": sum(1 for w in weights if w < 0.5 or w > 2) / number,
        "frac_beyond_clip": sum(1 for w in weights if w < 0.8 or w > 1.2) / number,
        "frac_clipped": sum(
            1 for w, a in zip(weights, signs, strict=True) if (w > 1.2 and a > 0) or (w < 0.8 and a < 0)
        )
        / number,
    }


@pytest.mark.parametrize(("seed", "scale"), [(0, 1e-4), (1, 0.1), (2, 1.0), (3, 1.0)])
def test_every_number_is_that_of_plain_arithmetic(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    sequences = [rng.normal(0, scale, rng.integers(1, 9)).tolist() for _ in range(40)]
    advantages = [rng.choice([-1.0, 0.0, 1.0], len(sequence)).tolist() for sequence in sequences]
    sums = sequence_sums(np.concatenate(sequences), [len(s) for s in sequences], np.concatenate(advantages))
    prompts = [f"p{index // 2}" for index in range(40)]
    estimates = mismatch_estimates(sums, prompts, resampling=FEW)
    expected = pytest.approx(by_hand(sequences, advantages), rel=1e-9, abs=1e-12)
    assert {name: estimates[name].value for name in NAMES} == expected
    for name in NAMES:
        low, high = estimates[name].ends
        assert low <= estimates[name].value <= high
        assert estimates[name].num_units == 20
    reseeded = mismatch_estimates(sums, prompts, resampling=Resampling(num_resamples=200, seed=1))
    assert reseeded["kl_k1"].ends != estimates["kl_k1"].ends


def test_policies_that_agree_have_no_mismatch_and_no_interval() -> None:
    estimates = mismatch_estimates(sequence_sums(np.zeros(20), [2] * 10, np.ones(20)), range(10), resampling=FEW)
    wanted = dict.fromkeys(NAMES, 0.0) | {"token_ess": 1.0, "sequence_ess": 1.0}
    assert {name: estimates[name].value for name in NAMES} == wanted
    assert all(estimate.interval is None for estimate in estimates.values())


def test_one_sequence_has_numbers_without_intervals() -> None:
    estimates = mismatch_estimates(sequence_sums([0.1, -0.3], [2]), ["p"], resampling=FEW)
    assert estimates["sequence_ess"].value == 1.0
    assert estimates["kl_k1"].value == pytest.approx(0.1)
    assert all(estimate.interval is None for estimate in estimates.values())


def test_ratios_beyond_floating_point_keep_what_does_not_need_them() -> None:
    sums = sequence_sums([800.0, -800.0, 0.0] * 6, [1] * 18)
    estimates = mismatch_estimates(sums, [index // 3 for index in range(18)], resampling=FEW)
    assert estimates["token_ess"].value == pytest.approx(1 / 3)
    assert estimates["logprob_gap"].value == pytest.approx(1600 / 3)
    assert estimates["frac_beyond_2"].value == pytest.approx(2 / 3)
    for name in ("kl_k3", "chi2_token", "chi2_sequence"):
        assert estimates[name].undefined == "a ratio in the log is beyond floating-point numbers"


def test_a_long_sequence_loses_only_the_divergence_of_sequences() -> None:
    estimates = mismatch_estimates(sequence_sums([1.0] * 500 + [-1.0], [500, 1]), ["a", "b"], resampling=FEW)
    assert estimates["chi2_sequence"].undefined == "a ratio in the log is beyond floating-point numbers"
    assert estimates["chi2_token"].value == pytest.approx((500 * math.exp(2) + math.exp(-2)) / 501 - 1)
    assert estimates["sequence_ess"].value == pytest.approx(0.5)


def test_one_prompt_that_is_all_the_weight_breaks_no_interval() -> None:
    estimates = mismatch_estimates(sequence_sums([0.0] * 11 + [60.0], [1] * 12), range(12), resampling=FEW)
    low, high = estimates["sequence_ess"].ends
    assert 0.0 <= low <= estimates["sequence_ess"].value <= high <= 1.0
    assert estimates["sequence_ess"].value == pytest.approx(1 / 12)


def test_prompts_are_the_unit_that_is_resampled() -> None:
    """Sequences of a prompt that are copies of each other say no more than one of them."""
    rng = np.random.default_rng(3)
    ratios = rng.normal(0, 0.1, 30)
    once = mismatch_estimates(sequence_sums(ratios, [1] * 30), range(30), resampling=FEW)
    sums = sequence_sums(np.repeat(ratios, 8), [1] * 240)
    copies = mismatch_estimates(sums, np.repeat(np.arange(30), 8), resampling=FEW)
    assert copies["logprob_gap"].interval == pytest.approx(once["logprob_gap"].interval)
    independent = mismatch_estimates(sums, range(240), resampling=FEW)
    assert np.ptp(independent["logprob_gap"].ends) < 0.5 * np.ptp(copies["logprob_gap"].ends)


@pytest.mark.parametrize(
    ("steps", "versions", "first"),
    [([1, 2, 3], [0, 1, 1], 1), ([0, 1, 2], [0, 0, 0], 0), ([5, 6], [5, 4], 0), ([5, 6], [6, 4], None), ([], [], 1)],
)
def test_no_weights_come_from_the_future(steps: list[int], versions: list[int], first: int | None) -> None:
    assert first_step(steps, versions) == first


def test_lags_are_counted_by_hand() -> None:
    lags = lag_estimates([0] * 10 + [1] * 5 + [3] * 5, [index // 2 for index in range(20)])
    assert lags["mean_lag"].value == 1.0
    assert lags["frac_above_1"].value == 0.25
    assert (lags["max_lag"].value, lags["max_lag"].interval) == (3.0, None)
    assert lags["mean_lag"].num_units == 10
    equal = lag_estimates([2.0] * 6, range(6))
    assert (equal["mean_lag"].value, equal["mean_lag"].interval) == (2.0, None)
    assert equal["frac_above_1"].value == 1.0
    assert all(result.undefined for result in lag_estimates([], []).values())


def test_tokens_not_sequences_weigh_the_same_and_nothing_has_no_mean() -> None:
    assert token_mean([1.0, 9.0], [1, 3], ["a", "b"]).value == 2.5
    assert token_mean([], [], []).undefined == "there is nothing to average"


def test_the_interval_covers_at_the_promised_rate() -> None:
    rng, hits = np.random.default_rng(0), 0
    for _ in range(200):
        level = rng.gamma(2.0, 1.0, 40)  # each prompt has its own
        tokens = rng.integers(1, 9, 40)
        low, high = token_mean(level * tokens, tokens, np.arange(40)).ends
        hits += low <= 2.0 <= high
    assert hits / 200 == pytest.approx(0.95, abs=0.05)


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
