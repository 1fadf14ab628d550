from typing import Any

from gradscope.rollouts.store import read_steps
from tests.training.conftest import MakeRun


def test_formulations_share_the_first_rollouts_and_then_part(short_run: MakeRun) -> None:
    def logprobs(name: str, step: int) -> list[Any]:
        groups = read_steps(short_run(advantage=name))
        return [rollout.logprobs for group in groups if group.step == step for rollout in group.rollouts]

    assert logprobs("grpo", 1) == logprobs("sign", 1)
    assert logprobs("grpo", 2) != logprobs("sign", 2)
