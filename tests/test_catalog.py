"""The rows of the catalogue: complete, apart from each other, one a number, and true to the range that they state."""

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from operator import attrgetter
from types import UnionType
from typing import get_args, get_origin, get_type_hints

import numpy as np
import pytest
from msgspec.structs import asdict, replace

from gradscope.advantages.registry import ALL_FORMULATIONS, LOGGED
from gradscope.catalog.lookup import CATALOG
from gradscope.diagnostics.compare.measure import with_verdicts
from gradscope.diagnostics.compare.runs import drawdown
from gradscope.diagnostics.degeneracy.group_rewards import DegeneracyOptions
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.diagnostics.logged.policy import PARTS
from gradscope.diagnostics.logged.tokens import logged_part
from gradscope.diagnostics.passk.comparison import compare_samples
from gradscope.diagnostics.rank import formulations
from gradscope.diagnostics.rank.heldout import measure_heldout
from gradscope.diagnostics.rank.rollout_spectra import step_spectra
from gradscope.diagnostics.rank.rows import StepRows
from gradscope.diagnostics.rank.tokens import (
    TokenChange,
    correction_effects,
    entropy_change,
    logprob_change,
    token_kinds,
    token_kl,
    turn_shares,
    with_later,
)
from gradscope.diagnostics.rank.weight_updates import _state, module_shares, optimizer_steps
from gradscope.diagnostics.spike.measure import _tensors_of, repeated_ngrams
from gradscope.estimate import Estimate, estimate_names
from gradscope.gradients.model.checkpoint import Checkpoint
from gradscope.gradients.step.directions import MatrixSteps, TensorNorm
from gradscope.gradients.step.heldout import HeldoutGram
from gradscope.metrics.gram import geometry, spectrum
from gradscope.metrics.gram.alignment import expected_updates
from gradscope.metrics.outcomes.passk import estimate_pass_table
from gradscope.metrics.outcomes.reward_shares import frac_incoherent
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.metrics.uncertainty.steps import Deviation, deviation_of, trend
from gradscope.results import degeneracy, rank
from gradscope.results.logged import EntropyNumbers, GenerationNumbers, MismatchNumbers, StalenessNumbers
from gradscope.results.norms import ReplayReport, SpikeReport
from gradscope.results.passk import PassAtK, PassAtKComparison, PassAtKDifference
from gradscope.results.rank import CorrectionEffect, GradientSparsity, LogprobChange, TokenKind, TokenKl, TurnShare
from gradscope.results.report import RunReport
from tests.diagnostics.compare.test_measure import pair_of
from tests.diagnostics.logged.made_up_tokens import scored, tokens_of
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.made_up_runs import samples as samples_of
from tests.diagnostics.rank.made_up_parts import made_up
from tests.diagnostics.rank.test_rollout_spectra import make_rows

DIFFERENCES = {"difference"}  # differences of two metrics of the catalogue are no metric of their own


NULLS = {"gaussian", "principal_null", "spectrum_drift_null", "principal_angle_null"}
"""What a number would be by chance; the entry of the number says how."""


ADAPTER = ("a_norm", "b_norm", "product_size", "alignment")
"""Numbers of an adapter with an entry of their own; its rank is an effective rank."""


def estimates_of(result: type) -> set[str]:
    return set(estimate_names(result)) - DIFFERENCES - NULLS


NUMBERS: Mapping[str, tuple[type, ...]] = {
    "": (
        *(degeneracy.DegeneracyReport, degeneracy.GroupSizeDegeneracy, degeneracy.StepDegeneracy),
        *(degeneracy.BehindFilter, degeneracy.StepBehindFilter, PassAtK, PassAtKDifference, PassAtKComparison),
        *(rank.Ranks, rank.RankCurvePoint, rank.StepGeometry, rank.FormulationUpdate, rank.GroupShare),
        *(rank.BaselineNoise, rank.WeightUpdate),
    ),
    "gap_": (degeneracy.GapDecomposition,),
    "starvation.": (degeneracy.SignalCost,),
    "overdispersion.": (degeneracy.Overdispersion,),
    "pass_rates.": (degeneracy.PassRateDistribution,),
    "advantages.": (degeneracy.AdvantageMass,),
    "token_sparsity.": (GradientSparsity,),
    "weight_sparsity.": (GradientSparsity,),
    "entropy.": (EntropyNumbers,),
    "staleness.": (StalenessNumbers,),
    "generation.": (GenerationNumbers,),
    "token_kinds.": (TokenKind,),
    "corrections.": (CorrectionEffect,),
    "token_kl.": (TokenKl,),
    "turns.": (TurnShare,),
    "logprob_changes.": (LogprobChange,),
}
"""What the names of a family begin with in the catalogue -> the records that hold them."""


