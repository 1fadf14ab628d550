"""NeMo-RL's training data: every row is a batch of one, so each value is a list of length 1.

Beside it a run leaves checkpoints with their configuration, and TensorBoard's files.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET

from gradscope.rollouts.event_file import event_files
from gradscope.rollouts.groups import UNKNOWN, Tokens
from gradscope.rollouts.readers.beside import (
    CheckpointLayout,
    Metrics,
    metric_lines,
    numbered_folders,
    saved_weights,
    scalar_metrics,
    trainer_settings,
)
from gradscope.rollouts.readers.format import LogColumns, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.cells import (
    ABSENT,
    NOT_ALIGNED,
    cut_sequence,
    digest,
    in_environment,
    list_of,
    mapping_of,
    number_in_name,
    parse_reward,
    text_of,
    whole_number,
)
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, UnusableRowError, hidden_by, with_set_aside
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.reduction.columns import (
    Cells,
    Columns,
    ids_digest,
    jsons_of,
    line_columns,
    numbers_of,
)
from gradscope.rollouts.run import Run, TrainerSettings

_NAMES = {"train/grad_norm": "grad_norm", "train/reward": "reward"}
_CHECKPOINTS = ("step_*", "*/step_*", "results/*/step_*")
_FULL_PRECISION = ("float32", "fp32")
NO_NORMS = (
    "NeMo-RL's grad_norm goes to its logging backends alone: logger.tensorboard_enabled=true puts it beside the "
    "training data."
)
"""What to switch on where no metrics were found."""


def with_nemo_rls(request: ReadRequest, run: Run) -> Run:
    """The run with its arguments, metrics and weights."""
    roots = list(_roots(request.path))
    settings = _settings(request, roots)
    saved = saved_weights(request, _LAYOUT, roots)
    metrics = _metrics(roots, quarantine := QuarantineLog())
    missing = run.source.missing if metrics else (*run.source.missing, NO_NORMS)
    return replace(
        run,
        source=with_set_aside(replace(run.source, missing=missing), quarantine),
        metrics=metrics,
        settings=settings,
        weights=saved.weights,
        unmerged_weights=saved.unmerged,
        tokenizer=saved.tokenizer or run.tokenizer,
    )


def _roots(path: Path) -> Iterator[Path]:
    """The folder of the training data, and the two above it."""
    here = path.resolve()
    here = here if here.is_dir() else here.parent
    return iter((here, here.parent, here.parent.parent))


def _settings(request: ReadRequest, roots: list[Path]) -> TrainerSettings:
    checkpoints = (folder for root in roots for _, folder in numbered_folders(root, _CHECKPOINTS))
    settings = trainer_settings(request, "nemo-rl", (folder / "config.yaml" for folder in (*roots, *checkpoints)))
    reduced = str(settings.at("policy.precision", "bfloat16")) not in _FULL_PRECISION
    size = settings.at("policy.train_micro_batch_size")
    common = {"bf16": reduced, "casts_weights": reduced, "per_device_train_batch_size": size}
    return replace(settings, values={**settings.values, **common})


def _metrics(roots: list[Path], quarantine: QuarantineLog) -> Metrics:
    """From TensorBoard's files in the folder or beside it, else from JSON lines under the same names."""
    here, above, *_ = roots
    for root, files in (here, event_files(here)), (above, event_files(above, below=("", "tensorboard"))):
        found = scalar_metrics(files, _NAMES, quarantine) or metric_lines(
            sorted(root.glob("metrics.jsonl")), _NAMES, quarantine
        )
        if any("grad_norm" in metrics for metrics in found.values()):
            return found
    return {}


def _merge(folder: Path) -> str:
    weights = folder / "policy" / "weights"
    if any(weights.glob("iter_*")):
        script, given = "convert_megatron_to_hf.py", f"--megatron-ckpt-path {weights}/iter_0000000"
    else:
        script, given = "convert_dcp_to_hf.py", f"--dcp-ckpt-path {weights}"
    return (
        f"Convert it: python examples/converters/{script} --config {folder / 'config.yaml'} {given} "
        f"--hf-ckpt-path {folder / 'hf'}; with checkpointing.save_consolidated NeMo-RL writes such a folder itself."
    )


_LAYOUT = CheckpointLayout(
    patterns=_CHECKPOINTS,
    inside=("hf", "policy/hf", "policy/weights/model/consolidated", "policy/weights", "policy/weights/*", "*"),
    merge=_merge,
)


