"""Any log with a row a rollout: JSON lines, JSON, Parquet or CSV with a reward and something to group by."""

from __future__ import annotations

import glob
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain, combinations, groupby, product
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace

from gradscope.errors import InputError
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers import column_roles as roles
from gradscope.rollouts.readers import nested
from gradscope.rollouts.readers.flat_columns import TIMES, FlatColumns, column_log, image_column
from gradscope.rollouts.readers.format import Format
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing import records
from gradscope.rollouts.readers.parsing.quarantine import WatchedLog
from gradscope.rollouts.readers.parsing.tables import expand, is_untyped, stem_with_step, suffix_of
from gradscope.rollouts.readers.reduction.columns import columns_of_whole_rows
from gradscope.rollouts.readers.reduction.log import reduced_groups
from gradscope.rollouts.readers.reduction.numbers import step_numbers
from gradscope.rollouts.readers.run_files import HELD_OUT, with_run_files, word_of
from gradscope.rollouts.run import Run
from gradscope.say import counted

_STEP_IN_NAME = re.compile(
    r"(?P<before>.*?)(?:steps?|iter|iteration|update|train_rollouts?)[-_.=]?(?P<step>[0-9]+)(?P<after>[^0-9].*)?"
    r"|(?:(?:rollout|episode|ep|completion|generation|sample|batch|epoch)s?[-_.=]?)?(?P<bare>[0-9]+)",
    re.IGNORECASE,
)
_ROLLOUTS = re.compile("rollout|episode|eps", re.IGNORECASE)  # how a number's word begins that is of no evaluation

_WRITER = re.compile(
    r"(rank|worker|shard|part|process|proc|gpu|node|device|chunk)[-_.=]?[0-9]+|(?<=/)[0-9]+(?=\.[a-z]|/|$)",
    re.IGNORECASE,
)
"""What numbers, in names of files and of folders, those that wrote rows of one step together."""
_STEP_OF_FOLDER = re.compile(r"(step|iter|iteration|update|epoch)[-_.=]?[0-9]+", re.IGNORECASE)
_NUM_FOLDERS = 3  # around a file, any of which may be that of its step


def file_of_rollouts(request: records.ReadRequest, *, beside_metrics: bool) -> Path | str | None:
    """The rollouts by step next to a script's metrics: one file, or a glob of those whose names differ in numbers.

    Returns:
        A sentence where files of several names have them: next to metrics, or in a folder without, of the same groups
        or under a name of an evaluation and another; else None where there is no such file or are no metrics.
    """
    are_named = request.options.metric_columns or request.options.metric_run or request.columns != ColumnNames()
    files = () if are_named or request.path.is_file() else expand(request.path)
    first = list({word: file for file in reversed(files) if (word := word_of(file))}.values())
    if not beside_metrics and (len(first) < 2 or not request.path.is_dir()):
        return None
    columns = (
        (file, nested.columns_within(records.peek(file), request.columns))
        for file in (files if beside_metrics else first)
    )
    rollouts = {file: names for file, names in columns if roles.have_rollouts(names)}
    keys = {file: (names.step, roles.key_of(names)) for file, names in rollouts.items() if names.step is not None}
    if rollouts and not keys and beside_metrics:
        siblings = _files_like(next(iter(rollouts)), rollouts)
        return siblings if siblings is not None and steps_of_files(siblings, next(iter(rollouts.values()))) else None
    names = {word: file for file in reversed(keys) if (word := word_of(file))}
    if len(names) > 1:
        groups = [
            Counter(tuple(str(row.get(key or "")) for key in keys[file]) for row in records.peek(file))
            for file in names.values()
        ]
        are_apart = len(set().union(*groups)) == sum(map(len, groups))
        are_alike = len({re.sub("[^a-z]+", "", word) for word in names}) == 1
        are_samples = are_alike and max(chain(*map(Counter.values, groups))) == 1  # one of each prompt in a file
        are_held_out = {HELD_OUT.search(file.name) is not None for file in names.values()}
        if (are_apart or are_samples) and len(are_held_out) == 1 and not beside_metrics:
            return None
        listed = records.list_names(sorted(file.name for file in names.values()))
        return f"Rollouts by step lie in files of several names, {listed}, which are not pooled: name one of them."
    if len(keys) < 2 or not beside_metrics:
        return next(iter(keys), None) if beside_metrics else None
    return _files_like(next(iter(keys)), keys)


