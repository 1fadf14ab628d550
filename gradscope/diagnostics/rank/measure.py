"""`gradscope rank`: how many directions the gradients of a run span, on each of its checkpoints.

:func:`measure_rank` is the entry point. It loads the weights before each step once, and asks the engine for the Gram
matrix of the rollouts' score vectors and for what else the kind of rows needs (``row_questions``). Every formulation
and every group size is then arithmetic on that matrix. What cannot be computed is listed with its reason: a step among
``skipped``, a formulation among ``refused``.

Shapes: R rollouts of a step, P parameters.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gradscope.diagnostics.inputs.steps import computable_steps, measure_steps, select_steps, with_damage
from gradscope.diagnostics.rank.collected import WHOLE_ROLLOUTS, Collected, examine_advantages, examine_step
from gradscope.diagnostics.rank.comparison import compare_formulations, compare_sizes
from gradscope.diagnostics.rank.formulations.heldout_file import read_heldout
from gradscope.diagnostics.rank.formulations.heldout_question import HeldoutQuestion
from gradscope.diagnostics.rank.formulations.reward_baselines import measure_baselines
from gradscope.diagnostics.rank.request import RankRequest, known_advantages, possible_sizes
from gradscope.diagnostics.rank.several import row_question
from gradscope.diagnostics.rank.tokens.parts_question import PartsQuestion
from gradscope.diagnostics.rank.weights.gradient_beside_update import gradients_and_updates
from gradscope.diagnostics.rank.weights.optimizer_question import OptimizerQuestion, learning_rates
from gradscope.diagnostics.rank.weights.updates import update_report
from gradscope.errors import InputError, UsageError
from gradscope.findings.rank.formulations import update_findings
from gradscope.findings.rank.headline import rank_headline
from gradscope.findings.rank.heldout import heldout_findings
from gradscope.findings.rank.interference import interference_findings
from gradscope.findings.rank.ranks import rank_findings, size_findings
from gradscope.findings.rank.reliability import reliability_findings
from gradscope.findings.rank.sparsity import sparsity_findings
from gradscope.findings.rank.token_parts import (
    correction_findings,
    entropy_findings,
    kind_findings,
    kl_findings,
    logprob_change_findings,
    turn_findings,
)
from gradscope.findings.rank.tokens import signal_findings, token_findings
from gradscope.findings.rank.weights import gradient_update_findings, optimizer_findings, weight_rank_findings
from gradscope.gradients.engine_options import EngineOptions
from gradscope.progress import Progress, reporter
from gradscope.reason import Reason
from gradscope.results.rank import (
    BaselineNoise,
    RankComparison,
    RankReport,
    RowKind,
)
from gradscope.results.source import Source
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from gradscope.say import as_ranges

_OF_TOKENS = ("token", "hidden", "logit")
"""Kinds of rows that are tokens."""
MOST_TOKENS = 512
"""Tokens of a group that are rows where nothing else is asked for; of more, as many are drawn. Exact rows cost N^2 P
operations: of a model of 97,344 parameters 512 rows take 2 CPU seconds and 4,032 take 98."""


def measure_rank(
    path: str | Path,
    *,
    steps: Sequence[int] | None = None,
    rows: RowKind = "rollout",
    advantages: Sequence[str] | None = None,
    group_sizes: Sequence[int] = (),
    centered: bool = False,
    pair_groups: bool = False,
    tokens: int | None = None,
    sketch: int | None = None,
    heldout: str | Path | None = None,
    heldout_threshold: float | None = None,
    seed: int = 0,
    output: str | Path | None = None,
    progress: Progress = False,
    read: ReadOptions | None = None,
    engine: EngineOptions | None = None,
) -> RankReport:
    """Spectra of the gradient matrices of a run.

    Args:
        steps: Steps to look at; None: all whose weights are on disk.
        advantages: ``logged`` and formulations, ``my.py:name`` for one of your own; None: the logged one and every
            formulation of the registry, as ``all`` among them.
        group_sizes: Sizes to regroup into; empty: 2, 4 and 8 as far as groups are large enough, and the logged size;
            where rows are tokens the logged size alone.
        pair_groups: Whether only groups count that live at every size, each weighing the same: the same prompts at
            every size.
        tokens: For rows that are tokens: most tokens of a group; of more, as many are drawn at random. None: 512.
        sketch: For token rows: all tokens, each kept as this many numbers.
        heldout: Samples of known correctness to hold each step against: a file, a gradscope run, or another log. It
            costs the passes of each step once more, and one for each correct answer.
        heldout_threshold: A held-out sample is correct when its reward reaches this; None: 1 for rewards of 0/1 or
            -1/1.
        seed: Decides which tokens and held-out answers are drawn, and the sketch.
        output: Folder for the Gram matrices, written step by step.
        progress: True for a line on stderr, or a callback, told after each step.
        read: How to read the run; None: recognize everything.
        engine: How to compute the gradients; None: the defaults.

    Returns:
        Spectra, rank curves over checkpoints, and the geometry of each step's gradient.

    Raises:
        InputError: No step could be computed.
        UsageError: An advantage or group size does not exist, or tokens are asked of other rows.
    """
    progress = reporter(progress)
    # which options go together
    if tokens is not None and (rows not in _OF_TOKENS or tokens < 2):
        raise UsageError(
            "--max-tokens is a number from 2 on, and goes with rows that are tokens.",
            hint="Write --max-tokens 64" if rows in _OF_TOKENS else "Add --rows token, --rows hidden or --rows logit.",
        )
    if sketch is not None and (rows != "token" or tokens is not None or sketch < 2):
        raise UsageError(
            "--sketch K keeps every token, as K numbers (2 or more): it goes with --rows token, without --max-tokens.",
            hint="Write --rows token --sketch 4096",
        )
    if pair_groups and rows in ("update", "group"):
        raise UsageError(
            f"--pair-groups is for the rollouts of one group, and --rows {rows} has no such matrix.",
            hint="Use --rows rollout, token, weight, hidden, logit or advantage.",
        )
    if heldout is None and heldout_threshold is not None:
        raise UsageError("--heldout-threshold is about held-out samples.", hint="Name them: --heldout FILE")
    if heldout is not None and rows not in WHOLE_ROLLOUTS:
        raise UsageError(
            f"--heldout is for rows of whole rollouts, and --rows {rows} has others.",
            hint="Leave out --rows, or use --rows group.",
        )
    # what is asked, checked against the run
    run, engine = read_run(path, read, progress=progress), engine or EngineOptions()
    if rows == "update":
        return update_report(run, progress)
    request = RankRequest(
        rows=rows,
        advantages=known_advantages(advantages),
        group_sizes=() if rows in _OF_TOKENS and not group_sizes else possible_sizes(run, group_sizes),
        paired=pair_groups,
        centered=centered,
        seed=seed,
        output=Path(output) if output else None,
    )
    chosen, collected = select_steps(run, steps), Collected()
    wanted = chosen
    if rows == "advantage":
        for step in chosen:
            examine_advantages(step, run.groups_at(step), request, collected)
        return _report(run, request, collected, run.source)
    if steps is None:
        chosen = computable_steps(run) or chosen
    # step by step, as soon as each is measured
    question = row_question(request, tokens or MOST_TOKENS, sketch)
    if question is not None and rows == "token":
        question = PartsQuestion(rows=question)
    if question is not None and rows == "weight":
        question = OptimizerQuestion(rows=question, learning_rates=learning_rates(run))
    if heldout is not None:
        answers = read_heldout(heldout, threshold=heldout_threshold, seed=seed, progress=progress)
        collected.heldout_notes |= dict.fromkeys(answers.notes)
        question = HeldoutQuestion(answers=answers, engine=engine)
    for measured in measure_steps(run, chosen, engine, progress, question):
        examine_step(run, collected.take_parts(run, measured, rows), request, collected)
    collected.parts.look_later(run, engine)
    if not collected.steps:
        reasons = "; ".join(f"step {step}: {reason}" for step, reason in list(collected.skipped.items())[:3])
        first = next(iter(collected.skipped.values()))
        raise InputError(f"No step of {run.source.path} could be computed: {reasons}.", hint=_instead(run, first))
    return _report(run, request, collected, with_damage(run, collected.skipped, wanted))


def _instead(run: Run, reason: Reason) -> str:
    """What to do about a step that cannot be computed; where only its weights are missing, the command for others."""
    others = computable_steps(run)
    if reason.cause not in ("weights_missing", "first_weights_missing") or not others:
        return reason.advice
    return f"{reason.advice} Now: gradscope rank {shlex.quote(run.source.path)} --step {as_ranges(others)}"


def _report(run: Run, request: RankRequest, collected: Collected, source: Source) -> RankReport:
    """The findings as a result object."""
    baselines = measure_baselines(collected.baseline_groups)
    comparisons = compare_formulations(collected.spectra)
    beside = gradients_and_updates(run, collected.spectra) if request.rows == "weight" else ()
    changes = compare_sizes(collected.group_ranks) if request.paired else ()
    report = RankReport(
        source=source,
        rows=request.rows,
        spectra=tuple(collected.spectra),
        curve=tuple(collected.curve),
        steps=tuple(collected.steps),
        skipped={step: str(reason) for step, reason in collected.skipped.items()},
        refused=collected.refused,
        gram=collected.gram,
        engine=collected.engine,
        formulations=tuple(collected.formulations),
        kinds=tuple(collected.kinds),
        interference=tuple(collected.interference),
        influences=tuple(collected.influences),
        heldout=tuple(collected.heldout),
        heldout_influences=tuple(collected.heldout_influences),
        heldout_notes=tuple(collected.heldout_sentences()),
        shares=tuple(collected.shares),
        baselines=baselines,
        comparisons=comparisons,
        token_curve=tuple(collected.token_curve),
        weight_curve=tuple(collected.weight_curve),
        size_changes=changes,
        sparsity=tuple(collected.sparsity),
        gradient_updates=beside,
        optimizers=tuple(collected.optimizers),
        modules=tuple(collected.modules),
        corrections=tuple(collected.parts.corrections),
        token_kinds=tuple(collected.parts.kinds),
        entropy_changes=tuple(collected.parts.entropy),
        token_kl=tuple(collected.parts.kl),
        turns=tuple(collected.parts.turns),
        logprob_changes=collected.parts.logprobs,
        missing_parts=collected.parts.missing,
        findings=(
            *size_findings(changes),
            *_sentences(request, collected, comparisons, baselines),
            *gradient_update_findings(beside),
        ),
    )
    return replace(report, headline=rank_headline(report))


def _sentences(
    request: RankRequest,
    collected: Collected,
    comparisons: Sequence[RankComparison],
    baselines: Sequence[BaselineNoise],
) -> tuple[str, ...]:
    reliability = reliability_findings(collected.spectra, collected.steps, collected.engine)
    if request.rows == "token":
        parts = collected.parts
        seen = (
            *token_findings(collected.token_curve),
            *correction_findings(parts.corrections),
            *kind_findings(parts.kinds),
            *entropy_findings(parts.entropy),
            *turn_findings(parts.turns),
            *kl_findings(parts.kl),
            *logprob_change_findings(parts.logprobs),
            *sparsity_findings(collected.sparsity),
        )
        return (*seen, *rank_findings((), collected.steps, ()), *reliability)
    if request.rows == "weight":
        seen = weight_rank_findings(collected.weight_curve)
        ranks = (*seen, *rank_findings((), collected.steps, collected.spectra))
        return (*ranks, *optimizer_findings(collected.optimizers), *sparsity_findings(collected.sparsity), *reliability)
    if request.rows in ("hidden", "logit", "advantage"):
        seen = signal_findings(request.rows, collected.curve, collected.token_curve)
        checked = rank_findings((), collected.steps, ()) if collected.steps else ()
        return (*seen, *checked, *reliability)
    ranks = rank_findings(collected.curve, collected.steps, collected.spectra, comparisons)
    updates = update_findings(collected.formulations, baselines)
    effects = (*interference_findings(collected.interference), *heldout_findings(collected.heldout))
    return (*ranks, *reliability, *updates, *effects)