@pytest.mark.parametrize("family", NUMBERS)
def test_every_number_of_a_result_is_in_the_catalogue(family: str) -> None:
    for record in NUMBERS[family]:
        assert estimates_of(record)
        assert {f"{family}{name}" for name in estimates_of(record)} <= set(CATALOG)


def test_numbers_of_the_sampler_and_of_sparsity_are_in_the_catalogue() -> None:
    of_sampler = {name if name == "logprob_gap" else f"sampler.{name}" for name in estimates_of(MismatchNumbers)}
    assert {*of_sampler, *(f"sparsity.{name}" for name in geometry.row_sparsity([1.0]))} <= set(CATALOG)


def test_every_entry_is_complete_and_has_a_title_and_a_formula_of_its_own() -> None:
    for name, entry in CATALOG.items():
        assert entry.name == name
        assert all(text.strip() for name, text in asdict(entry).items() if name != "path")
        assert "2606.29238" not in entry.source
    assert len({entry.title for entry in CATALOG.values()}) == len(CATALOG)
    assert len({entry.formula for entry in CATALOG.values()}) == len(CATALOG)


RESULTS = {
    "degeneracy": degeneracy.DegeneracyReport,
    "rank": rank.RankReport,
    "replay": ReplayReport,
    "report": RunReport,
    "spike": SpikeReport,
}


def test_a_path_leads_to_a_number_of_the_commands_result() -> None:
    for entry in (entry for entry in CATALOG.values() if entry.path):
        reached: object = RESULTS[entry.command]
        for name in entry.path.split("."):
            origin, arguments = get_origin(reached), get_args(reached)
            if origin is tuple:
                reached = get_type_hints(arguments[0])[name]
            elif origin is Mapping:
                reached = arguments[1]
            else:
                reached = get_type_hints(reached)[name]
            if get_origin(reached) is UnionType:  # a part that a log may lack
                reached = next(kind for kind in get_args(reached) if kind is not type(None))
        assert (reached if get_origin(reached) is None else get_args(reached)[1]) in (Estimate, float), entry.name


Measured = tuple[str, Estimate | float | None, float]
"""A metric, a value of it, and the rows N or R of its matrix, or pairs n."""
FEW = Resampling(num_resamples=60)
EDGES = (
    [[(0.0, 0.0), (1.0, 1.0)]],
    [[(0.0, 1.0), (0.0, 1.0)]],
    [[(1.0, 1.0)], [(0.0, 0.0)]],
    [[(0.0, 0.0, 0.0, 1.0)] * 3, [(1.0, 1.0, 1.0, 1.0)] * 6],
    [[(0.0,) * 8] * 9 + [(1.0,) * 7 + (0.0,)]],
    [[(0.5, 0.25, 1.0)] * 2, [(0.0, 0.0)] * 4],
)
"""Logs by step and group at which a number reaches an end of its range."""


def degenerate_values(seed: int) -> Iterator[Measured]:
    rng = np.random.default_rng(seed)
    size, shape = int(rng.integers(2, 7)), rng.choice([0.05, 0.3, 1.0, 5.0], 2)
    drawn = [
        [tuple(rng.binomial(1, rng.beta(*shape), size).astype(float)) for _ in range(rng.integers(1, 33))]
        for _ in range(rng.integers(1, 5))
    ]
    steps = EDGES[seed] if seed < len(EDGES) else drawn
    groups = [
        group_of(list(rewards), step=step, prompt=f"p{rng.integers(30)}-{index}")
        for step, of_step in enumerate(steps)
        for index, rewards in enumerate(of_step)
    ]
    base = [None, "step", 0.0, 1.0, 0.3][seed % 5]
    report = degeneracy_of_run(
        run_of(*groups), group_sizes=(2, 3, 2 * size), options=DegeneracyOptions(base_pass_rate=base, resampling=FEW)
    )
    for name, entry in CATALOG.items():
        if entry.command == "degeneracy" and entry.path:
            yield name, attrgetter(entry.path)(report), 0
    for row in (*report.by_step, *report.by_group_size):
        yield from ((name, getattr(row, name), 0) for name in estimates_of(type(row)))
    for mass in report.advantages:
        yield from ((f"advantages.{name}", getattr(mass, name), 0) for name in estimates_of(degeneracy.AdvantageMass))


