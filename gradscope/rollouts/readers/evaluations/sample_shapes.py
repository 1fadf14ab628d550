"""The shapes in which files hold n samples of a prompt within one row: lists, counts, or one policy a key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradscope.errors import UsageError
from gradscope.rollouts.readers.flat.columns import USUAL, list_names
from gradscope.rollouts.readers.parsing.scalars import is_number

_REWARD_LISTS = ("passed", "scores", "score", "rewards", "reward", "correct", "is_correct", "success")
_TEXT_LISTS = ("completion", "completions", "samples", "responses", "generations", "solutions", "code", "outputs")
_ANSWER_KEYS = ("full_model_response", "completion", "response", "output", "solution", "model_answer", "text")
_COUNTS = (("n", "c"), ("num_samples", "num_correct"), ("total", "correct"))
_MAX_COUNT = 1_000_000
_MAX_DEPTH = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSamples:
    """The samples of one prompt."""

    shape: str
    """How they were written, in words."""
    rewards: tuple[Any, ...]
    """One cell a sample; not yet judged."""
    further: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Other numbers a sample, by name, the scalar reward among them."""
    texts: tuple[Any, ...] = ()
    """Completions, where they were written."""
    policies: tuple[str, ...] = ()
    """The policy of each sample, where a row holds one of each."""


def samples_of(row: Mapping[str, Any], reward: str | None = None) -> PromptSamples | str | None:
    """The samples that a row, or a part of a document, holds.

    Args:
        reward: Which list is the reward; None: the first with a usual name.

    Returns:
        The samples; a few words for the quarantine where they contradict themselves; None where the row has no such
        shape.
    """
    return _from_lists(row, reward) or _from_counts(row) or _from_policies(row, reward)


def prompt_rows(node: Any, reward: str | None = None, depth: int = _MAX_DEPTH) -> Iterator[Mapping[str, Any]]:
    """The parts of a nested document that hold samples.

    Args:
        node: Plain JSON.
        reward: Which list is the reward.
        depth: How many levels below this one to look into.

    Yields:
        Mappings with a shape, outermost first, in order.
    """
    if isinstance(node, Mapping) and samples_of(node, reward) is not None:
        yield node
    elif isinstance(node, (Mapping, list)) and depth:
        for item in node.values() if isinstance(node, Mapping) else node:
            if isinstance(item, (Mapping, list)):
                yield from prompt_rows(item, reward, depth - 1)


def _from_lists(row: Mapping[str, Any], reward: str | None) -> PromptSamples | str | None:
    columns: dict[str, Any] = {}
    for name, value in row.items():
        if _is_list_of(value, Mapping) and any(key in value[0] for key in (reward, *USUAL["reward"])):
            columns |= {key: [element.get(key) for element in value] for key in value[0]}
        elif isinstance(value, list):
            columns.setdefault(name, [_unwrap(element) for element in value])
    if reward is not None and reward not in columns and _first(columns, _REWARD_LISTS):
        raise UsageError(f"There is no list {reward!r} of rewards.", hint=f"The lists are {list_names(columns)}.")
    main = reward if reward in columns else _first(columns, _REWARD_LISTS)
    if main is None or isinstance(row.get(main), (bool, int, float, str)):
        return None
    size = len(columns[main])
    if not size:
        return "the list of samples is empty"
    if isinstance(row.get("n"), int) and isinstance(row.get("c"), int) and not _counts_agree(row, columns[main]):
        return "n and c contradict the list of samples"
    same = {name: tuple(value) for name, value in columns.items() if len(value) == size}
    texts = _first(same, (*_ANSWER_KEYS, *_TEXT_LISTS))
    return PromptSamples(
        shape="lists",
        rewards=same[main],
        further={name: value for name, value in same.items() if name == main or all(map(is_number, value))},
        texts=same[texts] if texts else (),
    )


def _from_counts(row: Mapping[str, Any]) -> PromptSamples | str | None:
    for total, right in _COUNTS:
        if total in row and right in row:
            n, c = _count(row[total]), _count(row[right])
            if n is None or c is None or not 1 <= n <= _MAX_COUNT or c > n:
                return f"{total} and {right} are not counts with 0 <= {right} <= {total} and {total} >= 1"
            return PromptSamples(shape="counts", rewards=(1.0,) * c + (0.0,) * (n - c))
    return None


def _from_policies(row: Mapping[str, Any], reward: str | None) -> PromptSamples | None:
    names = (reward,) if reward is not None else USUAL["reward"]
    named = {
        policy: value
        for policy, value in row.items()
        if isinstance(value, Mapping) and any(is_number(value.get(name)) for name in names)
    }
    if len(named) < 2:
        return None
    main = next(name for name in names if any(is_number(value.get(name)) for value in named.values()))
    texts = [next((value[key] for key in _ANSWER_KEYS if key in value), None) for value in named.values()]
    return PromptSamples(
        shape=f"one sample of each of {len(named)} policies ({', '.join(named)})",
        rewards=tuple(value.get(main) for value in named.values()),
        texts=tuple(texts),
        policies=tuple(named),
    )


def _counts_agree(row: Mapping[str, Any], rewards: Sequence[Any]) -> bool:
    return bool(row["n"] == len(rewards) and row["c"] == sum(bool(reward) for reward in rewards))


def _count(value: Any) -> int | None:
    try:
        return int(value) if not isinstance(value, bool) and float(value).is_integer() and float(value) >= 0 else None
    except (TypeError, ValueError, OverflowError):
        return None


def _first(columns: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in columns), None)


def _unwrap(value: Any) -> Any:
    """A number that was written as a list of one, as reward models do; anything else unchanged."""
    return value[0] if isinstance(value, list) and len(value) == 1 and is_number(value[0]) else value


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(element, kind) for element in value)
