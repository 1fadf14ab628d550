"""`gradscope rank`: how many directions the gradients of a run span, on each of its checkpoints.

:func:`measure_rank` is the entry point. It loads the weights before each step once, and asks the engine for the Gram
matrix of the rollouts' score vectors and for what else the kind of rows needs (``row_question``). Every formulation
and every group size is then arithmetic on that matrix. What cannot be computed is listed with its reason: a step among
``skipped``, a formulation among ``refused``.

Shapes: R rollouts of a step, P parameters.
"""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from gradscope.diagnostics.inputs.steps import (
    MeasuredStep,
    computable_steps,
    describe_engine,
    measure_steps,
    select_steps,
    with_damage,
)
from gradscope.diagnostics.rank import formulations, weight_updates
from gradscope.diagnostics.rank.formulations import baseline_groups, measure_baselines
from gradscope.diagnostics.rank.heldout import heldout_products, measure_heldout, read_heldout
from gradscope.diagnostics.rank.options import ROLLOUT_ROWS, TOKEN_ROWS, RankOptions
from gradscope.diagnostics.rank.rollout_spectra import step_spectra, token_spectra
from gradscope.diagnostics.rank.rows import (
    RankRequest,
    StepRows,
    advantage_rows,
    checked_advantages,
    possible_sizes,
    step_rows,
    write_gram,
)
from gradscope.diagnostics.rank.spectrum import GroupRank, compare_formulations, compare_sizes, ranks_of_groups
from gradscope.diagnostics.rank.tokens import (
    NO_GRADIENT,
    KindEnergy,
    WeighedTokens,
    kind_energies,
    logprob_change,
    token_changes,
    token_part_tables,
    weigh_step,
    with_later,
)
from gradscope.diagnostics.rank.weight_groups import weight_curve, weight_group_ranks, weight_rows
from gradscope.diagnostics.replay.measure import logprob_difference
from gradscope.errors import GradscopeError, InputError, UsageError
from gradscope.estimate import Estimate
from gradscope.findings import rank, rank_parts
from gradscope.gradients.engine_options import EngineOptions, require_libraries
from gradscope.metrics.gram.geometry import batch_norm, row_sparsity
from gradscope.progress import Progress, ProgressCallback, no_progress, part, reporter
from gradscope.reason import Reason
from gradscope.results.rank import GradientSparsity, GradientSpectrum, RankReport
from gradscope.results.source import RowKind, Source
from gradscope.rollouts.function_rewards import function_rewards
from gradscope.rollouts.groups import RolloutGroup
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from gradscope.say import as_ranges, named_steps

if TYPE_CHECKING:
    from gradscope.diagnostics.inputs.recomputed import RowQuestion
    from gradscope.gradients.plan.prepared_step import PreparedStep
    from gradscope.gradients.step.directions import WeightSpectrum
    from gradscope.gradients.step.heldout import HeldoutGram
    from gradscope.gradients.step.step_gram import StepGram
    from gradscope.gradients.tokens.measure import TokenGram
    from gradscope.gradients.tokens.sums import CountedTokens


def _token_sparsity(step: int, tokens: Sequence[TokenGram]) -> list[GradientSparsity]:
    norms, num_tokens = [], sum(gram.table.num_tokens for gram in tokens)
    for gram in tokens:
        if gram.table.logged_weights is None:
            return []
        norms.append(np.abs(gram.table.logged_weights) * np.sqrt(np.clip(np.diag(gram.gram), 0.0, None)))
    if not norms:
        return []
    numbers, seen = row_sparsity(np.concatenate(norms)), sum(map(len, norms)) / num_tokens
    return [_sparsity(step, numbers, parts="tokens", tensor=None, num_parts=num_tokens, frac_seen=seen)]


def _weight_sparsity(step: int, spectra: Sequence[WeightSpectrum]) -> list[GradientSparsity]:
    names = [{"tensor": weight.tensor, "num_parts": math.prod(weight.shape)} for weight in spectra]
    pairs = zip(spectra, names, strict=True)
    return [_sparsity(step, weight.entries, parts="entries", frac_seen=1.0, **named) for weight, named in pairs]


def _sparsity(step: int, numbers: Mapping[str, Estimate], **parts: Any) -> GradientSparsity:
    zero, small = numbers["zero_rows"], numbers["small_rows"]
    return GradientSparsity(step=step, zero=zero, small=small, hoyer=numbers["hoyer"], gini=numbers["gini"], **parts)


_IN_PARTS = "several processes share the model, and each has a part of every matrix"