def rank_values(seed: int) -> Iterator[Measured]:
    rng = np.random.default_rng(seed)
    size, groups = int(rng.integers(2, 7)), int(rng.integers(1, 13))
    rewards = rng.binomial(1, rng.choice([0.0, 0.3, 0.9]), size * groups).astype(float)
    ids = [f"g{group}" for group in range(groups) for _ in range(size)]
    advantages = rewards - (0.3 if seed % 2 else rewards.mean())
    rows, _ = make_rows(rewards.tolist(), ids, seed=seed, advantages=advantages.tolist())
    if seed % 3 == 0:  # all score vectors alike, or some of them zero
        pulls = rng.choice([0.0, 1.0, -3.0], len(rewards))
        alike = np.outer(pulls, pulls)
        rows = replace(rows, gram=alike, policy_gram=np.outer(advantages, advantages) * alike)
    for of_rows in (point for name in (LOGGED, "sign") for point in step_spectra(rows, name, None, by_group=False)[0]):
        yield "noise_floor", of_rows.noise_floor, 0
        yield from ((name, getattr(of_rows.ranks, name), of_rows.label.shape[0]) for name in estimates_of(rank.Ranks))
    for point in step_spectra(rows, "reinforce", None, by_group=False)[1]:
        yield from ((name, getattr(point, name), size) for name in estimates_of(rank.RankCurvePoint))
        yield from ((f"nulls.{name}", null.effective_rank, size) for name, null in point.nulls.items())
        yield from (("nulls.ratio", null.ratio, size) for null in point.nulls.values())
        yield from (("two_direction_energy", null.two_direction_energy, size) for null in point.nulls.values())
    for update in formulations.measure_formulations(rows, (LOGGED, "sign", "pass_at_2")):
        yield from ((name, getattr(update, name), 0) for name in estimates_of(rank.FormulationUpdate))
        yield from (("alignment.pass@k", estimate, 0) for estimate in update.alignment.values())
        yield from (("update_cosine", estimate, 0) for estimate in update.cosines.values())
    for part in formulations.measure_kinds(rows, (LOGGED, "sign", "pass_at_2")):
        yield from (("kinds.norm", part.norm, 0), ("kinds.cosine", part.cosine, 0))
        yield from (("kinds.alignment.pass@k", estimate, 0) for estimate in part.alignment.values())
    of_steps, of_prompts = formulations.measure_interference(rows, (LOGGED, "sign", "pass_at_2"))
    for step in of_steps:
        yield from ((f"interference.{name}", getattr(step, name), 0) for name in estimates_of(rank.Interference))
    yield from (("interference.influence", prompt.influence, 0) for prompt in of_prompts)
    yield from heldout_values(rows, rng)
    for noise in formulations.measure_baselines(formulations.baseline_groups(rows)):
        yield from ((name, getattr(noise, name), 0) for name in ("optimal_baseline", "reward_norm_correlation"))
        yield from (("relative_noise", estimate, 0) for estimate in noise.relative_noise.values())
    gram = rows.policy_gram
    assert gram is not None
    norms = np.sqrt(np.clip(np.diag(gram), 0.0, None))
    yield from (("projection_share", share.projection_share, 0) for share in formulations.measure_shares(rows))
    yield from (("cosine_to_sum", cosine, 0) for cosine in geometry.cosines_to_sum(gram) if np.isfinite(cosine))
    yield from ((f"sparsity.{name}", estimate, len(gram)) for name, estimate in geometry.row_sparsity(norms).items())
    yield "sparsity.zero_groups", geometry.zero_groups(norms, ids), 0
    yield from (("top_share", geometry.top_share(gram), 0), ("grad_norm", geometry.batch_norm(gram), 0))
    yield from (
        ("cancellation", geometry.cancellation(gram), 0),
        ("class_subspace_energy", formulations._class_energy(rows, gram), 0),
    )
    yield "update_cosine", geometry.cosine_of_updates(rows.gram, rewards, advantages), 0


