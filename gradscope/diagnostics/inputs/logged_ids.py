"""Whether a log of verl, prime-rl or NeMo-RL holds the ids that a forward pass needs.

Their text is no substitute: verl's lost the template's markers, and a sequence of several turns is no single string.
"""

from __future__ import annotations

from collections.abc import Mapping

from gradscope.reason import Reason
from gradscope.rollouts.run import Run

_WHY: Mapping[str, tuple[str, str]] = {
    "verl": (
        "verl's dump holds text that lost the chat template's markers, and no ids",
        "Log prompts, responses, response_mask, rollout_log_probs and advantages with the dump; see the docs on logs.",
    ),
    "prime-rl": (
        "some traces have no ids that fit together",
        "Replay another step, or (before September 2026) the export of tokens, trainer.enable_token_export, which has "
        "each sequence that was trained on.",
    ),
    "nemo-rl": (
        "the training data holds text and no ids",
        "Use NeMo-RL 0.4 or newer, whose train_data_step*.jsonl has token_ids, in the next run.",
    ),
}


def without_ids(run: Run, step: int) -> Reason | None:
    """Why the forward pass of a step cannot be made, or None.

    Args:
        step: A step of the log.

    Returns:
        The reason, with what logs the ids; None for logs of TRL, whose text can be rendered again.
    """
    why = _WHY.get(str(run.settings.get("trainer")))
    rollouts = [rollout for group in run.groups_at(step) for rollout in group.rollouts]
    if why is None or not any(None in (rollout.prompt_ids, rollout.completion_ids) for rollout in rollouts):
        return None
    return Reason("ids_missing", why[0], hint=why[1])
