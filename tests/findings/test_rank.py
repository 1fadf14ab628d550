import pytest
from msgspec.structs import replace

from gradscope.estimate import Estimate
from gradscope.findings.rank import (
    _norm_findings,
    heldout_findings,
    interference_findings,
    rank_findings,
    rank_headline,
    reliability_findings,
    size_findings,
    sparsity_findings,
    update_findings,
)
from gradscope.metrics.gram.spectrum import rank_estimates
from gradscope.results.norms import LogprobDifference
from gradscope.results.rank import (
    BaselineNoise,
    FormulationUpdate,
    GradientSparsity,
    GradientSpectrum,
    HeldoutTransfer,
    Interference,
    RankComparison,
    RankCurvePoint,
    RankReport,
    Ranks,
    SizeChange,
    SpectrumLabel,
)
from tests.render.examples import filled, rank_report, weight_report

REPORT = rank_report()
FIRST = next(p for p in REPORT.curve if (p.advantage, p.group_size, p.step) == ("logged", 8, 1))


def around(value: float, half: float = 0.25) -> Estimate:
    return Estimate(value=value, low=value - half, high=value + half, num_units=9)


RANK = around(2.5)


def point(
    rank: Estimate = RANK, step: int = 1, *, difference: Estimate | None = None, num_dead: int = 5
) -> RankCurvePoint:
    scores = FIRST.nulls["unweighted"]
    nulls = FIRST.nulls | {"unweighted": replace(scores, difference=difference or scores.difference)}
    return replace(FIRST, effective_rank=rank, step=step, nulls=nulls, num_dead=num_dead)


@pytest.mark.parametrize("difference", [around(-1.0), around(-0.1), Estimate.exact(-1.0)])
def test_advantages_change_the_rank_where_the_interval_says_so(difference: Estimate) -> None:
    text = " ".join(rank_findings([point(difference=difference)], [], []))
    sure = "; the advantages change that by -1.00 [-1.25, -0.75]; the rest is the policy's own geometry."
    assert (sure in text) == ("own geometry" in text) == bool(difference.side_of_zero)


def test_steps_are_told_apart_where_their_difference_is() -> None:
    def over_time(last: float, *, half: float = 0.25) -> str:
        first = around(2.0, half) if half else Estimate.exact(2.0)
        return " ".join(rank_findings([point(first), point(around(last), step=9)], [], []))

    assert "went from 2.00 [1.75, 2.25] to 4.00 [3.75, 4.25]: it rose by 2.00 [1.65, 2.35]." in over_time(4.0)
    assert "it fell by -1.00 [-1.35, -0.65]." in over_time(1.0)
    assert "the difference 0.20 [-0.15, 0.55] may be zero, so these steps cannot be told apart." in over_time(2.2)
    assert "went from" not in over_time(4.0, half=0.0)


def test_other_rollouts_of_the_same_prompts_have_their_own_interval() -> None:
    provided = replace(point(), given_prompts=around(2.5, 0.125))
    text = " ".join(rank_findings([provided], [], []))
    assert "Other rollouts of these very prompts would leave it within [2.38, 2.62];" in text
    other = replace(provided, given_prompts=around(2.6, 0.125))
    assert "very prompts" not in " ".join(rank_findings([other], [], []))


def test_formulations_are_told_apart_by_their_paired_difference() -> None:
    comparisons = [
        RankComparison(step=9, group_size=8, first="logged", second=name, difference=difference)
        for name, difference in (
            ("sign", around(1.0)),
            ("rloo", around(0.1)),
            ("tasa", Estimate.undefined_because("dead")),
        )
    ]
    different, similar = rank_findings([], [], [], comparisons)
    assert different == (
        "Paired by group, the rank under logged differs from that under sign (+1.00), each at 95 %. A rank of rows "
        "sees how unequal the advantages are, never their signs."
    )
    assert similar == "The ranks under logged and under rloo cannot be told apart at step 9."