def heldout_values(rows: StepRows, rng: np.random.Generator) -> Iterator[Measured]:
    """Held-out answers are rollouts of the step once more, of lengths that differ by orders of magnitude."""
    chosen = rng.integers(0, len(rows.gram), 8)
    sizes = 10.0 ** rng.uniform(-2, 2, 8)
    result = HeldoutGram(
        cross=rows.gram[:, chosen] * sizes,
        norms=np.sqrt(np.clip(np.diag(rows.gram)[chosen], 0.0, None)) * sizes,
        scales=np.ones(len(rows.gram)),
        notes=(),
    )
    of_steps, of_prompts = measure_heldout(rows, result, (LOGGED, "sign"))
    for step in of_steps:
        yield from ((f"heldout.{name}", getattr(step, name), 0) for name in estimates_of(rank.HeldoutTransfer))
    yield from (("heldout.influence", prompt.influence, 0) for prompt in of_prompts)


def other_values(seed: int) -> Iterator[Measured]:
    rng = np.random.default_rng(seed)
    count, samples = int(rng.integers(1, 20)), int(rng.integers(2, 9))
    passed = rng.binomial(samples, rng.beta(0.3, 0.3), count)
    at, hat = estimate_pass_table(np.full(count, samples), passed, [1, samples], resampling=FEW)
    yield from (("pass_at_k", estimate, 0) for estimate in at)
    yield from (("pass_hat_k", estimate, 0) for estimate in hat)
    yield "frac_incoherent", frac_incoherent(int(passed.sum()), int(rng.integers(0, passed.sum() + 1))), 0
    # the second solves what the first never does, or the other way round, or everything
    again = rng.binomial(samples, [passed / samples, 1 - passed / samples, np.ones(count)][seed % 3])
    policies = [
        samples_of(
            "policy", {f"p{prompt}": [1.0] * won + [0.0] * (samples - won) for prompt, won in enumerate(of_prompt)}
        )
        for of_prompt in (passed.tolist(), again.tolist())
    ]
    comparison = compare_samples(*policies, [1, samples], resampling=FEW)
    yield from (("frac_won", comparison.frac_won, 0), ("frac_lost", comparison.frac_lost, 0))
    yield from (("compression_factor", row.compression_factor, 0) for row in comparison.rows)
    yield "reward_trend", trend(range(6), rng.choice([0.0, 0.3, 1.0], 6)), 0
    yield "reward_drawdown", drawdown(rng.choice([0.0, 0.3, 1.0], 6)), 0
    before, change = rng.normal(size=(4, 5)), rng.normal(size=(4, 5)) * rng.choice([0.0, 1e-9, 1.0])
    yield (
        "principal_overlap",
        spectrum.principal_overlap(spectrum.frame_of(before), change if seed % 2 else before)[0],
        0,
    )
    path = np.cumsum(rng.normal(size=(4, 6)), axis=0)
    yield "linear_growth", spectrum.linear_growth(path @ path.T, [1, 2, 3, 4]), 0
    pairs = [pair_of(rng.choice([-0.1, 0.0, 0.3], int(rng.integers(2, 12))) + rng.normal(0, 0.01)) for _ in range(3)]
    for pair in with_verdicts([*pairs, pair_of([0.0] * 8)]):
        names = ("p_value", "p_holm", "sign_flip_p_value", "sign_flip_p_holm", "least_detectable")
        yield from ((name, getattr(pair, name), pair.num_pairs) for name in names)


def logged_values(seed: int) -> Iterator[Measured]:
    rng = np.random.default_rng(seed)
    scale = [0.0, 1e-6, 0.1, 3.0, 100.0][seed % 5]
    groups = []
    for step in range(1, 3):
        for prompt in range(int(rng.integers(1, 13))):
            rollouts = []
            for _ in range(int(rng.integers(1, 4))):
                sampler = -rng.exponential(1.0, int(rng.integers(1, 6)))
                trainer = np.minimum(sampler + rng.normal(0, scale, len(sampler)), 0.0)
                first = int(rng.integers(0, step))
                rollouts.append(
                    scored(
                        *(sampler, trainer),
                        advantage=float(rng.choice([-1.0, 0.0, 1.0])),
                        entropies=tuple(rng.exponential(scale / 10, len(sampler))),
                        policy_versions=(first, step - 1),
                        status=rng.choice(["completed", "truncated"]),
                        seconds=float(rng.choice([0.0, 1.0, 50.0])),
                    )
                )
            groups.append(tokens_of(*rollouts, step=step, prompt=f"p{prompt}"))
    for name_of_part, part in PARTS.items():
        result = logged_part(part, run_of(*groups), FEW)
        for row in (result.overall, *result.by_step):
            for name in estimates_of(type(row)):
                yield name if name == "logprob_gap" else f"{name_of_part}.{name}", getattr(row, name), 0


