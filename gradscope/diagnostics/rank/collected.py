"""One step after another: every matrix that was asked for, its spectra and averages, kept until the report is made.

What a formulation cannot be computed from is kept among ``refused``, a step among ``skipped``, each with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from gradscope.diagnostics.inputs.steps import MeasuredStep, describe_engine
from gradscope.diagnostics.rank.comparison import GroupRank, ranks_of_groups
from gradscope.diagnostics.rank.formulations.heldout import measure_heldout
from gradscope.diagnostics.rank.formulations.interference import measure_interference
from gradscope.diagnostics.rank.formulations.kinds import measure_kinds
from gradscope.diagnostics.rank.formulations.reward_baselines import BaselineGroup, baseline_groups
from gradscope.diagnostics.rank.formulations.updates import measure_formulations, measure_shares
from gradscope.diagnostics.rank.request import RankRequest
from gradscope.diagnostics.rank.rollouts.advantage_matrix import advantage_rows
from gradscope.diagnostics.rank.rollouts.geometry import measure_geometry
from gradscope.diagnostics.rank.rollouts.gram_file import write_gram
from gradscope.diagnostics.rank.rollouts.step_rows import StepRows, step_rows
from gradscope.diagnostics.rank.rollouts.step_spectra import step_spectra
from gradscope.diagnostics.rank.sparsity import token_sparsity, weight_sparsity
from gradscope.diagnostics.rank.tokens.gathered_parts import NO_GRADIENT, GatheredParts
from gradscope.diagnostics.rank.tokens.kind_energy import KindEnergy
from gradscope.diagnostics.rank.tokens.parts_question import WeighedTokens
from gradscope.diagnostics.rank.tokens.token_spectra import RowGram, token_spectra
from gradscope.diagnostics.rank.weights.module_shares import module_shares
from gradscope.diagnostics.rank.weights.optimizer_question import optimizer_steps
from gradscope.diagnostics.rank.weights.weight_curve import weight_curve, weight_group_ranks
from gradscope.diagnostics.rank.weights.weight_question import WeightAnswer
from gradscope.diagnostics.rank.weights.weight_spectra import weight_spectra
from gradscope.diagnostics.replay.logprobs import logprob_difference
from gradscope.errors import GradscopeError
from gradscope.metrics.gram.geometry import batch_norm
from gradscope.reason import Reason
from gradscope.results.rank import FormulationUpdate, GradientSpectrum, GroupShare, KindUpdate, RowKind, StepGeometry
from gradscope.results.ranks.curves import RankCurvePoint, TokenRankPoint, WeightRankPoint
from gradscope.results.ranks.heldout import HeldoutInfluence, HeldoutTransfer
from gradscope.results.ranks.interference import Interference, PromptInfluence
from gradscope.results.ranks.tokens import GradientSparsity
from gradscope.results.update import ModuleShare, OptimizerStep
from gradscope.rollouts.function_rewards import function_rewards
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import RolloutGroup
from gradscope.say import as_ranges

if TYPE_CHECKING:
    from gradscope.gradients.step.heldout import HeldoutGram
    from gradscope.gradients.step.step_gram import StepGram

WHOLE_ROLLOUTS = ("rollout", "group")
"""Kinds of rows that are made of whole rollouts, and ask nothing of a step but held-out answers."""
_IN_PARTS = "several processes share the model, and each has a part of every matrix"


@dataclass(slots=True)
class Collected:
    """What has been computed so far, over the steps."""

    spectra: list[GradientSpectrum] = field(default_factory=list)
    """Of steps, groups, parts of groups and weights."""
    curve: list[RankCurvePoint] = field(default_factory=list)
    """Averages of rows that are rollouts."""
    token_curve: list[TokenRankPoint] = field(default_factory=list)
    """Averages of rows that are tokens."""
    weight_curve: list[WeightRankPoint] = field(default_factory=list)
    """Averages of dL/dW of one group."""
    group_ranks: list[GroupRank] = field(default_factory=list)
    """The rank of every matrix of one group, from which group sizes and advantages are compared."""
    steps: list[StepGeometry] = field(default_factory=list)
    """The geometry of each step's gradient."""
    skipped: dict[int, Reason] = field(default_factory=dict)
    """Steps that could not be computed."""
    refused: dict[str, str] = field(default_factory=dict)
    """Formulations that could not."""
    gram: dict[str, str] = field(default_factory=dict)
    """Files of Gram matrices."""
    engine: dict[str, object] = field(default_factory=dict)
    """How gradients were computed."""
    formulations: list[FormulationUpdate] = field(default_factory=list)
    """The update that each formulation makes."""
    kinds: list[KindUpdate] = field(default_factory=list)
    """What each kind of group gives to it."""
    interference: list[Interference] = field(default_factory=list)
    """What groups do to each other's correct answers."""
    influences: list[PromptInfluence] = field(default_factory=list)
    """What each group does to those of the others."""
    heldout: list[HeldoutTransfer] = field(default_factory=list)
    """What groups do to held-out correct answers, where some were given."""
    heldout_influences: list[HeldoutInfluence] = field(default_factory=list)
    """What each group does to them."""
    heldout_notes: dict[str, None] = field(default_factory=dict)
    """What was read, drawn and left out of them, each sentence once."""
    heldout_missing: dict[str, list[int]] = field(default_factory=dict)
    """Why steps have none of this, with what to do -> the steps."""
    shares: list[GroupShare] = field(default_factory=list)
    """What each group gives to a step's gradient."""
    baseline_groups: list[BaselineGroup] = field(default_factory=list)
    """What baselines are judged by."""
    sparsity: list[GradientSparsity] = field(default_factory=list)
    """Of tokens and of entries."""
    parts: GatheredParts = field(default_factory=GatheredParts)
    """Of rows that are tokens: the gradient by kinds of tokens, turns and corrections; of others what is missing."""
    energies: list[KindEnergy] = field(default_factory=list)
    """Of rows that are tokens, where only they are asked for: how their energy is spread over kinds."""
    weighed: dict[int, WeighedTokens] = field(default_factory=dict)
    """Likewise, step -> its tokens, the step's gradient and that of their entropy."""
    optimizers: list[OptimizerStep] = field(default_factory=list)
    """Of rows of weights: what optimizers would make of the gradient."""
    modules: list[ModuleShare] = field(default_factory=list)
    """Of rows of weights: where the gradient is."""
    rows: list[StepRows] = field(default_factory=list)
    """The rollouts' Gram matrices, where rows are rollouts."""

    def take_parts(self, run: Run, measured: MeasuredStep, rows: RowKind) -> MeasuredStep:
        """Take in what was asked of a step beside its rows.

        Returns:
            The step with the answer about its rows alone.
        """
        if rows == "token":
            return self.parts.take(run, measured)
        if rows != "weight" or not measured.answer:
            return measured
        answer, gradient = measured.answer
        found: dict[str, Sequence[object]] = {"optimizers": (), "modules": ()}
        if gradient is not None:
            self.optimizers.extend(steps := optimizer_steps(measured.step, gradient.steps))
            self.modules.extend(shares := module_shares(measured.step, gradient.norms))
            found = {"optimizers": steps, "modules": shares}
        why = _IN_PARTS if found["modules"] else NO_GRADIENT
        self.parts.missing.update({name: f"step {measured.step}: {why}" for name, parts in found.items() if not parts})
        return replace(measured, answer=answer)

    def take_heldout(self, rows: StepRows, answer: Sequence[HeldoutGram | Reason], advantages: Sequence[str]) -> None:
        """Take in what the groups of a step do to held-out answers; nothing where none were given."""
        for found in answer:
            if isinstance(found, Reason):
                self.heldout_missing.setdefault(f"{found}. {found.advice}", []).append(rows.step)
                self.parts.missing["heldout"] = f"step {rows.step}: {found}. {found.advice.rstrip('.')}"
                continue
            self.heldout_notes |= dict.fromkeys(found.notes)
            of_steps, of_groups = measure_heldout(rows, found, advantages)
            self.heldout.extend(of_steps)
            self.heldout_influences.extend(of_groups)

    def heldout_sentences(self) -> Iterator[str]:
        """What a reader of these numbers should know: of all steps, then of those that have none."""
        yield from self.heldout_notes
        for why, steps in self.heldout_missing.items():
            yield f"No held-out numbers at step{'s' * (len(steps) > 1)} {as_ranges(steps)}: {why}"

    def add(self, spectra: Sequence[GradientSpectrum]) -> None:
        """Keep some spectra, and the ranks of the groups among them."""
        self.spectra.extend(spectra)
        self.group_ranks.extend(ranks_of_groups(spectra))


