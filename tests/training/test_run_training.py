from typing import Any

from tests.training.conftest import MakeRun, rollouts_at


def test_formulations_share_the_first_rollouts_and_then_part(short_run: MakeRun) -> None:
    def logprobs(name: str, step: int) -> list[Any]:
        return [rollout.logprobs for rollout in rollouts_at(short_run(advantage=name), step)]

    assert logprobs("grpo", 1) == logprobs("sign", 1)
    assert logprobs("grpo", 2) != logprobs("sign", 2)
