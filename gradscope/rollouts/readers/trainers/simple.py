"""Formats that need no more than a declaration each: a row, and the rollouts that it holds."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from gradscope.errors import InputError
from gradscope.outside.plain_json import parse_json
from gradscope.rollouts.arrays import index_names, run_starts, to_strings, to_texts
from gradscope.rollouts.groups import REWARD, RewardTable, Tokens
from gradscope.rollouts.readers.format import Reading, RowFormat, has_keys, has_row
from gradscope.rollouts.readers.metrics_alone.files import trackio_rows
from gradscope.rollouts.readers.metrics_alone.log import holds_metrics, read_metrics_log
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing.quarantine import TEXT_ONLY, QuarantineLog, UnusableRowError, filter_caveat
from gradscope.rollouts.readers.parsing.tables import Row
from gradscope.rollouts.readers.reduction.columns import (
    Cells,
    Columns,
    names_of_runs,
    numbers_of,
    rewards_of,
    step_numbers,
    texts_in,
)
from gradscope.rollouts.readers.reduction.log import ColumnLog
from gradscope.rollouts.readers.run_files import with_run_files
from gradscope.say import counted

_BY_TASK = (
    "Samples of one task are a group, at the version of the weights that finished it (tail_version); asynchronous "
    "training may use it at a later step, which lags leave out, or not at all where should_accept_fn rejects it."
)
_STALE = "Some samples were begun by an earlier version of the weights than finished them (head_version)."
_EMPTY = "AReaL writes no sample without completion tokens, so that such a sample is missing from its group."


def _areal_rows(rows: Cells) -> Columns:
    steps, begun, indices = (rows.steps(key) for key in ("tail_version", "head_version", "sample_idx"))
    return Columns(
        step=steps,
        no_step="tail_version is not a whole number",
        group=rows.names("task_id"),
        no_group="task_id is missing",
        prompts=lambda chosen: list(map(parse.digest, rows.cells("prompt", chosen))),
        texts=lambda chosen: list(map(parse.text_of, rows.cells("prompt", chosen))),
        numbers={"reward": rows.numbers("reward")},
        no_reward=partial(rows.no_reward, "reward"),
        noted={_STALE: (begun >= 0) & (begun != steps)},
        samples=[name or None for name in index_names(indices)],
        details=lambda at: {
            "completion": parse.text_of(rows.cell("completion", at)),
            "policy_versions": (int(begun[at]), int(steps[at])) if 0 <= begun[at] <= steps[at] else None,
        },
    )


_AREAL_KEYS = ("tail_version", "head_version", "sample_idx", "task_id", "reward")
AREAL = RowFormat(
    name="areal",
    looks_for="rollout/<version>/<task>.jsonl with task_id and tail_version (AReaL)",
    title="AReaL trajectories",
    patterns=("rollout/[0-9]*/*.jsonl", "[0-9]*/*.jsonl", "*.jsonl"),
    recognizes_file=has_keys("task_id", "sample_idx", "tail_version", "reward"),
    columns=lambda reading: reading.log(to_columns=_areal_rows, keys=_AREAL_KEYS, raw=("prompt",)),
    inferred=(_BY_TASK, _STALE),
    missing=(_EMPTY, TEXT_ONLY),
    if_noted=frozenset({_STALE}),
)
"""AReaL's dumps of trajectories: a folder for each version of the weights, a file for each task, a row per sample."""


_STEP_FILE = re.compile(r"^([0-9]+)\.parquet$")


def _art_rows(rows: Cells) -> Columns:
    step = parse.number_in_name(_STEP_FILE, rows.path)
    metrics = list[Any]()  # which ART writes as JSON
    for cell in rows.cells("metrics"):
        try:
            metrics.append(parse_json(cell))
        except (AttributeError, TypeError, ValueError):
            metrics.append(None)

    def prompts(chosen: list[int]) -> list[str]:
        pairs = zip(rows.cells("messages", chosen), rows.cells("group_metadata", chosen), strict=True)
        return [parse.digest(parse.cut_conversation(messages).messages, metadata) for messages, metadata in pairs]

    return Columns(
        step=np.full(len(rows), -1 if step is None else step),
        no_step="the file's name is no step",
        group=rows.names("group_index"),
        no_group="group_index is missing",
        prompts=prompts,
        numbers={"reward": rows.numbers("reward"), **rewards_of(metrics)},
        no_reward=partial(rows.no_reward, "reward"),
        **_of_conversations(rows),
    )


