"""NeMo-RL's training data: every row is a batch of one, so each value is a list of length 1.

A run also leaves checkpoints with their configuration, and TensorBoard's files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from gradscope.rollouts.event_file import event_files
from gradscope.rollouts.groups import UNKNOWN, Tokens
from gradscope.rollouts.readers import run_files
from gradscope.rollouts.readers.format import RowFormat, has_keys
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, UnusableRowError, filter_caveat, with_set_aside
from gradscope.rollouts.readers.parsing.records import ReadRequest
from gradscope.rollouts.readers.reduction.columns import Cells, Columns, numbers_of, step_numbers
from gradscope.rollouts.run import Run

_NAMES = {"train/grad_norm": "grad_norm", "train/reward": "reward"}
_CHECKPOINTS = ("step_*", "*/step_*", "results/*/step_*")
NO_NORMS = (
    "NeMo-RL's grad_norm goes to its logging backends alone: logger.tensorboard_enabled=true puts it beside the "
    "training data."
)
"""A note on what to switch on, where a run has no metrics."""


def with_nemo_rls(request: ReadRequest, run: Run) -> Run:
    """The run with its arguments, metrics and weights."""
    folder = request.path.resolve()
    folder = folder if folder.is_dir() else folder.parent
    roots = [folder, folder.parent, folder.parent.parent]
    metrics = _metrics(roots, quarantine := QuarantineLog())
    run = run if metrics else run.with_missing(NO_NORMS)
    checkpoints = (of for root in roots for _, of in run_files.numbered_folders(root, _CHECKPOINTS))
    settings = run_files.trainer_settings(request, "nemo-rl", (of / "config.yaml" for of in (*roots, *checkpoints)))
    size, precision = settings.at("policy.train_micro_batch_size"), settings.at("policy.precision", "bfloat16")
    return replace(
        run,
        source=with_set_aside(run.source, quarantine),
        metrics=metrics,
        settings=run_files.in_precision(settings, precision, per_device_train_batch_size=size),
        **run_files.saved_weights(request, _LAYOUT, roots),
    )


def _metrics(roots: list[Path], quarantine: QuarantineLog) -> run_files.Metrics:
    """Metrics of TensorBoard's files in the folder or the one above, else of JSON lines under the same names."""
    folder, above, *_ = roots
    for root, files in (folder, event_files(folder)), (above, event_files(above, below=("", "tensorboard"))):
        metrics_of = run_files.scalar_metrics(files, _NAMES, quarantine) or run_files.metric_lines(
            sorted(root.glob("metrics.jsonl")), _NAMES, quarantine
        )
        if any("grad_norm" in values for values in metrics_of.values()):
            return metrics_of
    return {}


def _merge(folder: Path) -> str:
    weights = folder / "policy" / "weights"
    if any(weights.glob("iter_*")):
        script, arguments = "convert_megatron_to_hf.py", f"--megatron-ckpt-path {weights}/iter_0000000"
    else:
        script, arguments = "convert_dcp_to_hf.py", f"--dcp-ckpt-path {weights}"
    return (
        f"Convert it: python examples/converters/{script} --config {folder / 'config.yaml'} {arguments} "
        f"--hf-ckpt-path {folder / 'hf'}; with checkpointing.save_consolidated NeMo-RL writes such a folder itself."
    )


_LAYOUT = run_files.CheckpointLayout(
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
_FILTERED = filter_caveat("Dynamic sampling was on (filtered_rewards) and removes groups of equal rewards")


_KEYS = ("rewards", "filtered_rewards", "input_lengths", "sample_loss_mask", "agent_ref", "token_loss_mask")
_TEXTS = ("token_ids", "generation_logprobs", "advantages")


def _rows(rows: Cells) -> Columns:
    step = parse.number_in_name(_STEP, rows.path)
    filtered = rows.column("filtered_rewards")
    pairs = zip(rows.column("rewards"), filtered, strict=True)
    rewards = _only_items([before if after is UNSET else after for before, after in pairs])
    contents: dict[int, list[str]] = {}

    def texts_of(at: int) -> list[str]:
        if at not in contents:
            contents[at] = [parse.text_of(text) for text in parse.list_of(_only(rows.cell("content", at)))]
        return contents[at]

    def tokens_of(at: int) -> Tokens:  # without the padding
        cells = {key: _only(rows.cell(key, at)) for key in (*_TEXTS, *_KEYS, "prev_logprobs")}
        length = parse.whole_number(cells["input_lengths"])
        lists = [cells[key] for key in ("token_ids", "token_loss_mask", "generation_logprobs", "advantages")]
        if length is None or not all(values is None or len(parse.list_of(values)) >= length for values in lists):
            raise UnusableRowError(parse.NOT_ALIGNED)
        ids, mask, logprobs, advantages = (None if of is None else parse.list_of(of)[:length] for of in lists)
        trainers = parse.list_of(cells["prev_logprobs"])[:length]
        tokens = parse.cut_sequence(ids, mask, logprobs=logprobs, advantages=advantages, trainer_logprobs=trainers)
        if cells["sample_loss_mask"] == 0:  # the row has a reward, but no part in the loss
            return replace(tokens, mask=(False,) * len(tokens.mask))
        return tokens

    has_tokens = np.array([cell is not UNSET for cell in rows.column("token_ids")], dtype=np.bool_)
    about = _plain_tokens(rows) if has_tokens.any() else {}
    for at in np.flatnonzero(has_tokens).tolist() if len(about) < len(rows) else ():
        if at not in about:
            about[at] = UNKNOWN, parse.NOT_ALIGNED, math.nan
            with suppress(UnusableRowError):
                tokens = tokens_of(at)
                level = math.nan if tokens.advantage is None else tokens.advantage
                about[at] = len(tokens.completion_ids), parse.digest(tokens.prompt_ids), level
    for at in np.flatnonzero(~has_tokens).tolist():
        about[at] = UNKNOWN, _digest_of_texts(tuple(texts_of(at)[:-1])), math.nan
    lengths, groups, levels = map(list, zip(*map(about.__getitem__, range(len(rows))), strict=True))
    is_counted = [cell != 0 for cell in _only_items(rows.column("sample_loss_mask"))]
    num_tokens, advantages = np.array(lengths), np.where(is_counted, levels, math.nan)

    def agents(chosen: list[int]) -> list[Any]:  # those of NeMo Gym
        return [parse.mapping_of(_only(cell)).get("name") for cell in rows.cells("agent_ref", chosen)]

    def details(at: int) -> dict[str, Any]:
        tokens = tokens_of(at) if has_tokens[at] else None
        return {"completion": "".join(texts_of(at)[-1:]), "tokens": tokens}

    return Columns(
        step=np.full(len(rows), -1 if step is None else step),
        no_step="the file's name has no step",
        group=groups,
        prompts=lambda chosen: [
            parse.in_environment(agent, groups[at]) for at, agent in zip(chosen, agents(chosen), strict=True)
        ],
        texts=lambda chosen: ["\n".join(texts_of(at)[:-1]) for at in chosen],
        numbers={"reward": numbers_of(rewards), "advantage": advantages, "num_tokens": num_tokens},
        no_reward=lambda at: str(parse.parse_reward(parse.ABSENT if rewards[at] is UNSET else rewards[at])),
        is_odd=has_tokens & (num_tokens < 0),
        noted={
            _BY_IDS: has_tokens,
            _BY_TEXT: ~has_tokens,
            _FILTERED: np.array([cell is not UNSET for cell in filtered]),
        },
        details=details,
        flaw=partial(rows.flaw_of_advantage, "advantages"),
    )


_SPACE = ord(" ")
_AboutTokens = tuple[int, str, float]  # tokens of a completion; the id of its prompt; its ``_level``


def _plain_tokens(rows: Cells) -> dict[int, _AboutTokens]:
    """Row -> lengths, prompt and advantage, computed on the JSON itself for rows that are as NeMo-RL writes them."""
    sizes = step_numbers(_only_items(rows.column("input_lengths")))
    masks = [cell if type(cell) is list else [] for cell in _only_items(rows.column("token_loss_mask"))]
    ids, logprobs, advantages = map(rows.column, _TEXTS)
    num_ids, shortest = parse.nums_ids(ids, depth=2), np.fromiter(map(len, masks), np.int64, len(rows))
    for lengths in (num_ids, *(parse.flat_lengths(cells, depth=2) for cells in (logprobs, advantages))):
        shortest = np.where(lengths == parse.OF_NULL, shortest, np.minimum(shortest, lengths))
    ids, advantages = parse.jsons_of(ids), parse.jsons_of(advantages)
    about, before, prompt, num_prompt = {}, b"\0", "", -1
    for at in np.flatnonzero((sizes > 0) & (shortest >= sizes) & (num_ids > 0)).tolist():
        mask, size, text = masks[at], int(sizes[at]), ids[at]
        try:
            start = mask.index(1, 0, size)
            if mask.count(0) + mask.count(1) < len(mask):
                continue
            level = _level(advantages[at], mask, start, size)
        except (TypeError, ValueError):  # nothing was sampled, or an advantage is null
            continue
        if start != num_prompt or not text.startswith(before):  # rollouts of a prompt are adjacent
            cells = text[2:-2].split(b",", start)[:start]
            before, num_prompt = b"".join([b"[[", *(cell + b"," for cell in cells)]), start
            prompt = _ids_digest(b"[" + b",".join(cells) + b"]")
        about[at] = size - start, prompt, level
    return about


def _level(text: bytes, mask: list[Any], start: int, end: int) -> float:
    """The advantage of all sampled tokens from ``start`` to ``end``, as JSON; NaN where they differ or have none."""
    first = text.find(b",") + 1
    if first and text[first] == _SPACE:
        first += 1
    if first and text[first:-2] == text[2:-first]:  # all cells are the same
        return float(text[2:first].rstrip(b", "))
    cells = text[2:-2].split(b",")[start:end] if text != b"null" else []
    levels = set(map(float, set(compress(cells, mask[start:end]))))
    return levels.pop() if len(levels) == 1 else math.nan


_digest_of_texts, _ids_digest = (lru_cache(maxsize=256)(function) for function in (parse.digest, parse.ids_digest))
"""Cached, since rollouts of a prompt are adjacent."""


def _only(cell: Any) -> Any:
    """The value in a list of length 1; any other cell as it is."""
    return cell[0] if isinstance(cell, list) and len(cell) == 1 else cell


def _only_items(cells: Sequence[Any]) -> list[Any]:
    if {list}.issuperset(map(type, cells)) and {1}.issuperset(map(len, cells)):
        return [value for (value,) in cells]
    return list(map(_only, cells))


FORMAT = RowFormat(
    name="nemo-rl",
    looks_for="train_data_step*.jsonl with content and rewards (NeMo-RL)",
    title="NeMo-RL training data",
    patterns=("train_data_step*.jsonl", "exp_*/train_data_step*.jsonl"),
    recognizes_file=has_keys("content", "rewards"),
    columns=lambda reading: reading.log(to_columns=_rows, keys=_KEYS, raw=(*_TEXTS, "content"), looks_at_path=True),
    inferred=(_BY_IDS, _BY_TEXT),
    missing=(_FILTERED,),
    if_noted=frozenset({_BY_IDS, _BY_TEXT, _FILTERED}),
    completes=with_nemo_rls,
)