_STEP = re.compile(r"^train_data_step([0-9]+)\.jsonl")
_BY_IDS = "Rows carry no group id: rollouts of equal prompt tokens at one step are a group, as for NeMo-RL's baseline."
_BY_TEXT = (
    "Rows carry no group id and no tokens (NeMo-RL before 0.4): all messages but the last are taken as the prompt, and "
    "rollouts of equal prompts at one step are a group."
)
_FLAT = b" 0123456789,.-+eEnultrfas"  # letters of lists of numbers, without their brackets
_IDS = b"[] 0123456789,"  # letters of lists of ids
_NOT_PLAIN = (-1, b"[]", None)  # stands for the tokens of a row whose lists are not plain
_FILTERED = hidden_by("Dynamic sampling was on (filtered_rewards) and removes groups of equal rewards")


_KEYS = ("rewards", "filtered_rewards", "input_lengths", "sample_loss_mask", "agent_ref")
_LISTS = ("token_ids", "token_loss_mask", "generation_logprobs", "advantages")


def _rows(rows: Cells) -> Columns:
    step = number_in_name(_STEP, rows.path)
    kept = rows.column("filtered_rewards")
    rewards = [_only(one if two is UNSET else two) for one, two in zip(rows.column("rewards"), kept, strict=True)]
    contents: dict[int, list[str]] = {}

    def texts_of(at: int) -> list[str]:
        if at not in contents:
            contents[at] = [text_of(text) for text in list_of(_only(rows.cell("content", at)))]
        return contents[at]

    def tokens_of(at: int) -> Tokens:
        return _tokens({key: _only(rows.cell(key, at)) for key in (*_LISTS, *_KEYS, "prev_logprobs")})

    has_tokens = np.array([cell is not UNSET for cell in rows.column("token_ids")], dtype=np.bool_)
    num_tokens = np.full(len(rows), UNKNOWN)
    advantage = np.full(len(rows), math.nan)
    groups = [""] * len(rows)
    if has_tokens.any():
        lists = zip(*(jsons_of(rows.column(key)) for key in _LISTS), strict=True)
        counts = rows.column("sample_loss_mask")
        for at, (length, of_row) in enumerate(zip(rows.column("input_lengths"), lists, strict=True)):
            if has_tokens[at]:
                num_tokens[at], groups[at], level = _about_tokens(length, of_row, partial(tokens_of, at))
                advantage[at] = math.nan if level is None or _only(counts[at]) == 0 else level
    for at in np.flatnonzero(~has_tokens).tolist():
        groups[at] = _digest_of_texts(tuple(texts_of(at)[:-1]))

    def further(at: int) -> dict[str, Any]:
        tokens = tokens_of(at) if has_tokens[at] else None
        return {"completion": "".join(texts_of(at)[-1:]), "tokens": tokens}

    return Columns(
        step=np.full(len(rows), -1 if step is None else step),
        no_step="the file's name has no step",
        group=groups,
        prompts=lambda some: [_in_agent(rows.cell("agent_ref", at), groups[at]) for at in some],
        texts=lambda some: ["\n".join(texts_of(at)[:-1]) for at in some],
        numbers={"reward": numbers_of(rewards), "advantage": advantage, "num_tokens": num_tokens},
        no_reward=lambda at: str(parse_reward(ABSENT if rewards[at] is UNSET else rewards[at])),
        is_odd=has_tokens & (num_tokens < 0),
        noted={_BY_IDS: has_tokens, _BY_TEXT: ~has_tokens, _FILTERED: np.array([cell is not UNSET for cell in kept])},
        further=further,
    )


def _about_tokens(
    length: Any, lists: tuple[bytes, ...], tokens_of: Callable[[], Tokens]
) -> tuple[int, str, float | None]:
    """How many tokens the completion of a row has, the id of its prompt, and its advantage; -1 where it is unusable."""
    num_tokens, prompt, advantage = _plain_tokens(length, *lists)
    if num_tokens >= 0:
        return num_tokens, _ids_digest(prompt), advantage
    try:
        tokens = tokens_of()
    except UnusableRowError:
        return UNKNOWN, NOT_ALIGNED, None
    return len(tokens.completion_ids), digest(tokens.prompt_ids), tokens.advantage


_digest_of_texts, _ids_digest = (lru_cache(maxsize=256)(one) for one in (digest, ids_digest))
"""Rollouts of one prompt stand side by side."""