def _of_conversations(rows: Cells) -> dict[str, Any]:
    """The fields of columns that come from the conversations of rows."""

    def details(at: int) -> dict[str, Any]:
        conversation = parse.cut_conversation(rows.cell("messages", at))
        return {"completion": conversation.completion, "messages": conversation.messages}

    texts = partial(rows.cells, "messages")
    return {"texts": lambda chosen: [parse.cut_conversation(cell).prompt for cell in texts(chosen)], "details": details}


_ART_KEYS = ("group_index", "group_metadata", "messages", "metrics", "reward")
ART = RowFormat(
    name="art",
    looks_for="trajectories/train/<step>.parquet (ART)",
    title="ART trajectories",
    patterns=("trajectories/train/[0-9]*.parquet", "train/[0-9]*.parquet", "[0-9]*.parquet"),
    keeps_file=lambda file: _STEP_FILE.search(file.name) is not None,
    recognizes_file=has_keys("group_index", "reward", "messages"),
    columns=lambda reading: reading.log(to_columns=_art_rows, keys=_ART_KEYS, looks_at_path=True),
    inferred=("Steps are the names of the files.",),
    missing=(TEXT_ONLY,),
)
"""ART's trajectories of training: a Parquet file for each step, with group index, reward and messages."""


def _ragen_rows(cells: Cells, *, are_several: bool) -> Columns:
    rows = cells.with_entries((_RAGEN_GROUP, "metadata.total_reward", "metadata.success"))
    prompts = texts_in(rows.names(_RAGEN_GROUP))
    prefix = f"{rows.path.stem}/" if are_several else ""
    return Columns(
        step=np.zeros(len(rows), dtype=np.int64),
        group=[prompt and prefix + prompt for prompt in prompts],
        no_group="metadata.group_id is missing",
        prompts=partial(texts_in, prompts),
        numbers={
            "reward": rows.numbers("metadata.total_reward"),
            f"{REWARD}success": numbers_of(rows.column("metadata.success")),
        },
        no_reward=partial(rows.no_reward, "metadata.total_reward"),
        **_of_conversations(rows),
    )


_RAGEN_GROUP = "metadata.group_id"
RAGEN = RowFormat(
    name="ragen",
    looks_for="val_rollouts_*.jsonl with metadata.group_id (RAGEN)",
    title="RAGEN evaluation rollouts",
    patterns=("val_rollouts*.jsonl",),
    recognizes_file=has_row(lambda row: parse.mapping_of(row.get("metadata")).keys() >= {"group_id", "total_reward"}),
    columns=lambda reading: reading.log(
        to_columns=partial(_ragen_rows, are_several=len(reading.files) > 1),
        keys=("metadata",),
        raw=("messages",),
        looks_at_path=True,
    ),
    missing=(
        "These are evaluation rollouts; RAGEN writes those of training with trainer.rollout_data_dir, as verl does.",
        TEXT_ONLY,
    ),
)
"""RAGEN's evaluation rollouts as JSON lines: a conversation in each row, its group and reward in the metadata."""


def _rlinf_rows(cells: Cells) -> Columns:
    rows = cells.with_entries(("data.prompt", "data.accepted", "data.completion"))
    return Columns(
        step=np.zeros(len(rows), dtype=np.int64),
        group=rows.prompt_ids("data.prompt"),
        no_group="data.prompt is missing",
        texts=lambda chosen: list(map(parse.text_of, rows.cells("data.prompt", chosen))),
        numbers={"reward": rows.numbers("data.accepted")},
        no_reward=partial(rows.no_reward, "data.accepted"),
        details=lambda at: {"completion": parse.text_of(rows.cell("data.completion", at))},
    )


