"""Steps for formulations to be asked of."""

import numpy as np

from gradscope.advantages.online import StepRollouts


def step(rewards: list[list[float]], prompt_ids: tuple[str, ...] = (), **tokens: object) -> StepRollouts:
    array = np.array(rewards)
    ids = prompt_ids or tuple(f"p{index}" for index in range(len(array)))
    numbers: dict[str, object] = {name: [[0.0, 0.0]] * array.size for name in ("logprobs", "max_logprobs")}
    return StepRollouts(rewards=list(array), prompt_ids=ids, **(numbers | tokens))  # type: ignore[arg-type]


def ragged(rewards: list[list[float]], **tokens: object) -> StepRollouts:
    groups = [np.array(group) for group in rewards]
    nothing: list[list[float]] = [[0.0]] * sum(map(len, groups))
    numbers: dict[str, object] = {"logprobs": nothing, "max_logprobs": nothing}
    ids = tuple("abcdef"[: len(groups)])
    return StepRollouts(rewards=groups, prompt_ids=ids, **(numbers | tokens))  # type: ignore[arg-type]