class Collected(Struct, kw_only=True):
    """The tables of a :class:`RankReport` over the steps so far, and what it is completed from."""

    source: Source
    kind: RowKind  # what a row of the matrices is
    tables: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))  # by their names in the report
    refused: dict[str, str] = {}
    gram: dict[str, str] = {}
    engine: dict[str, object] = {}
    missing_parts: dict[str, str] = {}
    skipped: dict[int, Reason] = {}  # steps that could not be computed
    heldout_sentences: dict[str, None] = {}
    """What was read, drawn and left out of held-out answers, each sentence once."""
    heldout_missing: dict[str, list[int]] = {}
    """Why steps have no held-out numbers, with what to do -> the steps."""
    group_ranks: list[GroupRank] = []
    """The rank of every matrix of one group, from which group sizes and advantages are compared."""
    baseline_groups: list[formulations.BaselineGroup] = []  # what baselines are judged by
    tokens: dict[int, CountedTokens] = {}
    """Step -> its tokens, until they are looked at under later weights."""
    energies: list[KindEnergy] = []
    """Of rows that are tokens, where only they are asked for: how their energy is spread over kinds."""
    weighed: dict[int, WeighedTokens] = {}
    """Of the same rows: step -> its tokens, the step's gradient and that of their entropy."""
    rows: list[StepRows] = []  # the rollouts' Gram matrices, where rows are rollouts
    progress: ProgressCallback = no_progress  # called at each advantage of a step
    num_weights: int = 0  # matrices of the model, of which ``weight_curve`` has those that were drawn

    @property
    def report(self) -> RankReport:
        """The report so far."""
        tables: dict[str, Any] = {name: tuple(rows) for name, rows in self.tables.items()}
        return RankReport(
            source=self.source,
            rows=self.kind,
            skipped={step: str(reason) for step, reason in self.skipped.items()},
            refused=self.refused,
            gram=self.gram,
            engine=self.engine,
            missing_parts=self.missing_parts,
            heldout_notes=tuple(self.heldout_notes()),
            **tables,
        )

    def add(self, **tables: Iterable[Any]) -> None:
        """Append to tables of the report, by their names."""
        for name, rows in tables.items():
            self.tables[name].extend(rows)

    def add_spectra(self, spectra: Sequence[GradientSpectrum], **curves: Iterable[Any]) -> None:
        """Append spectra, with the ranks of the groups among them, and points of curves."""
        self.add(spectra=spectra, **curves)
        self.group_ranks.extend(ranks_of_groups(spectra))

    def take_parts(self, run: Run, measured: MeasuredStep, rows: RowKind) -> MeasuredStep:
        """Add what was measured at a step in addition to its rows; the step with the answer about its rows alone."""
        if rows not in ("token", "weight") or not measured.answer:
            return measured
        answer, part = measured.answer
        if rows == "token":
            tables, missing = token_part_tables(run, measured.step, measured.groups, answer, part)
            if part is not None:
                self.tokens[measured.step] = part.tokens
        else:
            tables = {
                "optimizers": [] if part is None else weight_updates.optimizer_steps(measured.step, part.steps),
                "modules": [] if part is None else weight_updates.module_shares(measured.step, part.norms),
            }
            why = _IN_PARTS if tables["modules"] else NO_GRADIENT
            missing = {name: f"step {measured.step}: {why}" for name, rows_of in tables.items() if not rows_of}
        self.add(**tables)
        self.missing_parts |= missing
        return replace(measured, answer=answer)

    def look_later(self, run: Run, options: EngineOptions) -> None:
        """Add the changes of all steps' tokens under later weights, when no other weights are in memory."""
        changes, missing = token_changes(run, self.tokens, options)
        self.tables["entropy_changes"] = [
            with_later(change, self.tokens[change.step], changes[change.step]) if change.step in changes else change
            for change in self.tables["entropy_changes"]
        ]
        self.add(logprob_changes=[logprob_change(step, self.tokens[step], change) for step, change in changes.items()])
        for step, reason in missing.items():
            self.missing_parts["logprobs"] = f"step {step}: {reason}"
        self.tokens.clear()

    def take_heldout(self, rows: StepRows, answer: HeldoutGram | Reason, advantages: Sequence[str]) -> None:
        """Add what the groups of a step do to held-out answers."""
        if isinstance(answer, Reason):
            self.heldout_missing.setdefault(f"{answer}. {answer.advice}", []).append(rows.step)
            self.missing_parts["heldout"] = f"step {rows.step}: {answer}. {answer.advice.rstrip('.')}"
            return
        self.heldout_sentences |= dict.fromkeys(answer.notes)
        transfers, influences = measure_heldout(rows, answer, advantages)
        self.add(heldout=transfers, heldout_influences=influences)

    def heldout_notes(self) -> Iterator[str]:
        """Remarks on the held-out numbers: of all steps, then of those that have none."""
        yield from self.heldout_sentences
        for why, steps in self.heldout_missing.items():
            yield f"No held-out numbers at {named_steps(steps)}: {why}"


