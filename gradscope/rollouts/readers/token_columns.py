"""The exact tokens of a row that a script wrote, by the usual names of their columns."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from itertools import compress
from typing import Any

from gradscope.rollouts.groups import Tokens
from gradscope.rollouts.readers.parsing.cells import cut_sequence, whole_number
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.trainers.trl_groups import MASKS
from gradscope.rollouts.readers.trainers.verl import row_tokens

RESPONSE_IDS = ("completion_ids", "completion_token_ids", "response_ids", "response_token_ids")
_SEQUENCE_IDS = ("input_ids", "sequence_ids", "sequences", "token_ids", "tokens")  # of prompt and completion in one

_COLUMNS = {
    "prompts": ("prompt_ids", "prompt_token_ids", "query_token_ids", "query_ids"),
    "responses": RESPONSE_IDS,
    "sequence": _SEQUENCE_IDS,
    "labels": ("labels",),
    "attention_mask": ("attention_mask",),
    "response_mask": (*MASKS, "response_mask", "loss_mask", "action_mask", "assistant_mask", "assistant_masks"),
    "prompt_length": ("prompt_length", "prompt_len", "num_prompt_tokens"),
    "rollout_log_probs": ("sampling_logprobs", "logprobs", "rollout_log_probs"),
}
_DIVIDE = (*_COLUMNS["labels"], *_COLUMNS["response_mask"], *_COLUMNS["prompt_length"])
_NOT_SAMPLED = -100  # the label of a token that PyTorch's cross entropy leaves out


def hold_tokens(names: Collection[str]) -> bool:
    """Whether columns of these names may hold the tokens of a row.

    >>> hold_tokens(["response_ids"]), hold_tokens(["input_ids", "labels"]), hold_tokens(["tokens", "reward"])
    (True, True, False)
    """
    present = set(names)
    divided = not (present.isdisjoint(_SEQUENCE_IDS) or present.isdisjoint(_DIVIDE))
    return divided or not present.isdisjoint(RESPONSE_IDS)


def tokens_by_names(cell_of: Callable[[str], Any], advantage: str | None) -> Tokens | None:
    """The tokens of a row, whose advantages are in the column of that name; None where it has none that fit together.

    ``cell_of`` gives the cell of a column, None where there is none.
    """
    cells = {role: [cell_of(name) for name in names] for role, names in _COLUMNS.items()}
    row = {role: next((cell for cell in of if cell is not None), None) for role, of in cells.items()}
    advantages = cell_of(advantage) if advantage else None
    row["advantages"] = advantages if isinstance(advantages, list) else None
    with suppress(UnusableRowError):  # such columns are of something else
        return _of_two_lists(row) if row["responses"] is not None else _of_one_list(row)
    return None


def _of_two_lists(row: dict[str, Any]) -> Tokens | None:
    prompt, response, mask = (row[role] or () for role in ("prompts", "responses", "response_mask"))
    if isinstance(mask, list) and len(mask) == len(prompt) + len(response):  # of the whole sequence
        row["response_mask"] = mask[len(prompt) :]
    return row_tokens({**row, "attention_mask": None})


def _of_one_list(row: dict[str, Any]) -> Tokens | None:
    """The tokens of a sequence; None where nothing says which of them were sampled."""
    ids, mask, labels, length = (row[role] for role in ("sequence", "response_mask", "labels", "prompt_length"))
    if not isinstance(ids, list):
        return None
    if isinstance(labels, list) and len(labels) == len(ids):
        mask = [label != _NOT_SAMPLED for label in labels]
    elif isinstance(mask, list):
        mask = _of_each_token(mask, len(ids))
    elif (start := whole_number(length)) is not None:
        mask = [at >= start for at in range(len(ids))]
    else:
        return None
    sampled = list(map(bool, mask))
    of_each = [ids, sampled]
    for values in (row["rollout_log_probs"], row["advantages"]):
        of_each.append(_of_each_token(values, len(ids), sampled) if isinstance(values, list) else [])
    attended = row["attention_mask"]
    if isinstance(attended, list) and len(attended) == len(ids):  # the others are padding
        of_each = [list(compress(values, attended)) for values in of_each]
    ids, mask, logprobs, advantages = of_each
    return cut_sequence(ids, mask, logprobs=logprobs or None, advantages=advantages or None)


def _of_each_token(values: list[Any], num_ids: int, sampled: list[bool] | None = None) -> list[Any]:
    """Values of all tokens from those of all, of all that are predicted, or of those that were sampled."""
    if len(values) == num_ids - 1:
        return [0, *values]
    if sampled is None or len(values) == num_ids or len(values) != sum(sampled):
        return values
    of_sampled = iter(values)
    return [next(of_sampled) if is_sampled else 0 for is_sampled in sampled]
