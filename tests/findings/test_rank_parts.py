from msgspec.structs import replace

from gradscope.estimate import Estimate
from gradscope.findings import rank_parts
from gradscope.results.rank import CorrectionEffect, GradientAndUpdate, TokenMethod, TokenRankPoint, WeightUpdate
from tests.render import rank_examples
from tests.render.examples import filled


def point(
    step: int,
    rank: float | None,
    *,
    advantage: str = "logged",
    method: TokenMethod = "exact",
    energy_error: float | None = None,
) -> TokenRankPoint:
    return filled(
        TokenRankPoint,
        Estimate.undefined_because("no weight") if rank is None else Estimate.exact(rank),
        step=step,
        advantage=advantage,
        group_size=8,
        method=method,
        num_groups=16,
        num_dead=6,
        num_rows=Estimate.exact(120.0),
        frac_seen=0.25,
        energy_error=energy_error,
    )


def test_a_rank_of_tokens_stands_beside_their_number() -> None:
    assert rank_parts.token_findings([point(1, 90.0), point(9, 30.0), point(9, 60.0, advantage="sign")]) == (
        "At step 9 the 120 tokens of a live group span 30.0 directions by effective rank (advantage logged, mean over "
        "10 live groups).",
    )
    # without a logged advantage another is named
    assert "(advantage sign, mean over" in rank_parts.token_findings([point(1, 60.0, advantage="sign")])[0]
    # a sample and a sketch say what they cost
    sampled = rank_parts.token_findings([point(1, 30.0, method="sampled")])
    assert sampled[1].startswith("Only 25.0 % of the tokens were measured, drawn at random;")
    assert sampled[1].endswith("--max-tokens N takes more, --sketch K all.")
    sketched = rank_parts.token_findings([point(1, 30.0, method="sketch", energy_error=0.0313)])
    assert sketched[1].startswith("Rows were sketched: each squared singular value is known to 3.1 % of their sum")
    # steps without a weighted token have no rank
    expected = "No token of these steps has a weight under these advantages: their matrices are zero."
    assert rank_parts.token_findings([point(1, None)]) == rank_parts.token_findings([]) == (expected,)


def effects(*cosines: float, ess: float = 0.9) -> list[CorrectionEffect]:
    names = ("none", "tis", "sequence_ratio")
    return [
        replace(rank_examples.correction(name), cosine=Estimate.exact(cosine), ess=Estimate.exact(ess))
        for name, cosine in zip(names, (1.0, *cosines), strict=False)
    ]


def test_corrections_that_change_nothing_are_said_to() -> None:
    assert rank_parts.correction_findings(effects(0.999, 0.998)) == (
        "No correction for the sampler turns the gradient of step 41: its cosine with the uncorrected one is at least "
        "0.9980.",
    )
    # some of the corrections are not said to be all
    (sentence,) = rank_parts.correction_findings(effects(0.999), " by sequence")
    assert sentence.startswith("No correction for the sampler by sequence turns the gradient")
    (sentence,) = rank_parts.correction_findings(effects(0.9), " by sequence")
    assert sentence.startswith("Corrections for the sampler by sequence turn the gradient")


def test_the_correction_that_turns_the_gradient_most_is_named() -> None:
    (sentence,) = rank_parts.correction_findings(effects(0.9, 0.4))
    assert sentence.startswith(
        "Corrections for the sampler turn the gradient of step 41: sequence_ratio has cosine 0.40"
    )
    assert sentence.endswith("of its norm.")
    (sentence,) = rank_parts.correction_findings(effects(0.9, 0.4, ess=0.03))
    assert sentence.endswith("whole sequence ratios are worth 3.0 % of the sequences.")
    # without corrections there is nothing to say
    unknown = Estimate.undefined_because("a ratio of this step is beyond 1e30")
    assert rank_parts.correction_findings([]) == ()
    assert rank_parts.correction_findings([replace(rank_examples.correction("tis"), cosine=unknown)]) == ()


def test_tokens_of_high_entropy_and_unlikely_ones_have_a_sentence() -> None:
    sentences = rank_parts.kind_findings(
        [
            rank_examples.token_kind(probability=(0.0, 0.25)),
            rank_examples.token_kind(probability=(0.25, 0.75)),
            rank_examples.token_kind(entropy="top_fifth"),
            rank_examples.token_kind(sign="positive"),
        ]
    )
    assert [sentence.split(",")[0] for sentence in sentences] == [
        "At step 41 tokens of probability below 0.25",
        "At step 41 the tokens of the top fifth by entropy",
    ]
    assert "61.0 % [40.0 %, 82.0 %] of the energy" in sentences[0]
    everything = replace(rank_examples.token_kind(probability=(0.0, 0.25)), frac_tokens=Estimate.exact(1.0))
    assert rank_parts.kind_findings([everything]) == rank_parts.kind_findings([]) == ()