def _files_like(file: Path, only: Collection[Path] = ()) -> Path | None:
    """A glob of the files whose names differ from one's in numbers alone; None where they are not the ``only`` ones."""
    siblings = Path(glob.escape(str(file.parent)), re.sub("[0-9]+", "[0-9]*", glob.escape(file.name)))
    return siblings if not only or expand(siblings) == tuple(only) else None


def steps_of_files(path: Path, names: ColumnNames) -> Mapping[Path, int]:
    """The step of each of several files whose rows name none, by the number in names that are otherwise the same.

    Those of files of one name, or of names without a word for steps, are their folders'. A number without such a word
    is one only where files have whole groups of the same ids, or of some of the same prompts: those of all the same may
    be further samples, those of none the parts of an evaluation, but where they are called rollouts. Files of
    evaluations have no step: what was sampled at another one is another model's.
    """
    files = expand(path) if names.step is None else ()
    if len(files) < 2:
        return {}
    above = os.path.commonpath([file.parent for file in files])
    below = (_WRITER.sub(r"\1", f"/{os.path.relpath(file.parent, above)}") for file in files)
    folders = {_STEP_OF_FOLDER.sub("", folder) for folder in below}
    if len(folders) > 1 or any(map(HELD_OUT.search, folders)):
        return {}  # of several runs, or an evaluation beside training
    usual = int(len({file.name for file in files}) == 1)  # each in the folder of its step
    steps, has_word = _steps_in_names(files, usual)
    for level in range(usual + 1, _NUM_FOLDERS + 1):
        folder_steps, are_words = ({}, False) if has_word else _steps_in_names(files, level)
        if are_words and len(set(folder_steps.values())) > 1:
            steps, has_word = folder_steps, True
    if steps and not has_word:
        key, most_alike = roles.key_of(names) or "", 1.0 if names.group else 0.8
        counts = [
            Counter(parse.text_of(row.get(key)) for row in records.peek(file, num_rows=records.NUM_SEARCHED))
            for file in files[:8]
        ]
        repeated = [{key for key, count in counts_of_ids.items() if count > 1} for counts_of_ids in counts]
        shared = [(len(a & b), min(len(a), len(b))) for a, b in combinations(repeated, 2)]
        are_rollouts = _ROLLOUTS.match(files[0].name) and any(num < size for num, size in shared)
        if not are_rollouts and not any(0 < num <= most_alike * size for num, size in shared):
            return {}
    return steps


def _steps_in_names(files: Sequence[Path], level: int) -> tuple[Mapping[Path, int], bool]:
    """The numbers in names of files, or of the folders so many levels above, and whether a word says that they are."""
    remainders, steps, has_word = set[str](), dict[Path, int](), False
    for file in files:
        name, *below = file.parts[-level - 1 :]
        match = _STEP_IN_NAME.fullmatch(name if below else stem_with_step(file))
        if match is None:
            return {}, False
        rest = f"{match['before'] or ''}*{re.sub('[0-9]+', '', match['after'] or '')}"
        remainders.add(_WRITER.sub(r"\1", "/".join([rest, *below])))
        steps[file], has_word = int(match["step"] or match["bare"]), match["bare"] is None
    return ({}, False) if len(remainders) > 1 or any(map(HELD_OUT.search, remainders)) else (steps, has_word)


