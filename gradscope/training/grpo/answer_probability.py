"""``--reward answer_probability``: how likely the true answer is after the reasoning that was sampled.

The reward of a completion is P(answer, end of sequence | prompt, reasoning) under the weights that sampled it, at the
sampling temperature: one forward without gradient. The reasoning is the completion up to its answer mark, so what the
model answered itself does not count.

The sampled tokens of the reasoning are kept. The answer gets the tokens that the tokenizer gives it after that text;
where it would join the end of the reasoning and the answer into one token, that token is scored as a whole, after the
sampled tokens before it.

Shapes: R rollouts of a step, T tokens of a completion, V tokens of the vocabulary.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

import torch

from gradscope.training.grpo.policy import TrainedPolicy
from gradscope.training.protocols import Tokenizer
from gradscope.training.setup.config import TrainConfig
from gradscope.training.tasks.task import AnswerMark, Problem, Task

ANSWER_PROBABILITY = "answer_probability"
"""The reward function's name in the log."""
_DECIMALS = 6
"""Rewards are rounded to this: what differs by the arithmetic of a batch must not become an advantage."""

Row = tuple[tuple[int, ...], tuple[int, ...]]
"""Ids that are given and ids that are scored after them."""


class AnswerProbability:
    """The reward function.

    Args:
        policy: The policy, for its tokenizer.
        mark: Where an answer begins.
        temperature: Sampling temperature.
        rows_at_once: Rows of one forward.
    """

    def __init__(self, policy: TrainedPolicy, mark: AnswerMark, *, temperature: float, rows_at_once: int) -> None:
        self._policy = policy
        self._mark = mark
        self._temperature = temperature
        self._rows_at_once = rows_at_once
        self.forward: Callable[[torch.Tensor], torch.Tensor] = lambda ids: policy.model(input_ids=ids).logits
        """From ids [R, T] to scores [R, T, V]; a trainer puts its own here."""

    def __call__(self, problems: Sequence[Problem], completion_ids: Sequence[Sequence[int]]) -> list[float]:
        """The probabilities of a batch, [R]; equal completions of a prompt have equal ones."""
        rows = [self._row(problem, ids) for problem, ids in zip(problems, completion_ids, strict=True)]
        distinct = list(dict.fromkeys(rows))
        rewards: dict[Row, float] = {}
        for start in range(0, len(distinct), self._rows_at_once):
            batch = distinct[start : start + self._rows_at_once]
            rewards |= dict(zip(batch, self._probabilities(batch), strict=True))
        return [rewards[row] for row in rows]

    def _row(self, problem: Problem, completion_ids: Sequence[int]) -> Row:
        sampled = [token for token in completion_ids if token not in self._policy.eos_ids()]
        tokenizer = self._policy.tokenizer
        completion = tokenizer.decode(sampled, skip_special_tokens=True)
        kept, scored = split_ids(tokenizer, sampled, self._mark.reasoning(completion), self._mark.gap + problem.answer)
        return (*self._policy.encode(problem), *kept), (*scored, tokenizer.eos_token_id)

    @torch.no_grad()
    def _probabilities(self, rows: Sequence[Row]) -> list[float]:
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(given + scored) for given, scored in rows], True)
        scores = torch.log_softmax(self.forward(ids)[:, :-1].float() / self._temperature, dim=-1).cpu()
        taken = scores.gather(-1, ids[:, 1:, None]).squeeze(-1)
        return [
            round(float(taken[index, len(given) - 1 : len(given) + len(scored) - 1].double().sum().exp()), _DECIMALS)
            for index, (given, scored) in enumerate(rows)
        ]


def split_ids(
    tokenizer: Tokenizer, sampled: Sequence[int], reasoning: str, answer: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sampled ids of the reasoning, and the ids that the rest of it and the answer have after them.

    As many sampled tokens are kept as lie within the reasoning and as the tokenizer, given their text and what follows,
    would not join with what follows.

    Args:
        sampled: Ids of a completion without its end of sequence.
        reasoning: Its text up to the mark, with the mark.
        answer: The true answer, with what stands before it.

    Returns:
        Ids that are given, and ids that are scored.
    """

    def text(number: int) -> str:
        return tokenizer.decode(list(sampled[:number]), skip_special_tokens=True)

    most = bisect.bisect_right(range(len(sampled) + 1), len(reasoning), key=lambda number: len(text(number))) - 1
    for number in range(most, -1, -1):
        head = text(number)
        alone, whole = (_encode(tokenizer, part) for part in (head, reasoning + answer))
        if reasoning.startswith(head) and whole[: len(alone)] == alone:
            break
    return tuple(sampled[:number]), tuple(whole[len(alone) :])


def most_answer_tokens(policy: TrainedPolicy, task: Task, problems: Sequence[Problem], config: TrainConfig) -> int:
    """The most tokens that a problem's answer, its mark and its end may add to a completion; 0 where none is scored."""
    if config.reward != ANSWER_PROBABILITY or task.answer_mark is None:
        return 0
    mark = task.answer_mark
    texts = {mark.text + mark.gap + problem.answer for problem in problems}
    return 1 + max(len(_encode(policy.tokenizer, text)) for text in texts)


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []
