"""Logs with exact tokens: slime's dumps of rollouts, those of its forks, open-instruct's traces, NeMo-RL's batches.

slime's dumps of training next to those of rollouts hold rewards that are already normalized within groups, and are not
read. Forks write the same samples in files of their own, of which miles' trajectories have a row for each sample with a
conversation, and its tokens in a Parquet file. Each row of NeMo-RL's is a batch of one, so that each value is a list of
length 1; its runs also leave checkpoints with their configuration, and TensorBoard's files. Legend: R rows.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import compress, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import UNSET
from msgspec.structs import replace

from gradscope.errors import InputError
from gradscope.rollouts.arrays import index_names, to_strings, to_texts
from gradscope.rollouts.groups import UNKNOWN, RewardTable, Tokens
from gradscope.rollouts.readers.format import IfNoted, Reading, RowFormat, has_keys
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing.columnar import read_parquet
from gradscope.rollouts.readers.parsing.quarantine import (
    SEVERAL,
    TEXT_ONLY,
    QuarantineLog,
    UnusableRowError,
    filter_caveat,
)
from gradscope.rollouts.readers.parsing.records import chosen_name, status_in
from gradscope.rollouts.readers.parsing.tables import Row, read_jsonl, stem_of
from gradscope.rollouts.readers.reduction.columns import (
    Cells,
    Columns,
    names_of_runs,
    numbers_of,
    rewards_of,
    step_numbers,
)
from gradscope.rollouts.readers.reduction.log import ColumnLog
from gradscope.rollouts.readers.run_files import with_nemo_rls, with_run_files
from gradscope.rollouts.readers.trainers import slime_files
from gradscope.say import counted

_NUM_PEEKED = 20  # rows of the first file that are read for the names of rewards


def _columns_by(
    to_columns: Callable[..., Columns],
    rows_of: Callable[[Path, QuarantineLog], Iterator[Row]],
    keys: Sequence[str] = (),
    raw: Sequence[str] = (),
) -> Callable[..., ColumnLog | None]:
    """How samples become columns: which part of a reward counts is mostly known from the first rows."""

    def columns(reading: Reading, **surveyed: str | None) -> ColumnLog | None:
        names, by_column = dict[str, None](), partial(reading.log, keys=keys, raw=raw)
        if surveyed:
            return by_column(to_columns=partial(to_columns, **surveyed))
        with suppress(InputError):
            for _, cells in islice(rows_of(reading.files[0], QuarantineLog()), _NUM_PEEKED):
                names |= dict.fromkeys(parse.numbers_in(cells.get("reward")))
        if names and reading.request.columns.reward not in (None, *names):
            return None
        part = chosen_part(names, reading)

        def validate(table: RewardTable) -> RewardTable | None:
            return None if part is None and table.rewards else table  # a reward with parts came late: survey all rows

        return by_column(to_columns=partial(to_columns, part=part), validate=validate)

    return columns


def _survey_rewards(rows: Sequence[Row], reading: Reading) -> dict[str, str | None]:
    return {"part": chosen_part([name for _, cells in rows for name in parse.numbers_in(cells.get("reward"))], reading)}


def chosen_part(names: Collection[str], reading: Reading) -> str | None:
    """The reward among these names that counts, with a note on it; None where samples have one reward each."""
    if not names:
        return None
    part = chosen_name(names, reading.request, "reward", "no reward that is a number")
    reading.inferred.append(f"Of the rewards of a sample, {part!r} counts.")
    return part


_INDEX = "sample_index"


def _sample_columns(
    rows: Cells, *, part: str | None, index: str, details: Callable[[int], Mapping[str, Any]], **also: Any
) -> Columns:
    """The rollouts of rows with ``rollout_id`` and the cells of a sample; ``index`` is the key of its number."""
    rewards = rows.column("reward")
    cells = [parse.ABSENT if cell is UNSET else cell for cell in rewards]
    parts = cells if part is None else [parse.mapping_of(cell).get(part, parse.ABSENT) for cell in cells]
    return Columns(
        step=rows.steps("rollout_id"),
        group=index_names(rows.steps("group_index")),
        no_group="group_index is not a whole number",
        prompts=lambda chosen: list(map(parse.prompt_text_id, rows.cells("prompt", chosen))),
        texts=lambda chosen: list(map(parse.text_of, rows.cells("prompt", chosen))),
        numbers={**rewards_of(rewards), "reward": numbers_of(parts), "truncated": rows.truncated("status")},
        no_reward=lambda at: str(parse.parse_reward(parts[at])),
        samples=[name or None for name in index_names(rows.steps(index))],
        details=lambda at: {
            "messages": parse.parse_messages(rows.cell("prompt", at)),
            "status": status_in(rows.cell("status", at)),
            **details(at),
        },
        **also,
    )


def logged_tokens(sample: Mapping[str, Any]) -> Tokens:
    """A sample's tokens, whose last ``response_length`` are the completion; else an UnusableRowError."""
    ids, length = parse.token_ids(sample.get("tokens")), parse.whole_number(sample.get("response_length"))
    if ids is None or length is None or not 0 < length <= len(ids):
        raise UnusableRowError(parse.NOT_IDS)
    before = [0] * (len(ids) - length)
    mask, logprobs = sample.get("loss_mask"), sample.get("rollout_log_probs")
    return parse.cut_sequence(
        list(ids),
        before + (parse.list_of(mask) if mask is not None else [1] * length),
        logprobs=before + parse.list_of(logprobs) if logprobs is not None else None,
    )