def _kl_of_dead_groups(gram: StepGram) -> list[str]:
    """What the KL term gives groups whose rows are zero: a sentence where there are any."""
    kl, rewarded = gram.kl_gram, gram.policy_gram
    if kl is None or rewarded is None:
        return []
    ids = np.array(gram.group_ids)
    groups = [np.flatnonzero(ids == group_id) for group_id in dict.fromkeys(gram.group_ids)]
    dead = [rows for rows in groups if not rewarded[np.ix_(rows, rows)].any()]
    norms = ", ".join(f"{batch_norm(kl[np.ix_(rows, rows)]):.3g}" for rows in dead[:8])
    sentence = (
        f"Step {gram.step}: rows are the reward part of the loss, which is 0 in {len(dead)} of {len(groups)} "
        f"groups; the KL term, which the step's norm counts, gives these a gradient of norm {norms}."
    )
    return [sentence] if dead else []


def examine_step(run: Run, measured: MeasuredStep, request: RankRequest, collected: Collected) -> None:
    """Everything that is asked of one step whose gradients were recomputed."""
    gram = measured.gram
    if gram is None or measured.weights is None:
        assert measured.reason is not None, "a step without a Gram matrix has its reason"
        collected.skipped[measured.step] = measured.reason
        return
    # what every kind of rows has: the geometry of the step's gradient
    rows = step_rows(gram, function_rewards(measured.groups, run.settings))
    described = {**gram.describe(), "notes": [*gram.notes, *_kl_of_dead_groups(gram)]}
    collected.engine = describe_engine(described, collected.engine)
    geometry = formulations.measure_geometry(rows, measured.weights, gram, run.metrics.get(measured.step, {}))
    if measured.step not in run.repeats:  # which other weights sampled
        geometry = replace(geometry, logprob_difference=logprob_difference(measured.groups, gram.logprobs))
    collected.add(steps=[geometry])
    if request.options.output:
        collected.gram[str(measured.step)] = write_gram(Path(request.options.output), rows)
    answer = measured.answer
    if request.rows == "weight":
        collected.add(
            spectra=weight_updates.weight_spectra(measured.step, answer.spectra, gram),
            weight_curve=weight_curve(rows.step, answer.groups, answer.ranks, by_group=request.options.pair_groups),
            sparsity=_weight_sparsity(rows.step, answer.spectra),
        )
        collected.refused.update(answer.refused)
        collected.group_ranks.extend(weight_group_ranks(rows.step, answer.groups, answer.ranks))
        collected.num_weights = answer.num_weights
        return
    if request.rows in ("hidden", "logit"):
        by_signal = replace(
            rows,
            gram=answer.score_gram,
            policy_gram=answer.logged_gram,
            full_gram=answer.logged_gram,
            num_parameters=answer.num_columns,
            own_squared_norms=rows.squared_norms,
        )
        _collect_spectra(by_signal, answer.tokens, request, collected)
        return
    # rollouts and tokens, under every advantage and group size
    tokens = answer if request.rows == "token" else ()
    if request.rows in ROLLOUT_ROWS and answer is not None:
        collected.take_heldout(rows, answer, request.advantages)
    if request.rows == "rollout":
        collected.rows.append(rows)
    interference, influences = formulations.measure_interference(rows, request.advantages)
    collected.add(
        formulations=formulations.measure_formulations(rows, request.advantages),
        kinds=formulations.measure_kinds(rows, request.advantages),
        interference=interference,
        influences=influences,
        shares=formulations.measure_shares(rows),
        sparsity=_token_sparsity(measured.step, tokens),
    )
    collected.baseline_groups.extend(baseline_groups(rows))
    _collect_spectra(rows, tokens, request, collected)


def examine_advantages(step: int, groups: Sequence[RolloutGroup], request: RankRequest, collected: Collected) -> None:
    """The advantages of one step as a matrix, for which no gradient is needed."""
    try:
        rows = advantage_rows(step, groups)
    except GradscopeError as error:
        collected.skipped[step] = Reason("unusable", error.message.rstrip("."))
        return
    _collect_spectra(rows, (), request, collected)


