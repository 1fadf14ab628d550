"""What a task is to a run: prompts with answers, a way to grade a completion and, where it has one, its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Grader = Callable[[str, str], float]
"""Called with (completion, answer); the reward."""
StepGrader = Callable[[str, Sequence[str]], tuple[float, ...]]
"""Called with (prompt, text of each completion token); the reward of each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One prompt with its answer."""

    prompt_id: str
    """The same wherever the prompt comes up again."""
    prompt: str
    """The text that is put to the model."""
    answer: str
    """The right answer, as the grader compares it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Prompts to train on, prompts to test on, and how completions are judged."""

    name: str
    """The name on the command line."""
    train: tuple[Problem, ...]
    """Prompts to train on."""
    heldout: tuple[Problem, ...]
    """Prompts that are never trained on."""
    graders: dict[str, Grader]
    """Reward functions by name; the scalar reward is their sum."""
    step_grader: StepGrader | None = None
    """Reward per token, where the steps of a completion can be checked."""
    chat: bool = False
    """Whether prompts are put as a user's message when the tokenizer has a chat template."""
    notes: tuple[str, ...] = ()
    """What was left out or decided while reading the data, one sentence each, for the manifest."""

    def grade(self, completion: str, answer: str) -> float:
        """The scalar reward of a completion.

        Args:
            completion: Its text.
            answer: The right answer.

        Returns:
            The sum over the reward functions.
        """
        return sum(grader(completion, answer) for grader in self.graders.values())
