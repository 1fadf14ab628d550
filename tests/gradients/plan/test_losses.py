import math

import pytest
import torch
from msgspec.structs import replace

from gradscope.gradients.plan import losses

INF = float("inf")


def terms(ratios: list[float], advantages: list[float], *, bound=INF, correction=None, **parameters) -> losses.Terms:
    """Tokens of log-probability -2, by their ratios and advantages."""
    ratio, unit = torch.tensor(ratios, dtype=torch.float64), torch.ones(len(ratios), dtype=torch.float64)
    return losses.Terms(
        logprobs=-2.0 * unit,
        log_ratio=ratio.log(),
        ratio=ratio,
        advantages=torch.tensor(advantages, dtype=torch.float64),
        counted=unit,
        low=0.8,
        high=1.2,
        bound=bound,
        correction=None if correction is None else correction * unit,
        parameters=losses.LossParameters(**parameters),
    )


def term(name: str, ratio: float, advantage: float, **parameters) -> float:
    """One token's term of a loss."""
    return float(losses.LOSSES[name].term(terms([ratio], [advantage], **parameters)))


@pytest.mark.parametrize("name", ["grpo", "bnpo", "dr_grpo", "dapo", "luspo"])
@pytest.mark.parametrize(
    ("ratio", "advantage", "bound", "expected"),
    [
        (1.0, 2.0, INF, -2.0),
        (1.5, 2.0, INF, -2.4),  # rewarded: the clip holds it
        (0.5, 2.0, INF, -1.0),
        (0.5, -2.0, INF, 1.6),  # punished: the clip holds it
        (5.0, -2.0, INF, 10.0),
        (5.0, -2.0, 3.0, 6.0),  # the second bound
    ],
)
def test_the_clipped_surrogate(name, ratio, advantage, bound, expected):
    assert term(name, ratio, advantage, bound=bound) == pytest.approx(expected)


def test_cispo_holds_the_ratio_and_weighs_log_pi_by_it():
    assert term("cispo", 1.5, 2.0, epsilon_high=5.0) == pytest.approx(1.5 * 2.0 * 2.0)
    assert term("cispo", 1.5, 2.0) == pytest.approx(0.2 * 2.0 * 2.0)


def test_sapo_is_a_gate_of_its_sign():
    for advantage, steepness in ((1.0, 1.0), (-1.0, 3.0), (0.0, 3.0)):
        gate = 4 / steepness / (1 + math.exp(-steepness * (1.3 - 1)))
        assert term("sapo", 1.3, advantage, sapo_temperature_neg=3.0) == pytest.approx(-gate * advantage)


@pytest.mark.parametrize(("advantage", "k", "decay"), [(1.0, 2.0, 3.0), (-1.0, 3.0, 2.0)])
def test_vespo_weighs_log_pi_by_a_density_of_the_sequences_ratio(advantage, k, decay):
    weight = math.exp(decay) * 1.3**k * math.exp(-decay * 1.3)
    assert term("vespo", 1.3, advantage) == pytest.approx(2.0 * weight * advantage)
    assert term("vespo", 1.0, advantage) == pytest.approx(2.0 * advantage)
    full = 1.3 * 0.5
    assert term("vespo", 1.3, advantage, correction=0.5) == pytest.approx(
        2.0 * math.exp(decay) * full**k * math.exp(-decay * full) * advantage
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, [1 / 6, 1 / 2]) for name in ("grpo", "sapo")),
        *((name, [1 / 4, 1 / 4]) for name in ("bnpo", "dapo", "cispo", "vespo")),
        ("dr_grpo", [1 / 20, 1 / 20]),
        ("luspo", [1 / 2, 1 / 2]),
    ],
)
def test_averages_by_hand(name, expected):
    assert losses.LOSSES[name].average([3, 1], losses.LossParameters(max_completion_length=10), 4) == expected
    assert losses.LOSSES[name].average([0, 0], losses.LossParameters(max_completion_length=10), 0)[0] > 0