def _collect_spectra(rows: StepRows, tokens: Sequence[TokenGram], request: RankRequest, collected: Collected) -> None:
    options = request.options
    for done, advantage in enumerate(request.advantages):
        collected.progress(done, len(request.advantages), "advantages")
        if advantage in collected.refused:
            continue
        try:
            only = request.groups(rows, advantage)
            for size in request.sizes(rows, advantage):
                if tokens:
                    spectra, points = token_spectra(
                        rows, tokens, advantage, size, seed=options.seed, centered=options.centered, only=only
                    )
                    collected.add_spectra(spectra, token_curve=points)
                if request.rows != "token":
                    spectra, curve = step_spectra(
                        rows, advantage, size, by_group=request.rows == "group", centered=options.centered, only=only
                    )
                    collected.add_spectra(spectra, curve=curve)
        except GradscopeError as error:
            collected.refused[advantage] = error.message


def answer_all(
    prepared: PreparedStep,
    gram: StepGram,
    *,
    progress: ProgressCallback = no_progress,
    questions: Sequence[RowQuestion | None],
) -> tuple[Any, ...]:
    """What several kinds of rows need of a step, in order; in place of what this model does not give, why.

    ``questions`` has None for a kind that needs no more than the Gram matrix of the rollouts.
    """
    answers: list[Any] = []
    for question in questions:
        try:
            answers.append(question(prepared, gram, progress=progress) if question else None)
        except UsageError as error:
            answers.append(error)
    return tuple(answers)


def row_question(request: RankRequest, max_tokens: int, num_buckets: int | None = None) -> RowQuestion | None:
    """What a kind of rows needs besides the Gram matrix of the rollouts; None for rollouts and groups."""
    if request.rows == "weight":
        return partial(weight_rows, request=request)
    if request.rows not in TOKEN_ROWS:
        return None
    require_libraries()
    from gradscope.gradients.tokens.measure import measure_signals, measure_tokens

    if request.rows == "hidden" or request.rows == "logit":
        return partial(measure_signals, signal=request.rows, max_tokens=max_tokens, seed=request.options.seed)
    drawn = max_tokens if num_buckets is None else None
    return partial(measure_tokens, max_tokens=drawn, num_buckets=num_buckets, seed=request.options.seed)


def rows_and_extra(
    prepared: PreparedStep,
    gram: StepGram,
    *,
    progress: ProgressCallback = no_progress,
    rows: RowQuestion,
    extra: RowQuestion,
) -> tuple[Any, Any]:
    """Rows, and something else that is known of the step while its weights are in memory; None where it has none."""
    return rows(prepared, gram, progress=progress), extra(prepared, gram, progress=progress)


MAX_WEIGHTS = 32
"""Matrices that are decomposed where every kind of rows is asked for: each costs some thirty decompositions a group."""


def _question(request: RankRequest, max_tokens: int) -> RowQuestion | None:
    """The same with weights drawn at random, and for rows that are tokens their energies."""
    question = row_question(request, max_tokens)
    if question is not None and request.rows == "weight":
        return partial(question, max_weights=MAX_WEIGHTS)
    if question is not None and request.rows == "token":
        return partial(rows_and_extra, rows=question, extra=weigh_step)
    return question


def collect_kinds(
    run: Run,
    steps: Sequence[int],
    requests: Sequence[RankRequest],
    engine: EngineOptions,
    progress: ProgressCallback,
    *,
    max_tokens: int,
) -> Mapping[RowKind, Collected]:
    """Every kind of matrix that is asked for, of each step, by kind."""
    question = partial(answer_all, questions=[_question(request, max_tokens) for request in requests])
    collected: dict[RowKind, Collected] = {
        request.rows: Collected(source=run.source, kind=request.rows) for request in requests
    }
    for measured in measure_steps(run, steps, engine, progress, question):
        for index, (request, collection) in enumerate(zip(requests, collected.values(), strict=True)):
            answer = measured.answer[index] if measured.answer else None
            if isinstance(answer, UsageError):
                collection.skipped[measured.step] = Reason("unusable", answer.message.rstrip("."))
                continue
            if request.rows == "token" and answer:
                answer, weighed = answer
                if weighed is not None:
                    collection.energies.extend(kind_energies(measured.step, weighed.tokens, answer))
                    collection.weighed[measured.step] = weighed
            examine_step(run, replace(measured, answer=answer), request, collection)
    return collected


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
        question = partial(rows_and_extra, rows=question, extra=partial(weigh_step, in_parts=True))
    if question is not None and rows == "weight":
        summary = partial(weight_updates.summarize_gradient, learning_rates=weight_updates.learning_rates(run))
        question = partial(rows_and_extra, rows=question, extra=summary)
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
