"""Logs with exact tokens: open-instruct's traces and NeMo-RL's batches.

Each row of NeMo-RL's is a batch of one, so that each value is a list of length 1; its runs also leave checkpoints with
their configuration, and TensorBoard's files.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from gradscope.rollouts.arrays import index_names, to_strings, to_texts
from gradscope.rollouts.event_file import event_files
from gradscope.rollouts.groups import UNKNOWN, RewardTable, Tokens
from gradscope.rollouts.readers import run_files
from gradscope.rollouts.readers.format import IfNoted, Reading, RowFormat, has_keys, interpreted_by
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing import json_text
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, UnusableRowError, filter_caveat, with_set_aside
from gradscope.rollouts.readers.parsing.records import ReadRequest
from gradscope.rollouts.readers.parsing.tables import Row
from gradscope.rollouts.readers.reduction.columns import Cells, Columns, names_of_runs
from gradscope.rollouts.readers.reduction.log import ColumnLog
from gradscope.rollouts.readers.reduction.numbers import numbers_of, step_numbers
from gradscope.rollouts.run import Run
from gradscope.say import counted

_Prompts = defaultdict[tuple[int, str | None], set[str]]  # step and ``prompt_idx`` -> ids of its prompts


def _open_instruct_survey(rows: Sequence[Row], reading: Reading) -> dict[str, frozenset[int]]:
    """The steps at which an index has several prompts."""
    first: dict[tuple[int, int], Any] = {}
    mixed = set()
    for _, cells in rows:
        step, index = parse.whole_number(cells.get("step")), parse.whole_number(cells.get("prompt_idx"))
        prompt = parse.token_ids(cells.get("prompt_tokens"))
        if step is None or index is None or prompt is None:
            continue
        if first.setdefault((step, index), prompt) != prompt:
            mixed.add(step)
    if mixed:
        reading.inferred.append(
            f"At {counted(len(mixed), 'step')} prompt_idx mixes prompts (truncated completions were dropped first): "
            "there rollouts were grouped by the prompt's tokens."
        )
    return {"mixed": frozenset(mixed)}


def _open_instruct_columns(reading: Reading, mixed: frozenset[int] | None = None) -> ColumnLog:
    """The columns of traces, whose group names include the prompt's id until each index is known to have one prompt."""
    log = partial(reading.log, keys=("step", "prompt_idx", "reward", "advantage", "finish_reason"), raw=_TRACE_TOKENS)
    if mixed is not None:
        return log(to_columns=partial(_open_instruct_rows, mixed=mixed))
    odd_prompts: _Prompts = defaultdict(set)

    def validate(table: RewardTable) -> RewardTable | None:
        names = [name.partition("/")[0] for name in (to_texts(table.names) if len(table) else ())]
        groups = list(zip(table.step.tolist(), names, strict=True))
        if len(set(groups)) < len(groups):
            return None
        for group, prompt in zip(groups, table.prompt.tolist(), strict=True):
            if odd_prompts and odd_prompts[group] | {table.prompts[prompt]} != {table.prompts[prompt]}:
                return None
        return replace(table, names=to_strings(names)) if names else table

    return log(
        to_columns=partial(_open_instruct_rows, odd_prompts=odd_prompts),
        read_back=partial(_open_instruct_rows, mixed=frozenset()),
        validate=validate,
    )


_TRACE_TOKENS = ("prompt_tokens", "response_tokens", "logprobs")


