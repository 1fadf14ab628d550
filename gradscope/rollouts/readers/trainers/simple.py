"""Formats that need no more than a declaration each: a row, and the rollouts that it holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from gradscope.errors import InputError
from gradscope.outside.plain_json import parse_json
from gradscope.rollouts.arrays import index_names, run_starts, to_floats
from gradscope.rollouts.groups import REWARD, UNKNOWN, Tokens
from gradscope.rollouts.readers.format import IfNoted, Reading, RowFormat, has_keys, has_row, interpreted_by
from gradscope.rollouts.readers.metrics_alone.files import trackio_rows
from gradscope.rollouts.readers.metrics_alone.log import holds_metrics, read_metrics_log
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing import json_text
from gradscope.rollouts.readers.parsing.quarantine import TEXT_ONLY, QuarantineLog, filter_caveat
from gradscope.rollouts.readers.parsing.records import status_in
from gradscope.rollouts.readers.parsing.tables import Row, read_rows
from gradscope.rollouts.readers.reduction.columns import Cells, Columns, texts_in
from gradscope.rollouts.readers.reduction.numbers import numbers_of, rewards_of, step_numbers, texts_of
from gradscope.rollouts.readers.run_files import with_run_files

_BY_TASK = (
    "Samples of one task are a group, at the version of the weights that finished it (tail_version); asynchronous "
    "training may use it at a later step, which lags leave out, or not at all where should_accept_fn rejects it. Of an "
    "agent's task with several prompts, each interaction counts as a rollout."
)
_STALE = IfNoted("Some samples were begun by an earlier version of the weights than finished them (head_version).")


def _areal_rows(rows: Cells) -> Columns:
    steps, started, indices = (rows.steps(key) for key in ("tail_version", "head_version", "sample_idx"))
    return Columns(
        step=steps,
        no_step="tail_version is not a whole number",
        group=rows.names("task_id"),
        no_group="task_id is missing",
        prompts=lambda chosen: list(map(parse.digest, rows.cells("prompt", chosen))),
        texts=lambda chosen: list(map(parse.text_of, rows.cells("prompt", chosen))),
        numbers={"reward": rows.numbers("reward")},
        no_reward=partial(rows.no_reward, "reward"),
        noted={_STALE: (started >= 0) & (started != steps)},
        samples=[name or None for name in index_names(indices)],
        details=lambda row: {
            "completion": parse.text_of(rows.cell("completion", row)),
            "policy_versions": (int(started[row]), int(steps[row])) if 0 <= started[row] <= steps[row] else None,
        },
    )


AREAL = RowFormat(
    name="areal",
    title="AReaL trajectories",
    patterns=("rollout/[0-9]*/*.jsonl", "[0-9]*/*.jsonl", "*.jsonl"),
    recognizes_file=has_keys("task_id", "sample_idx", "tail_version", "reward"),
    columns=interpreted_by(
        _areal_rows, keys=("tail_version", "head_version", "sample_idx", "task_id", "reward"), raw=("prompt",)
    ),
    inferred=(_BY_TASK, _STALE),
    missing=(
        "AReaL writes no sample without completion tokens, so that such a sample is missing from its group.",
        TEXT_ONLY,
    ),
)

_STEP_FILE = re.compile(r"^([0-9]+)\.parquet$")


def _art_rows(rows: Cells) -> Columns:
    step = parse.number_in_name(_STEP_FILE, rows.path)
    metrics = list(map(_object_in, rows.cells("metrics")))  # which ART writes as JSON
    return Columns(
        step=np.full(len(rows), -1 if step is None else step),
        no_step="the file's name is no step",
        group=rows.names("group_index"),
        no_group="group_index is missing",
        prompts=lambda chosen: [
            parse.digest(parse.cut_conversation(messages).messages, metadata)
            for messages, metadata in zip(
                *(rows.cells(key, chosen) for key in ("messages", "group_metadata")), strict=True
            )
        ],
        numbers={"reward": rows.numbers("reward"), **rewards_of(metrics)},
        no_reward=partial(rows.no_reward, "reward"),
        **_conversation_fields(rows),
    )


def _conversation_fields(rows: Cells) -> dict[str, Any]:
    def details(row: int) -> dict[str, Any]:
        conversation = parse.cut_conversation(rows.cell("messages", row))
        return {"completion": conversation.completion, "messages": conversation.messages}

    return {
        "texts": lambda chosen: [parse.cut_conversation(cell).prompt for cell in rows.cells("messages", chosen)],
        "details": details,
    }


_ART_KEYS = ("group_index", "group_metadata", "messages", "metrics", "reward")
ART = RowFormat(
    name="art",
    title="ART trajectories",
    patterns=("trajectories/train/[0-9]*.parquet", "train/[0-9]*.parquet", "[0-9]*.parquet"),
    keeps_file=lambda file: _STEP_FILE.search(file.name) is not None,
    recognizes_file=has_keys("group_index", "reward", "messages"),
    columns=interpreted_by(_art_rows, keys=_ART_KEYS, looks_at_path=True),
    inferred=("Steps are the names of the files.",),
    missing=(TEXT_ONLY,),
)


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
        **_conversation_fields(rows),
    )


_RAGEN_GROUP = "metadata.group_id"
RAGEN = RowFormat(
    name="ragen",
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


def _sampled_rows(rows: Cells, *, no_group: str) -> Columns:
    """Rows of which ``rows_of`` made ``step``, ``group_id``, ``prompt``, ``response`` and ``reward``."""
    return Columns(
        step=rows.steps("step"),
        group=rows.names("group_id"),
        no_group=no_group,
        prompts=lambda chosen: list(map(parse.digest, rows.cells("prompt", chosen))),
        texts=lambda chosen: list(map(parse.text_of, rows.cells("prompt", chosen))),
        numbers={"reward": rows.numbers("reward")},
        no_reward=partial(rows.no_reward, "reward"),
        details=lambda row: {
            "completion": parse.text_of(rows.cell("response", row)),
            "messages": parse.parse_messages(rows.cell("prompt", row)),
        },
    )


def _rlinf_feedback(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for location, row in read_rows(file, quarantine):
        prompt, response, reward = map(parse.mapping_of(row.get("data")).get, ("prompt", "completion", "accepted"))
        group = parse.prompt_text_id(prompt) if prompt else None
        yield location, {"step": 0, "group_id": group, "prompt": prompt, "response": response, "reward": reward}


RLINF = RowFormat(
    name="rlinf",
    title="RLinf training data",
    patterns=("training_data_*.jsonl*", "training_data/training_data_*.jsonl*"),
    recognizes_file=has_row(
        lambda row: parse.mapping_of(row.get("data")).keys() >= {"prompt", "completion", "accepted"}
    ),
    rows_of=_rlinf_feedback,
    columns=interpreted_by(partial(_sampled_rows, no_group="data.prompt is missing")),
    inferred=("Completions of equal prompts are a group; RLinf does not log at which step they were trained on.",),
    missing=(TEXT_ONLY,),
)

_ROLL_FILES = ("rollout_dump_data.step_*.jsonl",)
_LISTS = ("global_step", "responses", "scores")
_NO_BATCH = "global_step, responses and scores are not lists of one length"
_BY_ID = IfNoted("Rollouts of one id and prompt at one step are a group.")
_BY_PROMPT = IfNoted("Some rollouts have no id: those of equal prompts at one step are a group; equal prompts merge.")


def _roll_rows(lines: Cells) -> Columns:
    """The rollouts of lines, each with its elements of all lists that are as long as that of responses."""
    lengths = ([len(parse.list_of(cell)) for cell in lines.column(key)] for key in _LISTS)
    sizes = [line[0] if len(set(line)) == 1 else 0 for line in zip(*lengths, strict=True)]
    rows = lines.elements(sizes)
    pairs = zip(rows.column("prompt"), rows.column("messages"), strict=True)
    prompts = [messages if prompt is UNSET else prompt for prompt, messages in pairs]
    first_rows = np.flatnonzero(run_starts(prompts))  # rollouts of a prompt are adjacent
    ids = [parse.digest(None if prompts[row] is UNSET else prompts[row]) for row in first_rows.tolist()]
    prompt_ids = np.repeat(np.array(ids, dtype=object), np.diff(first_rows, append=len(prompts))).tolist()
    names, domains = texts_in(rows.names("id")), texts_in(rows.names("domain"))
    parts = list(zip(domains, names, prompt_ids, strict=True))
    group_of = {part: "/".join(filter(None, part)) for part in dict.fromkeys(parts)}
    is_named = [bool(name or prompt) for name, prompt in zip(names, prompts, strict=True)]
    group = [group_of[part] if named else "" for part, named in zip(parts, is_named, strict=True)]
    has_id = np.array(list(map(bool, names)), dtype=np.bool_)

    return Columns(
        row=np.repeat(np.arange(len(sizes)), sizes),
        flaws=[(row, _NO_BATCH) for row, size in enumerate(sizes) if not size],
        step=rows.steps("global_step"),
        group=group,
        no_group="the row has neither an id nor a prompt",
        texts=lambda chosen: [parse.text_of(None if prompts[row] is UNSET else prompts[row]) for row in chosen],
        numbers={"reward": rows.numbers("scores")},
        no_reward=partial(rows.no_reward, "scores"),
        noted={_BY_ID: has_id, _BY_PROMPT: ~has_id},
        details=lambda row: {
            "completion": parse.text_of(rows.cell("responses", row)),
            "messages": parse.parse_messages(prompts[row]),
        },
    )


ROLL = RowFormat(
    name="roll",
    title="ROLL rollouts",
    patterns=_ROLL_FILES,
    recognizes_file=Path.is_file,  # the name is ROLL's alone, and with a damaged first line no other reader knows it
    columns=interpreted_by(_roll_rows, keys=(*_LISTS, "id", "domain", "prompt", "messages"), lines_hold_many=True),
    inferred=(_BY_ID, _BY_PROMPT),
    missing=(filter_caveat("ROLL's query_filter_config drops groups by their rewards before it logs"), TEXT_ONLY),
)


def _roll_episodes(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    """The episodes of lines whose lists have JSON for each."""
    for location, line in read_rows(file, quarantine):
        lists = [parse.list_of(line.get(key)) for key in _AGENT_LISTS]
        if len(set(map(len, lists))) > 1 or not lists[0]:
            quarantine.add("global_step, trajectory_data and messages are not lists of one length", location)
            continue
        for step, *cells in zip(*lists, strict=True):
            data, talk = map(_object_in, cells)
            info, rewards = (parse.mapping_of(parse.mapping_of(data).get(key)) for key in ("env_info", "reward_info"))
            parts = parse.cut_conversation(talk)
            group = "/".join(parse.text_of(info.get(key)) for key in _GROUP_KEYS) if info else None
            sample = {"step": step, "group_id": group, "reward": rewards.get("episode_reward")}
            yield location, {**sample, "prompt": list(parts.messages or ()), "response": parts.completion}


_AGENT_LISTS = ("global_step", "trajectory_data", "messages")
_GROUP_KEYS = ("tag", "group_id", "episode_id", "seed")  # of which ROLL makes the id of a group
ROLL_AGENTIC = RowFormat(
    name="roll-agentic",
    title="ROLL episodes",
    patterns=_ROLL_FILES,
    recognizes_file=has_keys("trajectory_data"),
    rows_of=_roll_episodes,
    columns=interpreted_by(partial(_sampled_rows, no_group="trajectory_data has no env_info, which names the group")),
    inferred=("Episodes of one tag, group, episode number and seed at one step are a group.",),
    missing=("An evaluation writes to the same file as the training of its step, which replaces it.", TEXT_ONLY),
)


def _object_in(cell: Any) -> Any:
    """What JSON holds; None where a cell is none."""
    with suppress(AttributeError, TypeError, ValueError):
        return parse_json(cell)
    return None


_ITERATION = re.compile(r"^iteration_([0-9]+)$")


def _tinker_rows(rows: Cells) -> Columns:
    groups, versions = rows.steps("group_idx"), rows.steps("sampling_client_step")
    in_name = parse.number_in_name(_ITERATION, rows.path)
    steps = step_numbers([in_name if cell is UNSET else cell for cell in rows.column("iteration")])
    return Columns(
        step=steps,
        no_step="iteration is not a whole number",
        group=index_names(groups),
        no_group="group_idx is not a whole number",
        prompts=lambda chosen: [f"{steps[row]}/{groups[row]}" for row in chosen],
        numbers={"reward": rows.numbers("total_reward"), **rewards_of(rows.column("trajectory_metrics"))},
        no_reward=partial(rows.no_reward, "total_reward"),
        details=lambda row: {
            "completion": "",
            "policy_versions": None if versions[row] < 0 else (int(versions[row]), int(versions[row])),
        },
    )


_TINKER_KEYS = ("iteration", "group_idx", "sampling_client_step", "total_reward", "trajectory_metrics")
TINKER = RowFormat(
    name="tinker",
    title="Tinker cookbook rollout summaries",
    patterns=("iteration_*/train_rollout_summaries.jsonl", "train_rollout_summaries.jsonl"),
    recognizes_file=has_keys("group_idx", "traj_idx", "total_reward"),
    columns=interpreted_by(_tinker_rows, keys=_TINKER_KEYS, looks_at_path=True),
    inferred=("Prompts are not named: each group counts as a prompt of its own, although prompts return over epochs.",),
    missing=(
        filter_caveat("remove_constant_reward_groups, where it was on, removes groups of equal rewards"),
        "Summaries hold lengths instead of text and tokens: they serve degeneracy, passk and check, not rank or "
        "replay.",
    ),
)

_TRACE_COLUMNS = ("run_name", "step", "key", "messages", "metadata")


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
    chosen = [row for row, name in enumerate(traces.names("run_name")) if name == run]
    rows = traces.chosen(chosen).with_entries(("metadata.group_id", "metadata.reward", "metadata.advantage"))
    groups, conversations = texts_in(rows.names("metadata.group_id")), _conversation_fields(rows)
    prefix = f"{REWARD}rewards/"
    functions = {
        REWARD + name.removeprefix(prefix): values
        for name, values in rewards_of(rows.column("metadata")).items()
        if name.startswith(prefix)
    }

    return Columns(
        row=np.array(chosen, dtype=np.int64),
        step=rows.steps("step"),
        no_step="step is not a whole number",
        group=groups,
        no_group="metadata.group_id is missing",
        prompts=lambda firsts: [
            text or groups[row] for text, row in zip(conversations["texts"](firsts), firsts, strict=True)
        ],
        numbers={name: rows.numbers(f"metadata.{name}") for name in ("reward", "advantage")} | functions,
        no_reward=partial(rows.no_reward, "metadata.reward"),
        flaw=partial(rows.flaw_of_advantage, "metadata.advantage"),
        **conversations,
    )


TRACKIO = RowFormat(
    name="trackio",
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
    missing=(
        "Traces are picked: TRL logs the first 16 rollouts of a step, so that groups may be cut short.",
        TEXT_ONLY,
    ),
    takes=frozenset({"metric_run"}),
)

_RLLM_KEYS = ("training_step", "task_hash", "is_correct", "timing")
_MULTIPLE = IfNoted("Episodes with several trajectories: those of one name form a group.")


class _Trajectory(Struct):
    name: Any = UNSET
    reward: Any = parse.ABSENT


_TRAJECTORIES = msgspec.json.Decoder(list[_Trajectory])


def _trajectories_in(cell: Any) -> list[_Trajectory]:
    """The trajectories of an episode, none where the cell is no list of objects."""
    if isinstance(cell, Raw):
        with suppress(msgspec.MsgspecError):
            return _TRAJECTORIES.decode(cell)
        cell = parse_json(bytes(cell))
    rows = map(parse.mapping_of, parse.list_of(cell))
    return [_Trajectory(name=row.get("name", UNSET), reward=row.get("reward", parse.ABSENT)) for row in rows]


def _rllm_rows(episodes: Cells) -> Columns:
    lists = list(map(_trajectories_in, episodes.column("trajectories")))
    sizes = np.array(list(map(len, lists)), dtype=np.int64)
    row, number = np.repeat(np.arange(len(sizes)), sizes), np.concatenate([sizes[:0], *map(np.arange, sizes)])
    rows, is_one_of_several = row.tolist(), (sizes > 1)[row]
    trajectories = list(chain.from_iterable(lists))
    rewards = [trajectory.reward for trajectory in trajectories]
    hashes = [parse.text_of(cell or None) for cell in episodes.cells("task_hash")]
    names = texts_of([trajectory.name for trajectory in trajectories])
    tasks = [hashes[index] for index in rows]
    # The episode's time: where it holds several trajectories, each repeats it.
    timings = ({"timing": cell} for cell in episodes.cells("timing"))
    seconds = np.where(is_one_of_several, np.nan, to_floats(map(parse.generation_seconds, timings))[row])
    verdicts = rewards_of([{"is_correct": cell} for cell in episodes.cells("is_correct")])
    passed = {name: values[row] for name, values in verdicts.items()}

    def conversation(index: int) -> parse.Conversation:
        trajectory = parse.mapping_of(parse.list_of(episodes.cell("trajectories", rows[index]))[number[index]])
        last_step = [{}, *parse.list_of(trajectory.get("steps"))][-1]
        parts = parse.cut_conversation(parse.mapping_of(last_step).get("chat_completions"))
        return parts._replace(prompt=parts.prompt or parse.text_of(episodes.cell("task", rows[index])))

    return Columns(
        row=row,
        flaws=[(index, "the episode has no trajectory") for index in np.flatnonzero(sizes == 0).tolist()],
        step=episodes.steps("training_step")[row],
        group=[
            f"{task}/{name}" if task and is_shared else task
            for task, name, is_shared in zip(tasks, names, is_one_of_several.tolist(), strict=True)
        ],
        no_group="task_hash is missing",
        prompts=partial(texts_in, tasks),
        texts=lambda chosen: [conversation(index).prompt for index in chosen],
        numbers={"reward": numbers_of(rewards), "seconds": seconds, **passed},
        has_all_functions=True,
        no_reward=lambda index: str(parse.parse_reward(rewards[index])),
        noted={_MULTIPLE: is_one_of_several},
        details=lambda index: conversation(index)._asdict(),
    )


RLLM = RowFormat(
    name="rllm",
    title="rLLM training episodes",
    patterns=("episodes/train_step_*/episode_*.json", "train_step_*/episode_*.json", "episode_*.json"),
    recognizes_file=has_keys("training_step", "task_hash", "trajectories"),
    columns=interpreted_by(_rllm_rows, keys=_RLLM_KEYS, raw=("trajectories", "task")),
    inferred=("Rollouts of one task_hash at one step are a group; equal tasks at one step merge.", _MULTIPLE),
    missing=(TEXT_ONLY,),
)

_TUNIX_KEYS = ("global_step", "prompt_id", "group_index", "reward", "status")
_LONG_CELLS = ("prompt", "prompt_tokens", "completion_tokens")


def _tunix_rows(rows: Cells) -> Columns:
    versions = [rows.steps(key).tolist() for key in ("rollout_policy_version", "consumed_policy_version")]
    num_prompt, num_tokens = (json_text.nums_ids(rows.column(key)) for key in _LONG_CELLS[1:])
    lengths = np.where(num_prompt < 0, UNKNOWN, num_tokens)

    def details(row: int) -> dict[str, Any]:
        first, last = (column[row] for column in versions)
        prompt, ids = (parse.token_ids(rows.cell(key, row)) for key in _LONG_CELLS[1:])
        tokens = None
        if prompt is not None and ids is not None:
            tokens = Tokens(prompt_ids=prompt, completion_ids=ids, mask=(True,) * len(ids))
        return {
            "completion": parse.text_of(rows.cell("completion", row)),
            "status": status_in(rows.cell("status", row)),
            "policy_versions": (first, last) if 0 <= first <= last else None,
            "tokens": tokens,
        }

    return Columns(
        step=rows.steps("global_step"),
        no_step="global_step is not a whole number",
        group=rows.names("prompt_id"),
        no_group="prompt_id is missing",
        texts=lambda chosen: list(map(parse.text_of, rows.cells("prompt", chosen))),
        numbers={"reward": rows.numbers("reward"), "num_tokens": lengths, "truncated": rows.truncated("status")},
        no_reward=partial(rows.no_reward, "reward"),
        noted={TEXT_ONLY: np.array([cell is UNSET for cell in rows.column("completion_tokens")], dtype=np.bool_)},
        samples=[name or None for name in index_names(rows.steps("group_index"))],
        details=details,
    )


TUNIX = RowFormat(
    name="tunix",
    title="Tunix trajectories",
    patterns=("step[0-9]*/*/*/metadata.json", "trajectories/step[0-9]*/*/*/metadata.json"),
    recognizes_file=has_keys("global_step", "traj_id", "prompt_id", "group_index"),
    columns=interpreted_by(_tunix_rows, keys=_TUNIX_KEYS, raw=_LONG_CELLS),
    inferred=("Trajectories of one prompt_id at one global_step are a group.",),
    missing=(IfNoted(TEXT_ONLY),),
    completes=with_run_files,
)
"""Tunix's trajectories as its logger writes them by default: a folder for each. Turns and times next to it are
not needed, and the logger's older CSV is read as any table with a row a rollout."""