def kl_of_dead_groups(gram: StepGram) -> Iterator[str]:
    """What the KL term gives groups whose rows are zero: a sentence where there are any."""
    kl, rewarded = gram.kl_gram, gram.policy_gram
    if kl is None or rewarded is None:
        return
    groups = [[row for row, of in enumerate(gram.group_ids) if of == group] for group in dict.fromkeys(gram.group_ids)]
    dead = [rows for rows in groups if not rewarded[np.ix_(rows, rows)].any()]
    norms = ", ".join(f"{batch_norm(kl[np.ix_(rows, rows)]):.3g}" for rows in dead[:8])
    if dead:
        yield (
            f"Step {gram.step}: rows are the reward part of the loss, which is 0 in {len(dead)} of {len(groups)} "
            f"groups; the KL term, which the step's norm counts, gives these a gradient of norm {norms}."
        )


def examine_step(run: Run, measured: MeasuredStep, request: RankRequest, collected: Collected) -> None:
    """Everything that is asked of one step whose gradients were recomputed."""
    gram = measured.gram
    if gram is None or measured.weights is None:
        assert measured.reason is not None, "a step without a Gram matrix has its reason"
        collected.skipped[measured.step] = measured.reason
        return
    # what every kind of rows has: the geometry of the step's gradient
    rows = step_rows(gram, function_rewards(measured.groups, run.settings))
    described = {**gram.describe(), "notes": [*gram.notes, *kl_of_dead_groups(gram)]}
    collected.engine = describe_engine(described, collected.engine)
    geometry = measure_geometry(rows, measured.weights, gram, run.metrics.get(measured.step, {}))
    collected.steps.append(replace(geometry, logprob_difference=logprob_difference(measured.groups, gram.logprobs)))
    if request.output:
        collected.gram[str(measured.step)] = write_gram(request.output, rows)
    if request.rows == "weight":
        (answer,) = measured.answer
        collected.spectra.extend(weight_spectra(measured.step, answer.spectra, gram))
        _collect_weights(measured.step, answer, request, collected)
        return
    if request.rows in ("hidden", "logit"):
        (signals,) = measured.answer
        by_signal = replace(
            rows,
            gram=signals.score_gram,
            policy_gram=signals.logged_gram,
            full_gram=signals.logged_gram,
            num_parameters=signals.num_columns,
            own_squared_norms=rows.squared_norms,
        )
        _collect_spectra(by_signal, signals.tokens, request, collected)
        return
    # rollouts and tokens, under every advantage and group size
    tokens = measured.answer
    if request.rows in WHOLE_ROLLOUTS:
        collected.take_heldout(rows, measured.answer, request.advantages)
        tokens = ()
    if request.rows == "rollout":
        collected.rows.append(rows)
    collected.formulations.extend(measure_formulations(rows, request.advantages))
    collected.kinds.extend(measure_kinds(rows, request.advantages))
    interference, influences = measure_interference(rows, request.advantages)
    collected.interference.extend(interference)
    collected.influences.extend(influences)
    collected.shares.extend(measure_shares(rows))
    collected.baseline_groups.extend(baseline_groups(rows))
    collected.sparsity.extend(token_sparsity(measured.step, tokens))
    _collect_spectra(rows, tokens, request, collected)