def _open_instruct_rows(
    rows: Cells, *, mixed: frozenset[int] | None = None, odd_prompts: _Prompts | None = None
) -> Columns:
    steps, indices = rows.steps("step"), index_names(rows.steps("prompt_idx"))
    prompts, responses, logprobs = map(rows.column, _TRACE_TOKENS)

    prompt_ids = names_of_runs([prompts], lambda first_rows: json_text.digests_of_ids([text for (text,) in first_rows]))
    lengths, logged = json_text.nums_ids(responses), json_text.flat_lengths(logprobs)
    is_unlike = (logged != lengths) & (logged != json_text.NULL)
    is_irregular = (lengths < 0) | is_unlike
    if not all(prompt_ids):
        is_irregular |= [not prompt for prompt in prompt_ids]
    if mixed is None:
        groups = [f"{name}/{prompt}" if name else "" for name, prompt in zip(indices, prompt_ids, strict=True)]
    elif not mixed:
        groups = indices
    else:
        pairs = zip(steps.tolist(), indices, prompt_ids, strict=True)
        groups = [prompt or parse.NOT_IDS if step in mixed else name for step, name, prompt in pairs]

    def details(row: int) -> dict[str, Any]:
        if odd_prompts is not None and prompt_ids[row]:
            odd_prompts[int(steps[row]), indices[row]].add(prompt_ids[row])
        *ids, logged = (rows.cell(key, row) for key in _TRACE_TOKENS)
        prompt, response = map(parse.token_ids, ids)
        if prompt is None or response is None:
            raise UnusableRowError(parse.NOT_IDS)
        size = len(response)
        if logged is not None and not (isinstance(logged, list) and len(logged) == size):
            raise UnusableRowError(parse.NOT_ALIGNED)
        numbers = parse.numbers(logged, size)
        tokens = Tokens(prompt_ids=prompt, completion_ids=response, mask=(True,) * size, logprobs=numbers)
        return {"completion": "", "tokens": tokens}

    return Columns(
        step=steps,
        group=groups,
        no_group="prompt_idx is not a whole number",
        prompts=lambda chosen: [prompt_ids[row] for row in chosen],
        numbers={
            **{name: rows.numbers(name) for name in ("reward", "advantage")},
            "num_tokens": lengths,
            "truncated": rows.truncated("finish_reason"),
        },
        no_reward=partial(rows.no_reward, "reward"),
        is_irregular=is_irregular,
        details=details,
        flaw=partial(rows.flaw_of_advantage, "advantage"),
    )


OPEN_INSTRUCT = RowFormat(
    name="open-instruct",
    title="open-instruct traces",
    patterns=("*_rollouts_*.jsonl",),
    recognizes_file=has_keys("step", "prompt_idx", "prompt_tokens", "response_tokens", "reward"),
    survey=_open_instruct_survey,
    completes=run_files.with_run_files,
    columns=_open_instruct_columns,
    missing=(
        filter_caveat(
            "open-instruct drops groups of equal rewards before it saves traces, unless filter_zero_std_samples=False"
        ),
        "Traces hold no text and no mask of tool tokens: every token of a response counts.",
    ),
)
"""open-instruct's traces: exact tokens, rewards and advantages, a row for each rollout, shards of ten thousand rows.

``prompt_idx`` is a row's position divided by the group size. Where truncated completions were dropped before it was
computed, it mixes prompts; then, and only then, groups are formed by the prompt's tokens.
"""

_STEP = re.compile(r"^train_data_step([0-9]+)\.jsonl")
_BY_IDS = IfNoted(
    "Rows carry no group id: rollouts of equal prompt tokens at one step are a group, as for NeMo-RL's baseline."
)
_BY_TEXT = IfNoted(
    "Rows carry no group id and no tokens (NeMo-RL before 0.4): all messages but the last are taken as the prompt, and "
    "rollouts of equal prompts at one step are a group."
)
_FILTERED = IfNoted(filter_caveat("Dynamic sampling was on (filtered_rewards) and removes groups of equal rewards"))

_KEYS = ("rewards", "filtered_rewards", "input_lengths", "sample_loss_mask", "agent_ref", "token_loss_mask")
_TEXTS = ("token_ids", "generation_logprobs", "advantages")