def _rows(rows: Cells, *, part: str | None, index: str = "index", has_tokens: bool = True) -> Columns:
    earlier = rows.column("earlier")

    def details(at: int) -> dict[str, Any]:
        of_text = {"completion": parse.text_of(rows.cell("response", at))}
        if not has_tokens:
            return of_text
        before = tuple(map(logged_tokens, parse.list_of(earlier[at])))
        return {**of_text, "tokens": logged_tokens(rows.rows[at]), "earlier": before}

    are_several = np.array([bool(parse.list_of(cell)) for cell in earlier], dtype=np.bool_)
    return _sample_columns(rows, part=part, index=index, details=details, noted={SEVERAL: are_several})


SLIME = RowFormat(
    name="slime",
    title="slime rollouts",
    patterns=("rollout_data/*[0-9].pt", "*[0-9].pt"),
    keeps_file=partial(slime_files.is_of, evaluation=False),
    recognizes_file=slime_files.holds_samples,
    rows_of=slime_files.training_rows,
    survey=_survey_rewards,
    columns=_columns_by(_rows, slime_files.training_rows),
    inferred=(IfNoted(SEVERAL),),
    missing=(filter_caveat("slime's dynamic sampling (--dynamic-sampling-filter-path) drops groups of equal rewards"),),
    completes=with_run_files,
    takes=frozenset({"reward_column"}),
)


SLIME_EVALUATION = replace(
    SLIME,
    name="slime-eval",
    title="slime evaluation",
    keeps_file=partial(slime_files.is_of, evaluation=True),
    rows_of=slime_files.evaluation_rows,
    columns=_columns_by(_rows, slime_files.evaluation_rows),
    inferred=("Samples of one prompt are a group; those of several data sets, which slime does not name, are pooled.",),
    missing=(),
    completes=None,
)


RELAX = RowFormat(
    name="relax",
    title="Relax rollouts",
    patterns=("rollout_result/train/[0-9]*.jsonl", "train/[0-9]*.jsonl", "[0-9]*.jsonl"),
    recognizes_file=has_keys("rollout_id", "group_index", "sample_index", "response", "reward"),
    survey=_survey_rewards,
    columns=_columns_by(
        partial(_rows, index=_INDEX, has_tokens=False),
        read_jsonl,
        ("rollout_id", "group_index", _INDEX, "reward", "status"),
        ("prompt",),
    ),
    missing=(filter_caveat("Relax's dynamic sampling drops groups of equal rewards"), TEXT_ONLY),
    takes=frozenset({"reward_column"}),
)


def token_rows(file: Path) -> tuple[pa.Table | None, dict[int | None, list[int]]]:
    """The tokens beside a file of trajectories, if it has any, [R]; sample index -> its rows, one for each sequence."""
    path = file.resolve().parent.parent / "dashboard_columns" / f"rollout_{stem_of(file)}.parquet"
    rows: dict[int | None, list[int]] = {}
    if not path.is_file():
        return None, rows
    table = read_parquet(path)
    indices = table[_INDEX].to_pylist() if _INDEX in table.column_names else [None] * table.num_rows
    for at, index in enumerate(map(parse.whole_number, indices)):
        rows.setdefault(index, []).append(at)
    return table, rows