def test_averages_of_other_trainers_by_hand() -> None:
    assert losses.summed([2, 3], losses.LossParameters(), 5) == [1.0, 1.0]
    assert losses.by_factor([2, 3], losses.LossParameters(loss_scale_factor=10.0), 5) == [0.05, 0.05]
    average = losses.without_empty(losses.mean_per_completion)
    assert average([2, 0, 5], losses.LossParameters(), 7) == [0.25, 0.0, 0.1]
    assert average([0], losses.LossParameters(), 0) == [0.0]
    assert average.__name__ != losses.mean_per_completion.__name__  # which tells losses of cached steps apart


@pytest.mark.parametrize(("shift", "advantage"), [(0.02, 1.0), (0.02, -1.0), (0.2, 1.0), (0.2, -1.0), (-0.2, -1.0)])
def test_rloo_clips_the_ratio_of_the_completion(shift: float, advantage: float) -> None:
    """By TRL's lines: log-probabilities are summed over the tokens in the loss before the ratio."""
    logprobs = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64, requires_grad=True)
    counted, old = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64), logprobs.detach() - shift
    ratio = torch.exp((logprobs * counted).sum() - (old * counted).sum())
    loss = -torch.min(ratio * advantage, torch.clamp(ratio, 0.8, 1.2) * advantage) / 5
    (expected,) = torch.autograd.grad(loss, logprobs)
    (weight, *_) = losses.RLOO.average([2, 3, 3, 1, 4], losses.LossParameters(), 13)
    completion = losses.Completion(counted=counted, old=old)
    arguments = completion, logprobs.detach(), weight * counted, torch.full_like(old, advantage)
    slope = losses.reward_slope(losses.RLOO, losses.LossParameters(), *arguments)
    torch.testing.assert_close(slope, expected)


def test_an_average_or_a_mode_that_cannot_be_is_a_callers_bug():
    with pytest.raises(ValueError, match="divides by max_completion_length"):
        losses.LOSSES["dr_grpo"].average([1], losses.LossParameters(), 1)
    with pytest.raises(ValueError, match="constant"):
        losses.by_factor([1], losses.LossParameters(), 1)
    with pytest.raises(ValueError, match="'odd' is none of token_truncate, token_mask"):
        losses.SamplerCorrection.from_values({"use_vllm": True, "vllm_importance_sampling_mode": "odd"})


COUNTED = torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
OLD = torch.zeros(4, dtype=torch.float64)
SAMPLER = -torch.tensor([math.log(2.0), math.log(0.5), 7.0, math.nan], dtype=torch.float64)


def ratio(mode: str, low: float | None = None, high: float | None = None) -> list[float]:
    return losses.SamplerCorrection(mode=mode, low=low, high=high).ratio(SAMPLER, OLD, COUNTED).tolist()


def test_ratios_by_token_and_of_the_sequence():
    """Tokens that do not count, and those without a number, count as on policy."""
    assert ratio("token_truncate") == pytest.approx([2.0, 0.5, 1.0, 1.0])
    assert ratio("sequence_truncate") == pytest.approx([1.0])


def test_beyond_its_bounds_a_ratio_is_cut_or_dropped():
    assert ratio("token_truncate", 0.7, 1.5) == pytest.approx([1.5, 0.7, 1.0, 1.0])
    assert ratio("token_mask", 0.7, 1.5) == pytest.approx([0.0, 0.0, 1.0, 1.0])
    assert ratio("sequence_mask", 1.5) == [0.0]
    assert ratio("sequence_mask", 0.5, 1.5) == pytest.approx([1.0])


def test_the_arguments_of_old_and_new_versions():
    from_values = losses.SamplerCorrection.from_values
    assert from_values({}) is None
    assert from_values({"use_vllm": True, "vllm_importance_sampling_correction": False}) is None
    assert from_values({"use_vllm": True}) == losses.SamplerCorrection(mode="sequence_mask", high=3.0)
    old = from_values({"use_vllm": True, "vllm_importance_sampling_cap": 2.0})
    new = from_values({"use_vllm": True, "vllm_importance_sampling_clip_max": 2.0})
    assert old == new == losses.SamplerCorrection(high=2.0)
    inputs = {"vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_min": 0.5}
    inputs |= {"use_vllm": True, "vllm_importance_sampling_clip_max": None}
    assert from_values(inputs) == losses.SamplerCorrection(mode="token_mask", low=0.5, high=None)