def test_the_trainers_norm_is_what_the_spectra_rest_on() -> None:
    first, second, third = REPORT.steps
    shifted = replace(second, logged_grad_norm=0.4)
    sentences = rank_findings([], [first, shifted, third], [])
    assert sentences[0].startswith("On average 31.0 % of the summed row norms survives in the step's gradient; the")
    assert sentences[1].endswith(
        "by up to 3.1e-02 (relative) at these 2 steps: `gradscope replay` says whether precision explains it."
    )
    assert rank_findings([], [shifted], [])[1].endswith(
        "at this step: `gradscope replay` says whether precision explains it."
    )
    broken = rank_findings([], [first, replace(second, logged_grad_norm=float("inf"))], [])[1]
    assert broken == f"At 1 of 2 steps the trainer logged no finite grad_norm, first at step {second.step}: Infinity."
    assert "checked against nothing outside" in rank_findings([], [first], [])[1]


def test_matrices_of_weights_have_a_range() -> None:
    report = weight_report()
    text = rank_findings([], [], report.spectra)[0]
    ranks = [spectrum.ranks.effective_rank.value for spectrum in report.spectra]
    assert text.startswith(f"Effective ranks run from {min(ranks):.2f} (model.layers.")
    assert f"to {max(ranks):.2f} (model." in text
    dead = [
        replace(spectrum, ranks=replace(spectrum.ranks, effective_rank=Estimate.undefined_because("zero")))
        for spectrum in report.spectra
    ]
    assert rank_findings([], [], dead) == ("Every gradient matrix is zero: no rank can be stated.",)


def change(matrix: str, second: int = 8, step: int = 2) -> SizeChange:
    return SizeChange(step=step, advantage="grpo", matrix=matrix, first=2, second=second, difference=around(1.5))


def test_the_change_with_the_group_size_is_said_of_kinds_of_rows_and_of_all_weights_together() -> None:
    """Not of each weight, whose numbers stand in a table; and at the last step and the largest size."""
    changes = [change("rollout", 4, 1), change("rollout"), change("lm_head.weight"), change("all weights")]
    rollouts, weights = size_findings(changes)
    assert rollouts == (
        "On the same 9 prompts at step 2 the rank of rollout rows at R = 8 is +1.50 [+1.25, +1.75] above that at R = 2 "
        "(advantage grpo)."
    )
    assert "the rank of dL/dW, mean over weights, at R = 8" in weights
    undefined = replace(change("token"), difference=Estimate.undefined_because("no group lives at both sizes"))
    assert size_findings([undefined]) == ()


NINE_TENTHS = Estimate.exact(0.9)


def test_what_rollouts_share_adds_up_or_cancels_where_the_interval_says_so() -> None:
    def findings_of(shared: Estimate, rest: Estimate = NINE_TENTHS) -> str:
        return " ".join(rank_findings([replace(FIRST, shared_kept=shared, residual_kept=rest)], [], []))

    assert (
        "What the rollouts of a live group share adds up: on directions of several of them their sum has 2.00 [1.50, "
        "2.50] times the energy of the rows, and 0.90 times on all others (1 for random signs)."
        in findings_of(around(2.0, 0.5))
    )
    assert "share cancels: on directions" in findings_of(around(0.5))
    assert "0.50 [0.25, 0.75] times the energy of the rows (1 for" in findings_of(
        around(0.5), Estimate.undefined_because("none")
    )
    for nothing in (around(1.1), Estimate.exact(0.5), Estimate.undefined_because("none")):
        assert "random signs" not in findings_of(nothing)


REDUCED = {"precision": "reduced", "tf32": False, "dtype": "bfloat16"}


def spectrum(*values: float):
    label = SpectrumLabel(step=1, rows="rollout", advantage="logged", group_size=len(values), shape=(len(values), 100))
    return GradientSpectrum(
        label=label, singular_values=values, noise_floor=0.1, ranks=Ranks(**rank_estimates(values, 0.1))
    )


