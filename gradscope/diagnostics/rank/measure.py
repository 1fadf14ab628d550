"""`gradscope rank`: how many directions the gradients of a run span, on each of its checkpoints.

:func:`measure_rank` is the entry point. It loads the weights before each step once, and asks the engine for the Gram
matrix of the rollouts' score vectors and for what else the kind of rows needs (``row_questions``). Every formulation
and every group size is then arithmetic on that matrix. What cannot be computed is listed with its reason: a step among
``skipped``, a formulation among ``refused``.

Shapes: R rollouts of a step, P parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from gradscope.advantages.registry import FORMULATIONS, GRAM_FORMULATIONS, LOGGED, formulation
from gradscope.diagnostics.inputs.row_questions import RowQuestion, TokenQuestion, WeightQuestion
from gradscope.diagnostics.inputs.steps import MeasuredStep, describe_engine, measure_steps, select_steps
from gradscope.diagnostics.rank.comparison import compare_formulations
from gradscope.diagnostics.rank.formulations.reward_baselines import BaselineGroup, baseline_groups, measure_baselines
from gradscope.diagnostics.rank.formulations.updates import measure_formulations, measure_shares
from gradscope.diagnostics.rank.rollouts.geometry import measure_geometry
from gradscope.diagnostics.rank.rollouts.gram_file import write_gram
from gradscope.diagnostics.rank.rollouts.step_rows import StepRows, step_rows
from gradscope.diagnostics.rank.rollouts.step_spectra import step_spectra
from gradscope.diagnostics.rank.sparsity import token_sparsity, weight_sparsity
from gradscope.diagnostics.rank.tokens.token_spectra import token_spectra
from gradscope.diagnostics.rank.weights.gradient_beside_update import gradients_and_updates
from gradscope.diagnostics.rank.weights.updates import update_report
from gradscope.diagnostics.rank.weights.weight_spectra import weight_spectra
from gradscope.diagnostics.replay.logprobs import logprob_difference
from gradscope.errors import GradscopeError, InputError, UsageError
from gradscope.findings.formulations import update_findings
from gradscope.findings.rank import rank_findings
from gradscope.findings.reliability import reliability_findings
from gradscope.findings.sparsity import sparsity_findings
from gradscope.findings.tokens import token_findings
from gradscope.findings.weights import gradient_update_findings
from gradscope.gradients.engine_options import EngineOptions
from gradscope.progress import ProgressCallback, no_progress
from gradscope.results.rank import (
    BaselineNoise,
    FormulationUpdate,
    GradientSpectrum,
    GroupShare,
    RankComparison,
    RankCurvePoint,
    RankReport,
    RowKind,
    StepGeometry,
)
from gradscope.results.rank_tokens import GradientSparsity, TokenRankPoint
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run

GROUP_SIZES = (2, 4, 8)
"""Group sizes looked at where none is asked for, as far as the logged groups are large enough."""
MOST_TOKENS = 512
"""Tokens of a group that are rows where nothing else is asked for; of more, as many are drawn. Exact rows cost N^2 P
operations: of a model of 97,344 parameters 512 rows take 2 CPU seconds and 4,032 take 98."""


@dataclass(slots=True)
class _Collected:
    """What has been computed so far, over the steps."""

    spectra: list[GradientSpectrum] = field(default_factory=list)
    curve: list[RankCurvePoint] = field(default_factory=list)
    token_curve: list[TokenRankPoint] = field(default_factory=list)
    steps: list[StepGeometry] = field(default_factory=list)
    skipped: dict[int, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    gram: dict[str, str] = field(default_factory=dict)
    engine: dict[str, object] = field(default_factory=dict)
    formulations: list[FormulationUpdate] = field(default_factory=list)
    shares: list[GroupShare] = field(default_factory=list)
    baseline_groups: list[BaselineGroup] = field(default_factory=list)
    sparsity: list[GradientSparsity] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRequest:
    """What is asked of every step."""

    rows: RowKind
    """What a row of the matrix is."""
    advantages: tuple[str, ...]
    """``logged`` and formulations that exist."""
    group_sizes: tuple[int, ...]
    """Sizes to regroup into, beside the logged one."""
    centered: bool
    """Whether to subtract the mean row first."""
    seed: int
    """Decides which tokens are drawn, and the sketch."""
    output: Path | None
    """Folder for the Gram matrices; None: they are not written."""


def measure_rank(
    path: str | Path,
    *,
    steps: Sequence[int] | None = None,
    rows: RowKind = "rollout",
    advantages: Sequence[str] | None = None,
    group_sizes: Sequence[int] = (),
    centered: bool = False,
    tokens: int | None = None,
    sketch: int | None = None,
    seed: int = 0,
    output: str | Path | None = None,
    progress: ProgressCallback = no_progress,
    read: ReadOptions | None = None,
    engine: EngineOptions | None = None,
) -> RankReport:
    """Spectra of the gradient matrices of a run.

    Args:
        steps: Steps to look at; None: all whose weights are on disk.
        advantages: ``logged`` and formulations; None: the logged one and every formulation of the registry.
        group_sizes: Sizes to regroup into; empty: 2, 4 and 8 as far as groups are large enough, and the logged size;
            for token rows the logged size alone.
        tokens: For token rows: most tokens of a group; of more, as many are drawn at random. None: 512.
        sketch: For token rows: all tokens, each kept as this many numbers.
        seed: Decides which tokens are drawn, and the sketch.
        output: Folder for the Gram matrices, written step by step.
        read: How to read the run; None: recognize everything.
        engine: How to compute the gradients; None: the defaults.

    Returns:
        Spectra, rank curves over checkpoints, and the geometry of each step's gradient.

    Raises:
        InputError: No step could be computed.
        UsageError: An advantage or group size does not exist, or tokens are asked of other rows.
    """
    # which options go together
    if tokens is not None and (rows != "token" or tokens < 2):
        raise UsageError("--max-tokens is a number from 2 on, and goes with --rows token.", hint="Add --rows token.")
    if sketch is not None and (rows != "token" or tokens is not None or sketch < 2):
        raise UsageError(
            "--sketch K keeps every token, as K numbers (2 or more): it goes with --rows token, without --max-tokens.",
            hint="Use --rows token --sketch 4096.",
        )
    # what is asked, checked against the run
    run, engine = read_run(path, read), engine or EngineOptions()
    if rows == "update":
        return update_report(run, progress)
    chosen = select_steps(run, steps)
    if steps is None:
        chosen = tuple(step for step in chosen if run.weights_before(step)) or chosen
    request = RankRequest(
        rows=rows,
        advantages=_known_advantages(advantages),
        group_sizes=() if rows == "token" and not group_sizes else _possible_sizes(run, group_sizes),
        centered=centered,
        seed=seed,
        output=Path(output) if output else None,
    )
    # step by step, as soon as each is measured
    collected = _Collected()
    question = _row_question(rows, tokens or MOST_TOKENS, sketch, seed)
    for measured in measure_steps(run, chosen, engine, progress, question):
        _examine(run, measured, request, collected)
    if not collected.steps:
        reasons = "; ".join(f"step {step}: {reason}" for step, reason in list(collected.skipped.items())[:3])
        raise InputError(f"No step of {run.path} could be computed: {reasons}.", hint=_hint(run))
    return _report(run, request, collected)


def _row_question(rows: RowKind, most: int, num_buckets: int | None, seed: int) -> RowQuestion | None:
    """What needs the weights of a step beside the Gram matrix of its rollouts."""
    if rows == "weight":
        return WeightQuestion()
    if rows != "token":
        return None
    return TokenQuestion(most=most if num_buckets is None else None, num_buckets=num_buckets, seed=seed)


def _hint(run: Run) -> str:
    """The next step where nothing could be computed."""
    if run.weights:
        return "Save a checkpoint before each step that matters, or pass --initial FOLDER for step 1."
    return "Point at a run folder with checkpoints, or pass the model before the first update: --initial FOLDER"


def _report(run: Run, request: RankRequest, collected: _Collected) -> RankReport:
    """The findings as a result object."""
    baselines = measure_baselines(collected.baseline_groups)
    comparisons = compare_formulations(collected.spectra)
    beside = gradients_and_updates(run, collected.spectra) if request.rows == "weight" else ()
    return RankReport(
        source=run.source,
        rows=request.rows,
        spectra=tuple(collected.spectra),
        curve=tuple(collected.curve),
        steps=tuple(collected.steps),
        skipped=collected.skipped,
        refused=collected.refused,
        gram=collected.gram,
        engine=collected.engine,
        formulations=tuple(collected.formulations),
        shares=tuple(collected.shares),
        baselines=baselines,
        comparisons=comparisons,
        token_curve=tuple(collected.token_curve),
        sparsity=tuple(collected.sparsity),
        gradient_updates=beside,
        findings=(*_sentences(request, collected, comparisons, baselines), *gradient_update_findings(beside)),
    )


def _sentences(
    request: RankRequest,
    collected: _Collected,
    comparisons: Sequence[RankComparison],
    baselines: Sequence[BaselineNoise],
) -> tuple[str, ...]:
    reliability = reliability_findings(collected.spectra, collected.steps, collected.engine)
    if request.rows == "token":
        seen = (*token_findings(collected.token_curve), *sparsity_findings(collected.sparsity))
        return (*seen, *rank_findings((), collected.steps, ()), *reliability)
    if request.rows == "weight":
        ranks = rank_findings((), collected.steps, collected.spectra)
        return (*ranks, *sparsity_findings(collected.sparsity), *reliability)
    ranks = rank_findings(collected.curve, collected.steps, collected.spectra, comparisons)
    return (*ranks, *reliability, *update_findings(collected.formulations, baselines))


def _known_advantages(names: Sequence[str] | None) -> tuple[str, ...]:
    """Names checked against the registry; ``all`` and None stand for the logged one and every formulation."""
    if names is None or "all" in names:
        return (LOGGED, *FORMULATIONS, *GRAM_FORMULATIONS)
    for name in names:
        if name != LOGGED:
            formulation(name)
    return tuple(dict.fromkeys(names))


def _possible_sizes(run: Run, sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes that some group of the log can give."""
    largest = max((group.size for group in run.groups), default=0)
    for size in sizes:
        if not 2 <= size <= largest:
            raise UsageError(
                f"Groups of {size} cannot be taken from this log: its largest group has {largest} rollouts.",
                hint=f"Choose a --group-size from 2 to {largest}.",
            )
    return tuple(dict.fromkeys(sizes)) if sizes else tuple(size for size in GROUP_SIZES if size < largest)


