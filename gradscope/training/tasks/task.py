"""The interface of a task: prompts with answers, a way to grade a completion and, where it has one, its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from gradscope.metrics.outcomes.reward_shares import REWARDED, count_incoherent, frac_incoherent
from gradscope.rollouts.groups import RolloutGroup
from gradscope.rollouts.run_folder import read_metrics
from gradscope.say import percent

Grader = Callable[[str, str], float]  # called with (completion, answer); the reward
StepGrader = Callable[[str, Sequence[str]], tuple[float, ...]]
"""Called with (prompt, text of each completion token); the reward of each token."""


class Problem(Struct, frozen=True, kw_only=True):
    """One prompt with its answer."""

    prompt_id: str  # the same wherever the prompt comes up again
    prompt: str  # the text that is put to the model
    answer: str  # the right answer, as the grader compares it


ReasoningChecker = Callable[[str, str], bool]
"""Called with (prompt, completion); whether every step before the answer is right and none is missing."""


class AnswerMark(Struct, frozen=True, kw_only=True):
    """Where a completion's reasoning ends and its answer begins."""

    text: str  # the text between them
    is_last: bool  # whether the last one in a completion counts, or the first
    gap: str = ""  # the text between the mark and the answer

    def reasoning(self, completion: str) -> str:
        """A completion up to and including the mark; the completion and the mark where it has none.

        >>> mark = AnswerMark(text="#", is_last=False)
        >>> mark.reasoning("b12#12#1"), mark.reasoning("b12")
        ('b12#', 'b12#')
        """
        start = completion.rfind(self.text) if self.is_last else completion.find(self.text)
        return completion + self.text if start < 0 else completion[: start + len(self.text)]


class Task(Struct, frozen=True, kw_only=True):
    """Prompts to train on, prompts to test on, and how completions are judged."""

    train: tuple[Problem, ...]  # prompts to train on
    heldout: tuple[Problem, ...]  # prompts that are never trained on
    graders: dict[str, Grader]  # reward functions by name; the scalar reward is their sum
    step_grader: StepGrader | None = None  # reward per token, where the steps of a completion can be checked
    answer_mark: AnswerMark | None = None  # where the answer begins; None where it is the entire completion
    is_coherent: ReasoningChecker | None = None
    """Whether the steps before the answer are right, where that can be checked."""
    chat: bool = False  # whether prompts are put as a user's message when the tokenizer has a chat template
    notes: tuple[str, ...] = ()
    """Omissions and decisions while reading the data, one sentence each, for the manifest."""

    def grade(self, completion: str, answer: str) -> float:
        """The scalar reward of a completion: the sum over the reward functions."""
        return sum(grader(completion, answer) for grader in self.graders.values())


def prompt_order(num_problems: int, *, num_prompts: int, steps: int, seed: int) -> list[int]:
    """Which problems each step samples: pass after pass through all of them, each pass in an order of its own.

    The rest of a pass that does not fill a step is left out of that pass, so that no step has the same problem
    twice. Problems are at least ``num_prompts``; as many indices a step are returned.

    >>> order = prompt_order(5, num_prompts=2, steps=4, seed=0)
    >>> len(order), all(len(set(order[i : i + 2])) == 2 for i in range(0, 8, 2))
    (8, True)
    """
    draw = np.random.default_rng(seed)
    num_used = num_problems - num_problems % num_prompts
    order: list[int] = []
    while len(order) < num_prompts * steps:
        order += draw.permutation(num_problems)[:num_used].tolist()
    return order[: num_prompts * steps]


def incoherence_metrics(groups: Sequence[RolloutGroup], is_coherent: ReasoningChecker | None) -> dict[str, float]:
    """The counts of one step for the run's metrics, and their ratio, which is left out where nothing was rewarded."""
    if is_coherent is None:
        return {}
    num_rewarded, num_incoherent = count_incoherent(
        (rollout.reward or 0.0, is_coherent(rollout.prompt, rollout.completion))
        for group in groups
        for rollout in group.rollouts
    )
    share = frac_incoherent(num_rewarded, num_incoherent).value
    counts = {"num_rewarded": float(num_rewarded), "num_incoherent": float(num_incoherent)}
    return counts if share is None else counts | {"frac_incoherent": share}


def incoherence_sentence(run: Path) -> str | None:
    """A sentence on which rollouts a run rewarded; None where the task's reasoning cannot be checked."""
    steps = [values for values in read_metrics(run).values() if "num_rewarded" in values]
    if not steps:
        return None
    num_rewarded, num_incoherent = (int(sum(row[name] for row in steps)) for name in ("num_rewarded", "num_incoherent"))
    share = frac_incoherent(num_rewarded, num_incoherent).value
    if share is None:
        return f"no rollout had a reward of {REWARDED:g} or more"
    return (
        f"{num_incoherent:,} of {num_rewarded:,} rollouts with a reward of {REWARDED:g} or more ({percent(share)}) "
        "have a wrong or missing step before the answer"
    )
