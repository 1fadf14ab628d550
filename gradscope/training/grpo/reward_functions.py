"""What TRL calls to score completions: a task's graders and, where it is trained on, the answer's probability.

Shapes: R rollouts of a step, T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradscope.training.grpo.answer_probability import ANSWER_PROBABILITY, AnswerProbability
from gradscope.training.tasks.task import Grader, Problem, Task


class RewardFunctions:
    """A task's graders as TRL's reward functions, which keep the rewards of the batch scored last.

    Args:
        dense: What is trained on in place of the task's graders, which are then only recorded.
    """

    def __init__(self, task: Task, dense: AnswerProbability | None = None) -> None:
        self.last: dict[str, list[float]] = {}
        """Reward function -> rewards of the last batch, [R]."""
        self.functions = [self._wrap(name, grader) for name, grader in task.graders.items()]
        """What TRL calls, in the order of the task's graders."""
        self.dense = dense
        """What is trained on in place of the task's graders, where there is such a thing."""
        self.trained = tuple(task.graders) if dense is None else (ANSWER_PROBABILITY,)
        """The functions whose sum is the scalar reward."""
        if dense is not None:
            self.functions.append(self._wrap_dense(dense))

    def _wrap_dense(self, dense: AnswerProbability) -> Callable[..., list[float]]:
        def reward(completion_ids: list[list[int]], **columns: Any) -> list[float]:
            self.last[ANSWER_PROBABILITY] = dense(problems_of(**columns), completion_ids)
            return self.last[ANSWER_PROBABILITY]

        reward.__name__ = ANSWER_PROBABILITY
        return reward

    def _wrap(self, name: str, grader: Grader) -> Callable[..., list[float]]:
        def reward(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
            self.last[name] = [
                grader(completion_text(completion), expected)
                for completion, expected in zip(completions, answer, strict=True)
            ]
            return self.last[name]

        reward.__name__ = name  # TRL's name for the column
        return reward


def problems_of(prompt_id: Sequence[str], text: Sequence[str], answer: Sequence[str], **_: Any) -> list[Problem]:
    """The problems that were asked, [R], from the columns of a batch."""
    columns = zip(prompt_id, text, answer, strict=True)
    return [Problem(prompt_id=one, prompt=prompt, answer=right) for one, prompt, right in columns]


def completion_text(completion: str | list[dict[str, Any]]) -> str:
    """The text of a completion as TRL hands it to reward functions: plain text, or the assistant's messages."""
    if isinstance(completion, str):
        return completion
    return "\n".join(str(message.get("content") or "") for message in completion)
