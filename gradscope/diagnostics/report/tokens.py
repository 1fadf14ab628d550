"""The tokens that a report looks at: all of each recomputed step, and those of the rollouts with the largest part.

Weights are loaded once more for them, because steps that were kept by an earlier call come without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gradscope.diagnostics.inputs.step_loss import loss_at
from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.diagnostics.logged.as_logged import first_logged
from gradscope.diagnostics.logged.entropy import METRICS
from gradscope.diagnostics.rank.tokens.followed_tokens import follow
from gradscope.diagnostics.rank.tokens.logprob_changes import logprob_change
from gradscope.diagnostics.rank.tokens.parts import entropy_change, token_kl, turn_shares, with_later
from gradscope.diagnostics.rank.tokens.parts_question import weigh_step
from gradscope.diagnostics.report.sections.inputs import TokenParts, Unavailable
from gradscope.estimate import Estimate
from gradscope.gradients.engine_options import EngineOptions
from gradscope.metrics.gram.geometry import batch_norm
from gradscope.metrics.gram.row_shares import projection_shares
from gradscope.results.ranks.token_parts import EntropyChange
from gradscope.rollouts.run import Run

if TYPE_CHECKING:
    from gradscope.gradients.plan.prepared_step import PreparedStep
    from gradscope.gradients.step.step_gram import StepGram
    from gradscope.gradients.tokens.rollout_tokens import RolloutTokens

_NOT_ASKED = Unavailable(
    reason="The gradients of single tokens were not computed, as asked (--max-tokens 0).",
    hint="Leave that option out to get them.",
)


def report_tokens(
    run: Run, measured: Sequence[MeasuredStep], absent: Unavailable, most: int, options: EngineOptions
) -> tuple[RolloutTokens, ...] | Unavailable:
    """The tokens of a few rollouts; the weights of their step are loaded once more.

    Args:
        measured: The steps whose gradients were recomputed.
        absent: Why there are none, where there are none.
        most: Most token rows; 0: none.
        options: Device and precision.

    Returns:
        The rollouts with the largest part of the largest gradient, as many as ``most`` tokens allow, or why none.
    """
    if not most:
        return _NOT_ASKED
    live = [step for step in measured if step.gram is not None and _squared_norm(step.gram) > 0]
    if not live:
        return absent
    largest = max(live, key=lambda step: 0.0 if step.gram is None else _squared_norm(step.gram))
    return _measure(run, largest, most, options)


def token_parts(run: Run, measured: Sequence[MeasuredStep], options: EngineOptions) -> TokenParts:
    """What all tokens of the steps with a gradient say of entropy, reference and turns, and what became of the last's.

    Two backward passes a step and one more a turn; two forward passes under later weights.

    Returns:
        Nothing where several processes share the model.
    """
    weighed, groups = {}, {}
    for step in measured:
        if step.gram is not None and _squared_norm(step.gram) > 0 and _is_alone():
            found = weigh_step(_prepared(run, step, options), step.gram)
            if found is not None:
                weighed[step.step], groups[step.step] = found, step.groups
    last = max(weighed, default=0)
    later = follow(run, {last: weighed[last]} if weighed else {}, options).changes
    logged = first_logged(run, METRICS)
    predicted = [entropy_change(step, one, logged[1] if logged else {}) for step, one in weighed.items()]
    kl = (token_kl(step, one, groups[step]) for step, one in weighed.items())
    return TokenParts(
        weighed=weighed,
        entropy=tuple(
            with_later(one, weighed[one.step].tokens, later[one.step])
            if one.step in later
            else _not_followed(one, last)
            for one in predicted
        ),
        kl=tuple(one for one in kl if one is not None),
        turns=tuple(share for step, one in weighed.items() for share in turn_shares(step, one)),
        logprobs=tuple(logprob_change(step, weighed[step].tokens, change) for step, change in later.items()),
    )


def _is_alone() -> bool:
    from gradscope.gradients.processes.group import num_connected

    return num_connected() == 1


def _not_followed(change: EntropyChange, last: int) -> EntropyChange:
    if change.step == last:
        return change
    return replace(change, measured=Estimate.undefined_because(f"only step {last} is followed on this page"))


def _squared_norm(gram: StepGram) -> float:
    matrix = gram.policy_gram
    return 0.0 if matrix is None else batch_norm(matrix) ** 2


def _measure(run: Run, measured: MeasuredStep, most: int, options: EngineOptions) -> tuple[RolloutTokens, ...]:
    from gradscope.gradients.tokens.rollout_tokens import measure_rollout_tokens

    assert measured.gram is not None, "the caller chooses a step that was recomputed"
    assert measured.gram.policy_gram is not None, "and one whose advantages were logged"
    shares = projection_shares(measured.gram.policy_gram)
    order = [index for index in np.argsort(-np.abs(shares), kind="stable").tolist() if shares[index] != 0]
    return measure_rollout_tokens(_prepared(run, measured, options), measured.gram, order, most=most)


def _prepared(run: Run, measured: MeasuredStep, options: EngineOptions) -> PreparedStep:
    """A step that was recomputed, made ready once more as it was."""
    from gradscope.diagnostics.inputs.recomputed import prepared_of, under
    from gradscope.gradients.plan.trainers.registry import objective_of

    assert measured.gram is not None, "the caller chooses a step that was recomputed"
    assert measured.weights is not None, "whose weights are therefore on disk"
    loss = loss_at(run, objective_of(run.settings), measured.step)
    prepared = prepared_of(run, measured.step, measured.weights, loss, options, measured.gram.batch_tokens)
    return prepared if measured.gram.assumption is None else under(prepared, measured.gram.assumption)