def step_is_in_name(file: Path, columns: ColumnNames) -> bool:
    """Whether rows of a file name no step, and it is one of several whose numbers are steps."""
    names, files = _FirstRows.read(file, (), columns).names, _files_like(file)
    return file.is_file() and files is not None and bool(steps_of_files(files, roles.resolve_columns(names, columns)))


def have_steps(path: Path, columns: ColumnNames) -> bool:
    """Whether the rows of a log name their step, by any name, or its files do."""
    first = _FirstRows.read(path, (), columns)
    if _with_step(columns, first).step is not None:
        return True
    names = roles.resolve_columns(first.names, columns) if columns == ColumnNames() else columns
    return bool(steps_of_files(path, names))


def is_run(folder: Path) -> bool:
    """Whether a folder has rollouts by step, and is none of a step's, nor of an evaluation's."""
    is_part = _STEP_IN_NAME.fullmatch(folder.name) or HELD_OUT.search(folder.name)
    columns = ColumnNames() if is_part else roles.columns_of_rows(records.peek(folder), ColumnNames())
    return roles.have_rollouts(columns) and have_steps(folder, columns)


class _FirstRows(Struct, frozen=True, kw_only=True, dict=True):
    """The first rows of a log, by which it is known what its columns are."""

    head: Sequence[Mapping[str, Any]]
    rows: Sequence[Mapping[str, Any]]  # the same with the entries of their objects as columns
    searched: Sequence[Mapping[str, Any]]  # further ones, so many that ids are seen to recur
    are_followed: bool  # whether the log goes on behind these
    layout: nested.Layout  # where they lie within the rows of the log
    named: ColumnNames  # the columns that the user named

    @classmethod
    def read(cls, path: Path, layout: nested.Layout, named: ColumnNames) -> _FirstRows:
        """Those of a log."""
        outer = records.peek(path)
        head = nested.first_rows_within(outer, layout) if layout else outer
        searched = (
            nested.first_rows_of_lists(outer, layout) if layout else records.peek(path, num_rows=records.NUM_SEARCHED)
        )
        are_followed = not layout and records.has_more_rows(path, searched)
        rows = roles.with_entries(head, named)
        return cls(head=head, rows=rows, searched=searched, are_followed=are_followed, layout=layout, named=named)

    @cached_property
    def many_with_entries(self) -> Sequence[Mapping[str, Any]]:
        """The further ones with the entries of their objects as columns."""
        return roles.with_entries(self.searched, self.named)

    @property
    def names(self) -> tuple[str, ...]:
        """Their columns."""
        return roles.columns_in(self.rows)


