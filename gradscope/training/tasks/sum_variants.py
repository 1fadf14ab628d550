"""Running sums with other rules: a minority that wants another answer, prompts that teach nothing, rewards by step.

``conflict``: about 15 % of the prompts with a carry want the sum with every carry forgotten. Nothing in a prompt says
so, but for its own digits: what the majority teaches is wrong there, and the search that would find it dies out.

``starved``: every prompt has two or three carries and wants a pattern of forgotten ones of its own, so the embedded
model finds it with probability 1/4 or 1/8, and what is learned on one prompt helps with no other.

``steps``: the same prompts, but the reward is the share of right steps, which an outcome formulation spreads over the
whole completion and ``per_step`` gives to the tokens that earned it.

A checksum of the prompt decides, so a prompt wants the same in every run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from zlib import crc32

from gradscope.training.tasks import running_sums
from gradscope.training.tasks.task import Problem

_RARE = 15
"""Percent of the prompts with a carry that want the carry-free sum."""
_FEWEST_CARRIES, _MOST_CARRIES = 2, 3


def conflict_problems(num_prompts: int, *, seed: int, heldout: bool) -> tuple[Problem, ...]:
    """Prompts of running sums, a minority of which want another answer; see ``running_sums.make_problems``."""
    problems = running_sums.make_problems(num_prompts, seed=seed, heldout=heldout)
    return tuple(
        Problem(prompt_id=problem.prompt_id, prompt=problem.prompt, answer=_conflict_answer(problem.prompt))
        for problem in problems
    )


def starved_problems(num_prompts: int, *, seed: int, heldout: bool) -> tuple[Problem, ...]:
    """Prompts with two or three carries, each with a whole completion as answer; see ``make_problems``."""
    problems = running_sums.make_problems(num_prompts, seed=seed, heldout=heldout, accept=_is_starved)
    return tuple(
        Problem(prompt_id=problem.prompt_id, prompt=problem.prompt, answer=_starved_answer(problem.prompt))
        for problem in problems
    )


def steps_problems(num_prompts: int, *, seed: int, heldout: bool) -> tuple[Problem, ...]:
    """The prompts of running sums with the worked solution as answer; see ``running_sums.make_problems``."""
    problems = running_sums.make_problems(num_prompts, seed=seed, heldout=heldout)
    return tuple(
        Problem(
            prompt_id=problem.prompt_id, prompt=problem.prompt, answer=running_sums.solve(_operands(problem.prompt))
        )
        for problem in problems
    )


def grade_share(completion: str, solution: str) -> float:
    """The share of a solution's steps that a completion has right, each judged by the sum written before it.

    Returns:
        From 0 to 1; 1 only where every step and the answer are right.

    Example:
        >>> grade_share("b12c20d29#29", "b12c20d29#29"), grade_share("b12c10d19#19", "b12c20d29#29")
        (1.0, 0.75)
    """
    totals = _operands(solution.partition("#")[0])
    summands = [after - before for before, after in zip([0, *totals], totals, strict=False)]
    rewards = running_sums.grade_steps(running_sums.format_prompt([0, *summands]), list(completion))
    return sum(rewards) / (len(totals) + 1)


def grade_whole(completion: str, answer: str) -> float:
    """1.0 where a completion is the wanted one, step by step, else 0.0.

    Returns:
        The reward.

    Example:
        >>> grade_whole("b12c10#10", "b12c10#10"), grade_whole("b2c10#10", "b12c10#10")
        (1.0, 0.0)
    """
    return float(completion == answer)


def is_rare(prompt: str) -> bool:
    """Whether a prompt of ``conflict`` wants the sum without carries, as about 15 % of those with a carry do."""
    return sum(_operands(prompt)) >= 10 and _checksum("conflict", prompt) % 100 < _RARE


def _conflict_answer(prompt: str) -> str:
    operands = _operands(prompt)
    forgets = [is_rare(prompt)] * (len(operands) - 1)
    return running_sums.solve_sloppily(operands, forgets).partition("#")[2]


def _starved_answer(prompt: str) -> str:
    operands, bits = _operands(prompt), _checksum("starved", prompt)
    return running_sums.solve_sloppily(operands, [bool(bits >> index & 1) for index in range(len(operands) - 1)])


def _is_starved(operands: Sequence[int]) -> bool:
    """Single digits carry once for every ten that their sum has."""
    return _FEWEST_CARRIES <= sum(operands) // 10 <= _MOST_CARRIES


def _operands(prompt: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"[0-9]+", prompt)]


def _checksum(rule: str, prompt: str) -> int:
    """Independent of the one that decides what is held out."""
    return crc32(f"{rule} {prompt}".encode()) >> 3
