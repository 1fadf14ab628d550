"""The report of `gradscope rank`, step after step: every matrix that was asked for, its spectra and averages.

A formulation that cannot be computed is listed among ``refused``, a step among ``skipped``, each with its reason.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from gradscope.diagnostics.inputs.steps import MeasuredStep, describe_engine, measure_steps
from gradscope.diagnostics.rank import formulations, weight_updates
from gradscope.diagnostics.rank.formulations import baseline_groups
from gradscope.diagnostics.rank.heldout import measure_heldout
from gradscope.diagnostics.rank.options import ROLLOUT_ROWS, TOKEN_ROWS
from gradscope.diagnostics.rank.rollout_spectra import step_spectra, token_spectra
from gradscope.diagnostics.rank.rows import RankRequest, StepRows, advantage_rows, step_rows, write_gram
from gradscope.diagnostics.rank.spectrum import GroupRank, ranks_of_groups
from gradscope.diagnostics.rank.tokens.parts import NO_GRADIENT, token_part_tables, with_later
from gradscope.diagnostics.rank.tokens.weighed import (
    KindEnergy,
    WeighedTokens,
    kind_energies,
    logprob_change,
    token_changes,
    weigh_step,
)
from gradscope.diagnostics.rank.weight_groups import weight_curve, weight_group_ranks, weight_rows
from gradscope.diagnostics.replay.measure import logprob_difference
from gradscope.errors import GradscopeError, UsageError
from gradscope.estimate import Estimate
from gradscope.gradients.engine_options import EngineOptions, require_libraries
from gradscope.metrics.gram.geometry import batch_norm, row_sparsity
from gradscope.progress import ProgressCallback, no_progress
from gradscope.reason import Reason
from gradscope.results.rank import GradientSpectrum, RankReport
from gradscope.results.source import RowKind, Source
from gradscope.results.tokens import GradientSparsity
from gradscope.rollouts.function_rewards import function_rewards
from gradscope.rollouts.groups import RolloutGroup
from gradscope.rollouts.run import Run
from gradscope.say import named_steps

if TYPE_CHECKING:
    from gradscope.diagnostics.inputs.recomputed import RowQuestion
    from gradscope.gradients.plan.prepared_step import PreparedStep
    from gradscope.gradients.step.directions import WeightSpectrum
    from gradscope.gradients.step.heldout import HeldoutGram
    from gradscope.gradients.step.step_gram import StepGram
    from gradscope.gradients.tokens.measure import TokenGram
    from gradscope.gradients.tokens.sums import CountedTokens


def _token_sparsity(step: int, tokens: Sequence[TokenGram]) -> list[GradientSparsity]:
    """The norms of all token rows of a step under the logged advantages."""
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
    """The sizes of the entries of each weight's gradient, as the optimizer saw it; one per weight."""
    return [
        _sparsity(step, of.entries, parts="entries", tensor=of.tensor, num_parts=math.prod(of.shape), frac_seen=1.0)
        for of in spectra
    ]


def _sparsity(step: int, numbers: Mapping[str, Estimate], **of: Any) -> GradientSparsity:
    zero, small = numbers["zero_rows"], numbers["small_rows"]
    return GradientSparsity(step=step, zero=zero, small=small, hoyer=numbers["hoyer"], gini=numbers["gini"], **of)


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
        of_steps, of_groups = measure_heldout(rows, answer, advantages)
        self.add(heldout=of_steps, heldout_influences=of_groups)

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
    groups = [[row for row, of in enumerate(gram.group_ids) if of == group] for group in dict.fromkeys(gram.group_ids)]
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
    """The spectra of one step under every advantage, at every group size."""
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


def several_answers(
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


def row_question(request: RankRequest, most: int, num_buckets: int | None = None) -> RowQuestion | None:
    """What a kind of rows needs besides the Gram matrix of the rollouts; None for rollouts and groups."""
    if request.rows == "weight":
        return partial(weight_rows, request=request)
    if request.rows not in TOKEN_ROWS:
        return None
    require_libraries()
    from gradscope.gradients.tokens.measure import measure_signals, measure_tokens

    if request.rows == "hidden" or request.rows == "logit":
        return partial(measure_signals, signal=request.rows, most=most, seed=request.options.seed)
    drawn = most if num_buckets is None else None
    return partial(measure_tokens, most=drawn, num_buckets=num_buckets, seed=request.options.seed)


def rows_and_more(
    prepared: PreparedStep,
    gram: StepGram,
    *,
    progress: ProgressCallback = no_progress,
    rows: RowQuestion,
    more: RowQuestion,
) -> tuple[Any, Any]:
    """Rows, and something else that is known of the step while its weights are in memory; None where it has none."""
    return rows(prepared, gram, progress=progress), more(prepared, gram, progress=progress)


MAX_WEIGHTS = 32
"""Matrices that are decomposed where every kind of rows is asked for: each costs some thirty decompositions a group."""


def _question(request: RankRequest, most: int) -> RowQuestion | None:
    """The same with weights drawn at random, and for rows that are tokens their energies."""
    question = row_question(request, most)
    if question is not None and request.rows == "weight":
        return partial(question, most=MAX_WEIGHTS)
    if question is not None and request.rows == "token":
        return partial(rows_and_more, rows=question, more=weigh_step)
    return question


def collect_kinds(
    run: Run,
    steps: Sequence[int],
    requests: Sequence[RankRequest],
    engine: EngineOptions,
    progress: ProgressCallback,
    *,
    most: int,
) -> Mapping[RowKind, Collected]:
    """Every kind of matrix that is asked for, of each step, by kind."""
    question = partial(several_answers, questions=[_question(request, most) for request in requests])
    collected: dict[RowKind, Collected] = {
        request.rows: Collected(source=run.source, kind=request.rows) for request in requests
    }
    for measured in measure_steps(run, steps, engine, progress, question):
        for index, (request, of_kind) in enumerate(zip(requests, collected.values(), strict=True)):
            answer = measured.answer[index] if measured.answer else None
            if isinstance(answer, UsageError):
                of_kind.skipped[measured.step] = Reason("unusable", answer.message.rstrip("."))
                continue
            if request.rows == "token" and answer:
                answer, weighed = answer
                if weighed is not None:
                    of_kind.energies.extend(kind_energies(measured.step, weighed.tokens, answer))
                    of_kind.weighed[measured.step] = weighed
            examine_step(run, replace(measured, answer=answer), request, of_kind)
    return collected