def read_flat(
    request: records.ReadRequest,
    *,
    format: str,
    with_steps: bool,
    layout: nested.Layout = (),
    with_held_out: bool = False,
) -> Run:
    """Read rows that are rollouts, or have them within; without steps, all rows of a prompt are one group."""
    first = _FirstRows.read(request.path, layout, request.columns)
    by_role = _known_columns(request, first)
    names = by_role if with_steps else replace(by_role, step=None)
    steps = steps_of_files(request.path, names) if with_steps else {}
    distinct = _without_recurring_ids(request, first, names, steps)
    is_evaluation = not (distinct.step or distinct.group or steps)
    grouping = _grouping(request, first, distinct, is_evaluation=is_evaluation)
    is_numbered = bool(steps or layout or by_role.step or set(roles.TRIALS).intersection(first.names))
    if not (is_numbered or roles.key_of(request.columns)):
        _refuse_several_steps(request.path, first, grouping)
    total, terms = _terms(first.rows, grouping.names, first.names)
    files = expand(request.path)
    flat = _flat_columns(first, grouping, terms, is_evaluation=is_evaluation, are_untyped=is_untyped(files[0]))
    flat = replace(
        flat,
        steps=steps,
        held_out=() if with_held_out else flat.held_out,
        measures_completions=request.measures_completions and "completion_ids" not in first.names,
    )
    log = column_log(files, flat, quarantine := WatchedLog(request.progress, files))
    kinds = sorted({(suffix_of(file) or ".jsonl").removeprefix(".") for file in files})
    title = f"{' and '.join(kinds)} with a row a rollout, {counted(len(files), 'file')}"
    if layout:
        inner = partial(nested.to_columns_within, layout=layout, to_columns=flat.to_columns)
        log = replace(
            log,
            to_columns=inner,
            declared=columns_of_whole_rows(inner, looks_at_path=bool(steps)),
            lines_hold_many=True,
        )
        outer = "a document" if len(records.peek(request.path)) == 1 else "each row"
        title = f"samples in {nested.title_of(layout)} of {outer}"
    if first.are_followed and request.rewards_only:
        log = replace(log, validate=partial(grouping.without_constants, rows=first.searched))
    notes = dict[Any, None]()
    groups = reduced_groups(replace(log, note=notes.setdefault), request) or ()
    if flat.held_out and not len(groups):  # a log of nothing but evaluations
        unrestricted = replace(request, so_far=None)
        return read_flat(unrestricted, format=format, with_steps=with_steps, layout=layout, with_held_out=True)
    text = " + ".join(f"{weight:g} {name}" for name, weight in terms.items()).replace("+ -", "- ")
    episodes = step_numbers([row.get("episode") for row in first.searched])
    count_up = len(episodes) > 1 and (np.diff(episodes, prepend=-1) > 0).all()  # from row to row
    inferred = [
        *_about_columns(flat, request.columns),
        *([f"Prompts of one text are told apart by {flat.image!r}, too."] if flat.image else []),
        *([f"{total!r} is the weighted sum of other columns, its reward functions: {text}."] if terms else []),
        *([_RECURRING_IDS] if distinct != names else []),
        *_about_questions(grouping, distinct, roles.resolve_columns(first.names, request.columns).prompt),
        *([_EPISODES] if is_evaluation and count_up else []),
    ]
    run = records.assemble_groups(
        request, request.source(format, title, inferred=[*inferred, *notes]), groups=groups, quarantine=quarantine
    )
    is_document = len(files) == 1 and layout
    return replace(run, source=replace(run.source, unfinished=_unfinished(files[0], layout))) if is_document else run


def _unfinished(path: Path, layout: nested.Layout) -> str:
    """How many of its trials a document of tau2-bench has, which lists all tasks at its start; empty of any other."""
    document = next(iter(records.peek(path)), {})
    num = sum(1 for _ in nested.rows_within(document, layout))
    trials = parse.whole_number(parse.mapping_of(document.get("info")).get("num_trials")) or 0
    planned = trials * len(parse.list_of(document.get("tasks")))
    return f"has not ended: {num:,} of {planned:,} samples" if num < planned else ""


