"""The embedded task: sums whose every step is written down and can be checked.

The prompt ``a7b5c8d9=`` labels its operands; the right completion is ``b12c20d29#29``: after each label the running
sum, after ``#`` the answer. Difficulty is the number of carries, from none to seven: a calculator that forgets each
carry with probability 1/2 solves a prompt with c carries with probability 2^-c, so groups of every kind occur at once.

Training and held-out prompts cannot meet: a checksum of the prompt decides to which side it belongs, for every seed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal
from zlib import crc32

import numpy as np
from numpy.random import Generator

from gradscope.errors import UsageError
from gradscope.training.tasks.task import AnswerMark, Problem

LABELS = "abcdefgh"
MAX_COMPLETION_LENGTH = 27
"""The longest right completion has 24 characters and its end of sequence; a slip may write two digits more."""

ANSWER_MARK = AnswerMark(text="#", is_last=False)

Kind = Literal["plain", "mixed", "hard"]
KINDS: tuple[Kind, ...] = ("plain", "mixed", "hard")
_RANGES: dict[Kind, tuple[int, int, int, int]] = {"plain": (1, 5, 2, 6), "mixed": (1, 9, 3, 5), "hard": (5, 9, 6, 8)}
"""Smallest and largest operand, fewest and most operands."""

_MAX_PROMPTS = 20_000
_MAX_TRIES = 200
"""Draws before another kind is used: there are but a few hundred plain sums, and a large set uses them up."""
_HELDOUT_SHARE = 5
_STEP = re.compile(r"([a-h])([0-9]{1,4})")


def format_prompt(operands: Sequence[int]) -> str:
    """The prompt of a sum of two to eight numbers.

    >>> format_prompt([7, 5, 8, 9])
    'a7b5c8d9='
    """
    return "".join(f"{label}{operand}" for label, operand in zip(LABELS, operands, strict=False)) + "="


def solve(operands: Sequence[int]) -> str:
    """The right completion of a sum: the running sums and the answer.

    >>> solve([7, 5, 8, 9])
    'b12c20d29#29'
    """
    sums = np.cumsum(operands).tolist()
    return "".join(f"{label}{total}" for label, total in zip(LABELS[1:], sums[1:], strict=False)) + f"#{sums[-1]}"


def solve_sloppily(operands: Sequence[int], forgets: Sequence[bool]) -> str:
    """The completion of a calculator that ``forgets`` carries, addition by addition, and goes on from its own result.

    >>> solve_sloppily([7, 5, 8, 9], [False, True, False])
    'b12c10d19#19'
    """
    total, text = operands[0], ""
    for label, operand, forget in zip(LABELS[1:], operands[1:], forgets, strict=False):
        carries = total % 10 + operand >= 10
        total = total + operand - (10 if carries and forget else 0)
        text += f"{label}{total}"
    return f"{text}#{total}"


def grade_answer(completion: str, answer: str) -> float:
    """1.0 where the text after the first ``#`` is the answer, else 0.0; the steps before it do not count.

    >>> grade_answer("b12c20d29#29", "29"), grade_answer("b12c20d29#2", "29"), grade_answer("29", "29")
    (1.0, 0.0, 0.0)
    """
    _, mark, final = completion.partition("#")
    return float(bool(mark) and final == answer)


def grade_steps(prompt: str, pieces: Sequence[str]) -> tuple[float, ...]:
    """Reward per token: 1 at the last token of each step that is right, 0 elsewhere.

    A step is right when it has the next label and adds that operand to the sum *written before it*, so one slip does
    not spoil the steps after it. The answer counts as a step that repeats the last written sum. The pieces are the
    texts of the completion's tokens, [T], empty for special tokens.

    >>> grade_steps("a7b5c8=", ["b", "1", "2", "c", "1", "0", "#", "1", "0", ""])
    (0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0)
    """
    rewards = [0.0] * len(pieces)
    operands = _operands(prompt)
    if not operands:
        return tuple(rewards)
    ends = np.cumsum([len(piece) for piece in pieces])
    work, mark, final = "".join(pieces).partition("#")
    written = operands[0]
    for index, step in enumerate(_STEP.finditer(work), start=1):
        value = int(step[2])
        if index < len(operands) and step[1] == LABELS[index] and value == written + operands[index]:
            rewards[int(np.searchsorted(ends, step.end()))] = 1.0
        written = value
    if mark and final == str(written):
        rewards[int(np.searchsorted(ends, len(work) + 1 + len(final)))] = 1.0
    return tuple(rewards)


def is_coherent(prompt: str, completion: str) -> bool:
    """Whether the text before the first ``#`` is every running sum, each the one before plus its operand.

    >>> is_coherent("a7b5c8=", "b12c20#3"), is_coherent("a7b5c8=", "b12c10#20"), is_coherent("a7b5c8=", "#20")
    (True, False, False)
    """
    return completion.partition("#")[0] == solve(_operands(prompt)).partition("#")[0]


def make_problems(
    num_prompts: int,
    *,
    seed: int,
    heldout: bool,
    accept: Callable[[Sequence[int]], bool] = lambda _: True,
    answer: Callable[[Sequence[int]], str] = lambda operands: str(sum(operands)),
    kinds: Sequence[Kind] = KINDS,
) -> tuple[Problem, ...]:
    """Distinct prompts of very different difficulty, in the order drawn.

    The same seed draws the same prompts, and the first n of them whatever the number. ``heldout`` is which of two
    disjoint sides to draw from, ``accept`` whether operands make a prompt of the set, ``answer`` what is wanted of it;
    each kind is drawn as often as the others.

    Raises:
        UsageError: More prompts than the task has variety for.
    """
    if num_prompts > _MAX_PROMPTS:
        raise UsageError(
            f"The task running-sums has at most {_MAX_PROMPTS:,} prompts a set, and {num_prompts:,} were asked for.",
            hint=f"Ask for {_MAX_PROMPTS:,} or fewer: prompts are visited again when a run needs more.",
        )
    draw = np.random.default_rng([seed, int(heldout)])
    problems: dict[str, Problem] = {}
    while len(problems) < num_prompts:
        kind = draw_kind(draw, kinds)
        for _ in range(_MAX_TRIES):
            operands = draw_operands(draw, kind)
            prompt = format_prompt(operands)
            if accept(operands) and is_heldout(prompt) == heldout and prompt not in problems:
                problems[prompt] = Problem(prompt_id=prompt, prompt=prompt, answer=answer(operands))
                break
    return tuple(problems.values())


def is_heldout(prompt: str) -> bool:
    """Whether a prompt belongs to the held-out side, as about one in five does."""
    return crc32(prompt.encode()) % _HELDOUT_SHARE == 0


def draw_kind(draw: Generator, kinds: Sequence[Kind] = KINDS) -> Kind:
    """How difficult the next sum is to be; each kind has about the same probability."""
    return kinds[int(draw.integers(len(kinds)))]


def draw_operands(draw: Generator, kind: Kind) -> list[int]:
    """Operands of one sum, two to eight digits from 1 to 9: without a carry, with some, ``hard`` nearly every step."""
    low, high, min_operands, max_operands = _RANGES[kind]
    while True:
        operands: list[int] = draw.integers(low, high + 1, size=draw.integers(min_operands, max_operands + 1)).tolist()
        if kind != "plain" or sum(operands) < 10:
            return operands


# Running sums with other rules: a minority that wants another answer, prompts that teach nothing, rewards by step.
#
# ``conflict``: about 15 % of the prompts with a carry want the sum with every carry forgotten. Nothing in a prompt says
# so, but for its own digits: the majority's lesson is wrong for them, and the search that would find theirs dies out.
#
# ``starved``: every prompt has two or three carries and wants a pattern of forgotten ones of its own, so the embedded
# model finds it with probability 1/4 or 1/8, and learning on one prompt helps with no other.
#
# ``bimodal``: a sixteenth of the prompts has no carry and all others have five or more, so the embedded model solves a
# prompt nearly always or nearly never (0.03), at temperature 1.
#
# ``steps``: the same prompts, but the reward is the share of right steps, which an outcome formulation spreads over the
# completion and ``per_step`` gives to the tokens that earned it.
#
# A checksum of the prompt decides, so a prompt wants the same in every run.
_RARE = 15  # percent of the prompts with a carry that want the carry-free sum
_MIN_CARRIES, _MAX_CARRIES = 2, 3
_HARD_CARRIES, _EASY_SHARE = 5, 1 / 16
"""Of ``bimodal``: fewest carries of a hard prompt, and the share of the easy ones."""


def bimodal_problems(num_prompts: int, *, seed: int, heldout: bool) -> tuple[Problem, ...]:
    """Prompts without a carry, a sixteenth, and then those with five or more; see ``make_problems``."""
    num_easy = round(_EASY_SHARE * num_prompts)
    easy = make_problems(num_easy, seed=seed, heldout=heldout, kinds=("plain",))
    hard = make_problems(
        num_prompts - num_easy,
        seed=seed,
        heldout=heldout,
        accept=lambda operands: sum(operands) // 10 >= _HARD_CARRIES,
        kinds=("hard",),
    )
    return easy + hard


def grade_share(completion: str, solution: str) -> float:
    """The share of a solution's steps that a completion has right, each judged by the sum written before it.

    >>> grade_share("b12c20d29#29", "b12c20d29#29"), grade_share("b12c10d19#19", "b12c20d29#29")
    (1.0, 0.75)
    """
    totals = _operands(solution.partition("#")[0])
    summands = [after - before for before, after in zip([0, *totals], totals, strict=False)]
    rewards = grade_steps(format_prompt([0, *summands]), list(completion))
    return sum(rewards) / (len(totals) + 1)


def grade_exact(completion: str, answer: str) -> float:
    """1.0 where a completion is the wanted one, step by step, else 0.0.

    >>> grade_exact("b12c10#10", "b12c10#10"), grade_exact("b2c10#10", "b12c10#10")
    (1.0, 0.0)
    """
    return float(completion == answer)


def _is_rare(prompt: str) -> bool:
    """Whether a prompt of ``conflict`` wants the sum without carries, as about 15 % of those with a carry do."""
    return sum(_operands(prompt)) >= 10 and _checksum("conflict", prompt) % 100 < _RARE


def _conflict_answer(operands: Sequence[int]) -> str:
    forgets = [_is_rare(format_prompt(operands))] * (len(operands) - 1)
    return solve_sloppily(operands, forgets).partition("#")[2]


def _starved_answer(operands: Sequence[int]) -> str:
    bits = _checksum("starved", format_prompt(operands))
    return solve_sloppily(operands, [bool(bits >> index & 1) for index in range(len(operands) - 1)])


def _operands(prompt: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"[0-9]+", prompt)]


def _checksum(rule: str, prompt: str) -> int:
    """Independent of the checksum that decides which prompts are held out."""
    return crc32(f"{rule} {prompt}".encode()) >> 3


conflict_problems = partial(make_problems, answer=_conflict_answer)
"""Prompts of running sums, a minority of which want another answer."""
starved_problems = partial(
    make_problems,
    # single digits carry once for every ten that their sum has
    accept=lambda operands: _MIN_CARRIES <= sum(operands) // 10 <= _MAX_CARRIES,
    answer=_starved_answer,
)
"""Prompts with two or three carries, each with a completion as answer."""
steps_problems = partial(make_problems, answer=solve)
"""The prompts of running sums with the worked solution as answer."""
