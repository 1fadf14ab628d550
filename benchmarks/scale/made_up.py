"""A made-up run of any size: groups of 8 whose rewards follow the difficulty of their prompts."""

import json
import random
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np
from msgspec import Struct

GROUP_SIZE = 8
NUM_PROMPTS = 7_500
NUM_FILES = 200  # steps, and so files, of a run that is no small one
NUM_LETTERS, ALONE = 200, 264  # of a completion that has its prompt beside it, and of one that has not
PROMPT_TOKENS, RESPONSE_TOKENS = 8, 16
_POOL = 1 << 20


class Rollout(Struct, frozen=True):
    """One of the rollouts of a prompt at a step."""

    step: int
    group: int  # its group's place within the step, from 0
    prompt: int
    row: int  # its own place within the step, from 0
    reward: float
    advantage: float  # TRL's, by the sample's standard deviation


class Group(Struct, frozen=True):
    """Rollouts of one prompt at one step."""

    prompt: int
    rewards: list[float]  # [8]
    advantages: list[float]  # [8]


class MadeUpRun(Struct, frozen=True):
    """A run that is the same each time it is made."""

    num_rows: int
    num_steps: int

    def size(self, step: int) -> int:
        """How many rows a step has; steps count from 1, and may go beyond the last one."""
        return GROUP_SIZE * (self._first(step + 1) - self._first(step))

    def groups(self, step: int) -> Iterator[Group]:
        """The groups of a step."""
        draw = np.random.default_rng([0, step])
        num_groups = self.size(step) // GROUP_SIZE
        prompts = (step * 1867 + np.arange(num_groups)) % NUM_PROMPTS
        rewards = (draw.random((num_groups, GROUP_SIZE)) < _difficulty()[prompts, None]).astype(np.float64)
        centered = rewards - rewards.mean(axis=1, keepdims=True)
        advantages = (centered / (rewards.std(axis=1, ddof=1, keepdims=True) + 1e-4)).round(6)
        return map(Group, prompts.tolist(), rewards.tolist(), advantages.tolist())

    def rollouts(self, step: int) -> Iterator[Rollout]:
        """The rollouts of a step."""
        for number, group in enumerate(self.groups(step)):
            for row, *own in zip(count(number * GROUP_SIZE), group.rewards, group.advantages, strict=False):
                yield Rollout(step, number, group.prompt, row, *own)

    @property
    def steps(self) -> range:
        """Its steps."""
        return range(1, self.num_steps + 1)

    def _first(self, step: int) -> int:
        return (step - 1) * (self.num_rows // GROUP_SIZE) // self.num_steps


def run_of(num_rows: int, rows_a_step: int | None) -> MadeUpRun:
    """A run of whole groups of 8; None: as many rows a step as 200 steps leave to each, of few rows 64."""
    num_steps = min(NUM_FILES, num_rows // 64) if rows_a_step is None else num_rows // rows_a_step
    return MadeUpRun(num_rows, max(1, num_steps))


def prompt_text(prompt: int) -> str:
    """What a prompt asks."""
    return f"Problem {prompt}: how many of the first {prompt + 10} whole numbers are odd?"


def completion(step: int, row: int, num_letters: int = NUM_LETTERS) -> str:
    """Words, other ones for each rollout."""
    at = _at(step, row, _POOL)
    return _words()[at : at + num_letters]


def prompt_ids(prompt: int) -> list[int]:
    """A prompt's tokens, [8]."""
    return [1, 4_000, 11_000, 20_000 + prompt // 100, 30_000 + prompt % 100, 12, 13_000, 2]


def response(step: int, row: int) -> tuple[list[int], list[float]]:
    """A completion's tokens and their log-probabilities, [16] each."""
    pool = _responses()
    return pool[_at(step, row, len(pool))]


def write_lines(file: Path, rows: Iterable[object], broken: int | None = None) -> None:
    """A file of JSON lines, before one of which half of that line stands."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as stream:
        for index, row in enumerate(rows):
            line = json.dumps(row)
            if index == broken:
                stream.write(line[: len(line) // 2] + "\n")
            stream.write(line + "\n")


def _at(step: int, row: int, size: int) -> int:
    return (step * 104_729 + row * 7_919) % size


@cache
def _difficulty() -> np.ndarray:
    return np.random.default_rng(0).beta(0.5, 0.5, NUM_PROMPTS)


@cache
def _words() -> str:
    draw = random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(2_000)]
    text = ""
    while len(text) < _POOL + ALONE:
        text += " ".join(draw.choices(words, k=10_000)) + " "
    return text


@cache
def _responses() -> list[tuple[list[int], list[float]]]:
    draw = np.random.default_rng(1)
    ids = draw.integers(3, 50_000, (4_096, RESPONSE_TOKENS)).tolist()
    logprobs = (-draw.exponential(0.5, (4_096, RESPONSE_TOKENS))).round(6).tolist()
    return list(zip(ids, logprobs, strict=True))
