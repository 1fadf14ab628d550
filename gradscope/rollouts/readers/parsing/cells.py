"""Parses the cells of foreign logs: a reward, an identity, a message, a conversation, a list of tokens.

A cell of another kind counts as missing. Text stays raw; output escapes it. Shapes: S tokens of a sequence; R rows.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import chain, repeat
from json.encoder import encode_basestring_ascii
from operator import contains
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import UNSET, MsgspecError, Raw, Struct, convert
from msgspec.json import Decoder, decode

from gradscope.outside.numerals import integer_from, number_from
from gradscope.results.source import BROKEN_REWARD
from gradscope.rollouts.groups import Tokens
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError

_NON_FINITE_WORDS = frozenset({"nan", "inf", "infinity"})
ABSENT = object()  # stands for a key that a row does not have


def parse_reward(value: Any, *, from_text: bool = False) -> float | str:
    """A finite reward, or the reason why it is none.

    Booleans count 1 and 0. Text is no number, even where it looks like one: a log that mixes both was written by a
    program that confused something, and guessing would hide it. CSV has nothing but text, which is parsed with
    ``from_text``.
    """
    if value is ABSENT:
        return "the reward is missing"
    if value is None or (from_text and value == ""):
        return "the reward is null"
    if isinstance(value, str) and from_text:
        word = value.strip().lower()
        if word in {"true", "false"}:
            return float(word == "true")
        with suppress(ValueError):
            value = number_from(word)
    if isinstance(value, str):
        return "the reward is text"
    if not isinstance(value, (bool, int, float, Decimal)):
        return f"the reward is a {type(value).__name__}, not a number"
    try:
        number = float(value)
    except OverflowError:
        return BROKEN_REWARD
    return number if math.isfinite(number) else BROKEN_REWARD


def finite_or_none(value: Any) -> float | None:
    """A cell's number; None where it is missing, no number or not finite."""
    number = parse_reward(value)
    return None if isinstance(number, str) else number


def is_not_finite(value: Any) -> bool:
    """Whether a cell is NaN or an infinity, as a number, or a list with one."""
    if isinstance(value, list):
        return any(map(is_not_finite, value))
    return isinstance(value, float) and not math.isfinite(value)


def logged_number(value: Any) -> float | None:
    """A metric as the trainer logged it, with NaN and infinity as numbers or as words; None for any other cell.

    An integer beyond all floats is infinite; booleans, other text and null are no numbers.

    Example:
        >>> logged_number(2), logged_number("NaN"), logged_number(True), logged_number("cosine")
        (2.0, nan, None, None)
    """
    if isinstance(value, str) and value.lower().strip("+-") in _NON_FINITE_WORDS:
        return float(value)
    if isinstance(value, (bool, str)) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def logged_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The metrics among the cells of a row of a trainer's log, by their keys."""
    numbers = {name: logged_number(cell) for name, cell in row.items()}
    return {name: number for name, number in numbers.items() if number is not None}


def is_number(value: Any) -> bool:
    """Whether a cell is a number, finite or not, or a boolean."""
    return isinstance(value, (bool, int, float))


def digest(*parts: Any) -> str:
    """A short name for long content of plain JSON values, the same in every file: 16 hexadecimal digits."""
    if len(parts) == 1 and type(parts[0]) is str:  # most prompts are, and this costs a third
        return hashlib.sha256(f"[{encode_basestring_ascii(parts[0])}]".encode()).hexdigest()[:16]
    return hashlib.sha256(_json(parts, sort_keys=True).encode()).hexdigest()[:16]


def _json(value: Any, **options: Any) -> str:
    try:
        return json.dumps(value, default=str, **options)
    except TypeError:  # the keys of a pickle's dictionaries may be of any types, even without an order
        return json.dumps(repr(value))


def parse_messages(value: Any) -> tuple[dict[str, Any], ...] | None:
    """Chat messages without the null keys that Arrow adds when it unifies structs; None for any other cell."""
    return tuple(map(_without_null, value)) if _are_messages(value) else None


def _are_messages(value: Any) -> bool:
    if not isinstance(value, (list, tuple)) or not value or not {dict}.issuperset(map(type, value)):
        return False
    return all(map(contains, value, repeat("role")))


def text_of(value: Any) -> str:
    """The text of a cell: of messages their contents joined by newlines, null and NaN as "", anything else as JSON."""
    if isinstance(value, str):
        return value
    if value is None or value is ABSENT or (type(value) is float and math.isnan(value)):
        return ""
    if type(value) is int:  # many logs number their prompts
        return str(value)
    if not _are_messages(value):
        return _json(value, ensure_ascii=False)
    texts = []
    for content in (message.get("content") for message in value):
        if isinstance(content, (list, tuple)):
            content = "\n".join(part["text"] for part in content if isinstance(part, Mapping) and part.get("text"))
        texts.append(content if isinstance(content, str) else "")
    return "\n".join(texts)


CONVERSATION = "messages"  # the column of whole conversations, in which the answer follows its prompt


class _Turn(Struct, gc=False):
    """A message of which no more than its role is decoded."""

    role: str


_ROLES = Decoder(list[_Turn])
_ANSWERS = (b'{"role": "assistant"', b'{"role":"assistant"')  # how the assistant's messages begin


def before_answers(cells: Sequence[Any]) -> list[Any]:
    """:func:`before_answer` of each cell, [R]; where all are JSON text that ends with one answer, they stay JSON."""
    texts = [bytes(cell) for cell in cells if isinstance(cell, Raw)]
    begins = next((begins for begins in _ANSWERS if texts and begins in texts[0]), b"")
    starts = [text.rfind(begins) for text in texts]
    if begins and len(texts) == len(cells) and min(starts) > 0:
        prompts = [text[:start] for text, start in zip(texts, starts, strict=True)]
        as_json = {prompt: Raw(prompt.rstrip(b", ") + b"]") for prompt in dict.fromkeys(prompts)}
        with suppress(MsgspecError, UnicodeDecodeError, RecursionError):
            answers = b"\n".join([b"[" + text[start:] for text, start in zip(texts, starts, strict=True)])
            are_cut = all(len(turns) == 1 and turns[0].role == "assistant" for turns in _ROLES.decode_lines(answers))
            before = _ROLES.decode_lines(b"\n".join(map(bytes, as_json.values())))
            if are_cut and not any(turns and turns[-1].role == "assistant" for turns in before):
                return list(map(as_json.__getitem__, prompts))
    return [before_answer(plain_cell(cell)) for cell in cells]


def plain_cell(cell: Any) -> Any:
    """The value of a cell that may be JSON text yet; None for a missing one."""
    if not isinstance(cell, Raw):
        return None if cell is UNSET else cell
    try:
        return decode(cell)
    except (MsgspecError, RecursionError):  # half a surrogate pair, a number beyond all floats
        return json.loads(bytes(cell))


def before_answer(messages: Any, num_turns: int | None = None) -> Any:
    """A conversation without the assistant's last messages, which are the rollout; any other cell as it is.

    With ``num_turns`` the rollout begins after so many of the assistant's messages.
    """
    if not _are_messages(messages):
        return messages
    if num_turns is not None:
        turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        if len(turns) > num_turns:
            return messages[: turns[num_turns]]
    size = len(messages)
    while size and messages[size - 1]["role"] == "assistant":
        size -= 1
    return messages[:size]


def prompt_text_id(prompt: Any) -> str:
    """The id of a prompt that has none in the log: a digest of its messages or its text; "" of one without text."""
    if type(prompt) is str:  # likely to come again; known by the hash of its text, as texts would take memory
        if len(_known_ids) == _MAX_KNOWN:
            _known_ids.clear()
        key = hash(prompt)  # which has as many bits as the digest
        return _known_ids.get(key) or _known_ids.setdefault(key, digest(prompt))
    with suppress(MsgspecError, ValueError):  # the latter for half a surrogate pair
        if type(prompt) is list and (messages := convert(prompt, list[_Message])):
            return _messages_id(messages)
    return digest(text) if (text := parse_messages(prompt) or text_of(prompt)) else ""


class _Message(Struct, gc=False, forbid_unknown_fields=True):
    role: str
    content: str


_MESSAGES = Decoder(list[_Message])
_MAX_KNOWN = 1 << 17
_known_ids: dict[int, str] = {}


def _messages_id(messages: Iterable[_Message]) -> str:
    """The digest of messages with roles and contents alone, in a third of the time."""
    pairs = (map(encode_basestring_ascii, (message.content, message.role)) for message in messages)
    written = ", ".join(['{{"content": {}, "role": {}}}'.format(*pair) for pair in pairs])
    return hashlib.sha256(f"[[{written}]]".encode()).hexdigest()[:16]


def prompt_json_id(text: bytes) -> str:
    """:func:`prompt_text_id` of what a JSON text says."""
    with suppress(MsgspecError, UnicodeDecodeError, RecursionError):
        if messages := _MESSAGES.decode(text):
            return _messages_id(messages)
    return prompt_text_id(json.loads(text))


def _without_null(value: Any) -> Any:
    if isinstance(value, str):  # most are
        return value
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_null(item) for item in value]
    return value


LARGEST_STEP = 1 << 53  # beyond this a float no longer represents every integer


def mapping_of(value: Any) -> Mapping[str, Any]:
    """A cell's JSON object; an empty one where the cell is something else."""
    return value if isinstance(value, Mapping) else {}


def list_of(value: Any) -> list[Any]:
    """A cell's JSON list; an empty one where the cell is something else."""
    return value if isinstance(value, list) else []


def unwrapped(value: Any) -> Any:
    """The number in a list of one, as reward models write it; anything else unchanged."""
    return value[0] if isinstance(value, list) and len(value) == 1 and is_number(value[0]) else value


def is_list_of_objects(value: Any) -> bool:
    """Whether a cell is a list of objects, of at least one."""
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):  # the first tells most at once
        return False
    return all(isinstance(element, dict) for element in value)


def objects_in(value: Any) -> list[dict[str, Any]]:
    """The objects of a list, also of one of lists, as of groups; none of another cell.

    >>> objects_in([{"a": 1}, 5]), objects_in([[{"a": 1}], [{"a": 2}]])
    ([{'a': 1}], [{'a': 1}, {'a': 2}])
    """
    cells = list_of(value)
    cells = list(chain.from_iterable(map(list_of, cells))) if cells and isinstance(cells[0], list) else cells
    return [cell for cell in cells if isinstance(cell, dict)]


def numbers_in(value: Any) -> dict[str, float | None]:
    """Key -> number of a JSON object, None where it is not finite; other cells are left out.

    Example:
        >>> numbers_in({"solved": True, "note": "ok"})
        {'solved': 1.0}
    """
    return {name: finite_or_none(cell) for name, cell in mapping_of(value).items() if is_number(cell)}


ENVIRONMENTS = ("data_source", "env_id", "env_name", "environment", "env", "agent_name", "agent", "dataset")
"""Names of columns with a row's environment, data source or agent, the most specific first."""


def in_environment(environment: Any, prompt_id: str) -> str:
    """The id of a prompt within its environment: ``environment/prompt_id`` where the cell is a name."""
    name = text_of(environment) if isinstance(environment, str) else ""
    return f"{name}/{prompt_id}" if name else prompt_id


def generation_seconds(row: Mapping[str, Any]) -> float | None:
    """How many seconds a rollout took to generate, without its environment and its reward; None where that is unknown.

    They are ``generation_seconds`` of the row, or its ``timing`` of ``llm_time`` (rLLM, in seconds) or of
    ``generation_ms`` (verifiers).

    Example:
        >>> generation_seconds({"timing": {"generation_ms": 1500.0, "scoring_ms": 20.0}})
        1.5
    """
    timing = mapping_of(row.get("timing"))
    timings = ((row.get("generation_seconds"), 1.0), (timing.get("llm_time"), 1.0), (timing.get("generation_ms"), 1e-3))
    seconds = [time * unit for cell, unit in timings if (time := finite_or_none(cell)) is not None and time >= 0.0]
    return seconds[0] if seconds else None


def whole_number(value: Any) -> int | None:
    """A step or an index: an integer from 0 to ``LARGEST_STEP``, also as digits; None for any other cell.

    Example:
        >>> whole_number("10"), whole_number(3.0), whole_number(True), whole_number("1_0"), whole_number(-1)
        (10, 3, None, None, None)
    """
    if isinstance(value, bool):
        return None
    try:
        number = integer_from(value) if isinstance(value, str) else int(value) if value == int(value) else -1
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 <= number <= LARGEST_STEP else None


_STEP_TEXT = re.compile(
    r"(?:[a-z_ ]*(?:step|iter|iteration|checkpoint|ckpt)[\s_:=-]*)?([0-9.]+)(?:/[0-9]+)?", re.IGNORECASE
)


def step_number(value: Any) -> int | None:
    """A step by :func:`whole_number`, also as ``step_3`` or, as ms-swift writes it, ``3/30``."""
    named = _STEP_TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
    return whole_number(value if named is None else named[1])


def number_in_name(pattern: re.Pattern[str], path: Path) -> int | None:
    """A step in the name of a file or folder: the pattern's first group in the last part of a path that matches."""
    numbers = [match[1] for part in path.parts if (match := pattern.search(part))]
    return whole_number(numbers[-1]) if numbers else None


NOT_IDS = "the token ids are not a list of whole numbers"
NOT_ALIGNED = "the lists of tokens differ in length"
NOT_FINITE = "a number of a token is missing or not finite"
NOTHING_SAMPLED = "no token of the row was sampled"


def token_ids(value: Any) -> tuple[int, ...] | None:
    """Token ids; None where the cell is no list of integers.

    Example:
        >>> token_ids([5, 9]), token_ids([5, True]), token_ids("59")
        ((5, 9), None, None)
    """
    return tuple(value) if isinstance(value, list) and {int}.issuperset(map(type, value)) else None


def cut_sequence(
    ids: Any,
    mask: Any,
    *,
    logprobs: Any = None,
    advantages: Any = None,
    trainer_logprobs: Any = None,
    entropies: Any = None,
) -> Tokens:
    """A sequence, cut where the model starts to write.

    All are lists of S; the mask says which tokens the model sampled, in booleans or 0 and 1. The trainer's
    log-probabilities and its policy's entropies count as not logged where their length is another.

    Raises:
        UnusableRowError: The ids are missing, one of the other lists differs in length, or no token was sampled.

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
    sampled = tuple(map(bool, mask))
    if not any(sampled):
        raise UnusableRowError(NOTHING_SAMPLED)
    start = sampled.index(True)
    return Tokens(
        prompt_ids=sequence[:start],
        completion_ids=sequence[start:],
        mask=sampled[start:],
        logprobs=_complete_numbers(logprobs, sampled, start),
        token_advantages=_complete_numbers(advantages, sampled, start),
        trainer_logprobs=_sampled_numbers(trainer_logprobs, sampled, start),
        entropies=_sampled_numbers(entropies, sampled, start),
    )


def numbers(value: Any, length: int) -> tuple[float, ...] | None:
    """A list of ``length`` finite numbers; None where one is missing or not finite, or the length differs.

    Example:
        >>> numbers([1, 0.5], 2), numbers([1, None], 2)
        ((1.0, 0.5), None)
    """
    parsed = numbers_with_gaps(value, length)
    return None if parsed is None or not _all_finite(parsed) else parsed


def numbers_with_gaps(value: Any, length: int) -> tuple[float, ...] | None:
    """A list of ``length`` numbers, NaN for a cell that is no finite number; None where the length differs.

    Example:
        >>> numbers_with_gaps([-0.5, None], 2), numbers_with_gaps([-0.5], 2)
        ((-0.5, nan), None)
    """
    if not isinstance(value, list) or len(value) != length:
        return None
    kinds = set(map(type, value))
    if kinds <= {float, int}:  # at once, in a tenth of the time
        with suppress(OverflowError):
            converted = tuple(map(float, value) if int in kinds else value)
            if _all_finite(converted):
                return converted
    return tuple(math.nan if number is None else number for number in map(finite_or_none, value))


def _sampled_numbers(values: Any, sampled: Sequence[bool], start: int) -> tuple[float, ...] | None:
    """Numbers of the completion, 0 where not sampled, NaN for a cell that is no finite number."""
    parsed = numbers_with_gaps(values, len(sampled))
    if parsed is None:
        return None
    if all(sampled[start:]):
        return parsed[start:]
    return tuple(number if flag else 0.0 for number, flag in zip(parsed, sampled, strict=True))[start:]


def _complete_numbers(values: Any, sampled: Sequence[bool], start: int) -> tuple[float, ...] | None:
    """The same; None unless all are finite."""
    numbers = _sampled_numbers(values, sampled, start)
    return None if numbers is None or not _all_finite(numbers) else numbers


def _all_finite(numbers: Sequence[float]) -> bool:
    return math.isfinite(sum(numbers)) or all(map(math.isfinite, numbers))  # finite ones may add up to infinity


class Conversation(NamedTuple):
    """A conversation's prompt and completion."""

    prompt: str  # contents of the messages before the policy's first, joined by newlines
    messages: tuple[dict[str, Any], ...] | None  # those messages; None where there are none
    completion: str  # contents of the messages from then on


def cut_conversation(value: Any) -> Conversation:
    """Cut a conversation before the policy's first message.

    That is the first one marked ``trainable`` where any is (an example in the prompt may be an assistant's too), else
    the assistant's first.

    Returns:
        Both parts; empty where the cell is no conversation.

    Example:
        >>> cut_conversation([{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]).completion
        '4'
    """
    messages = parse_messages(value) or ()
    trained = [index for index, message in enumerate(messages) if message.get("trainable") is True]
    replies = [index for index, message in enumerate(messages) if message.get("role") == "assistant"]
    start = (trained or replies or [len(messages)])[0]
    before = tuple({key: cell for key, cell in message.items() if key != "trainable"} for message in messages[:start])
    prompt, completion = (text_of(part) if part else "" for part in (before, messages[start:]))
    return Conversation(prompt=prompt, messages=before or None, completion=completion)