def _nemo_rl_rows(cells: Cells) -> Columns:
    step = parse.number_in_name(_STEP, cells.path)
    # Where every reward of a step is written first, there are more rows than rollouts that a filter left.
    trained = [row for row, content in enumerate(cells.column("filtered_rewards")) if content != []]
    rows = cells.chosen(trained)
    filtered = rows.column("filtered_rewards")
    pairs = zip(rows.column("rewards"), filtered, strict=True)
    rewards = _only_items([before if after is UNSET else after for before, after in pairs])
    contents: dict[int, list[str]] = {}

    def texts_of(row: int) -> list[str]:
        if row not in contents:
            contents[row] = [parse.text_of(text) for text in parse.list_of(_only(rows.cell("content", row)))]
        return contents[row]

    def tokens_of(row: int) -> Tokens:  # without the padding
        cells = {key: _only(rows.cell(key, row)) for key in (*_TEXTS, *_KEYS, "prev_logprobs")}
        length = parse.whole_number(cells["input_lengths"])
        lists = [cells[key] for key in ("token_ids", "token_loss_mask", "generation_logprobs", "advantages")]
        if length is None or not all(values is None or len(parse.list_of(values)) >= length for values in lists):
            raise UnusableRowError(parse.NOT_ALIGNED)
        ids, mask, logprobs, advantages = (None if cell is None else parse.list_of(cell)[:length] for cell in lists)
        trainers = parse.list_of(cells["prev_logprobs"])[:length]
        tokens = parse.cut_sequence(ids, mask, logprobs=logprobs, advantages=advantages, trainer_logprobs=trainers)
        if cells["sample_loss_mask"] == 0:  # the row has a reward, but no part in the loss
            return replace(tokens, mask=(False,) * len(tokens.mask))
        return tokens

    has_tokens = np.array([cell is not UNSET for cell in rows.column("token_ids")], dtype=np.bool_)
    facts = _plain_tokens(rows) if has_tokens.any() else {}
    for row in np.flatnonzero(has_tokens).tolist() if len(facts) < len(rows) else ():
        if row not in facts:
            facts[row] = UNKNOWN, parse.NOT_ALIGNED, math.nan
            with suppress(UnusableRowError):
                tokens = tokens_of(row)
                level = math.nan if tokens.advantage is None else tokens.advantage
                facts[row] = len(tokens.completion_ids), parse.digest(tokens.prompt_ids), level
    for row in np.flatnonzero(~has_tokens).tolist():
        facts[row] = UNKNOWN, _digest_of_texts(tuple(texts_of(row)[:-1])), math.nan
    lengths, groups, levels = map(list, zip(*map(facts.__getitem__, range(len(rows))), strict=True))
    is_counted = [cell != 0 for cell in _only_items(rows.column("sample_loss_mask"))]
    num_tokens, advantages = np.array(lengths), np.where(is_counted, levels, math.nan)

    def details(row: int) -> dict[str, Any]:
        tokens = tokens_of(row) if has_tokens[row] else None
        return {"completion": "".join(texts_of(row)[-1:]), "tokens": tokens}

    return Columns(
        row=np.array(trained, dtype=np.int64),
        step=np.full(len(rows), -1 if step is None else step),
        no_step="the file's name has no step",
        group=groups,
        prompts=lambda chosen: [  # within the agents of NeMo Gym
            parse.in_environment(parse.mapping_of(_only(agent)).get("name"), groups[row])
            for row, agent in zip(chosen, rows.cells("agent_ref", chosen), strict=True)
        ],
        texts=lambda chosen: ["\n".join(texts_of(row)[:-1]) for row in chosen],
        numbers={"reward": numbers_of(rewards), "advantage": advantages, "num_tokens": num_tokens},
        no_reward=lambda row: str(parse.parse_reward(parse.ABSENT if rewards[row] is UNSET else rewards[row])),
        is_irregular=has_tokens & (num_tokens < 0),
        noted={
            _BY_IDS: has_tokens,
            _BY_TEXT: ~has_tokens,
            _FILTERED: np.array([cell is not UNSET for cell in filtered]),
        },
        details=details,
        flaw=partial(rows.flaw_of_advantage, "advantages"),
    )


_SPACE = ord(" ")


def _plain_tokens(rows: Cells) -> dict[int, tuple[int, str, float]]:
    """Row -> length, prompt and advantage, computed on the JSON itself for rows that are as NeMo-RL writes them."""
    sizes = step_numbers(_only_items(rows.column("input_lengths")))
    masks = [cell if type(cell) is list else [] for cell in _only_items(rows.column("token_loss_mask"))]
    ids, logprobs, advantages = map(rows.column, _TEXTS)
    num_ids, shortest = json_text.nums_ids(ids, depth=2), np.fromiter(map(len, masks), np.int64, len(rows))
    for lengths in (num_ids, *(json_text.flat_lengths(cells, depth=2) for cells in (logprobs, advantages))):
        shortest = np.where(lengths == json_text.NULL, shortest, np.minimum(shortest, lengths))
    ids, advantages = json_text.jsons_of(ids), json_text.jsons_of(advantages)
    facts, before, prompt, num_prompt = {}, b"\0", "", -1
    for row in np.flatnonzero((sizes > 0) & (shortest >= sizes) & (num_ids > 0)).tolist():
        mask, size, text = masks[row], int(sizes[row]), ids[row]
        try:
            start = mask.index(1, 0, size)
            if mask.count(0) + mask.count(1) < len(mask):
                continue
            level = _level(advantages[row], mask, start, size)
        except (TypeError, ValueError):  # nothing was sampled, or an advantage is null
            continue
        if start != num_prompt or not text.startswith(before):  # rollouts of a prompt are adjacent
            cells = text[2:-2].split(b",", start)[:start]
            before, num_prompt = b"".join([b"[[", *(cell + b"," for cell in cells)]), start
            prompt = _ids_digest(b"[" + b",".join(cells) + b"]")
        facts[row] = size - start, prompt, level
    return facts


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


