"""Results made by hand, one of every type, with undefined numbers and hostile text in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from gradscope.estimate import Estimate
from gradscope.results.degeneracy import (
    BehindFilter,
    DegeneracyCourse,
    DegeneracyReport,
    EnvironmentDegeneracy,
    GapDecomposition,
    GroupSizeDegeneracy,
    IidPrediction,
    Overdispersion,
    PolicyDegeneracy,
    PolicyGap,
    PromptCounts,
    StepBehindFilter,
    StepDegeneracy,
)
from gradscope.results.envelope import LazyRows
from gradscope.results.norms import (
    Quantity,
    ReplayReport,
    SpikeMetric,
    SpikeRemoval,
    SpikeReport,
    SpikeRollout,
    SpikeTensor,
    SpikeToken,
    StepReplay,
)
from gradscope.results.passk import (
    Evaluation,
    PassAtK,
    PassAtKComparison,
    PassAtKDifference,
    PassAtKForecast,
    PassAtKReport,
    PassAtKTable,
    Solved,
)
from gradscope.results.rank import (
    GradientSpectrum,
    NullRank,
    RankCurvePoint,
    RankReport,
    Ranks,
    SpectrumLabel,
    StepGeometry,
)
from gradscope.results.signal import (
    AdvantageMass,
    PassRateDistribution,
    RateBin,
    RewardConflict,
    RewardFunction,
    SignalCost,
    TargetDegeneracy,
    TargetPlan,
)
from gradscope.results.source import Quarantine, QuarantineReason, Source
from gradscope.results.verdicts import CheckReport, ClaimRow, ClaimsReport, Verdict

HOSTILE = "<script>[red]\x1b[31mred\u202egnp"
"""A name as a log may hold it: HTML, rich markup, a terminal escape and a right-to-left override."""

QUARANTINE = Quarantine(
    num_rows=2,
    num_rollouts=2,
    reasons=(
        QuarantineReason(reason="reward is not a number", num_rows=2, num_rollouts=2, first=f"{HOSTILE}.jsonl:7"),
    ),
)


def around(value: float, width: float = 0.1, units: int = 40) -> Estimate:
    low, high = max(0.0, value - width), min(1.0, value + width) if value <= 1 else value + width
    return Estimate(value=value, low=min(low, value), high=max(high, value), num_units=units)


def source(path: str = "runs/example", files: tuple[str, ...] = ()) -> Source:
    return Source(
        path=path,
        format="trl",
        recognized="TRL output_dir, 20 files of completions",
        files=files,
        num_rows=1280,
        inferred=("group size 8, from the lengths of equal prompts",),
        missing=("token ids: log them with log_completions",),
        quarantined=QUARANTINE,
    )


def _step(step: int) -> StepDegeneracy:
    all_fail, all_pass = 0.5 * math.exp(-step / 12), min(0.9, 0.05 + 0.025 * step)
    rate = min(0.95, 0.3 + 0.025 * step)
    iid = rate**8 + (1 - rate) ** 8
    return StepDegeneracy(
        step=step,
        last_step=step,
        num_groups=8,
        frac_reward_zero_std=around(all_fail + all_pass, 0.12, 8),
        frac_all_pass=around(all_pass, units=8),
        frac_all_fail=around(all_fail, units=8),
        frac_tied=around(0.0, units=8),
        pass_rate=around(rate, units=8),
        iid_prediction=Estimate.exact(iid),
        jensen_gap=Estimate.exact(all_fail + all_pass - iid),
        logged=None if step == 3 else all_fail + all_pass,
    )


def with_steps(report: DegeneracyReport, rows: Sequence[StepDegeneracy]) -> DegeneracyReport:
    return replace(report, by_step=tuple(rows), course=DegeneracyCourse.of(rows))


def degeneracy_report(num_steps: int = 20, files: tuple[str, ...] = ()) -> DegeneracyReport:
    steps = tuple(_step(step) for step in range(1, num_steps + 1))
    too_large = Estimate.undefined_because("a forecast at G = 16 could be anything from 0.05 to 0.81")
    return DegeneracyReport(
        source=source(files=files),
        reward=HOSTILE,
        success_threshold=1.0,
        num_groups=8 * num_steps,
        num_rollouts=64 * num_steps,
        group_size=8,
        pass_rate_origin="the mean pass rate of this log",
        course_pass_rate_origin="the mean of each step",
        frac_reward_zero_std=Estimate(value=0.4125, low=0.331, high=0.488, num_units=128),
        behind_filter=BehindFilter(
            frac_zero_std_sampled=Estimate(value=0.53, low=0.49, high=0.57, num_units=num_steps),
            num_sampled=10 * num_steps,
            num_dead=53 * num_steps // 10,
            by_step=(
                StepBehindFilter(
                    step=1, num_sampled=10, num_dead=5, frac_zero_std_sampled=Estimate.exact(0.5, num_units=10)
                ),
                StepBehindFilter(
                    step=2,
                    num_sampled=None,
                    num_dead=None,
                    frac_zero_std_sampled=Estimate.undefined_because("nothing was logged at this step"),
                ),
            ),
        ),
        frac_all_pass=around(0.1625, 0.05, 128),
        frac_all_fail=around(0.25, 0.07, 128),
        frac_tied=Estimate(value=0.0, low=0.0, high=0.02, num_units=128),
        pass_rate=around(0.47, 0.06, 128),
        iid_prediction=Estimate(value=0.0086, low=0.0079, high=0.0141, num_units=128),
        jensen_gap=Estimate(value=0.4039, low=0.32, high=0.48, num_units=128),
        relative_gap=Estimate(value=46.97, low=31.2, high=60.8, num_units=128),
        predictions=(
            IidPrediction(
                pass_rate_origin="the mean pass rate of this log",
                iid_prediction=Estimate(value=0.0086, low=0.0079, high=0.0141, num_units=128),
                jensen_gap=Estimate(value=0.4039, low=0.32, high=0.48, num_units=128),
            ),
            IidPrediction(
                pass_rate_origin="the mean of each step",
                iid_prediction=Estimate(value=0.0225, low=0.0159, high=0.0341, num_units=128),
                jensen_gap=Estimate(value=0.39, low=0.31, high=0.46, num_units=128),
            ),
        ),
        overdispersion=Overdispersion(
            rate_variance=around(0.144, 0.02, 128),
            between_prompts=around(0.121, 0.03, 128),
            between_visits=around(0.004, 0.02, 128),
            z=Estimate.exact(21.5, num_units=160),
            p_value=Estimate.exact(0.0005, num_units=160),
            test="1999 deals of the outcomes within steps",
        ),
        by_group_size=(
            GroupSizeDegeneracy(
                group_size=8,
                degeneracy=around(0.4125, 0.08),
                iid_prediction=Estimate.exact(0.0086),
                jensen_gap=around(0.4039, 0.08),
                method="observed",
            ),
            GroupSizeDegeneracy(
                group_size=2,
                degeneracy=around(0.79, 0.04),
                iid_prediction=Estimate.exact(0.5018),
                jensen_gap=around(0.2882, 0.04),
                method="unbiased",
            ),
            GroupSizeDegeneracy(
                group_size=4,
                degeneracy=around(0.58, 0.07),
                iid_prediction=Estimate.exact(0.1277),
                jensen_gap=around(0.4523, 0.07),
                method="unbiased",
            ),
            GroupSizeDegeneracy(
                group_size=16, degeneracy=too_large, iid_prediction=too_large, jensen_gap=too_large, method="forecast"
            ),
        ),
        gap_decomposition=GapDecomposition(
            between_prompts=Estimate(value=0.39, low=0.31, high=0.46, num_units=128),
            over_time=Estimate(value=0.0139, low=-0.004, high=0.0318, num_units=128),
        ),
        by_environment=tuple(
            EnvironmentDegeneracy(
                environment=name,
                num_groups=40,
                num_rollouts=320,
                frac_reward_zero_std=around(dead, 0.1),
                pass_rate=around(0.4, 0.1),
            )
            for name, dead in (("openai/gsm8k", 0.6), (HOSTILE, 0.1))
        ),
        by_policy=(
            PolicyDegeneracy(
                policy=HOSTILE,
                num_groups=160,
                num_rollouts=1280,
                frac_reward_zero_std=around(0.4125, 0.08, 128),
                pass_rate=around(0.47, 0.06, 128),
            ),
        ),
        policy_gap=PolicyGap(
            between_prompts=Estimate(value=0.3, low=0.2, high=0.4, num_units=128),
            between_policies=Estimate(value=0.1039, low=0.05, high=0.15, num_units=128),
        ),
        by_step=steps,
        course=DegeneracyCourse.of(steps),
        pass_rates=_pass_rates(),
        starvation=SignalCost(
            frac_rollouts=around(0.4125, 0.08, 128),
            frac_tokens=Estimate.undefined_because("token ids of the completions were not logged"),
            frac_generation_time=around(0.52, 0.08, 128),
            tokens_per_rollout=Estimate.undefined_because("token ids of the completions were not logged"),
            batch_size=Estimate.exact(64.0, num_units=num_steps),
            effective_batch_size=Estimate.exact(37.6, num_units=num_steps),
            dilution=around(0.5875, 0.08, 128),
            resampling_factor=Estimate(value=1.702, low=1.49, high=1.95, num_units=128),
        ),
        advantages=(
            AdvantageMass(
                advantage="grpo",
                positive_mass=around(0.24, 0.03, 128),
                negative_mass=around(0.24, 0.03, 128),
                frac_zero=around(0.4125, 0.08, 128),
            ),
            AdvantageMass(
                advantage="sign",
                positive_mass=Estimate.undefined_because(
                    "it is defined for rewards of 0 and 1, and there is a reward of 0.5"
                ),
                negative_mass=Estimate.undefined_because(
                    "it is defined for rewards of 0 and 1, and there is a reward of 0.5"
                ),
                frac_zero=Estimate.undefined_because(
                    "it is defined for rewards of 0 and 1, and there is a reward of 0.5"
                ),
            ),
        ),
        by_reward=(
            _function(HOSTILE, "format", tied=0.9, share=0.18, num_alone=3, num_rescuable=0),
            _function("format", HOSTILE, tied=0.2, share=0.82, num_alone=70, num_rescuable=41),
        ),
        advantages_of="the logged advantages",
        frac_reward_conflict=around(0.2, 0.05, 128),
        reward_conflict=RewardConflict(
            main="correct",
            deciding=HOSTILE,
            is_alone=True,
            num_groups=2 * num_steps,
            frac_groups=around(0.2, 0.05, 128),
            advantage_share=around(0.3, 0.05, 128),
            difference_share=around(0.004, 0.001, 128),
            remedy='scale_rewards="none"',
        ),
        prompts=PromptCounts(never=1, always=1, live=1, frac_rollouts=0.53, reward=HOSTILE),
        by_prompt=LazyRows(
            {
                "prompt_id": np.array(["p1", "p2", "p3"], dtype=object),
                "prompt": np.array([HOSTILE, None, None], dtype=object),
                "num_groups": np.array([40, 30, 20]),
                "num_rollouts": np.array([320, 240, 160]),
                "pass_rate": np.array([0.0, 1.0, 0.5]),
                "status": np.array(["never", "always", "live"], dtype=object),
                "first_step": np.array([1, 1, 2]),
                "last_live_step": np.array([None, None, num_steps], dtype=object),
            }
        ),
        target=_target(),
        frac_set_aside=Estimate.exact(0.0125, num_units=1296),
        quarantined=QUARANTINE,
        summary=(f"66 of 160 groups (41.2 %) have equal rewards under {HOSTILE} and give no gradient.",),
        findings=(f"66 of 160 groups (41.2 %) have equal rewards under {HOSTILE} and give no gradient.",),
    )


def _function(
    name: str, other: str, *, tied: float, share: float, num_alone: int, num_rescuable: int
) -> RewardFunction:
    return RewardFunction(
        name=name,
        weight=1.0,
        frac_tied=around(tied, 0.05, 128),
        advantage_share=around(share, 0.05, 128),
        difference_share=around(1 - share, 0.05, 128),
        correlation={other: Estimate(value=-0.1, low=-0.2, high=0.05, num_units=128)},
        num_alone=num_alone,
        num_rescuable=num_rescuable,
    )


def _pass_rates() -> PassRateDistribution:
    bars = ((0.0, 0.0), *((k / 7, (k + 1) / 7) for k in range(7)), (1.0, 1.0))
    return PassRateDistribution(
        beta_a=Estimate.exact(0.42, num_units=128),
        beta_b=Estimate.exact(0.51, num_units=128),
        at_zero=Estimate.exact(0.08, num_units=128),
        at_one=Estimate.exact(0.0, num_units=128),
        goodness_of_fit=Estimate.exact(0.34, num_units=160),
        frac_hopeless=around(0.19, 0.1, 128),
        frac_solved=around(0.12, 0.08, 128),
        histogram=tuple(
            RateBin(
                low=low,
                high=high,
                observed=(0.25, 0.11, 0.09, 0.09, 0.08, 0.07, 0.07, 0.08, 0.16)[place],
                beta_binomial=(0.24, 0.12, 0.09, 0.08, 0.08, 0.08, 0.07, 0.09, 0.15)[place],
                binomial=math.comb(8, place) * 0.47**place * 0.53 ** (8 - place),
            )
            for place, (low, high) in enumerate(bars)
        ),
    )


def _target() -> TargetDegeneracy:
    no_tokens = Estimate.undefined_because("token ids of the completions were not logged")
    out_of_reach = Estimate.undefined_because("no group size up to 8 times 8 is known to bring the share to 0.2")
    return TargetDegeneracy(
        target=0.2,
        plans=(
            TargetPlan(
                plan="now",
                group_size=8,
                degeneracy=around(0.4125, 0.08, 128),
                rollouts_per_group=Estimate.exact(8.0),
                tokens_per_group=no_tokens,
                method="observed",
            ),
            TargetPlan(
                plan="larger groups",
                group_size=None,
                degeneracy=out_of_reach,
                rollouts_per_group=out_of_reach,
                tokens_per_group=out_of_reach,
                method="forecast",
            ),
            TargetPlan(
                plan="resampling",
                group_size=8,
                degeneracy=Estimate.exact(0.2),
                rollouts_per_group=Estimate(value=10.9, low=9.6, high=12.5, num_units=128),
                tokens_per_group=no_tokens,
                method="observed",
            ),
        ),
    )


def _passk_table(name: str, first: float, growth: float) -> PassAtKTable:
    ks = (1, 2, 4, 5, 8, 10, 16)
    rows = [
        PassAtK(
            k=k,
            pass_at_k=around(1 - (1 - first) * k**-growth, 0.06),
            pass_hat_k=around(first * k**-0.6, 0.05),
        )
        for k in ks
    ]
    beyond = Estimate.undefined_because("k = 32 exceeds the 16 samples of a prompt")
    return PassAtKTable(
        name=name,
        source=source(name),
        num_prompts=64,
        num_samples=(16, 16),
        rows=(*rows, PassAtK(k=32, pass_at_k=beyond, pass_hat_k=beyond)),
        forecasts=(PassAtKForecast(k=32, pass_at_k=around(0.81, 0.08, 64), pass_hat_k=around(0.05, 0.04, 64)),),
    )


def passk_report(num_files: int = 2) -> PassAtKReport:
    names = ("before.jsonl", HOSTILE)[:num_files]
    tables = tuple(_passk_table(n, s, g) for n, s, g in zip(names, (0.42, 0.74), (0.25, 0.12), strict=False))
    if num_files == 1:
        return PassAtKReport(tables=tables, comparison=None, findings=("One policy.",))
    rows = tuple(
        PassAtKDifference(
            k=k,
            difference=Estimate(value=d, low=d - 0.05, high=d + 0.05),
            first_wins=3,
            second_wins=40,
            ties=21,
            compression_factor=factor,
            compression_at_least=None if factor.is_defined else 1.4,
        )
        for k, d, factor in (
            (1, 0.32, Estimate(value=6.3, low=4.8, high=8.2)),
            (2, 0.27, Estimate(value=4.1, low=3.2, high=5.5)),
            (4, 0.2, Estimate(value=2.2, low=1.7, high=2.9)),
            (8, 0.1, Estimate.undefined_because("the 16 samples of the first do not reach the second's pass@8")),
            (16, -0.03, Estimate.exact(0.9)),
        )
    )
    comparison = PassAtKComparison(
        first=names[0],
        second=names[1],
        num_prompts=64,
        num_unpaired=1,
        rows=rows,
        crossover_k=16,
        solved=Solved(both=40, first_only=2, second_only=12, neither=10),
        frac_won=Estimate(value=0.02, low=0.0, high=0.04, num_units=64),
        frac_lost=Estimate(value=0.05, low=0.01, high=0.09, num_units=64),
        least_sharpening=None,
        verdict="undecided",
        evidence="a gain at the smallest budget, no certain difference at the largest",
        verifier="a verifier that passes 1.0 % of wrong samples counts a prompt without a right one as solved in "
        "14.9 % of cases at k = 16",
    )
    return PassAtKReport(tables=tables, comparison=comparison, findings=("Training sharpened more than it widened.",))


def evaluations_report(num_models: int = 7) -> PassAtKReport:
    """Two scorers of each model on one task, the second one without verdicts, the first model's log cut short."""
    tables = []
    for number in range(num_models):
        for scorer in ("exact_match,first-filtered", "model_graded_qa,scored"):
            table = _passk_table(f"log{number}.eval:{scorer}", 0.4, 0.2)
            if scorer.endswith("scored"):
                unknown = Estimate.undefined_because("the scores are neither 0/1 nor -1/1")
                table = replace(table, rows=(PassAtK(k=1, pass_at_k=unknown, pass_hat_k=unknown),), forecasts=())
            about = Evaluation(
                task="gsm8k",
                model=f"{HOSTILE}-{number}",
                scorer=scorer,
                unfinished="" if number else "was cancelled: 12 of 32 samples",
                mean_score=around(0.4, 0.1),
            )
            tables.append(replace(table, source=source(f"log{number}.eval"), evaluation=about))
    return PassAtKReport(tables=tuple(tables), comparison=None, findings=("Evaluations, none of them pooled.",))


