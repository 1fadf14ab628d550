"""From the batch of any GRPOTrainer to rollouts: exact ids, each function's reward, the inputs of the loss.

TRL pads prompts on the left and completions on the right, and its mask omits tokens that leave the loss; the ids are
therefore those that it handed to the reward functions. A row travels between processes as a plain dictionary.

Shapes: R rollouts of a generation batch, G rollouts of a group, F reward functions, T tokens of a completion.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.rollouts.readers.parsing.cells import text_of
from gradscope.training.protocols import Tokenizer

Row = dict[str, Any]
"""The fields of a :class:`Rollout` that a process knows by itself; the rewards are gathered by the trainer."""


def local_rows(
    inputs: Sequence[Mapping[str, Any]],
    output: Mapping[str, Any],
    completion_ids: Sequence[Sequence[int]],
    *,
    tokenizer: Tokenizer,
    end_ids: Collection[int],
    corrected: bool,
) -> list[Row]:
    """The rows of one process, one a completion, [R].

    Args:
        inputs: The rows of the dataset, [R].
        output: What ``_generate_and_score_completions`` returned for them.
        completion_ids: Exact ids of the completions, [R][T].
        end_ids: Tokens that end a completion.
        corrected: Whether the loss is corrected for a separate sampler, so that the sampler's log-probabilities are
            what counts even where the trainer computed others.
    """
    # the sampler's, but those that the loss's ratio refers to where it has one
    old, sampled = output.get("old_per_token_logps"), output.get("sampling_per_token_logps")
    logprobs = old if old is not None and (sampled is None or not corrected) else sampled
    trainers = old if corrected and sampled is not None else None  # beside the sampler's alone
    rows = []
    for index, (source, ids) in enumerate(zip(inputs, completion_ids, strict=True)):
        prompt = source.get("prompt", "")
        is_prompt = output["prompt_mask"][index].bool()
        advantage = output["advantages"][index]
        rows.append(
            {
                "prompt": text_of(prompt),
                "messages": None if isinstance(prompt, str) else tuple(json.loads(json.dumps(prompt, default=str))),
                "completion": tokenizer.decode(list(ids), skip_special_tokens=True),
                "prompt_ids": tuple(output["prompt_ids"][index][is_prompt].tolist()),
                "completion_ids": tuple(int(token) for token in ids),
                "advantage": None if advantage.dim() else _finite(float(advantage)),
                "token_advantages": tuple(advantage[: len(ids)].tolist()) if advantage.dim() else None,
                "logprobs": None if logprobs is None else tuple(logprobs[index, : len(ids)].tolist()),
                "trainer_logprobs": None if trainers is None else tuple(trainers[index, : len(ids)].tolist()),
                # which tokens the policy wrote itself; None where it wrote all of them
                "mask": tuple(output["tool_mask"][index, : len(ids)].bool().tolist())
                if "tool_mask" in output
                else None,
                "status": "completed" if ids and ids[-1] in end_ids else "truncated",
            }
        )
    return rows


def make_groups(
    step: int,
    rows: Sequence[Row],
    rewards: torch.Tensor,
    *,
    names: Sequence[str],
    weights: Sequence[float],
    group_size: int,
) -> tuple[RolloutGroup, ...]:
    """The R / G groups of one step, counted from 1; a prompt's id is a digest of its tokens.

    Rows of all processes are in their order, [R]; each reward function gave one reward a row, NaN where it gave
    nothing, [R, F], and has a weight in the scalar reward, [F].
    """
    rewarded = [
        {**row, "reward": _total(values, weights), "rewards": dict(zip(names, map(_finite, values), strict=True))}
        for row, values in zip(rows, rewards.double().tolist(), strict=True)
    ]
    texts = [",".join(map(str, row["prompt_ids"])) for row in rows[::group_size]]
    prompt_ids = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]
    return step_groups(step, rewarded, prompt_ids, [group_size] * len(prompt_ids))


def step_groups(
    step: int, rows: Sequence[Mapping[str, Any]], prompt_ids: Sequence[str], sizes: Sequence[int]
) -> tuple[RolloutGroup, ...]:
    """A step's groups of these sizes, from the other fields of a :class:`Rollout`, group by group, [R]."""
    groups, start = list[RolloutGroup](), 0
    for prompt_id, size in zip(prompt_ids, sizes, strict=True):
        group_id, members = f"{step:05d}-{len(groups):03d}", range(start, start + size)
        rollouts = tuple(Rollout(group_id=group_id, sample=row - start, row=row, **rows[row]) for row in members)
        groups.append(RolloutGroup(step=step, group_id=group_id, prompt_id=prompt_id, rollouts=rollouts))
        start += size
    return tuple(groups)


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names of reward functions, [F], with numbers where two are equal.

    >>> unique_names(["reward", "length", "reward"])
    ('reward', 'length', 'reward_2')
    """
    seen: list[str] = []
    for name in names:
        count = sum(earlier == name for earlier in names[: len(seen)])
        seen.append(f"{name}_{count + 1}" if count else name)
    return tuple(seen)


def _total(values: Sequence[float], weights: Sequence[float]) -> float | None:
    """The weighted sum over the functions that gave a reward; None where none did."""
    parts = [weight * value for value, weight in zip(values, weights, strict=True) if not math.isnan(value)]
    return _finite(sum(parts)) if parts else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