def spike_values(seed: int) -> Iterator[Measured]:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(4, 3)) * rng.choice([0.0, 1.0, 1e6])
    yield from (("norm_without", float(norm), 0) for norm in geometry.norms_without(rows @ rows.T))
    yield "repeated_ngrams", repeated_ngrams(rng.integers(0, rng.choice([1, 3, 100]), 30).tolist()), 0
    deviation = deviation_of(dict(enumerate(rng.standard_cauchy(30).tolist())), 0, num_chosen_from=30)
    yield "deviation", deviation.deviation if isinstance(deviation, Deviation) else None, 0
    norms = [TensorNorm(tensor=str(at), num_entries=1, norm=norm) for at, norm in enumerate(rng.exponential(size=3))]
    yield from (("tensor_share", one.tensor_share, 0) for one in _tensors_of(norms))


def token_part_values(seed: int) -> Iterator[Measured]:
    made = made_up(seed, num_groups=3 + seed % 3, num_turns=1 + seed % 4, scale=[0.0, 0.1, 1.0, 5.0][seed % 4])
    groups = [group_of([0.0] * 3, prompt=f"p{number}") for number in range(made.weighed.tokens.num_groups)]
    if not made.weighed.tokens.weights.any():
        return
    entropies = made.weighed.tokens.entropies
    later = TokenChange(first=0, last=9, logprobs=entropies, entropies=-entropies)
    parts = {
        "token_kinds": token_kinds(1, made.weighed, made.grams),
        "corrections": correction_effects(1, made.weighed),
        "entropy_change": [with_later(entropy_change(1, made.weighed, {}), made.weighed.tokens, later)],
        "token_kl": [token_kl(1, made.weighed, groups)],
        "turns": turn_shares(1, made.weighed),
        "logprob_changes": [logprob_change(1, made.weighed.tokens, later)],
    }
    for family, records in parts.items():
        for record in records:
            for name in estimates_of(type(record)) - {"entropy"}:
                yield f"{family}.{name}", getattr(record, name), 0
            if isinstance(record, LogprobChange):
                yield "logprob_changes.difference", record.difference, 0


def weight_values(seed: int) -> Iterator[Measured]:
    rng = np.random.default_rng(seed)
    before, change = rng.normal(size=(5, 4)), rng.normal(size=(5, 4)) * rng.choice([0.0, 1e-9, 0.1, 10.0])
    frames = spectrum.frame_of(before), spectrum.frame_of(before + change)
    yield "spectrum_drift", spectrum.spectrum_drift(*frames, float(np.linalg.norm(change))), 0
    yield "principal_angle", spectrum.principal_angle(*frames), 0
    up, down = rng.normal(size=(5, 2)) * rng.choice([0.0, 1.0]), rng.normal(size=(2, 4))
    held = Checkpoint(num_updates=1, matrices={}, factors={"q": lambda: (down, up)})
    state = _state("q", held, up @ down, Estimate.exact(2.0))
    yield from ((f"adapter.{name}", getattr(state, name), 0) for name in ADAPTER)
    rows = rng.normal(size=(3, 6))
    moved = (int(rng.integers(0, 7)), 0, 6)
    values = (np.ones(2), np.ones(2), np.ones(2))
    steps = MatrixSteps(tensor="q", num_entries=6, products=rows @ rows.T, singular_values=values, num_moved=moved)
    for record in optimizer_steps(1, [steps]):
        yield "optimizers.bfloat16_moved", record.bfloat16_moved, 0
        yield from (("optimizers.cosines", cosine, 0) for cosine in record.cosines.values())
    norms = [TensorNorm(tensor=str(at), num_entries=1, norm=norm) for at, norm in enumerate(rng.exponential(size=3))]
    for record in module_shares(1, norms):
        yield "modules.energy_share", record.energy_share, 0
        yield "modules.frac_parameters", record.frac_parameters, 0


def ends_of(text: str, rows: float) -> tuple[float, float, bool, bool] | None:
    """Both ends of a range and whether they belong to it; None where words name it."""
    match = re.fullmatch(r"(\d) \.\. N, whole", text)
    if match:
        return float(match[1]), rows, True, True
    interval = re.fullmatch(r"([\[(])(.+), (.+)([\])])", text)
    names = {"inf": math.inf, "-inf": -math.inf, "N": rows, "(R-1)/R": (rows - 1) / max(rows, 1)}
    names |= {f"{a}/{b}": int(a) / int(b) for a, b in re.findall(r"(-?\d)/(\d)", text)}
    names |= {number: float(number) for number in re.findall(r"-?\d(?:\.\d)?", text)}
    if interval is None or not {interval[2], interval[3]} <= names.keys():
        return None
    return names[interval[2]], names[interval[3]], interval[1] == "[", interval[4] == "]"