def _examine(run: Run, measured: MeasuredStep, request: RankRequest, collected: _Collected) -> None:
    """Everything that is asked of one step."""
    gram = measured.gram
    if gram is None or measured.weights is None:
        collected.skipped[measured.step] = measured.reason or "unknown"
        return
    # what every kind of rows has: the geometry of the step's gradient
    rows = step_rows(gram)
    collected.engine = describe_engine(gram, collected.engine)
    geometry = measure_geometry(rows, measured.weights, gram, run.metrics.get(measured.step, {}))
    collected.steps.append(replace(geometry, logprob_difference=logprob_difference(measured.groups, gram)))
    if request.output:
        collected.gram[str(measured.step)] = write_gram(request.output, rows)
    # weights have no advantage to exchange: one spectrum a tensor
    if request.rows == "weight":
        collected.spectra.extend(weight_spectra(measured, gram))
        collected.sparsity.extend(weight_sparsity(measured.step, measured.answer))
        return
    # rollouts and tokens, under every advantage and group size
    collected.formulations.extend(measure_formulations(rows, request.advantages))
    collected.shares.extend(measure_shares(rows))
    collected.baseline_groups.extend(baseline_groups(rows))
    collected.sparsity.extend(token_sparsity(measured.step, measured.answer))
    for advantage, size in _pairs(request, rows):
        if advantage in collected.refused:
            continue
        try:
            _answer(measured, rows, advantage, size, request, collected)
        except GradscopeError as error:
            collected.refused[advantage] = error.message


def _answer(
    measured: MeasuredStep,
    rows: StepRows,
    advantage: str,
    size: int | None,
    request: RankRequest,
    collected: _Collected,
) -> None:
    """The spectra of one step under one advantage, at one group size."""
    if request.rows == "token":
        spectra, points = token_spectra(
            rows, measured.answer, advantage, size, seed=request.seed, centered=request.centered
        )
        collected.token_curve.extend(points)
    else:
        spectra, curve = step_spectra(
            rows, advantage, size, by_group=request.rows == "group", centered=request.centered
        )
        collected.curve.extend(curve)
    collected.spectra.extend(spectra)


def _pairs(request: RankRequest, rows: StepRows) -> Iterator[tuple[str, int | None]]:
    """Advantage and group size, the logged size first. Logged advantages belong to the logged groups alone."""
    logged_sizes = set(np.unique(rows.group_ids, return_counts=True)[1].tolist())
    for advantage in request.advantages:
        yield advantage, None
        if advantage != LOGGED:
            fewest = formulation(advantage).min_group_size
            yield from ((advantage, size) for size in request.group_sizes if size >= fewest and logged_sizes != {size})