_digest_of_texts, _ids_digest = (lru_cache(maxsize=256)(function) for function in (parse.digest, json_text.ids_digest))
"""Cached, since rollouts of a prompt are adjacent."""


def _only(cell: Any) -> Any:
    """The value in a list of length 1; any other cell as it is."""
    return cell[0] if isinstance(cell, list) and len(cell) == 1 else cell


def _only_items(cells: Sequence[Any]) -> list[Any]:
    if {list}.issuperset(map(type, cells)) and {1}.issuperset(map(len, cells)):
        return [value for (value,) in cells]
    return list(map(_only, cells))


_METRIC_NAMES = {"train/grad_norm": "grad_norm", "train/reward": "reward"}

_CHECKPOINTS = ("step_*", "*/step_*", "results/*/step_*")

NO_NORMS = (
    "NeMo-RL's grad_norm goes to its logging backends alone: logger.tensorboard_enabled=true puts it beside the "
    "training data."
)


def _with_run_files(request: ReadRequest, run: Run) -> Run:
    """The run with its arguments, metrics and weights."""
    folder = request.path.resolve()
    folder = folder if folder.is_dir() else folder.parent
    roots = [folder, folder.parent, folder.parent.parent]
    metrics = _metrics_beside(roots, quarantine := QuarantineLog())
    run = run if metrics else run.with_missing(NO_NORMS)
    checkpoints = (path for root in roots for _, path in run_files.numbered_folders(root, _CHECKPOINTS))
    settings = run_files.trainer_settings(request, "nemo-rl", (path / "config.yaml" for path in (*roots, *checkpoints)))
    size, precision = settings.lookup("policy.train_micro_batch_size"), settings.lookup("policy.precision", "bfloat16")
    return replace(
        run,
        source=with_set_aside(run.source, quarantine),
        metrics=metrics,
        settings=run_files.in_precision(settings, precision, per_device_train_batch_size=size),
        **run_files.saved_weights(request, _LAYOUT, roots),
    )


def _metrics_beside(roots: list[Path], quarantine: QuarantineLog) -> run_files.Metrics:
    """Metrics of TensorBoard's files in the folder or the one above, else of JSON lines under the same names."""
    folder, above, *_ = roots
    for root, files in (folder, event_files(folder)), (above, event_files(above, below=("", "tensorboard"))):
        metrics_of = run_files.scalar_metrics(files, _METRIC_NAMES, quarantine) or run_files.metric_lines(
            sorted(root.glob("metrics.jsonl")), _METRIC_NAMES, quarantine
        )
        if any("grad_norm" in values for values in metrics_of.values()):
            return metrics_of
    return {}


_LAYOUT = run_files.CheckpointLayout(
    patterns=_CHECKPOINTS,
    inside=("hf", "policy/hf", "policy/weights/model/consolidated", "policy/weights", "policy/weights/*", "*"),
    merge=lambda folder: (
        "Convert it: python examples/converters/convert_"
        + (
            f"megatron_to_hf.py --config {folder}/config.yaml --megatron-ckpt-path {folder}/policy/weights/iter_0000000"
            if any(folder.glob("policy/weights/iter_*"))
            else f"dcp_to_hf.py --config {folder}/config.yaml --dcp-ckpt-path {folder}/policy/weights"
        )
        + f" --hf-ckpt-path {folder}/hf; with checkpointing.save_consolidated NeMo-RL writes such a folder itself."
    ),
)

NEMO_RL = RowFormat(
    name="nemo-rl",
    title="NeMo-RL training data",
    patterns=("train_data_step*.jsonl", "exp_*/train_data_step*.jsonl"),
    recognizes_file=has_keys("content", "rewards"),
    columns=interpreted_by(_nemo_rl_rows, keys=_KEYS, raw=(*_TEXTS, "content"), looks_at_path=True),
    inferred=(_BY_IDS, _BY_TEXT),
    missing=(_FILTERED,),
    completes=_with_run_files,
)