def test_the_way_of_the_entropy_is_said_where_it_is_known() -> None:
    assert rank_parts.entropy_findings([rank_examples.entropy_change(41)]) == (
        "To first order the gradient of step 41 lowers the entropy of its own tokens (cosine -0.36 [-0.66, -0.06]); "
        "the trainer logged 0.104 there and 0.0917 at the next step.",
    )
    rising = Estimate(value=0.5, low=0.2, high=0.8)
    unlogged = replace(rank_examples.entropy_change(41), cosine=rising, logged=None)
    assert rank_parts.entropy_findings([unlogged]) == (
        "To first order the gradient of step 41 raises the entropy of its own tokens (cosine +0.50 [+0.20, +0.80]).",
    )
    unsure = replace(unlogged, cosine=Estimate(value=0.1, low=-0.2, high=0.4))
    assert rank_parts.entropy_findings([unsure]) == rank_parts.entropy_findings([]) == ()


def test_the_largest_turn_is_named() -> None:
    second = replace(rank_examples.turn(8), and_later=True, gradient_share=Estimate.exact(0.7))
    assert rank_parts.turn_findings([rank_examples.turn(1), second]) == (
        "Turns from 8 on have 70.0 % of the gradient of step 41 along its own direction, with 25.0 % of the tokens.",
    )
    assert rank_parts.turn_findings([rank_examples.turn(1)])[0].startswith("Turn 1 has 40.0 %")
    assert rank_parts.turn_findings([]) == ()


def test_how_far_tokens_are_from_the_reference_is_said_of_the_last_step() -> None:
    assert rank_parts.kl_findings([rank_examples.kl(1), rank_examples.kl(6)]) == (
        "At step 6 the policy is 0.0123 [0.001, 0.0236] nats a token from the reference by k3, +0.0123 [+0.001, "
        "+0.0236] by k1; the furthest hundredth of the tokens holds 83.0 % of the former.",
    )
    unknown = replace(rank_examples.kl(6), top_share=Estimate.undefined_because("all are zero"))
    assert rank_parts.kl_findings([]) == rank_parts.kl_findings([unknown]) == ()


def test_whether_tokens_moved_as_their_advantages_ask_is_said_with_the_difference() -> None:
    (sentence,) = rank_parts.logprob_change_findings(
        [rank_examples.logprob_change(1), rank_examples.logprob_change(41)]
    )
    assert sentence == (
        "From 40 to 50 updates the log-probability of the tokens of step 41 changed by +0.012 [-0.001, +0.025] a token "
        "where the advantage is positive and by -0.130 [-0.210, -0.050] where it is negative; among tokens of like "
        "probability the difference is +0.111 [+0.031, +0.191]: as the advantages ask."
    )
    for low, high, words in ((-0.3, -0.1, "against the advantages."), (-0.1, 0.3, "this may be chance.")):
        matched = Estimate(value=(low + high) / 2, low=low, high=high, num_units=16)
        (sentence,) = rank_parts.logprob_change_findings([replace(rank_examples.logprob_change(41), matched=matched)])
        assert sentence.endswith(words)
    assert (
        rank_parts.logprob_change_findings([])
        == rank_parts.logprob_change_findings([rank_examples.logprob_change(1)])
        == ()
    )


UNDEFINED = Estimate.undefined_because("the matrix is zero")
TRAJECTORY = replace(rank_examples.trajectory(), num_updates=(20, 40))


def update(rank: float, last: int = 40, *, first: int = 0, overlap: Estimate = UNDEFINED) -> WeightUpdate:
    return filled(
        WeightUpdate,
        UNDEFINED,
        tensor="q_proj",
        first=first,
        last=last,
        shape=(64, 64),
        singular_values=(1.0,),
        effective_rank=Estimate.exact(rank),
        gaussian=Estimate.exact(2 * rank),
        principal_overlap=overlap,
        principal_null=UNDEFINED if overlap is UNDEFINED else Estimate.exact(0.01),
        bfloat16_changed=Estimate.exact(0.5),
    )


def pair(gradient: Estimate, step: int = 21) -> GradientAndUpdate:
    return replace(rank_examples.gradient_and_update(), step=step, first=20, last=40, gradient_rank=gradient)


