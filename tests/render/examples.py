"""Results of every type, with undefined numbers and hostile text in them: those of the golden documents, and more."""

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import TypeVar

from msgspec.structs import replace

from gradscope.estimate import Estimate, estimate_names
from gradscope.results import rank
from gradscope.results.compare import Comparison
from gradscope.results.degeneracy import DegeneracyCourse, DegeneracyReport, StepDegeneracy
from gradscope.results.envelope import LazyRows
from gradscope.results.norms import ReplayReport, SpikeReport
from gradscope.results.passk import Evaluation, PassAtK, PassAtKReport
from gradscope.results.report import RunIndex, RunReport
from gradscope.results.source import Quarantine, QuarantineReason, Source
from gradscope.results.verdicts import CheckReport, ClaimsReport
from tests.results.reading import column_of, read_golden

ATTACK = (
    "<script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">"
    "\"' onmouseover='document.title=1' </style></title>{{7*7}}"
)
"""Text as a log may hold it, which must stay text."""
HOSTILE = "<script>[red]\x1b[31mred\u202egnp"
"""A name as a log may hold it: HTML, rich markup, a terminal escape and a right-to-left override."""

QUARANTINE = Quarantine(
    num_rows=2,
    num_rollouts=2,
    reasons=(
        QuarantineReason(reason="reward is not a number", num_rows=2, num_rollouts=2, first=f"{HOSTILE}.jsonl:7"),
    ),
)


Record = TypeVar("Record")


def filled(kind: type[Record], estimate: Estimate, **values: object) -> Record:
    """A record with the same estimate in each of its fields of estimates, but for the named values."""
    names = set(estimate_names(kind))
    return kind(**dict.fromkeys(names, estimate) | values)


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
    """The golden report, of another number of steps."""
    report = read_golden(DegeneracyReport, "degeneracy")
    size = Estimate.exact(64.0, num_units=num_steps)
    last = [*report.by_prompt[:2], {**report.by_prompt[2], "last_live_step": num_steps}]
    of_steps = with_steps(report, [_step(step) for step in range(1, num_steps + 1)])
    return replace(
        of_steps,
        source=replace(report.source, files=files),
        summary=report.findings[:1],
        num_groups=8 * num_steps,
        num_rollouts=64 * num_steps,
        behind_filter=replace(
            report.behind_filter,
            frac_zero_std_sampled=replace(report.behind_filter.frac_zero_std_sampled, num_units=num_steps),
            num_sampled=10 * num_steps,
            num_dead=53 * num_steps // 10,
        ),
        starvation=replace(
            report.starvation,
            batch_size=size,
            effective_batch_size=replace(report.starvation.effective_batch_size, num_units=num_steps),
        ),
        reward_conflict=replace(report.reward_conflict, num_groups=2 * num_steps),
        by_prompt=LazyRows({name: column_of([row[name] for row in last]) for name in last[0]}),
    )


def passk_report(num_files: int = 2) -> PassAtKReport:
    report = read_golden(PassAtKReport, "passk")
    if num_files > 1:
        return report
    return PassAtKReport(tables=report.tables[:1], comparison=None, findings=("One policy.",))


def evaluations_report(num_models: int = 7) -> PassAtKReport:
    """Two scorers of each model on one task, the second one without verdicts, the first model's log cut short."""
    tables = []
    for number in range(num_models):
        for scorer in ("exact_match,first-filtered", "model_graded_qa,scored"):
            table = replace(passk_report().tables[0], name=f"log{number}.eval:{scorer}")
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
) -> rank.GradientSpectrum:
    num = 24 if group_id is None and tensor is None else size
    values = tuple(3.0 * (1 + hash_of(group_id or "", tensor or "")) * 0.7**index for index in range(num))
    return rank.GradientSpectrum(
        label=rank.SpectrumLabel(
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
        ranks=rank.Ranks(
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


def _nulls(size: int) -> dict[str, rank.NullRank]:
    return {
        name: rank.NullRank(
            effective_rank=around(1 + share * (size - 1)),
            difference=Estimate(value=-0.2, low=-0.4, high=-0.05, num_units=11),
            ratio=Estimate(value=0.8, low=0.7, high=0.95, num_units=11),
            two_direction_energy=Estimate(value=0.7, low=0.6, high=0.8, num_units=11),
            profile=profile(size, 1 - share / 2),
        )
        for name, share in (("unweighted", 0.7), ("shuffled", 0.75), ("signs", 0.7), ("gaussian", 0.95))
    }


def profile(size: int, fall: float) -> tuple[float, ...]:
    values = [fall**index for index in range(size)]
    return tuple(value / sum(values) for value in values)


def hash_of(*parts: str) -> float:
    """A number in [0, 1) that stays the same from run to run."""
    return (sum(ord(letter) for part in parts for letter in part) % 17) / 17


def _curve() -> tuple[rank.RankCurvePoint, ...]:
    return tuple(
        rank.RankCurvePoint(
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


def _geometry(step: int) -> rank.StepGeometry:
    return rank.StepGeometry(
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
def rank_report() -> rank.RankReport:
    spectra = [spectrum(step, f"{step:05d}-{g:03d}", 8) for step in (1, 21, 41) for g in range(9)]
    return rank.RankReport(
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


weight_report = partial(read_golden, rank.RankReport, "rank")
replay_report = partial(read_golden, ReplayReport, "replay")
check_report = partial(read_golden, CheckReport, "check")
# two rows of one sentence, one that nobody can tell, and a user's own with a name that is none
claims_report = partial(read_golden, ClaimsReport, "claims")
# a step that stands out, one rollout of hostile name that repeats itself and makes most of it
spike_report = partial(read_golden, SpikeReport, "spike")
# every kind of chart and cell, a section without data, and hostile text everywhere
run_report = partial(read_golden, RunReport, "report")
run_index = partial(read_golden, RunIndex, "report_index")  # two runs, one of hostile name, a third could not be read


def comparison(num_cells: int = 4) -> Comparison:
    """The first so many cells of two formulations at two learning rates, one difference decided, one undefined."""
    full = read_golden(Comparison, "compare")
    cells = full.cells[:num_cells]
    names = {cell.name for cell in cells}
    return replace(
        full,
        cells=cells,
        pairs=tuple(pair for pair in full.pairs if {pair.first, pair.second} <= names),
        curves=tuple(curve for curve in full.curves if curve.cell in names),
    )