def test_a_rank_near_the_floor_is_to_be_confirmed():
    spectra = [spectrum(3.0, 0.05, 0.05), spectrum(3.0, 1.0), spectrum(0.0, 0.0)]
    assert spectra[0].ranks.numerical_rank.value == 1
    assert spectra[0].ranks.frac_energy_below_floor.value == pytest.approx(0.005 / 9.005)
    (sentence,) = reliability_findings(spectra, (), REDUCED)
    assert sentence.startswith("At 1 of 2 spectra singular values lie under the noise floor of bfloat16, up to 3.2 %")
    assert sentence.endswith("use --precision high.")
    (sentence,) = reliability_findings(spectra, (), {**REDUCED, "dtype": "float32", "tf32": True})
    assert "the noise floor of TF32" in sentence
    # nothing is advised where nothing is hidden or nothing is left to do
    assert reliability_findings([spectrum(3.0, 1.0), spectrum(3.0, 1e-3)], (), REDUCED) == ()
    assert reliability_findings([spectrum(3.0, 0.05)], (), {**REDUCED, "precision": "high"}) == ()


def sparsity(step: int, gini: float, tensor: str | None = None, small: Estimate | None = None) -> GradientSparsity:
    numbers = {"zero": Estimate.exact(0.25), "small": small or Estimate.exact(0.5), "gini": Estimate.exact(gini)}
    parts = "tokens" if tensor is None else "entries"
    labels = {"step": step, "parts": parts, "tensor": tensor, "num_parts": 100, "frac_seen": 1.0}
    return filled(GradientSparsity, Estimate.exact(0.5), **labels, **numbers)


def test_tokens_of_the_last_step_are_counted() -> None:
    assert sparsity_findings([sparsity(1, 0.1), sparsity(9, 0.7)]) == (
        "At step 9 50.0 % of the tokens have a row below 1 % of the largest, 25.0 % exactly zero (Gini 0.70).",
    )
    # the most and the least even weight are named
    weights = [sparsity(9, 0.7, "mlp"), sparsity(9, 0.2, "attn", Estimate.exact(0.1)), sparsity(1, 0.9, "lm_head")]
    assert sparsity_findings([weights[2], *weights[:2]]) == (
        "At step 9 the entries of the weights' gradients are most even in attn (Gini 0.20, 10.0 % below 1 % of the "
        "largest) and least in mlp (0.70, 50.0 %).",
    )


def test_a_last_step_without_a_gradient_says_nothing() -> None:
    assert (
        sparsity_findings([sparsity(1, 0.1), sparsity(9, 0.7, small=Estimate.undefined_because("every row is zero"))])
        == ()
    )
    assert sparsity_findings([]) == ()


def update(advantage: str, step: int, ratio: float | None, cosine: Estimate | None = None) -> FormulationUpdate:
    unused = Estimate.undefined_because("no sentence needs it")
    return filled(
        FormulationUpdate,
        unused,
        step=step,
        advantage=advantage,
        signal_to_noise=unused if ratio is None else Estimate.exact(ratio),
        alignment={} if cosine is None else {"pass@8": cosine},
        cosines={},
    )


def noise(optimum: Estimate, **ratios: Estimate) -> BaselineNoise:
    return BaselineNoise(
        step=None,
        group_id=None,
        num_groups=9,
        pass_rate=0.75,
        optimal_baseline=optimum,
        reward_norm_correlation=Estimate.exact(0.0),
        relative_noise=ratios,
    )


def between(low: float, high: float) -> Estimate:
    return around((low + high) / 2, (high - low) / 2)


def test_signal_to_noise_is_that_of_the_logged_advantage() -> None:
    updates = [update("sign", 1, 9.0), *(update("logged", step, ratio) for step, ratio in ((1, 0.5), (2, 1.5), (3, 4)))]
    assert update_findings([], []) == ()
    (sentence,) = update_findings(updates, [])
    assert sentence == (
        "The expected update under logged exceeds its own noise (signal to noise above 1) at 2 of 3 steps; median 1.50."
    )


def test_an_update_leaves_pass_at_k_only_where_its_interval_says_so() -> None:
    deviating, maybe = between(0.5, 0.7), between(0.5, 0.95)
    updates = [update("sign", 2, None, deviating), update("grpo", 2, None, maybe), update("rloo", 1, None, deviating)]
    assert update_findings(updates, []) == (
        "At step 2 the expected update does not follow the gradient of pass@8 under sign (0.60).",
    )