def _known_columns(request: records.ReadRequest, first: _FirstRows) -> ColumnNames:
    """The columns by role; refuses rows of unknown columns, turns of an episode, and rows that are there twice."""
    columns = roles.resolve_columns(first.names, request.columns)
    for column, role, hint in (
        (columns.reward, "that is known to be a reward", "Name it: --reward-column NAME."),
        (roles.key_of(columns), "to group rollouts by", "Name one: --group-column NAME, or --prompt-column NAME."),
    ):
        if column is None:
            listed = records.list_names(first.names)
            raise InputError(f"{request.path} has no column {role}; its columns are {listed}.", hint=hint)
    rows = first.many_with_entries
    columns = _with_step(roles.by_cells(rows, columns, request.columns), first)
    is_alone = request.columns.prompt_id is None and (columns.group or columns.step) is None
    if is_alone and columns.prompt_id is not None and columns.prompt is not None:
        ids = {parse.text_of(row.get(columns.prompt_id)) for row in rows}
        *sizes, last = Counter(parse.text_of(row.get(columns.prompt)) for row in rows).values()
        if len(ids) == len(rows) and len(sizes) > 1 and 1 < max(sizes) == min(sizes) >= last:
            columns = replace(columns, prompt_id=None)  # the ids are those of the rows, as many of each text
    _require_numbers(request, first.head, columns)
    questions = {
        (parse.text_of(row.get(columns.prompt_id or "")), parse.text_of(row.get(columns.prompt or "")))
        for row in first.rows
    }
    num_ids = len({prompt_id for prompt_id, _ in questions})
    are_states = columns.prompt_id is not None and 2 * num_ids < len(questions)  # of a world
    may_be_turns = (are_states or first.layout) and request.columns == ColumnNames()
    is_guess = may_be_turns if columns.step is None else request.columns.step is None
    names = roles.columns_in(first.head)
    if is_guess and records.are_turns({name: [row.get(name) for row in first.head] for name in names}):
        records.refuse_turns(request.path, columns.step)
    if request.columns == ColumnNames() and roles.are_parts_of_rollouts(first.searched, columns):
        records.refuse_turns(request.path, None)
    if columns.completion is not None:  # rows without a text may be equal by chance
        image = image_column(first.searched, columns)
        keys = (columns.step, roles.key_of(columns), columns.completion, columns.reward, image, *roles.SAMPLE_IDS)
        records.refuse_copies(request.path, [key or "" for key in keys])
    if "filtered_resps" in names:  # of an older lm-eval, which scores the same responses after each filter
        records.refuse_copies(request.path, ["", "", "doc_id", "resps"])
    return columns


def _with_step(columns: ColumnNames, first: _FirstRows) -> ColumnNames:
    """The columns with one that counts as the step, where none is called one."""
    if columns.step is not None or set(roles.STEP_SUBSTITUTES).isdisjoint(first.names):
        return columns
    step = roles.counted_step(first.many_with_entries, roles.key_of(columns), are_first=first.are_followed)
    return replace(columns, step=step)


def _without_recurring_ids(
    request: records.ReadRequest, first: _FirstRows, names: ColumnNames, steps: Mapping[Path, int]
) -> ColumnNames:
    """The columns without a guessed one of groups that has the same ids with several prompts."""
    if names.group is None or request.columns.group is not None:
        return names
    key = (names.step, names.group, names.prompt_id)
    if roles.are_labels(*([parse.text_of(row.get(name or "")) for row in first.many_with_entries] for name in key)):
        return replace(names, group=None)
    recur = not first.layout and _ids_recur(request.path, names, steps)
    return replace(names, group=None, prompt_id=None) if recur else names


def _grouping(
    request: records.ReadRequest, first: _FirstRows, names: ColumnNames, *, is_evaluation: bool
) -> roles.Grouping:
    """What tells groups apart: of an evaluation its settings, else the runs in a log."""
    extra = ("name",) if first.layout else ()

    def settings_of(names: ColumnNames) -> tuple[str, ...]:
        if is_evaluation:
            return roles.setting_columns(first.searched, names, *extra, are_first=first.are_followed)
        return _run_columns(first.searched, names)

    return roles.grouping_of(
        first.many_with_entries,
        names,
        settings_of,
        is_key_named=roles.key_of(request.columns) is not None,
        are_first=first.are_followed and is_evaluation,
    )


def _flat_columns(
    first: _FirstRows, grouping: roles.Grouping, terms: Mapping[str, float], *, is_evaluation: bool, are_untyped: bool
) -> FlatColumns:
    names, rewards = first.names, [row.get(grouping.names.reward or "") for row in first.rows]
    policy_names = [name for name in roles.POLICIES if any(isinstance(row.get(name), str) for row in first.head)]
    policies = (*grouping.settings, *policy_names[:1])
    with_roles = set(astuple(grouping.names))
    environment = next((name for name in parse.ENVIRONMENTS if name in names and name not in with_roles), None)
    qualifiers = (*(policies if is_evaluation else grouping.settings), grouping.benchmark)
    prompt = grouping.names.prompt or ""
    conversations = [row.get(prompt) for row in first.many_with_entries if prompt.endswith(parse.CONVERSATION)]
    return FlatColumns(
        names=grouping.names,
        rewards=tuple(dict.fromkeys([*_named_rewards(first.rows, grouping.names), *terms])),
        in_words=roles.are_words(rewards) or (not are_untyped and roles.are_numbers_in_text(rewards)),
        sample=roles.sample_column(first.rows, grouping.names),
        environment=grouping.benchmark or environment,
        image=image_column(first.many_with_entries, grouping.names),
        policies=policies,
        held_out=() if is_evaluation else roles.held_out_columns(names),
        qualifiers=tuple(filter(None, qualifiers)),
        times=tuple(name for name in TIMES if name in names),
        num_turns=num_prompt_turns(conversations),
        end=records.end_column(names, lambda name: [row.get(name) for row in first.many_with_entries]),
        entries=frozenset(names) - set(roles.columns_in(first.head)),
    )


