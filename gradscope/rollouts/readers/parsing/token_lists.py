"""Lists of tokens as trainers write them: ids, masks, log-probabilities and advantages, held to one length.

Shapes: S tokens of the whole sequence, P of them the prompt, T = S - P the completion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import finite_or_none
from gradscope.rollouts.types import Tokens

NOT_IDS = "the token ids are not a list of whole numbers"
NOT_ALIGNED = "the lists of tokens differ in length"
NOTHING_SAMPLED = "no token of the row was sampled"


def token_ids(value: Any) -> tuple[int, ...] | None:
    """Token ids.

    Returns:
        The ids; None where the cell is no list of whole numbers.

    Example:
        >>> token_ids([5, 9]), token_ids([5, True]), token_ids("59")
        ((5, 9), None, None)
    """
    return tuple(value) if isinstance(value, list) and all(type(token) is int for token in value) else None


def cut_sequence(
    ids: Any,
    mask: Any,
    *,
    logprobs: Any = None,
    advantages: Any = None,
    trainer_logprobs: Any = None,
    entropies: Any = None,
) -> Tokens:
    """A whole sequence cut where the model starts to write.

    Args:
        ids: Token ids, [S].
        mask: Which tokens the model sampled: booleans or 0 and 1, [S].
        logprobs: Log-probabilities, [S]; None: not logged.
        advantages: Advantages, [S]; None: not logged.
        trainer_logprobs: The trainer's log-probabilities, [S]; of another length they count as not logged.
        entropies: Entropies of the trainer's policy, [S], likewise.

    Returns:
        The tokens.

    Raises:
        UnusableRowError: The ids are none, one of the other lists differs in length, or no token was sampled.

    Example:
        >>> cut_sequence([5, 9, 7], [0, 1, 1], logprobs=[0, -0.5, -0.25]).logprobs
        (-0.5, -0.25)
    """
    sequence = token_ids(ids)
    if sequence is None:
        raise UnusableRowError(NOT_IDS)
    lists = [mask, *(values for values in (logprobs, advantages) if values is not None)]
    if not all(isinstance(values, list) and len(values) == len(sequence) for values in lists):
        raise UnusableRowError(NOT_ALIGNED)
    sampled = tuple(bool(flag) for flag in mask)
    if not any(sampled):
        raise UnusableRowError(NOTHING_SAMPLED)
    start = sampled.index(True)
    return Tokens(
        prompt_ids=sequence[:start],
        completion_ids=sequence[start:],
        mask=sampled[start:],
        logprobs=_of_sampled(logprobs, sampled, start),
        token_advantages=_of_sampled(advantages, sampled, start),
        trainer_logprobs=_numbers_of_sampled(trainer_logprobs, sampled, start),
        entropies=_numbers_of_sampled(entropies, sampled, start),
    )


def numbers(value: Any, length: int) -> tuple[float, ...] | None:
    """A list of finite numbers.

    Returns:
        The numbers; None where one is missing or not finite, or there are more or fewer than ``length``.

    Example:
        >>> numbers([1, 0.5], 2), numbers([1, None], 2)
        ((1.0, 0.5), None)
    """
    if not isinstance(value, list) or len(value) != length:
        return None
    parsed = tuple(finite_or_none(cell) for cell in value)
    return tuple(number for number in parsed if number is not None) if None not in parsed else None


def numbers_with_gaps(value: Any, length: int) -> tuple[float, ...] | None:
    """A list of numbers, some of which may be missing.

    Returns:
        The numbers, NaN for a cell that is no finite number; None where the cell is no list of this length.

    Example:
        >>> numbers_with_gaps([-0.5, None], 2), numbers_with_gaps([-0.5], 2)
        ((-0.5, nan), None)
    """
    if not isinstance(value, list) or len(value) != length:
        return None
    parsed = (finite_or_none(cell) for cell in value)
    return tuple(math.nan if number is None else number for number in parsed)


def _numbers_of_sampled(values: Any, sampled: Sequence[bool], start: int) -> tuple[float, ...] | None:
    parsed = numbers_with_gaps(values, len(sampled))
    if parsed is None:
        return None
    return tuple(number if flag else 0.0 for number, flag in zip(parsed, sampled, strict=True))[start:]


def _of_sampled(values: list[Any] | None, sampled: Sequence[bool], start: int) -> tuple[float, ...] | None:
    if values is None:
        return None
    cells = [value if flag else 0.0 for value, flag in zip(values, sampled, strict=True)][start:]
    return numbers(cells, len(cells))