@cache
def measured_values() -> Mapping[str, list[tuple[float, float]]]:
    """Metric -> numbers of it, each with the rows of its matrix."""
    made = (degenerate_values, rank_values, other_values, logged_values, spike_values, token_part_values, weight_values)
    by_name: dict[str, list[tuple[float, float]]] = {}
    for name, value, rows in (one for seed in range(12) for values in made for one in values(seed)):
        by_name.setdefault(name, []).extend((number, rows) for number in numbers_of(value))
    return by_name


def numbers_of(value: Estimate | float | None) -> tuple[float, ...]:
    if isinstance(value, Estimate):
        return () if value.value is None else (value.value, *value.ends)
    return () if value is None else (float(value),)


RANGED = [name for name, entry in CATALOG.items() if ends_of(entry.range, 4.0) is not None]
UNTRIED = {
    *("token_norm", "token_entropy_correlation", "length_correlation", "live_share", "frac_reward_conflict"),
    *(f"by_reward.{name}" for name in ("frac_tied", "advantage_share", "difference_share", "correlation")),
    *("frac_replay_mismatch", "frac_zero_std_sampled", "mean_frac_reward_zero_std", "kilotokens_per_step"),
    *(name for name in CATALOG if name.startswith("completion_")),
    *("mean_clipped_ratio", "mean_entropy", "mean_kl", "mean_grad_norm"),
    *("replay_grad_norm_error", "replay_advantage_error", "update_size", "top_energy", "bfloat16_changed"),
    *("critical_batch_size", "pass_rates.goodness_of_fit"),
    *(f"starvation.{name}" for name in ("frac_tokens", "tokens_per_rollout", "frac_generation_time")),
    *(name for name in CATALOG if name.startswith(("token_sparsity.", "weight_sparsity."))),
}
"""Ratios and norms that need a model, token ids or a trainer's log; their own tests make them."""


@pytest.mark.slow
def test_no_value_and_no_interval_leaves_its_range() -> None:
    """On random and extreme runs; ends belong to the range up to rounding."""
    for name in (name for name in RANGED if name not in UNTRIED):
        tried = measured_values().get(name)
        assert tried, name
        for number, rows in tried:
            low, high, _, _ = ends_of(CATALOG[name].range, rows) or (0.0, 0.0, False, False)
            assert low - 1e-9 <= number <= high + 1e-9, (name, number, rows)


def test_ranges_are_as_narrow_as_they_can_be() -> None:
    """Ends that some run reaches."""
    unlike = run_of(group_of([0.0, 0.0], prompt="a"), group_of([1.0, 1.0], prompt="b"))
    alone = degeneracy_of_run(unlike, options=DegeneracyOptions(resampling=FEW))
    assert alone.overdispersion.rate_variance.value == 0.5
    alike = run_of(*(group_of([0.0, 1.0], prompt=name) for name in "abc"))
    even = degeneracy_of_run(alike, options=DegeneracyOptions(resampling=FEW))
    assert even.overdispersion.rate_variance.value == -0.25
    assert even.relative_gap.value == 0.0
    report = degeneracy_of_run(
        run_of(group_of([0.0, 1.0], prompt="a")), options=DegeneracyOptions(base_pass_rate=0.5, resampling=FEW)
    )
    assert report.relative_gap.value == -1.0
    # three groups whose sums cancel: |sum of S|^2 = 0
    towards = np.array([[1.0, 0.0], [-0.5, 3**0.5 / 2], [-0.5, -(3**0.5) / 2]])
    noise = expected_updates(towards @ towards.T, [[1.0, 1.0, 1.0]], [0, 1, 2]).signal_to_noise(0)
    assert (noise.value, noise.low) == (pytest.approx(-1.0), pytest.approx(-1.0))


def test_no_source_points_nowhere() -> None:
    sources = [*(entry.source for entry in CATALOG.values()), *(entry.source for entry in ALL_FORMULATIONS.values())]
    assert not [source for source in sources if "as stated" in source.lower()]
    assert "2605.07689" in ALL_FORMULATIONS["sign"].source
