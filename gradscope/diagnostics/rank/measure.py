"""`gradscope rank`: how many directions the gradients of a run span, on each of its checkpoints.

:func:`measure_rank` is the entry point. It loads the weights before each step once, and asks the engine for the Gram
matrix of the rollouts' score vectors and for what else the kind of rows needs (``row_question``). Every formulation
and every group size is then arithmetic on that matrix. What cannot be computed is listed with its reason: a step among
``skipped``, a formulation among ``refused``.

Shapes: R rollouts of a step, P parameters.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from gradscope.diagnostics.inputs.steps import computable_steps, measure_steps, select_steps, with_damage
from gradscope.diagnostics.rank import weight_updates
from gradscope.diagnostics.rank.collected import (
    Collected,
    examine_advantages,
    examine_step,
    row_question,
    rows_and_more,
)
from gradscope.diagnostics.rank.formulations import measure_baselines
from gradscope.diagnostics.rank.heldout import heldout_products, read_heldout
from gradscope.diagnostics.rank.options import TOKEN_ROWS, RankOptions
from gradscope.diagnostics.rank.rows import RankRequest, checked_advantages, possible_sizes
from gradscope.diagnostics.rank.spectrum import compare_formulations, compare_sizes
from gradscope.diagnostics.rank.tokens.weighed import weigh_step
from gradscope.errors import InputError
from gradscope.findings import rank, rank_parts
from gradscope.gradients.engine_options import EngineOptions
from gradscope.progress import Progress, part, reporter
from gradscope.reason import Reason
from gradscope.results.rank import RankReport
from gradscope.results.source import RowKind, Source
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from gradscope.say import as_ranges

_NO_WEIGHTS = ("weights_missing", "first_weights_missing")
_MAX_REASONS = 3  # steps that an error names; where no weights are on disk, no others are looked at
MAX_TOKENS = 512
"""Tokens of a group that are rows where nothing else is asked for; of more, as many are drawn. Exact rows cost N^2 P
operations: of a model of 97,344 parameters 512 rows take 2 CPU seconds and 4,032 take 98."""


def measure_rank(
    path: str | Path,
    *,
    steps: Sequence[int] | None = None,
    rows: RowKind = "rollout",
    advantages: Sequence[str] | None = None,
    options: RankOptions | None = None,
    progress: Progress = False,
    read: ReadOptions | None = None,
    engine: EngineOptions | None = None,
) -> RankReport:
    """Spectra of the gradient matrices of a run.

    Args:
        steps: Steps to look at; None: all whose weights are on disk.
        advantages: ``logged`` and formulations, ``my.py:name`` for one of your own; None: the logged one and every
            formulation of the registry, as ``all`` among them.
        options: Group sizes, which rows are drawn, held-out samples, where matrices go; None: the defaults.
        progress: True for a line on stderr, or a callback, called after each step.

    Raises:
        InputError: No step could be computed.
        UsageError: An advantage or group size does not exist, or options do not go together.
    """
    progress = reporter(progress)
    options = options or RankOptions()
    options.check(rows)
    # what is asked, checked against the run
    run, engine = read_run(path, read, progress=progress), engine or EngineOptions()
    if rows == "update":
        return weight_updates.update_report(run, progress)
    request = RankRequest(
        rows=rows,
        advantages=checked_advantages(advantages),
        group_sizes=() if rows in TOKEN_ROWS and not options.group_sizes else possible_sizes(run, options.group_sizes),
        options=options,
    )
    chosen = select_steps(run, steps)
    collected = Collected(source=run.source, kind=rows)
    wanted = chosen
    if rows == "advantage":
        for done, step in enumerate(chosen):
            collected.progress = part(progress, done, len(chosen), f"steps, now step {step}")
            examine_advantages(step, run.groups_at(step), request, collected)
        progress(len(chosen), len(chosen), "steps")
        return _report(run, request, collected, run.source)
    if steps is None:
        chosen = computable_steps(run) or (chosen if run.weights else chosen[:_MAX_REASONS])
    # step by step, as soon as each is measured
    question = row_question(request, options.tokens or MAX_TOKENS, options.sketch)
    if question is not None and rows == "token":
        question = partial(rows_and_more, rows=question, more=partial(weigh_step, in_parts=True))
    if question is not None and rows == "weight":
        of_gradient = partial(weight_updates.summarize_gradient, learning_rates=weight_updates.learning_rates(run))
        question = partial(rows_and_more, rows=question, more=of_gradient)
    if options.heldout is not None:
        threshold, seed = options.heldout_threshold, options.seed
        answers = read_heldout(options.heldout, threshold=threshold, seed=seed, progress=progress)
        collected.heldout_sentences |= dict.fromkeys(answers.notes)
        question = partial(heldout_products, answers=answers, engine=engine)
    for measured in measure_steps(run, chosen, engine, progress, question):
        examine_step(run, collected.take_parts(run, measured, rows), request, collected)
    collected.look_later(run, engine)
    if not collected.tables["steps"]:
        first = next(iter(collected.skipped.values()))
        if not run.weights and first.cause in _NO_WEIGHTS:
            raise InputError(
                f"No weights of {run.source.path} are on disk, and gradients are recomputed from them.",
                hint="Save checkpoints in the next run (docs/howto.md), or give weights with --initial; gradscope "
                "degeneracy and report need none.",
            )
        reasons = "; ".join(f"step {step}: {reason}" for step, reason in list(collected.skipped.items())[:_MAX_REASONS])
        raise InputError(f"No step of {run.source.path} could be computed: {reasons}.", hint=_instead(run, first))
    return _report(run, request, collected, with_damage(run, collected.skipped, wanted))


def _instead(run: Run, reason: Reason) -> str:
    """What to do about a step that cannot be computed; where only its weights are missing, the command for others."""
    computable = computable_steps(run)
    if reason.cause not in _NO_WEIGHTS or not computable:
        return reason.advice
    return f"{reason.advice} Now: gradscope rank {shlex.quote(run.source.path)} --step {as_ranges(computable)}"


def _report(run: Run, request: RankRequest, collected: Collected, source: Source) -> RankReport:
    """The tables that take all steps together, and the sentences."""
    report = collected.report
    report = replace(
        report,
        source=source,
        baselines=measure_baselines(collected.baseline_groups),
        comparisons=compare_formulations(report.spectra),
        gradient_updates=weight_updates.gradients_and_updates(run, report.spectra) if request.rows == "weight" else (),
        size_changes=compare_sizes(collected.group_ranks) if request.options.pair_groups else (),
    )
    report = replace(report, findings=(*rank.size_findings(report.size_changes), *_sentences(report)))
    return replace(report, headline=rank.rank_headline(report))


def _sentences(report: RankReport) -> tuple[str, ...]:
    """The findings for one kind of rows."""
    reliability = rank.reliability_findings(report.spectra, report.steps, report.engine)
    if report.rows == "token":
        return (
            *rank_parts.token_findings(report.token_curve),
            *rank_parts.correction_findings(report.corrections),
            *rank_parts.kind_findings(report.token_kinds),
            *rank_parts.entropy_findings(report.entropy_changes),
            *rank_parts.turn_findings(report.turns),
            *rank_parts.kl_findings(report.token_kl),
            *rank_parts.logprob_change_findings(report.logprob_changes),
            *rank.sparsity_findings(report.sparsity),
            *rank.rank_findings((), report.steps, ()),
            *reliability,
        )
    if report.rows == "weight":
        return (
            *rank_parts.weight_rank_findings(report.weight_curve),
            *rank.rank_findings((), report.steps, report.spectra),
            *rank_parts.optimizer_findings(report.optimizers),
            *rank.sparsity_findings(report.sparsity),
            *reliability,
            *rank_parts.gradient_update_findings(report.gradient_updates),
        )
    if report.rows in ("hidden", "logit", "advantage"):
        seen = rank_parts.signal_findings(report.rows, report.curve, report.token_curve)
        checked = rank.rank_findings((), report.steps, ()) if report.steps else ()
        return (*seen, *checked, *reliability)
    return (
        *rank.rank_findings(report.curve, report.steps, report.spectra, report.comparisons),
        *reliability,
        *rank.update_findings(report.formulations, report.baselines),
        *rank.interference_findings(report.interference),
        *rank.heldout_findings(report.heldout),
    )