RLINF = RowFormat(
    name="rlinf",
    looks_for="training_data_*.jsonl[.gz] with data.prompt, data.completion and data.accepted (RLinf)",
    title="RLinf training data",
    patterns=("training_data_*.jsonl*", "training_data/training_data_*.jsonl*"),
    recognizes_file=has_row(
        lambda row: parse.mapping_of(row.get("data")).keys() >= {"prompt", "completion", "accepted"}
    ),
    columns=lambda reading: reading.log(to_columns=_rlinf_rows, keys=("data",)),
    inferred=("Completions of equal prompts are a group; RLinf does not log at which step they were trained on.",),
    missing=(TEXT_ONLY,),
)
"""RLinf's store of feedback in ``training_data_*.jsonl[.gz]``: each row a completion, accepted by its user or not."""


_OF_A_BATCH = ("global_step", "responses", "scores")
_ROLL_KEYS = (*_OF_A_BATCH, "id", "domain", "prompt", "messages")
_NO_BATCH = "global_step, responses and scores are not lists of one length"
_QUERIES_FILTERED = filter_caveat("ROLL's query_filter_config drops groups by their rewards before it logs")
_BY_ID = "Rollouts of one id and prompt at one step are a group."
_BY_PROMPT = "Some rollouts have no id: those of equal prompts at one step are a group; equal prompts merge."


def _roll_rows(lines: Cells) -> Columns:
    """The rollouts of lines, each with its elements of all lists that are as long as that of responses."""
    lengths = ([len(parse.list_of(cell)) for cell in lines.column(key)] for key in _OF_A_BATCH)
    sizes = [of_line[0] if len(set(of_line)) == 1 else 0 for of_line in zip(*lengths, strict=True)]
    rows = lines.elements(sizes)
    pairs = zip(rows.column("prompt"), rows.column("messages"), strict=True)
    prompts = [messages if prompt is UNSET else prompt for prompt, messages in pairs]
    firsts = np.flatnonzero(run_starts(prompts))  # rollouts of a prompt are adjacent
    ids = [parse.digest(None if prompts[at] is UNSET else prompts[at]) for at in firsts.tolist()]
    of_row = np.repeat(np.array(ids, dtype=object), np.diff(firsts, append=len(prompts))).tolist()
    names, domains = texts_in(rows.names("id")), texts_in(rows.names("domain"))
    parts = list(zip(domains, names, of_row, strict=True))
    group_of = {of_group: "/".join(filter(None, of_group)) for of_group in dict.fromkeys(parts)}
    is_named = [bool(name or prompt) for name, prompt in zip(names, prompts, strict=True)]
    group = [group_of[of_group] if named else "" for of_group, named in zip(parts, is_named, strict=True)]
    has_id = np.array(list(map(bool, names)), dtype=np.bool_)

    def details(at: int) -> dict[str, Any]:
        return {"completion": parse.text_of(rows.cell("responses", at)), "messages": parse.parse_messages(prompts[at])}

    return Columns(
        row=np.repeat(np.arange(len(sizes)), sizes),
        flaws=[(at, _NO_BATCH) for at, size in enumerate(sizes) if not size],
        step=rows.steps("global_step"),
        group=group,
        no_group="the row has neither an id nor a prompt",
        texts=lambda chosen: [parse.text_of(None if prompts[at] is UNSET else prompts[at]) for at in chosen],
        numbers={"reward": rows.numbers("scores")},
        no_reward=partial(rows.no_reward, "scores"),
        noted={_BY_ID: has_id, _BY_PROMPT: ~has_id},
        details=details,
    )