BY_HAND = {
    "k1": [0.5, -1.0],
    "k2": [0.125, 0.5],
    "square": [0.25, 1.0],
    "abs": [0.5, 1.0],
    "k3": [math.exp(-0.5) - 0.5, math.e - 2],
}


@pytest.mark.parametrize("name", losses.KL_TERMS)
def test_estimators_by_hand(name: str) -> None:
    logprobs, reference = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0])
    assert losses.KL_TERMS[name](reference - logprobs).tolist() == pytest.approx(BY_HAND[name])


@pytest.mark.parametrize("corrected", [False, True])
def test_a_token_beyond_a_bound_of_the_kl_term_has_no_slope(corrected: bool) -> None:
    """Of e^b - b - 1, times a ratio of value 1, at b = 1; the others have the term or b itself held."""
    behind, unit = torch.tensor([1.0, 2.0, -4.0, 4.0], dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    completion = losses.Completion(counted=unit, reference=behind)
    bounded = losses.LossParameters(kl_bounds=(3.0, 3.0))
    slope = losses.kl_slope(bounded, completion, 0 * unit, unit, corrected=corrected)
    assert slope.tolist() == pytest.approx([1 - math.e + (math.e - 2) * corrected, 0.0, 0.0, 0.0])


LOGPROBS_SLOPES = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64)
COUNTED_SLOPES = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
WEIGHTS = 0.25 * COUNTED_SLOPES
UNIT = torch.ones(3, dtype=torch.float64)


def off_policy(**changes) -> losses.Completion:
    old = LOGPROBS_SLOPES - torch.tensor([0.1, 0.4, -0.15], dtype=torch.float64)
    return losses.Completion(counted=COUNTED_SLOPES, old=old, **changes)


DEFAULTS = losses.LossParameters()


def slope_of(name: str, completion: losses.Completion, advantages: torch.Tensor | None, parameters=DEFAULTS, **options):
    loss = losses.LOSSES[name]
    return losses.reward_slope(loss, parameters, completion, LOGPROBS_SLOPES, WEIGHTS, advantages, **options)


@pytest.mark.parametrize("name", losses.LOSSES)
def test_on_policy_every_loss_weighs_a_counted_token_by_its_average(name):
    """CISPO excepted, whose bound is on the ratio itself: 0.2 where it stands at its default."""
    slope = slope_of(name, losses.Completion(counted=COUNTED_SLOPES), -2.0 * UNIT)
    torch.testing.assert_close(slope, (0.2 if name == "cispo" else 1.0) * 2.0 * WEIGHTS)
    assert losses.factors_out(losses.LOSSES[name], losses.LossParameters())
    assert losses.factors_out(losses.LOSSES[name], losses.LossParameters(delta=0.5)) == (
        name in ("cispo", "sapo", "vespo")
    )


def test_a_sequences_ratio_spreads_its_derivative_over_its_tokens():
    slope = slope_of("grpo", off_policy(), 2.0 * UNIT, losses.LossParameters(importance_sampling_level="sequence"))
    ratio = torch.exp(torch.tensor((0.1 - 0.15) / 2, dtype=torch.float64))
    torch.testing.assert_close(slope, -2.0 * ratio * WEIGHTS.sum() * COUNTED_SLOPES / 2)


def test_a_sequences_ratio_multiplies_the_kl_term_even_at_ratio_one():
    parameters, reference = losses.LossParameters(importance_sampling_level="sequence"), LOGPROBS_SLOPES + 0.3 * UNIT
    completion = losses.Completion(counted=COUNTED_SLOPES, reference=reference)
    uncorrected = losses.kl_slope(parameters, completion, LOGPROBS_SLOPES, WEIGHTS, corrected=False)
    kl = torch.exp(0.3 * UNIT) - 0.3 - 1
    torch.testing.assert_close(
        losses.kl_slope(parameters, completion, LOGPROBS_SLOPES, WEIGHTS, corrected=True),
        uncorrected + (WEIGHTS * kl).sum() * COUNTED_SLOPES / 2,
    )
    by_token = losses.kl_slope(losses.LossParameters(), completion, LOGPROBS_SLOPES, WEIGHTS, corrected=True)
    torch.testing.assert_close(by_token, uncorrected + WEIGHTS * kl)