def test_the_trajectory_stands_beside_a_random_walk() -> None:
    sentences = rank_parts.weight_update_findings(
        [update(10.0), update(20.0), update(99.0, last=20), update(99.0, first=20)], [TRAJECTORY]
    )
    assert sentences == (
        "Over 2 checkpoints one direction holds 94.0 % of the updates' energy (a random walk: 82.0 %), and a straight "
        "line 92.0 % (a random walk: 81.0 %).",
        "After 40 updates the change of a matrix has effective rank 15.0 on average over 2 matrices; unrelated entries "
        "would give 30.0.",
        "bfloat16 sees 50.0 % of the 8,192 entries of these matrices change.",
    )


def test_principal_directions_stand_beside_a_random_change() -> None:
    overlaps = [update(10.0, overlap=Estimate.exact(share)) for share in (0.04, 0.08)]
    assert rank_parts.weight_update_findings([*overlaps, update(10.0)], [TRAJECTORY])[-2] == (
        "On average 6.0 % of a change lies in the principal directions of the initial weights; a random change would "
        "have 1.0 % there."
    )
    # a single checkpoint has no trajectory
    single = replace(TRAJECTORY, top_energy=UNDEFINED, linear_growth=UNDEFINED)
    unknown = replace(update(10.0), bfloat16_changed=UNDEFINED)
    (sentence,) = rank_parts.weight_update_findings([unknown], [single])
    assert sentence.startswith("After 40 updates")


def test_gradients_and_changes_are_averaged_over_the_weights_that_have_both() -> None:
    pairs = [pair(Estimate.exact(99.0), step=1), pair(Estimate.exact(8.0)), pair(Estimate.exact(12.0)), pair(UNDEFINED)]
    assert rank_parts.gradient_update_findings(pairs) == (
        "The gradient of step 21 has effective rank 10.0 on average over 2 weights, their change from 20 to 40 updates "
        "25.0, and unrelated entries 51.5: a rank of one says nothing of the other.",
    )
    assert rank_parts.gradient_update_findings([pair(UNDEFINED)]) == rank_parts.gradient_update_findings([]) == ()


def test_singular_values_and_directions_stand_beside_an_unrelated_change() -> None:
    turned = replace(
        update(10.0),
        spectrum_drift=Estimate.exact(0.15),
        spectrum_drift_null=Estimate.exact(0.117),
        principal_angle=Estimate.exact(4.06),
        principal_angle_null=Estimate.exact(2.94),
    )
    assert rank_parts.weight_update_findings([turned, update(10.0)], [TRAJECTORY])[-2] == (
        "Of a change 15.0 % is in the singular values on average (an unrelated one of its size: 11.7 %), and the "
        "principal directions turn by 4.1 degrees (2.9)."
    )


def test_an_adapters_change_is_held_against_factors() -> None:
    sentence = rank_parts.weight_update_findings([update(6.0)], [TRAJECTORY], is_adapter=True)[1]
    assert "unrelated factors would give 12.0" in sentence


def test_an_adapter_that_does_nothing_yet_is_said() -> None:
    idle = replace(rank_examples.adapter_state(20), b_norm=Estimate.exact(0.0), effective_rank=UNDEFINED)
    assert rank_parts.idle_adapter_findings(
        [rank_examples.adapter_state(0), idle, rank_examples.adapter_state(20)]
    ) == ("After 20 updates B is still zero in 1 of 2 matrices: there the adapter adds nothing.",)
    assert rank_parts.adapter_findings([idle]) == ()
    assert (
        rank_parts.idle_adapter_findings([rank_examples.adapter_state(20)])
        == rank_parts.idle_adapter_findings([])
        == rank_parts.adapter_findings([])
        == ()
    )
    # an adapter stands beside unrelated factors
    assert rank_parts.adapter_findings([rank_examples.adapter_state(0), rank_examples.adapter_state(20)]) == (
        "After 20 updates B is zero nowhere; B A has effective rank 6.4 of at most 8 and 0.37 of the norm of its "
        "factors on average (unrelated factors: 7.8 and 0.35).",
    )


def test_optimizers_are_compared_over_all_matrices() -> None:
    (sentence,) = rank_parts.optimizer_findings(rank_examples.optimizer_steps(41))
    assert sentence == (
        "From the gradient of step 41 a fresh Adam steps at cosine 0.48 with SGD, Muon at 0.44; at the logged learning "
        "rate bfloat16 sees 86.0 % of the entries move under Adam, and 54.0 % under an SGD step of the same size."
    )
    unknown = [replace(step, bfloat16_moved=UNDEFINED) for step in rank_examples.optimizer_steps(41)]
    assert rank_parts.optimizer_findings(unknown) == (
        "From the gradient of step 41 a fresh Adam steps at cosine 0.48 with SGD, Muon at 0.44.",
    )
    assert rank_parts.optimizer_findings([]) == ()