ROLL = RowFormat(
    name="roll",
    looks_for="rollout_dump_data.step_*.jsonl with a list a column (ROLL)",
    title="ROLL rollouts",
    patterns=("rollout_dump_data.step_*.jsonl",),
    recognizes_file=Path.is_file,  # the name is ROLL's alone, and with a damaged first line no other reader knows it
    columns=lambda reading: reading.log(to_columns=_roll_rows, keys=_ROLL_KEYS, lines_hold_many=True),
    inferred=(_BY_ID, _BY_PROMPT),
    if_noted=frozenset({_BY_ID, _BY_PROMPT}),
    missing=(_QUERIES_FILTERED, TEXT_ONLY),
)
"""ROLL's dumps of rollouts: a line for each step, every value a list with an element for each rollout."""


_ITERATION = re.compile(r"^iteration_([0-9]+)$")


def _tinker_rows(rows: Cells) -> Columns:
    groups, versions = rows.steps("group_idx"), rows.steps("sampling_client_step")
    in_name = parse.number_in_name(_ITERATION, rows.path)
    steps = step_numbers([in_name if cell is UNSET else cell for cell in rows.column("iteration")])
    return Columns(
        step=steps,
        no_step="iteration is not a whole number",
        group=["" if group < 0 else str(group) for group in groups.tolist()],
        no_group="group_idx is not a whole number",
        prompts=lambda chosen: [f"{steps[at]}/{groups[at]}" for at in chosen],
        numbers={"reward": rows.numbers("total_reward"), **rewards_of(rows.column("trajectory_metrics"))},
        no_reward=partial(rows.no_reward, "total_reward"),
        details=lambda at: {
            "completion": "",
            "policy_versions": None if versions[at] < 0 else (int(versions[at]), int(versions[at])),
        },
    )


_TINKER_KEYS = ("iteration", "group_idx", "sampling_client_step", "total_reward", "trajectory_metrics")
TINKER = RowFormat(
    name="tinker",
    looks_for="iteration_*/train_rollout_summaries.jsonl (Tinker cookbook)",
    title="Tinker cookbook rollout summaries",
    patterns=("iteration_*/train_rollout_summaries.jsonl", "train_rollout_summaries.jsonl"),
    recognizes_file=has_keys("group_idx", "traj_idx", "total_reward"),
    columns=lambda reading: reading.log(to_columns=_tinker_rows, keys=_TINKER_KEYS, looks_at_path=True),
    inferred=("Prompts are not named: each group counts as a prompt of its own, although prompts return over epochs.",),
    missing=(
        filter_caveat("remove_constant_reward_groups, where it was on, removes groups of equal rewards"),
        "Summaries hold lengths instead of text and tokens: they serve degeneracy, passk and check, not rank or "
        "replay.",
    ),
)
"""The Tinker cookbook's summaries of training rollouts: rewards and lengths, no text."""


_TRACE_COLUMNS = ("run_name", "step", "key", "messages", "metadata")
_TRACE_FUNCTION = "rewards/"
_FEW_TRACES = "Traces are picked: TRL logs the first 16 rollouts of a step, so that groups may be cut short."