def test_a_score_vector_has_no_clip():
    parameters = losses.LossParameters(epsilon_low=0.01, epsilon_high=0.01)
    clipped, free = (slope_of("grpo", off_policy(), advantages, parameters) for advantages in (UNIT, None))
    assert clipped[0] == 0.0
    assert free[0] == -0.25 * torch.exp(torch.tensor(0.1, dtype=torch.float64))


@pytest.mark.parametrize(("advantage", "threshold", "stays"), [(1.0, 0.0, True), (-1.0, 0.1, True), (-1.0, 0.0, False)])
def test_completions_of_negative_advantage_that_are_far_off_leave(advantage, threshold, stays):
    completion = replace(off_policy(), old=LOGPROBS_SLOPES + 0.05)
    assert bool(slope_of("sapo", completion, advantage * UNIT, off_policy_threshold=threshold).any()) == stays


@pytest.mark.parametrize(("gap", "stays"), [(0.05, True), (0.5, False)])
def test_distance_is_to_the_sampler_where_there_is_one(gap, stays):
    completion = losses.Completion(counted=COUNTED_SLOPES, sampler=LOGPROBS_SLOPES + gap)
    assert bool(slope_of("grpo", completion, -UNIT, off_policy_threshold=0.1).any()) == stays


def test_the_correction_multiplies_the_reward_part():
    completion = losses.Completion(counted=COUNTED_SLOPES, sampler=LOGPROBS_SLOPES - 0.2)
    correction = losses.SamplerCorrection(mode="token_truncate", high=None)
    corrected = slope_of("dapo", completion, UNIT, correction=correction)
    torch.testing.assert_close(corrected, -WEIGHTS * torch.exp(torch.tensor(0.2, dtype=torch.float64)))


def test_everything_goes_where_the_log_probabilities_are():
    moved = off_policy(reference=LOGPROBS_SLOPES).to(torch.zeros(1, dtype=torch.float32))
    assert {moved.counted.dtype, moved.old.dtype, moved.reference.dtype} == {torch.float32}
    assert moved.sampler is None


def test_what_comes_back_from_a_device_is_waited_for(monkeypatch):
    flags = []
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, like, non_blocking: flags.append(non_blocking))
    losses.sent(UNIT, UNIT)
    losses.sent(torch.ones(1, device="meta"), UNIT)
    assert flags == [True, False]


def test_the_second_bound_holds_where_the_advantage_is_negative() -> None:
    inputs = terms([0.5, 1.1, 2.0, 5.0, 0.5, 2.0], [-1.0, -1.0, -1.0, -1.0, 1.0, 1.0], bound=3.0)
    assert losses.dual_clipped(inputs).tolist() == pytest.approx([0.8, 1.1, 2.0, 3.0, -0.5, -1.2])


def test_terms_of_sequences_and_of_held_ratios_by_hand() -> None:
    assert losses.sequence_clipped(terms([1.0, 4.0], [1.0, -1.0])).tolist() == pytest.approx(
        [-1.2, 2.0]
    )  # geometric mean 2
    inputs = terms([0.5, 2.0], [1.0, 1.0])
    assert losses.held_ratio(inputs).tolist() == pytest.approx([1.6, 2.4])
    assert losses.log_likelihood(inputs).tolist() == [2.0, 2.0]


def test_tokens_whose_probability_moved_too_far_are_left_out() -> None:
    """At probability 1/e a ratio of 3 is a move of 0.25, one of 0.6 a move of -0.25."""
    inputs = replace(terms([3.0, 3.0, 0.6, 0.6], [1.0, -1.0, 1.0, -1.0], advantage_scale=2.0), logprobs=-torch.ones(4))
    assert math.exp(-1) * (1 - 1 / 3) > 0.2
    assert losses.within_one_bound(inputs).tolist() == pytest.approx([0.0, 6.0, -1.2, 0.0])
    assert losses.within_both_bounds(inputs).tolist() == [0.0, 0.0, 0.0, 0.0]