def spectrum(
    step: int, group_id: str | None, size: int, advantage: str = "logged", tensor: str | None = None
) -> GradientSpectrum:
    num = 24 if group_id is None and tensor is None else size
    values = tuple(3.0 * (1 + hash_of(group_id or "", tensor or "")) * 0.7**place for place in range(num))
    return GradientSpectrum(
        label=SpectrumLabel(
            step=step,
            group_id=group_id,
            rows="weight" if tensor else "rollout",
            advantage=advantage,
            group_size=size,
            samples=tuple(range(size)) if group_id else (),
            tensor=tensor,
            shape=(num, 64 if tensor else 99_264),
        ),
        singular_values=values,
        noise_floor=1e-3,
        ranks=Ranks(
            effective_rank=around(1 + 0.45 * num, 0.3),
            spectral_entropy_rank=around(1 + 0.3 * num, 0.3),
            stable_rank=around(1 + 0.1 * num, 0.3),
            participation_ratio=around(1 + 0.2 * num, 0.3),
            numerical_rank=Estimate.exact(num),
            frac_energy_below_floor=Estimate.exact(0.0),
            energy_rank_90=Estimate.exact(max(1, num // 2)),
            energy_rank_99=Estimate.exact(max(1, num - 1)),
        ),
        nulls=_spectrum_nulls(num, tensor) if group_id is None else {},
    )


def _spectrum_nulls(num: int, tensor: str | None) -> dict[str, Estimate]:
    gaussian = {"gaussian": Estimate.exact(0.8 * num)}
    if tensor:
        return gaussian
    none = Estimate.undefined_because("each token has its own advantage")
    return {"unweighted": Estimate.exact(1 + 0.5 * num), "shuffled": none, "signs": none} | gaussian


def _nulls(size: int) -> dict[str, NullRank]:
    return {
        name: NullRank(
            effective_rank=around(1 + share * (size - 1)),
            difference=Estimate(value=-0.2, low=-0.4, high=-0.05, num_units=11),
            ratio=Estimate(value=0.8, low=0.7, high=0.95, num_units=11),
            two_direction_energy=Estimate(value=0.7, low=0.6, high=0.8, num_units=11),
            profile=profile(size, 1 - share / 2),
        )
        for name, share in (("unweighted", 0.7), ("shuffled", 0.75), ("signs", 0.7), ("gaussian", 0.95))
    }


def profile(size: int, fall: float) -> tuple[float, ...]:
    values = [fall**place for place in range(size)]
    return tuple(value / sum(values) for value in values)


def hash_of(*parts: str) -> float:
    """A number in [0, 1) that stays the same from run to run."""
    return (sum(ord(letter) for part in parts for letter in part) % 17) / 17


def _curve() -> tuple[RankCurvePoint, ...]:
    return tuple(
        RankCurvePoint(
            step=step,
            advantage=advantage,
            group_size=size,
            num_groups=16,
            num_dead=16 if (advantage, size, step) == ("sign", 2, 41) else 5,
            effective_rank=Estimate.undefined_because("no live group of 2 at step 41")
            if (advantage, size, step) == ("sign", 2, 41)
            else around(1 + (size - 1) * (0.9 - 0.003 * step) * scale, 0.15),
            given_prompts=Estimate.undefined_because("leaving one of 2 out leaves too little"),
            stable_rank=around(1 + 0.2 * size, 0.1),
            participation_ratio=around(1 + 0.3 * size, 0.1),
            two_direction_energy=Estimate(value=0.9, low=0.8, high=0.95, num_units=11),
            summed_energy=Estimate(value=1.4, low=1.1, high=1.9, num_units=11),
            shared_directions=Estimate.exact(1.2, num_units=11),
            shared_energy=Estimate(value=0.7, low=0.6, high=0.8, num_units=11),
            shared_sum=Estimate(value=0.75, low=0.5, high=0.9, num_units=11),
            shared_kept=Estimate(value=1.6, low=1.2, high=2.3, num_units=11),
            residual_kept=Estimate.undefined_because("the rows lie on one direction")
            if size == 2
            else around(0.9, 0.2),
            profile=profile(size, 0.55),
            nulls=_nulls(size),
        )
        for advantage, scale in (("logged", 0.8), ("dr_grpo", 0.8), ("sign", 0.9), (HOSTILE, 0.7))
        for size in (2, 4, 8)
        for step in (1, 11, 21, 31, 41)
    )


def _geometry(step: int) -> StepGeometry:
    return StepGeometry(
        step=step,
        weights=f"runs/example/checkpoints/checkpoint-{step - 1}",
        num_rollouts=128,
        num_inferred_ids=0,
        grad_norm=Estimate.exact(0.4123),
        logged_grad_norm=0.4123 if step > 1 else None,
        cancellation=Estimate.exact(0.31),
        class_subspace_energy=Estimate.undefined_because("no group is mixed") if step == 1 else around(0.62, 0.05),
        sparsity={"zero_rows": Estimate.exact(0.41)},
        verification={"checked": True, "relative_error": 2e-7},
    )


@cache  # others are made of it, hundreds of times
def rank_report() -> RankReport:
    spectra = [spectrum(step, f"{step:05d}-{g:03d}", 8) for step in (1, 21, 41) for g in range(9)]
    return RankReport(
        source=source(),
        rows="rollout",
        spectra=(*spectra, *(spectrum(step, None, 8) for step in (1, 21, 41))),
        curve=_curve(),
        steps=tuple(_geometry(step) for step in (1, 21, 41)),
        skipped={7: "the weights before step 7 are not on disk"},
        refused={"tasa": "needs binary rewards"},
        gram={"1": "gram_step_00001.safetensors"},
        engine={"engine": "loop", "dtype": "float32", "device": "cpu", "num_parameters": 99_264},
        findings=("A group of 8 spans 5.6 of 8 directions.",),
        headline=("A group of 8 spans 5.6 of 8 directions.", "The norms match."),
    )


def weight_report() -> RankReport:
    modules = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj")
    tensors = [f"model.layers.{layer}.{module}.weight" for layer in range(4) for module in modules]
    tensors.append("model.embed_tokens.weight")
    return RankReport(
        source=source(),
        rows="weight",
        spectra=tuple(spectrum(41, None, 20 - 3 * (place % 6), tensor=t) for place, t in enumerate(tensors)),
        curve=(),
        steps=(_geometry(41),),
        skipped={},
        refused={},
        gram={},
        engine={"engine": "loop"},
    )


def _replayed(step: int) -> StepReplay:
    if step % 5 != 1:
        cause = f"the weights before step {step} are not on disk"
        return StepReplay(
            step=step,
            weights=None,
            verdict="cannot",
            cause=cause,
            quantities=(
                Quantity(name="frac_reward_zero_std", verdict="match", cause=None),
                Quantity(name="grad_norm", verdict="cannot", cause=cause),
            ),
            logged={"grad_norm": 0.5 + 0.02 * step, "frac_reward_zero_std": 0.5},
            recomputed={"frac_reward_zero_std": 0.5},
            relative_error={"frac_reward_zero_std": 0.0},
            num_inferred_ids=0,
            frac_kl=None,
        )
    bad = step == 11
    value = 0.5 + 0.02 * step
    return StepReplay(
        step=step,
        weights=f"checkpoint-{step - 1}",
        verdict="mismatch" if bad else "match",
        cause="the token ids were inferred from text" if bad else None,
        quantities=(
            Quantity(name="frac_reward_zero_std", verdict="match", cause=None),
            Quantity(
                name="grad_norm",
                verdict="mismatch" if bad else "match",
                cause="the token ids were inferred from text" if bad else None,
            ),
        ),
        logged={"grad_norm": value, "frac_reward_zero_std": 0.5},
        recomputed={"grad_norm": value * (1.02 if bad else 1.0), "frac_reward_zero_std": 0.5},
        relative_error={"grad_norm": 0.02 if bad else 3e-7, "frac_reward_zero_std": 0.0},
        num_inferred_ids=64 if bad else 0,
        frac_kl=None,
    )


def replay_report() -> ReplayReport:
    return ReplayReport(
        source=source(),
        steps=tuple(_replayed(step) for step in range(1, 21)),
        verdict="mismatch",
        headline="mismatch at 1 of 20 steps; 3 match; 16 cannot",
        frac_replay_mismatch=Estimate.exact(0.25, num_units=4),
        equivalent_check="gradscope check runs/demo --require 'frac_replay_mismatch == 0'",
        tolerance=1e-5,
        engine={"engine": "loop"},
        findings=("3 of 4 steps whose weights are on disk match to 3e-07.",),
    )


def check_report() -> CheckReport:
    return CheckReport(
        source=source(),
        verdicts=(
            Verdict(
                metric="frac_reward_zero_std",
                op="<=",
                limit=0.3,
                outcome="fail",
                estimate=Estimate(value=0.4125, low=0.33, high=0.49, num_units=160),
                meaning="0.4125 of groups give no gradient.",
                next_step="Try prompts of middling difficulty.",
            ),
            Verdict(
                metric="pass@4",
                op=">=",
                limit=0.5,
                outcome="unknown",
                estimate=Estimate.undefined_because(f"no held-out samples in {HOSTILE}"),
                meaning=f"pass@4 is undefined: no held-out samples in {HOSTILE}.",
                next_step="Log held-out samples.",
            ),
            Verdict(
                metric="pass_rate",
                op=">",
                limit=0.1,
                outcome="pass",
                estimate=Estimate.exact(0.47),
                meaning="It holds.",
                next_step="",
            ),
        ),
        outcome="fail",
    )


def claims_report() -> ClaimsReport:
    """Two rows of one sentence, one that nobody can tell, and a user's own with a name that is none."""
    two = "The gradient of a group has effective rank about 2, whatever the group size."
    why = "Rank 1.65 at R = 2, 1.98 at R = 8; +0.33 [+0.20, +0.46] from the smallest to the largest R."
    rows = (
        ("rank_two.rollouts", two, "a row a rollout's gradient", around(1.98), around(4.2, 0.3), "supported", why),
        (
            "rank_two.output_head",
            two,
            "dL/dW of one group, output head",
            Estimate.undefined_because("the output head is tied to the embedding"),
            Estimate.undefined_because("no chance model belongs to this number"),
            "cannot_tell",
            "The output head is tied to the embedding.",
        ),
        (
            "dead_groups.excess",
            "More groups are dead than one pass rate for all prompts predicts.",
            "Jensen gap",
            Estimate(value=-0.012345, low=-0.0214, high=-0.0031, num_units=128),
            Estimate.exact(0.0),
            "contradicted",
            "10.0 % [6.0 %, 14.0 %] of the groups are dead; one pass rate for all would give 11.2 %.",
        ),
        (
            HOSTILE,
            f"So says {HOSTILE}.",
            f"a metric of {HOSTILE}",
            Estimate.exact(0.5),
            Estimate.undefined_because("no chance model belongs to this number"),
            "cannot_tell",
            f"{HOSTILE} has no interval.",
        ),
    )
    return ClaimsReport(
        source=source(),
        claims=tuple(
            ClaimRow(
                name=name,
                source=HOSTILE if name == HOSTILE else "arXiv 2606.29238 (On the policy gradient foundations of GRPO)",
                claim=claim,
                metric=metric,
                steps=(1, 21) if name.startswith("rank") else (),
                estimate=estimate,
                null=null,
                verdict=verdict,
                why=reason,
                settle=f"A longer log of {HOSTILE}." if name == HOSTILE else "More groups.",
                ours=False,
            )
            for name, claim, metric, estimate, null, verdict, reason in rows
        ),
        steps=(1, 21),
        skipped={7: "the weights before step 7 are not on disk"},
        engine={"engine": "loop"},
        findings=("Of 4 claims this run supports 1, contradicts 1 and cannot tell 2.",),
    )


def spike_report() -> SpikeReport:
    """A step that stands out, one rollout of hostile name that repeats itself and makes most of it."""
    exact, none = Estimate.exact, Estimate.undefined_because("the completion is shorter than 4")
    return SpikeReport(
        source=source(),
        step=37,
        was_named=False,
        metrics=(
            SpikeMetric(
                name="grad_norm",
                value=exact(14.2),
                typical=exact(1.2, num_units=50),
                deviation=exact(6.1, num_units=50),
                by_chance=exact(3.7, num_units=50),
                is_unusual=True,
            ),
        ),
        course={step: 14.2 if step == 37 else 1.2 + 0.1 * math.sin(step) for step in range(1, 61)},
        grad_norm=exact(14.2, num_units=4),
        rollouts=tuple(
            SpikeRollout(
                group_id=HOSTILE if sample == 3 else "37/p0",
                sample=sample,
                reward=None if sample == 1 else float(sample == 0),
                advantage=None if sample == 1 else 1.5 - sample,
                num_tokens=None if sample == 1 else 20 * sample,
                repeated_ngrams=repeats,
                projection_share=exact(share),
                norm_without=exact(norm),
            )
            for sample, repeats, share, norm in [
                (3, exact(0.83), 0.61, 5.3),
                (0, exact(0.04), 0.24, 11.0),
                (2, exact(0.0), 0.18, 12.0),
                (1, none, -0.03, 14.6),
            ]
        ),
        removals=(SpikeRemoval(num_removed=1, group_id=HOSTILE, sample=3, grad_norm=5.3),),
        tokens=(
            SpikeToken(group_id=HOSTILE, sample=3, position=12, text=HOSTILE, norm=2.5, weight=-0.01, entropy=1.25),
            SpikeToken(group_id="37/p0", sample=0, position=0, text=" the", norm=0.5, weight=0.01, entropy=0.0),
        ),
        tensors=(
            SpikeTensor(tensor="lm_head.weight", norm=11.1, tensor_share=0.61, frac_parameters=0.06),
            SpikeTensor(tensor=HOSTILE, norm=8.9, tensor_share=0.39, frac_parameters=0.94),
        ),
        engine={"engine": "loop"},
        findings=("Step 37 stands out: grad_norm 14.2.", f"Without rollout 3 of group {HOSTILE} it would be 5.3."),
    )