def test_the_quietest_baseline_that_differs_measurably_is_named() -> None:
    ratios = {"zero": between(1.2, 1.8), "shrinkage": between(0.5, 0.75), "optimal": between(0.1, 0.2)}
    assert update_findings([], [noise(Estimate.exact(0.25), **ratios)]) == (
        "The optimal baseline of a mixed group is 0.25 on average, at a mean reward of 0.75; of the baselines that "
        "differ measurably, shrinkage has 37.5 % less gradient noise than leave_one_out (ratio 0.62 [0.50, 0.75]).",
    )
    # a baseline whose interval holds one cannot be told apart
    ratios = {"zero": between(0.8, 1.2), "shrinkage": Estimate.exact(0.3)}
    assert update_findings([], [noise(Estimate.undefined_because("no group is mixed"), **ratios)]) == (
        "No group shows an optimal baseline; no baseline can be told from leave_one_out by the noise of its gradient.",
    )


RISING, FALLING = Estimate(value=0.4, low=0.1, high=0.7), Estimate(value=-0.4, low=-0.7, high=-0.1)
OPEN = Estimate(value=0.1, low=-0.4, high=0.6)
UNDEFINED = Estimate.undefined_because("fewer than 3 groups have a gradient")


def of_step(step: int, transfer: Estimate, cosine: Estimate = OPEN, hurt: float | None = 0.25) -> HeldoutTransfer:
    share = UNDEFINED if hurt is None else Estimate.exact(hurt)
    numbers = {"frac_hurt": share, "cosine": cosine, "transfer": transfer}
    return HeldoutTransfer(step=step, advantage="logged", num_groups=5, num_heldout=62, **numbers)


def test_the_last_step_is_told_where_its_interval_leaves_zero_out() -> None:
    (sentence,) = heldout_findings([of_step(1, FALLING), of_step(2, RISING), of_step(2, FALLING)])
    assert sentence == (
        "Step 2 raises the correct answers of the 62 held-out prompts by 0.40 [0.10, 0.70] of what it does to the "
        "answers that it was trained on; 25.0 % of the pairs of a training and a held-out prompt hurt (advantage "
        "logged, to first order)."
    )
    assert "Step 2 lowers" in heldout_findings([of_step(2, FALLING)])[0]


def test_the_cosine_tells_where_the_transfer_does_not() -> None:
    (sentence,) = heldout_findings([of_step(2, UNDEFINED, FALLING)])
    assert sentence == (
        "The prompts of step 2, each counted alike, point away from the correct answers of the 62 held-out prompts: "
        "mean cosine -0.400 [-0.700, -0.100]; 25.0 % of the pairs of a training and a held-out prompt hurt (advantage "
        "logged, to first order)."
    )
    assert "point towards" in heldout_findings([of_step(2, OPEN, RISING)])[0]
    # nothing is said of what is open
    assert heldout_findings([]) == heldout_findings([of_step(2, OPEN)]) == ()
    assert heldout_findings([of_step(2, UNDEFINED, UNDEFINED, None)]) == ()


def interference_of(step: int, transfer: Estimate, advantage: str = "logged") -> Interference:
    hurt = Estimate(value=0.75, low=0.6, high=0.9)
    return Interference(step=step, advantage=advantage, frac_hurt=hurt, cosine=Estimate.exact(-0.1), transfer=transfer)


def test_interference_is_told_where_its_interval_leaves_zero_out() -> None:
    (sentence,) = interference_findings(
        [interference_of(1, RISING), interference_of(2, FALLING), interference_of(2, RISING, "sign")]
    )
    assert sentence == (
        "At step 2 the gradients of the other prompts undo a part of what a prompt's own does for its correct "
        "answers: transfer -0.40 [-0.70, -0.10], and 75.0 % of the pairs of prompts hurt (advantage logged, to first "
        "order)."
    )
    for last in (OPEN, UNDEFINED):
        assert interference_findings([interference_of(1, RISING), interference_of(2, last)]) == ()
    assert interference_findings([]) == ()
    assert "add to what" in interference_findings([interference_of(2, RISING)])[0]


STEP = replace(REPORT.steps[0], grad_norm=Estimate.exact(0.5), logged_grad_norm=0.5)


def report(*curve: RankCurvePoint, norm: float | None = 0.5) -> RankReport:
    return replace(REPORT, curve=curve, steps=(replace(STEP, logged_grad_norm=norm),))


