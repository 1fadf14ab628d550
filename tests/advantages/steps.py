"""Steps for formulations to be asked of."""

import numpy as np

from gradscope.advantages.online import StepRollouts


def step(rewards: list[list[float]], prompt_ids: tuple[str, ...] = (), **tokens: object) -> StepRollouts:
    """Groups of any size whose completions have two tokens of log-probability 0, or the numbers of the caller."""
    groups = [np.array(group) for group in rewards]
    ids = prompt_ids or tuple(f"p{index}" for index in range(len(groups)))
    nothing: list[list[float]] = [[0.0, 0.0]] * sum(group.size for group in groups)
    numbers: dict[str, object] = {"logprobs": nothing, "max_logprobs": nothing}
    return StepRollouts(rewards=groups, prompt_ids=ids, **(numbers | tokens))  # type: ignore[arg-type]