def _in_agent(cell: Any, prompt_id: str) -> str:
    """The id of a prompt within the agent of NeMo Gym that a row names."""
    return in_environment(mapping_of(_only(cell)).get("name"), prompt_id)


def _tokens(cells: Mapping[str, Any]) -> Tokens:
    """One row's tokens, without the padding."""
    length = whole_number(cells.get("input_lengths"))
    lists = {name: cells.get(name) for name in ("token_ids", "token_loss_mask", "generation_logprobs", "advantages")}
    if length is None or not all(values is None or len(list_of(values)) >= length for values in lists.values()):
        raise UnusableRowError(NOT_ALIGNED)
    ids, mask, logprobs, advantages = (
        None if values is None else list_of(values)[:length] for values in lists.values()
    )
    trainer_logprobs = list_of(cells.get("prev_logprobs"))[:length]
    tokens = cut_sequence(ids, mask, logprobs=logprobs, advantages=advantages, trainer_logprobs=trainer_logprobs)
    if cells.get("sample_loss_mask") == 0:  # the row has a reward, but no part in the loss
        return dataclasses.replace(tokens, mask=(False,) * len(tokens.mask))
    return tokens


def _plain_tokens(
    length: Any, ids: bytes, mask: bytes, logprobs: bytes, advantages: bytes
) -> tuple[int, bytes, float | None]:
    """What is told of a row's tokens without a list of them: of four JSON texts, each a list of one list, or null.

    Returns:
        The number of tokens of the completion, -1 where the lists are not plain; the prompt's ids, as JSON; and the
        advantage of all sampled tokens, None where they differ or have none.
    """
    logged = [text for text in (ids, mask, logprobs, advantages) if text != b"null"]
    outline = b"".join(logged).translate(None, _FLAT)
    are_one = {text[:2] + text[-2:] for text in logged} == {b"[[]]"}
    are_one &= isinstance(length, list) and len(length) == 1 and type(length[0]) is int
    if len(logged) < 2 or not are_one or outline != b"[[]]" * len(logged):
        return _NOT_PLAIN
    size, num_commas = length[0], [text.count(b",") for text in logged]
    first = mask.find(b"1") if b"1" in mask else mask.find(b"true")
    start = mask.count(b",", 0, max(first, 0))
    is_flag = mask[first + 1 : first + 2] in (b",", b"]", b".", b"r", b" ")
    is_plain = first > 0 and is_flag and not mask[2:first].strip(b"0,. fales") and not ids.translate(None, _IDS)
    if not is_plain or min(num_commas) + 1 < size or start >= size:
        return _NOT_PLAIN
    advantage = None
    if advantages != b"null":
        number, comma, _ = advantages[2:-2].partition(b",")
        gap = b", " if advantages[2 + len(number) : 4 + len(number)] == b", " else comma
        is_one_level = advantages[2:-2] == number + (gap + number) * num_commas[-1]
        levels = {number} if is_one_level else set(advantages[2:-2].replace(b" ", b"").split(b",")[start:size])
        if levels & {b"null", b"true", b"false"}:
            return _NOT_PLAIN
        if len(levels) > 1:
            flags, numbers = (json.loads(text)[0][start:size] for text in (mask, advantages))
            levels = {number for number, flag in zip(numbers, flags, strict=True) if flag}
        advantage = float(levels.pop()) if len(levels) == 1 else None
    return size - start, b"[" + b",".join(ids[2:-2].split(b",", start)[:start]) + b"]", advantage


def _only(cell: Any) -> Any:
    """The value in a list of length 1; any other cell as it is."""
    return cell[0] if isinstance(cell, list) and len(cell) == 1 else cell


FORMAT = RowFormat(
    name="nemo-rl",
    looks_for="train_data_step*.jsonl with content and rewards (NeMo-RL)",
    title="NeMo-RL training data",
    patterns=("train_data_step*.jsonl", "exp_*/train_data_step*.jsonl"),
    recognizes_file=has_keys("content", "rewards"),
    columns=lambda _: LogColumns(lines=line_columns(_rows, _KEYS, (*_LISTS, "content"), looks_at_path=True)),
    inferred=(_BY_IDS, _BY_TEXT),
    missing=(_FILTERED,),
    if_noted=frozenset({_BY_IDS, _BY_TEXT, _FILTERED}),
    completes=with_nemo_rls,
)