def test_the_verdict_has_the_rank_beside_both_ceilings() -> None:
    verdict, *_ = rank_headline(report(point(), point(step=9)))
    assert verdict.startswith(
        "At step 9 a group's gradient spans 2.50 [2.25, 2.75] of at most 8 directions, 0.80 [0.70, 0.95] of what "
        "unrelated rows of the same norms would span (advantage logged, 11 live groups). Without advantages the same "
        "rollouts span 5.90; "
    )
    assert "1 live group)" in rank_headline(report(point(num_dead=15)))[0]


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        (Estimate.exact(-1.0), "; the groups are too few to say whether the advantages change that."),
        (Estimate.exact(1e-15), "; advantages of one size leave that as it is, whatever their signs."),
        (Estimate(value=-0.1, low=-0.4, high=0.2), "what the advantages change (-0.10 [-0.40, +0.20]) cannot be told"),
        (Estimate(value=-1.0, low=-1.4, high=-0.5), "; the advantages change that by -1.00 [-1.40, -0.50]."),
    ],
)
def test_the_verdict_says_whose_doing_the_rank_is(difference: Estimate, words: str) -> None:
    assert words in rank_headline(report(point(difference=difference)))[0]


def test_a_run_of_dead_groups_has_a_verdict_too() -> None:
    dead = replace(point(Estimate.undefined_because("dead"), num_dead=16), nulls={})
    verdict, *findings = rank_headline(report(dead))
    assert verdict == "No group of these steps has a gradient under the advantage, so there is no rank."
    assert findings == ["16 of 16 groups have zero advantage throughout: their gradient is zero and has no rank."]


def test_what_makes_the_ranks_doubtful_comes_before_the_rest() -> None:
    def first_finding(rank_report: RankReport) -> str:
        return rank_headline(rank_report)[1]

    two = (point(), point(step=9))
    assert "10 of 32 groups have zero advantage" in first_finding(report(*two))
    assert "10 of 32 groups have zero advantage" in first_finding(report(*two, norm=0.5 * (1 + 5e-6)))
    assert "by up to 2.0e-02" in first_finding(report(*two, norm=0.5 / 0.98))
    assert "logged no grad_norm" in first_finding(report(*two, norm=None))
    assert "no finite grad_norm" in first_finding(report(*two, norm=float("nan")))


def test_other_weights_are_a_problem_and_the_right_ones_are_no_news() -> None:
    fits = LogprobDifference(num_tokens=100, mean=0.0, max=1e-6, bound=0.1, frac_beyond=0.0)
    misfit = replace(fits, max=2.0, frac_beyond=0.25)
    sentence = {
        name: " ".join(rank_headline(replace(report(point()), steps=(replace(STEP, logprob_difference=result),))))
        for name, result in (("fits", fits), ("off", misfit))
    }
    assert "differ from these weights' by more than 0.1 at 25.0 % of 100 tokens" in sentence["off"]
    assert "log-probabilities" not in sentence["fits"]


def test_held_out_prompts_that_were_asked_for_come_before_what_is_always_there() -> None:
    numbers = {"frac_hurt": Estimate.exact(0.25), "cosine": Estimate.exact(0.1)}
    transfer = Estimate(value=0.4, low=0.1, high=0.7)
    row = HeldoutTransfer(step=9, advantage="logged", num_groups=5, num_heldout=62, transfer=transfer, **numbers)
    unmeasured, with_heldout = (report(point(), point(step=9)), replace(report(point(), point(step=9)), heldout=(row,)))
    verdict, first, *rest = rank_headline(with_heldout)
    assert first.startswith("Step 9 raises the correct answers of the 62 held-out prompts")
    assert rank_headline(unmeasured)[: 1 + len(rest)] == (verdict, *rest)
    # other rows lead with their own findings
    assert rank_headline(replace(weight_report(), findings=tuple("ABCDEF"))) == tuple("ABCD")
    assert rank_headline(weight_report()) == ()


def test_a_problem_of_other_rows_is_the_first_finding_and_said_once() -> None:
    different_norm = replace(weight_report(), steps=(replace(STEP, logged_grad_norm=0.25),))
    (problem,) = _norm_findings(different_norm.steps)
    assert rank_headline(replace(different_norm, findings=(*"ABCDEF", problem))) == ("A", problem, "B", "C")