def _run_columns(rows: Sequence[Mapping[str, Any]], columns: ColumnNames) -> tuple[str, ...]:
    """The columns that tell runs apart: most of their texts stand in several rows of a group, as no sample's would."""
    counters = {name: Counter[tuple[str, ...]]() for name in (*roles.RUNS, "method", "algorithm", "arm")}
    step, key = columns.step or "", roles.key_of(columns) or ""
    for row, (name, sizes) in product(rows, counters.items()):
        if text := parse.text_of(row.get(name)):
            sizes[parse.text_of(row.get(step)), parse.text_of(row.get(key)), text] += 1
    return tuple(name for name, sizes in counters.items() if sum(size > 1 for size in sizes.values()) > len(sizes) / 2)


def num_prompt_turns(conversations: Iterable[Any]) -> int | None:
    """How many of the assistant's messages prompts hold, where those that follow were sampled; None: all but the last.

    Sampled is the first message that most conversations which are the same before it differ in: those of examples, and
    of a dialogue that is to go on, they have in common.
    """
    chats = [chat for chat in conversations if isinstance(chat, list) and parse.before_answer(chat) is not chat]
    turns_of = [[i for i, message in enumerate(chat) if message["role"] == "assistant"] for chat in chats]
    for number in range(max(map(len, turns_of), default=0)):
        answers: dict[str, list[str]] = {}
        for chat, turns in zip(chats, turns_of, strict=True):
            if len(turns) > number:
                turn = turns[number]
                answers.setdefault(parse.prompt_text_id(chat[:turn]), []).append(parse.text_of(chat[turn]))
        differ = [len(set(texts)) > 1 for texts in answers.values() if len(texts) > 1]
        if sum(differ) > len(differ) / 2:
            are_last = all(parse.before_answer(chat, number) == parse.before_answer(chat) for chat in chats)
            return None if are_last else number
    return None


def _named_rewards(rows: Sequence[Mapping[str, Any]], columns: ColumnNames) -> tuple[str, ...]:
    """The columns of rewards by their names, of which no cell is an object or a list."""
    names = roles.columns_in(rows)
    numeric = [name for name in names if not any(isinstance(row.get(name), (dict, list)) for row in rows)]
    return roles.reward_columns(numeric, columns.reward or "")


def _ids_recur(path: Path, names: ColumnNames, steps: Mapping[Path, int]) -> bool:
    """Whether ids name several groups of a step, or of steps that no row names: whole groups of several prompts."""
    files = expand(path)[: 1 if names.prompt is None else 2]
    rows = [(file, row) for file in files for row in records.peek(file, num_rows=records.NUM_SEARCHED)]
    ids = [parse.text_of(row.get(names.group or "")) for _, row in rows]
    numbers = [steps.get(file, row.get(names.step or "")) for file, row in rows]
    if names.prompt is None or names.prompt.endswith(parse.CONVERSATION):  # with its answer
        return False
    return roles.are_labels(numbers, ids, [parse.prompt_text_id(row.get(names.prompt)) for _, row in rows])