def examine_advantages(step: int, groups: Sequence[RolloutGroup], request: RankRequest, collected: Collected) -> None:
    """The advantages of one step as a matrix, for which no gradient is needed."""
    try:
        rows = advantage_rows(step, groups)
    except GradscopeError as error:
        collected.skipped[step] = Reason("unusable", error.message.rstrip("."))
        return
    _collect_spectra(rows, (), request, collected)


def _collect_weights(step: int, answer: WeightAnswer, request: RankRequest, collected: Collected) -> None:
    collected.weight_curve.extend(weight_curve(step, answer.groups, answer.ranks, by_group=request.paired))
    collected.group_ranks.extend(weight_group_ranks(step, answer.groups, answer.ranks))
    collected.sparsity.extend(weight_sparsity(step, answer.spectra))
    collected.refused.update(answer.refused)


def _collect_spectra(rows: StepRows, tokens: Sequence[RowGram], request: RankRequest, collected: Collected) -> None:
    """The spectra of one step under every advantage, at every group size."""
    for advantage in request.advantages:
        if advantage in collected.refused:
            continue
        try:
            only = request.groups(rows, advantage)
            for size in request.sizes(rows, advantage):
                if tokens:
                    spectra, points = token_spectra(
                        rows, tokens, advantage, size, seed=request.seed, centered=request.centered, only=only
                    )
                    collected.token_curve.extend(points)
                    collected.add(spectra)
                if request.rows != "token":
                    spectra, curve = step_spectra(
                        rows, advantage, size, by_group=request.rows == "group", centered=request.centered, only=only
                    )
                    collected.curve.extend(curve)
                    collected.add(spectra)
        except GradscopeError as error:
            collected.refused[advantage] = error.message
