"""What became of a step's own tokens at the next checkpoint on disk: their log-probabilities and entropies.

Shapes: N tokens that count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gradscope.errors import InputError
from gradscope.gradients.engine_options import EngineOptions
from gradscope.metrics.gram.spectrum import Array
from gradscope.rollouts.run import Run, WeightsRef

if TYPE_CHECKING:
    from gradscope.gradients.tokens.sums import CountedTokens

NO_LATER = "no weights after its update are on disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChange:
    """The same tokens under later weights, minus under those that the step started from."""

    first: int
    """Updates that the earlier weights have had."""
    last: int
    """Updates that the later ones have had."""
    logprobs: Array
    """Change of each log-probability, [N]."""
    entropies: Array
    """Change of the policy's entropy where each was sampled, [N]."""


def token_changes(
    run: Run, tokens: Mapping[int, CountedTokens], options: EngineOptions
) -> tuple[dict[int, TokenChange], dict[int, str]]:
    """The change from the weights before each step to the next checkpoint, by two forward passes a step.

    One model is in memory at a time.

    Args:
        tokens: Step -> its tokens.

    Returns:
        Step -> the change, and of the other steps why there is none.
    """
    found, missing = {}, {}
    for step, counted in tokens.items():
        first, last = run.weights_before(step), run.weights_after(step)
        if first is None or last is None:
            missing[step] = NO_LATER
            continue
        try:
            before, after = (_outputs(run, step, weights, options, counted) for weights in (first, last))
        except InputError as error:
            missing[step] = error.message.rstrip(".")
            continue
        logprobs, entropies = after - before
        found[step] = TokenChange(
            first=first.num_updates, last=last.num_updates, logprobs=logprobs, entropies=entropies
        )
    return found, missing


def _outputs(run: Run, step: int, weights: WeightsRef, options: EngineOptions, tokens: CountedTokens) -> Array:
    """Log pi of the tokens and the entropies there, under some weights at the trainer's temperature, [2, N]."""
    from gradscope.diagnostics.inputs.recomputed import policy_of
    from gradscope.diagnostics.inputs.step_loss import loss_at
    from gradscope.gradients.model.budget import TokenBudget, first_batch_tokens, names_out_of_memory
    from gradscope.gradients.plan.prepared_step import step_logprobs
    from gradscope.gradients.plan.trainers.registry import objective_of

    with names_out_of_memory(f"step {step}"):
        policy = policy_of(run, weights, options)
        asked, fixed = options.batch_tokens or first_batch_tokens(policy), options.batch_tokens is not None
        budget = TokenBudget(asked, fixed=fixed, notice=options.notice)
        objective = loss_at(run, objective_of(run.settings), step).objective
        rows = step_logprobs(policy, run.groups_at(step), objective, budget, entropies=True)
    both = [row.double().cpu().numpy().reshape(2, -1) for row in rows]
    starts = np.cumsum([0, *(row.shape[1] for row in both)])
    places = starts[tokens.rollouts] + tokens.positions
    return np.asarray(np.concatenate(both, axis=1)[:, places], dtype=np.float64)