def _refuse_several_steps(path: Path, first: _FirstRows, grouping: roles.Grouping) -> None:
    """Refuse rows without a step of groups that return with as many rows each time, but for whole rounds of prompts."""
    key = roles.key_of(grouping.names) or ""
    text_of = parse.prompt_text_id if key == grouping.names.prompt else parse.text_of
    labels = (*grouping.settings, *roles.POLICIES)
    ids = [(*(str(row.get(name)) for name in labels), text_of(row.get(key))) for row in first.many_with_entries]
    stretches = [(group, len(list(rows_of_group))) for group, rows_of_group in groupby(ids)]
    order, sizes = list(dict.fromkeys(ids)), [size for _, size in stretches[:-1]]
    in_rotation = all(group == order[index % len(order)] for index, (group, _) in enumerate(stretches))
    are_rounds = in_rotation and (first.are_followed or len(stretches) % len(order) == 0)  # as of an evaluation
    is_group = key == grouping.names.group and in_rotation and min(sizes, default=1) > 1
    size = math.gcd(*sizes)
    if 2 * len(stretches) >= 3 * len(order) > 3 and (is_group or (size > 1 and not are_rounds)):
        program = shlex.quote(f". + {{group: ((input_line_number - 1) / {size} | floor)}}")
        as_rows = f", or number groups of {size} rows: jq -c {program} {shlex.quote(str(path))} > rows.jsonl"
        as_rows = as_rows if path.suffix == ".jsonl" and size > 1 else ""
        raise InputError(
            f"{path} has the same ids in {key!r} again and again: groups of several steps would be one.",
            hint=f"Name the step, --step-column NAME{as_rows}; if an id is one group, say so: --group-column {key}.",
        )


_AGGREGATE_REWARDS = frozenset(("acc", "accuracy", "exact_match", "em"))  # rewards that are also names of shares
_VERDICTS = frozenset(roles.USUAL["reward"][roles.USUAL["reward"].index("passed") :])


def _require_numbers(request: records.ReadRequest, rows: Sequence[Mapping[str, Any]], columns: ColumnNames) -> None:
    path, name = request.path, columns.reward or ""
    rewards: list[Any] = [row.get(name) for row in roles.with_entries(rows, request.columns)]
    is_named, is_answered = request.columns.reward is not None, columns.completion is not None
    is_one = len(rows) == len(expand(path)) == 1 and not is_answered
    is_sure = is_named or is_answered
    lists = [key for key in roles.TEXT_LISTS if key != "content"]
    sizes_of = {key: {len(parse.list_of(row.get(key))) for row in rows} for key in lists}
    responses = [key for key, sizes in sizes_of.items() if len(rows) > 1 and len(sizes) == 1 and max(sizes) > 1]
    # A record of calls names an error and has none, and what was asked of a model.
    tokens = ("prompt_tokens", "completion_tokens", "usage", "finish_reason", "latency", "latency_ms")
    are_calls = all("error" in row and not row["error"] and not row.keys().isdisjoint(tokens) for row in rows)
    single_hint = f"or say that it is one's: --reward-column {name}."
    hint = "Name a column of numbers, as in --reward-column NAME, or write verdicts as 1 and 0."
    if all(map(parse.mapping_of, rewards)):
        entries = list(dict.fromkeys(f"{name}.{entry}" for reward in rewards for entry in reward))
        message = f"has objects as {name!r}, with {records.list_names(entries)}."
        hint = f"Name the number that the trainer used, as in --reward-column {entries[0]}."
    elif roles.are_other_texts(rewards) and all(rewards):
        message = f"has no numbers as {name!r}: the reward is text, {records.list_names(dict.fromkeys(rewards))}."
    elif is_one and name.rpartition(".")[2] in _AGGREGATE_REWARDS:
        message = f"has one row, without a response: its {name!r} is that of a whole evaluation."
        hint = "Give the file with a row for each sample or prompt."
    elif is_one and not is_named and name.endswith("_reward") and name not in roles.USUAL["reward"]:
        message = f"has one row, without a response: whether its {name!r} is a rollout's reward is not known."
        hint = f"Give the file with a row for each sample or prompt, {single_hint}"
    elif not is_sure and name in _VERDICTS and responses:
        key = repr(responses[0])  # turns of an episode are seldom as many in every row
        message = f"has one {name!r} for several responses, {key}: whether of their vote, or of the best, is not known."
        hint = f"Write a list of as many verdicts as responses, {single_hint}"
    elif not is_named and name == "success" and len(rows) > 1 and rewards == [True] * len(rows) and are_calls:
        message = "has 'success' and no 'error' in every row: whether calls or answers succeeded is not known."
        hint = f"Name the verdict on the answer, {single_hint}"
    else:
        return
    raise InputError(f"{path} {message}", hint=hint)


