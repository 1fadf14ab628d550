"""Which completions were cut at the trainer's limit, told from their exact ids as TRL tells it.

A completion that ends neither with an end-of-sequence token nor with padding was cut. TRL takes the tokenizer's token
for the end of a sequence, and since 1.15 those of the model's generation configuration too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradscope.errors import InputError
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.plan.objective import Objective
from gradscope.rollouts.trl_version import VERSION_HINT
from gradscope.rollouts.types import Rollout

_WHERE = "Truncated completions leave the loss, and which were truncated cannot be told"


def with_status(rollout: Rollout, policy: MeasuredPolicy, objective: Objective) -> Rollout:
    """A rollout that says how it ended, where the loss asks for it and the log does not say.

    Args:
        policy: Its tokenizer and generation configuration hold the tokens that end a sequence.

    Returns:
        The rollout, with its status where that could be told.

    Raises:
        InputError: The tokens that end a sequence are not known.
    """
    if not objective.mask_truncated or rollout.status != "unknown" or not rollout.completion_ids:
        return rollout
    last, ends, more = rollout.completion_ids[-1], _tokenizer_ends(policy.tokenizer), _declared_ends(policy.model)
    if not ends:
        raise InputError(
            f"{_WHERE}: no tokenizer with an end-of-sequence token was found.",
            hint="Put tokenizer.json and tokenizer_config.json beside the weights.",
            cause="truncation_unknown",
        )
    if last in more - ends and not objective.trl.known:
        raise InputError(
            f"{_WHERE}: whether token {last} ends a completion depends on TRL's version, which is not known.",
            hint=VERSION_HINT,
            cause="settings_unknown",
        )
    complete = last in (ends if objective.trl.is_before(1, 15) else ends | more)
    return replace(rollout, status="completed" if complete else "truncated")


def _tokenizer_ends(tokenizer: Any) -> frozenset[int]:
    """The tokenizer's own end of a sequence, and its padding."""
    end = getattr(tokenizer, "eos_token_id", None)
    padding = getattr(tokenizer, "pad_token_id", None)
    return frozenset() if end is None else frozenset({end, end if padding is None else padding})


def _declared_ends(model: Any) -> frozenset[int]:
    """Those of the generation configuration."""
    declared = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return frozenset(declared if isinstance(declared, list) else () if declared is None else (declared,))
