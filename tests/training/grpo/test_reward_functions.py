from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gradscope.rollouts.store import read_steps
from gradscope.training.tasks.running_sums import grade_answer, grade_steps

MakeRun = Callable[..., Path]


def test_rewards_are_the_graders(short_run: MakeRun) -> None:
    for group in read_steps(short_run()):
        answer = str(sum(int(character) for character in group.prompt_id if character.isdigit()))
        for rollout in group.rollouts:
            assert rollout.reward == rollout.rewards["answer"] == grade_answer(rollout.completion, answer)
            assert rollout.token_rewards is not None
            assert rollout.completion_ids is not None
            assert len(rollout.token_rewards) == len(rollout.completion_ids)
            assert sum(rollout.token_rewards) == sum(grade_steps(rollout.prompt, list(rollout.completion)))