_NO_COLUMNS = IfNoted(
    "Some rollouts have no dashboard_columns/rollout_<step>.parquet beside them (pip install miles[dashboard] writes "
    "it), and so no tokens."
)


def _miles_rows(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    """The samples of a file, each with the rows of its sequences in the Parquet file."""
    columns, rows_by_sample = token_rows(file)
    samples: dict[Any, list[Row]] = {}
    for location, cells in read_jsonl(file, quarantine):
        index = parse.whole_number(cells.get("sample_index"))
        samples.setdefault(location if index is None else index, []).append((location, cells))
    for index, rows in samples.items():
        shared_by_all = {parse.digest(*map(cells.get, ("group_index", "reward", "status"))) for _, cells in rows}
        are_leaves = len(rows) == 1 or len(shared_by_all) == 1
        shared = {"rollout_id": stem_of(file), "columns": columns, "token_rows": rows_by_sample.get(index, [])}
        num_leaves = len(rows) if are_leaves else 1
        for location, cells in rows[-1:] if are_leaves else rows:
            yield location, {**cells, **shared, "num_leaves": num_leaves}
    for index in rows_by_sample.keys() - samples.keys():
        why = "the sample kept no conversation, so that neither its group nor its reward is known"
        quarantine.add(why, f"{file}:{index}")


def _miles_columns(rows: Cells, *, part: str | None) -> Columns:
    sequences = list[tuple[Tokens, ...] | str]()  # none where one is missing; why where one contradicts itself
    for cells in rows.rows:
        columns, own_rows = cells["columns"], cells["token_rows"]
        is_whole = columns is not None and len(own_rows) >= cells["num_leaves"]
        tables = [columns.slice(at, 1).to_pylist()[0] for at in own_rows] if is_whole else []
        try:
            sequences.append(tuple(map(logged_tokens, tables)))
        except UnusableRowError as error:  # the sample stays in its group
            sequences.append(str(error))
    usable = [of_row if isinstance(of_row, tuple) else () for of_row in sequences]
    several = [cells["num_leaves"] > 1 or len(of_row) > 1 for cells, of_row in zip(rows.rows, usable, strict=True)]

    def details(at: int) -> dict[str, Any]:
        tokens = {"tokens": usable[at][-1], "earlier": usable[at][:-1]} if usable[at] else {}
        return {"completion": parse.cut_conversation(rows.cell("messages", at)).completion, **tokens}

    return _sample_columns(
        rows,
        part=part,
        index=_INDEX,
        details=details,
        flaw=lambda at: why if isinstance(why := sequences[at], str) else None,
        noted={_NO_COLUMNS: np.array([cells["columns"] is None for cells in rows.rows]), SEVERAL: np.array(several)},
    )


MILES = RowFormat(
    name="miles",
    title="miles trajectories",
    patterns=("trajectory/[0-9]*.jsonl", "[0-9]*.jsonl"),
    recognizes_file=has_keys("sample_index", "group_index", "reward", "messages"),
    rows_of=_miles_rows,
    survey=_survey_rewards,
    columns=_columns_by(_miles_columns, _miles_rows),
    inferred=(IfNoted(SEVERAL),),
    missing=(
        _NO_COLUMNS,
        filter_caveat("miles' dynamic sampling (--dynamic-sampling-filter-path) drops groups of equal rewards"),
    ),
)


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
    of_odd_rows: _Prompts = defaultdict(set)

    def validate(table: RewardTable) -> RewardTable | None:
        names = [name.partition("/")[0] for name in (to_texts(table.names) if len(table) else ())]
        groups = list(zip(table.step.tolist(), names, strict=True))
        if len(set(groups)) < len(groups):
            return None
        for group, prompt in zip(groups, table.prompt.tolist(), strict=True):
            if of_odd_rows and of_odd_rows[group] | {table.prompts[prompt]} != {table.prompts[prompt]}:
                return None
        return replace(table, names=to_strings(names)) if names else table

    return log(
        to_columns=partial(_open_instruct_rows, of_odd_rows=of_odd_rows),
        read_back=partial(_open_instruct_rows, mixed=frozenset()),
        validate=validate,
    )


_TRACE_TOKENS = ("prompt_tokens", "response_tokens", "logprobs")


def _open_instruct_rows(
    rows: Cells, *, mixed: frozenset[int] | None = None, of_odd_rows: _Prompts | None = None
) -> Columns:
    steps, indices = rows.steps("step"), index_names(rows.steps("prompt_idx"))
    prompts, responses, logprobs = map(rows.column, _TRACE_TOKENS)

    def id_of(text: bytes) -> str:  # empty where the JSON is no list of tokens
        if parse.flat_length(text, parse.ID_CELLS) >= 0:
            return parse.ids_digest(text)
        ids = parse.token_ids(json.loads(text))
        return "" if ids is None else parse.digest(ids)

    of_row = names_of_runs([prompts], lambda firsts: [id_of(text) for (text,) in firsts])
    lengths, logged = parse.nums_ids(responses), parse.flat_lengths(logprobs)
    is_unlike = (logged != lengths) & (logged != parse.OF_NULL)
    is_odd = (lengths < 0) | is_unlike | [not prompt for prompt in of_row]
    if mixed is None:
        groups = [f"{name}/{prompt}" if name else "" for name, prompt in zip(indices, of_row, strict=True)]
    elif not mixed:
        groups = indices
    else:
        pairs = zip(steps.tolist(), indices, of_row, strict=True)
        groups = [prompt or parse.NOT_IDS if step in mixed else name for step, name, prompt in pairs]

    def details(at: int) -> dict[str, Any]:
        if of_odd_rows is not None and of_row[at]:
            of_odd_rows[int(steps[at]), indices[at]].add(of_row[at])
        *ids, logged = (rows.cell(key, at) for key in _TRACE_TOKENS)
        prompt, response = map(parse.token_ids, ids)
        if prompt is None or response is None:
            raise UnusableRowError(parse.NOT_IDS)
        size = len(response)
        if logged is not None and not (isinstance(logged, list) and len(logged) == size):
            raise UnusableRowError(parse.NOT_ALIGNED)
        of_tokens = parse.numbers(logged, size)
        tokens = Tokens(prompt_ids=prompt, completion_ids=response, mask=(True,) * size, logprobs=of_tokens)
        return {"completion": "", "tokens": tokens}

    return Columns(
        step=steps,
        group=groups,
        no_group="prompt_idx is not a whole number",
        prompts=lambda chosen: [of_row[at] for at in chosen],
        numbers={
            **{name: rows.numbers(name) for name in ("reward", "advantage")},
            "num_tokens": lengths,
            "truncated": rows.truncated("finish_reason"),
        },
        no_reward=partial(rows.no_reward, "reward"),
        is_odd=is_odd,
        details=details,
        flaw=partial(rows.flaw_of_advantage, "advantage"),
    )


OPEN_INSTRUCT = RowFormat(
    name="open-instruct",
    title="open-instruct traces",
    patterns=("*_rollouts_*.jsonl",),
    recognizes_file=has_keys("step", "prompt_idx", "prompt_tokens", "response_tokens", "reward"),
    survey=_open_instruct_survey,
    completes=with_run_files,
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
    trained = [at for at, of_row in enumerate(cells.column("filtered_rewards")) if of_row != []]
    rows = cells.chosen(trained)
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

    def details(at: int) -> dict[str, Any]:
        tokens = tokens_of(at) if has_tokens[at] else None
        return {"completion": "".join(texts_of(at)[-1:]), "tokens": tokens}

    return Columns(
        row=np.array(trained, dtype=np.int64),
        step=np.full(len(rows), -1 if step is None else step),
        no_step="the file's name has no step",
        group=groups,
        prompts=lambda chosen: [  # within the agents of NeMo Gym
            parse.in_environment(parse.mapping_of(_only(agent)).get("name"), groups[at])
            for at, agent in zip(chosen, rows.cells("agent_ref", chosen), strict=True)
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


def _plain_tokens(rows: Cells) -> dict[int, tuple[int, str, float]]:
    """Row -> length, prompt and advantage, computed on the JSON itself for rows that are as NeMo-RL writes them."""
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


NEMO_RL = RowFormat(
    name="nemo-rl",
    title="NeMo-RL training data",
    patterns=("train_data_step*.jsonl", "exp_*/train_data_step*.jsonl"),
    recognizes_file=has_keys("content", "rewards"),
    columns=lambda reading: reading.log(
        to_columns=_nemo_rl_rows, keys=_KEYS, raw=(*_TEXTS, "content"), looks_at_path=True
    ),
    inferred=(_BY_IDS, _BY_TEXT),
    missing=(_FILTERED,),
    completes=with_nemo_rls,
)