_RECURRING_IDS = "The column of groups has the same ids with several prompts, so it tells no groups apart."
STEPS_IN_NAMES = "Rows name no step: each file is one, by the number in its name."
_EPISODES = "'episode' rises from row to row, and counts no steps: of training, --step-column episode."


def _about_columns(flat: FlatColumns, named_by_user: ColumnNames) -> Iterator[str]:
    columns, key = flat.names, flat.key
    guesses = [("reward", columns.reward, named_by_user.reward), ("step", columns.step, named_by_user.step)]
    guessed = [f"{role} from {name!r}" for role, name, named in guesses if name is not None and named is None]
    if key not in {named_by_user.group, named_by_user.prompt_id, named_by_user.prompt}:
        guessed.append(f"groups from {key!r}")
    if guessed:
        yield f"Columns were guessed by their names: {', '.join(guessed)}."
    if flat.steps:
        yield STEPS_IN_NAMES
    if settings := [name for name in flat.qualifiers if name not in roles.POLICIES]:
        yield f"Rows of one group have the same {' and '.join(map(repr, settings))}."
    if flat.sample is not None:
        yield f"Rollouts of a group are told apart by {flat.sample!r}: a row of the same sample again does not count."
    if key == columns.prompt:
        yield "Rollouts were grouped by the prompt's text; two groups of one prompt at one step would merge."


def _about_questions(grouping: roles.Grouping, by_id: ColumnNames, prompt: str | None) -> Iterator[str]:
    question = grouping.names.prompt
    if grouping.has_questions:
        yield f"Under most ids in {by_id.prompt_id!r} questions differ: {question!r} tells prompts apart."
    elif question != prompt:
        yield f"Several questions have the same {prompt!r}: the prompt is {question!r}."


def _terms(
    rows: Sequence[Mapping[str, Any]], columns: ColumnNames, names: Sequence[str]
) -> tuple[str | None, Mapping[str, float]]:
    """A reward that is a weighted sum of columns, and these: the reward, or one of which the reward is a part."""
    named = _named_rewards(rows, columns)
    names = [*named, *(name for name in names if name not in named)]
    usual = roles.resolve_columns(names, ColumnNames()).reward
    if usual not in (None, columns.reward, *_VERDICTS):
        terms = roles.summed_columns(rows, replace(columns, reward=usual), names)
        if columns.reward in terms:
            return usual, terms
    terms = roles.summed_columns(rows, columns, names)
    totals = [name for name, weight in terms.items() if weight > 0]
    if columns.reward in _VERDICTS and len(totals) == 1 < len(terms):  # a verdict is no difference, but part of a sum
        weight, parts = terms[totals[0]], {columns.reward: 1.0, **{name: -terms[name] for name in terms}}
        return totals[0], {name: round(parts[name] / weight, 6) for name in parts if name != totals[0]}
    return columns.reward, terms


FORMAT = Format(
    name="generic",
    recognizes=lambda request: roles.have_rollouts(roles.columns_of_rows(records.peek(request.path), request.columns)),
    read=lambda request: with_run_files(request, read_flat(request, format="generic", with_steps=True)),
    takes=frozenset({"columns"}),
)