def _traces_in(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for location, cells in trackio_rows(file, "traces", _TRACE_COLUMNS, quarantine):
        row = dict(zip(_TRACE_COLUMNS, cells, strict=True))
        try:
            yield location, {**row, **{name: parse_json(row[name]) for name in _TRACE_COLUMNS[3:]}}
        except (TypeError, ValueError):
            quarantine.add("the trace is not JSON", location)


def _one_run(rows: Sequence[Row], reading: Reading) -> Mapping[str, Any]:
    files = list(dict.fromkeys(location.rpartition(":")[0] for location, _ in rows))
    if len(files) > 1:
        raise InputError(f"{reading.request.path} has traces of {len(files)} projects.", hint=f"Name one: {files[0]}")
    names = list(dict.fromkeys(parse.text_of(cells["run_name"]) for _, cells in rows))
    named = reading.request.options.metric_run or (names[0] if len(names) == 1 else None)
    if named not in names:
        raise InputError(
            f"{reading.request.path} has traces of {len(names)} runs: {', '.join(names)}.",
            hint="Name one: --metric-run NAME.",
        )
    return {"run": named}


def _trackio_rows(traces: Cells, *, run: str) -> Columns:
    chosen = [at for at, name in enumerate(traces.names("run_name")) if name == run]
    rows = traces.chosen(chosen).with_entries(("metadata.group_id", "metadata.reward", "metadata.advantage"))
    groups, conversations = texts_in(rows.names("metadata.group_id")), _of_conversations(rows)
    texts = conversations["texts"]
    own = REWARD + _TRACE_FUNCTION
    functions = {
        REWARD + name.removeprefix(own): values
        for name, values in rewards_of(rows.column("metadata")).items()
        if name.startswith(own)
    }

    return Columns(
        row=np.array(chosen, dtype=np.int64),
        step=rows.steps("step"),
        no_step="step is not a whole number",
        group=groups,
        no_group="metadata.group_id is missing",
        prompts=lambda firsts: [text or groups[at] for text, at in zip(texts(firsts), firsts, strict=True)],
        numbers={name: rows.numbers(f"metadata.{name}") for name in ("reward", "advantage")} | functions,
        no_reward=partial(rows.no_reward, "metadata.reward"),
        flaw=partial(rows.flaw_of_advantage, "metadata.advantage"),
        **conversations,
    )


TRACKIO = RowFormat(
    name="trackio",
    looks_for="<project>.db with traces that have metadata.reward and metadata.group_id (trackio)",
    title="trackio traces",
    patterns=("*.db",),
    rows_of=_traces_in,
    recognizes_file=lambda file: any(
        "reward" in parse.mapping_of(cells["metadata"]) for _, cells in _traces_in(file, QuarantineLog())
    ),
    survey=_one_run,
    columns=lambda reading, run=None: None if run is None else reading.log(to_columns=partial(_trackio_rows, run=run)),
    completes=lambda request, run: (  # with the metrics that are in the same database
        replace(run, metrics=read_metrics_log(request).metrics) if holds_metrics(request.path, request.options) else run
    ),
    missing=(_FEW_TRACES, TEXT_ONLY),
    takes=frozenset({"metric_run"}),
)
"""Rollouts as trackio's traces: conversations with reward and group in their metadata, as TRL's AsyncGRPO logs them."""


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
    if mixed is not None:
        return reading.log(to_columns=partial(_open_instruct_rows, mixed=mixed), keys=_TRACE_KEYS, raw=_TRACE_TOKENS)
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

    return reading.log(
        to_columns=partial(_open_instruct_rows, of_odd_rows=of_odd_rows),
        keys=_TRACE_KEYS,
        raw=_TRACE_TOKENS,
        read_back=partial(_open_instruct_rows, mixed=frozenset()),
        validate=validate,
    )


_TRACE_KEYS = ("step", "prompt_idx", "reward", "advantage", "finish_reason")
_TRACE_TOKENS = ("prompt_tokens", "response_tokens", "logprobs")


def _id_of_tokens(text: bytes) -> str:
    """The id of a prompt from the JSON of its tokens; "" where that is no list of tokens."""
    if parse.num_ids(text) >= 0:
        return parse.ids_digest(text)
    ids = parse.token_ids(json.loads(text))
    return "" if ids is None else parse.digest(ids)


def _open_instruct_rows(
    rows: Cells, *, mixed: frozenset[int] | None = None, of_odd_rows: _Prompts | None = None
) -> Columns:
    steps = rows.steps("step")
    indices = index_names(rows.steps("prompt_idx"))
    prompts, responses, logprobs = map(rows.column, _TRACE_TOKENS)
    of_row = names_of_runs([prompts], lambda firsts: [_id_of_tokens(text) for (text,) in firsts])
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
        cells = [rows.cell(key, at) for key in _TRACE_TOKENS]
        prompt, response, logged = parse.token_ids(cells[0]), parse.token_ids(cells[1]), cells[2]
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
    looks_for="*_rollouts_*.jsonl with prompt_tokens and response_tokens (open-instruct)",
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
