"""Any log with a row a rollout: JSON lines, JSON, Parquet or CSV with a reward and something to group by."""

from __future__ import annotations

import glob
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace
from numpy.typing import NDArray

from gradscope.errors import InputError
from gradscope.outside.plain_json import parse_json
from gradscope.rollouts.arrays import to_floats
from gradscope.rollouts.groups import REWARD, UNKNOWN, RewardTable, Tokens
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers import nested
from gradscope.rollouts.readers.column_roles import (
    POLICIES,
    SAMPLE_IDS,
    TEXT_LISTS,
    USUAL,
    are_held_out,
    are_labels,
    as_number,
    benchmark_column,
    columns_in,
    columns_of_rows,
    first_present,
    held_out_columns,
    key_of,
    only_text,
    resolve_columns,
    reward_columns,
    run_columns,
    sample_column,
    setting_columns,
    summed_columns,
    with_entries,
    with_failed_trials,
)
from gradscope.rollouts.readers.format import Format
from gradscope.rollouts.readers.parsing.cells import (
    CONVERSATION,
    ENVIRONMENTS,
    before_answers,
    generation_seconds,
    in_environment,
    list_of,
    mapping_of,
    parse_messages,
    prompt_text_id,
    text_of,
)
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, WatchedLog
from gradscope.rollouts.readers.parsing.records import (
    NUM_SEARCHED,
    ReadRequest,
    are_turns,
    assemble_groups,
    has_more_rows,
    list_names,
    peek,
    refuse_copies,
)
from gradscope.rollouts.readers.parsing.tables import expand, read_rows, stem_of, suffix_of
from gradscope.rollouts.readers.reduction.columns import Cells, Columns, columns_of_whole_rows, step_numbers, texts_in
from gradscope.rollouts.readers.reduction.log import ColumnLog, reduced_groups
from gradscope.rollouts.readers.run_files import with_run_files
from gradscope.rollouts.readers.token_columns import hold_tokens, tokens_by_names
from gradscope.rollouts.run import Run
from gradscope.say import counted

_STEP_IN_NAME = re.compile(
    r"(?P<before>.*?)(?:step|steps|iter|iteration|update)[-_.=]?(?P<step>[0-9]+)(?P<after>[^0-9].*)?|(?P<bare>[0-9]+)",
    re.IGNORECASE,
)
_BEGINNING = 40  # characters of a question: the answers it offers may be in another order each time
HELD_OUT = re.compile(r"(?<![a-z])(eval|valid|val(?![a-z])|test)", re.IGNORECASE)
"""What names files and folders of evaluations."""


def _word_of(file: Path) -> str:
    """The letters in the name of a file, where they may be a word."""
    letters = re.sub("[^a-z]+", "", stem_of(file).lower())
    return letters if len(letters) > 2 else ""


def file_of_rollouts(request: ReadRequest, *, beside_metrics: bool) -> Path | str | None:
    """The rollouts by step beside a script's metrics: one file, or a glob of those whose names differ in numbers.

    Returns:
        A sentence where files of several names have them, beside metrics or, in a folder without, of the same groups or
        under a name of an evaluation and another; else None where there is no such file or are no metrics.
    """
    are_named = request.options.metric_columns or request.options.metric_run or request.columns != ColumnNames()
    files = () if are_named or request.path.is_file() else expand(request.path)
    first = list({word: file for file in reversed(files) if (word := _word_of(file))}.values())
    if not beside_metrics and (len(first) < 2 or not request.path.is_dir()):
        return None
    columns = (
        (file, nested.columns_within(peek(file), request.columns)) for file in (files if beside_metrics else first)
    )
    rollouts = {file: of for file, of in columns if None not in (of.reward, key_of(of))}
    keys = {file: (of.step, key_of(of)) for file, of in rollouts.items() if of.step is not None}
    if rollouts and not keys and beside_metrics:
        alike = _alike(request.path, rollouts)
        return alike if alike is not None and steps_of_files(alike, next(iter(rollouts.values()))) else None
    names = {word: file for file in reversed(keys) if (word := _word_of(file))}
    if len(names) > 1:
        groups = [{tuple(str(row.get(key or "")) for key in keys[of]) for row in peek(of)} for of in names.values()]
        are_apart = len(set().union(*groups)) == sum(map(len, groups))
        are_held_out = {HELD_OUT.search(file.name) is not None for file in names.values()}
        if are_apart and len(are_held_out) == 1 and not beside_metrics:
            return None
        listed = list_names(sorted(file.name for file in names.values()))
        return f"Rollouts by step lie in files of several names, {listed}, which are not pooled: name one of them."
    if len(keys) < 2 or not beside_metrics:
        return next(iter(keys), None) if beside_metrics else None
    return _alike(request.path, keys)


def _alike(folder: Path, files: Collection[Path]) -> Path | None:
    """A glob of files in a folder whose names differ in numbers alone; None where it has others, too."""
    alike = Path(glob.escape(str(folder)), re.sub("[0-9]+", "[0-9]*", next(iter(files)).name))
    return alike if expand(alike) == tuple(files) else None


def steps_of_files(path: Path, names: ColumnNames) -> Mapping[Path, int]:
    """The step of each of several files whose rows name none, by the number in names that are otherwise the same.

    A bare number is a step only where whole groups have the same ids in one file and the next. Files of evaluations
    have no step: what was sampled at another one is another model's.
    """
    if names.step is not None:
        return {}
    files = expand(path)
    matches = [match for file in files if (match := _STEP_IN_NAME.fullmatch(stem_of(file)))]
    rests = {f"{match['before'] or ''}*{re.sub('[0-9]+', '', match['after'] or '')}" for match in matches}
    if len(files) < 2 or len(matches) < len(files) or len(rests) > 1 or any(map(HELD_OUT.search, rests)):
        return {}
    if matches[0]["bare"] is not None:
        first, second = (Counter(text_of(row.get(names.group or "")) for row in peek(file)) for file in files[:2])
        if names.group is None or not any(first[group] > 1 < second[group] for group in first):
            return {}
    return {file: int(match["step"] or match["bare"]) for file, match in zip(files, matches, strict=True)}


class FlatColumns(Struct, frozen=True, kw_only=True):
    """The columns of a log with a row a rollout."""

    names: ColumnNames  # by role; the reward and something to group by are known
    rewards: tuple[str, ...]  # those of reward functions
    sample: str | None  # the one that tells the rollouts of a group apart
    environment: str | None = None  # the one that names a row's environment, data source or agent
    steps: Mapping[Path, int] = {}  # the step of each file, where rows name none
    policies: tuple[str, ...] = ()  # those that name the policy
    apart: tuple[str, ...] = ()  # those that tell groups of one key apart
    held_out: tuple[str, ...] = ()  # those that may say that a row is of an evaluation and none of training
    times: tuple[str, ...] = ()  # those that ``generation_seconds`` looks at
    entries: frozenset[str] = frozenset()  # those that are entries of objects
    measures_completions: bool = False  # whether completions are read, too, because rewards alone do not suffice

    @property
    def key(self) -> str:
        """The column that rollouts are grouped by."""
        return key_of(self.names) or ""

    @property
    def by_prompt(self) -> bool:
        """Whether only the prompts' texts tell groups apart."""
        return self.names.group is None and self.names.prompt_id is None

    @property
    def holds_answers(self) -> bool:
        """Whether prompts are whole conversations, each with its answer."""
        return self.names.prompt is not None and self.names.prompt.endswith(CONVERSATION)

    def to_columns(self, rows: Cells) -> Columns:
        """What rows hold."""
        names, all_cells, training = self.names, rows.with_entries(self.entries), None
        held_out = are_held_out({name: texts_in(all_cells.names(name)) for name in self.held_out})
        marks = " or ".join(map(repr, self.held_out))
        if held_out.any():
            training = np.flatnonzero(~held_out)
            all_cells = all_cells.chosen(training.tolist())
        rows = all_cells.changed(names.prompt or "", before_answers) if self.holds_answers else all_cells
        rows, noted = with_failed_trials(rows, names.reward)
        reward = rows.numbers(names.reward)
        numbers: dict[str, NDArray[Any]] = {"reward": reward}
        for name in self.rewards:
            numbers[REWARD + name] = reward if name == names.reward else rows.numbers(name)
        if self.times and not rows.from_text:
            timed = zip(*map(rows.cells, self.times), strict=True)
            numbers["seconds"] = to_floats(
                generation_seconds(dict(zip(self.times, of_row, strict=True))) for of_row in timed
            )
        if names.advantage is not None:
            numbers["advantage"] = rows.numbers(names.advantage)
        texts_of = {name: texts_in(rows.names(name)) for name in (*self.policies, *self.apart)}
        sampled_by, apart = (
            ["/".join(filter(None, of_row)) for of_row in zip(*map(texts_of.__getitem__, names_of), strict=True)]
            for names_of in (self.policies, self.apart)
        )
        policies = {name: at for at, name in enumerate(filter(None, dict.fromkeys(sampled_by)))}
        if self.policies:
            numbers["policy"] = np.array([policies.get(name, UNKNOWN) for name in sampled_by])
        samples = None
        if self.sample is not None:
            samples = [name or None for name in texts_in(rows.names(self.sample))]
        group = rows.prompt_ids(self.key) if self.by_prompt else rows.names(self.key)

        def prompts(firsts: list[int]) -> list[str]:
            cells = rows.chosen(firsts)
            ids = texts_in(group, firsts) if self.by_prompt else [""] * len(firsts)
            for name, ids_in in (
                (names.prompt_id, cells.names),
                (names.prompt, cells.prompt_ids),
                (self.key, cells.names),
            ):
                if name is not None and "" in ids:
                    ids = [prompt_id or other for prompt_id, other in zip(ids, texts_in(ids_in(name)), strict=True)]
            return list(map(in_environment, texts_in(cells.names(self.environment)), ids)) if self.environment else ids

        has_ids = hold_tokens(rows.keys)

        def details(at: int) -> dict[str, Any]:
            asked = rows.cell(names.prompt, at)
            is_cut = self.holds_answers and isinstance(asked, list) and asked
            answer = all_cells.cell(names.prompt, at)[len(asked) :] or None if is_cut else None
            completion = rows.cell(names.completion, at) if names.completion else answer
            return {
                "completion": text_of(completion),
                "messages": parse_messages(asked),
                "policy": (sampled_by[at] or None) if sampled_by else None,
                "tokens": _tokens(rows, at, names) if has_ids else None,
            }

        def completions() -> list[str]:
            if names.completion is None:
                return [details(at)["completion"] for at in range(len(rows))]
            return list(map(text_of, rows.cells(names.completion)))

        return Columns(
            row=training,
            notes=() if training is None else (f"Rows of an evaluation beside training, by {marks}, are left out.",),
            step=rows.steps(names.step) if names.step else np.full(len(rows), self.steps.get(rows.path, 0)),
            group=[name and f"{of}/{name}" for of, name in zip(apart, texts_in(group), strict=True)]
            if self.apart
            else group,
            no_group=f"{self.key} is missing",
            prompts=prompts,
            texts=None if names.prompt is None else lambda firsts: list(map(text_of, rows.cells(names.prompt, firsts))),
            numbers=numbers,
            noted=noted,
            no_reward=partial(rows.no_reward, names.reward or ""),
            is_odd=rows.not_finite(names.advantage),
            samples=samples,
            policies=tuple(policies),
            has_all_functions=True,
            completions=completions if self.measures_completions else None,
            details=details,
            flaw=partial(rows.flaw_of_advantage, names.advantage),
        )


def _tokens(rows: Cells, at: int, names: ColumnNames) -> Tokens | None:
    """The exact tokens of a row."""

    def cell_of(name: str) -> Any:
        cell = rows.cell(name, at)
        if rows.from_text and isinstance(cell, str) and cell.startswith("["):
            with suppress(ValueError):
                return parse_json(cell)
        return cell

    return tokens_by_names(cell_of, names.advantage)


_TIMES = ("generation_seconds", "timing")


def column_log(files: Sequence[Path], columns: FlatColumns, quarantine: QuarantineLog) -> ColumnLog:
    """How the files of a log are read, in their order; what is set aside goes to the quarantine."""
    names = columns.names
    roles = (names.reward, names.step, columns.key, names.prompt_id, names.advantage)
    long = (names.prompt, names.completion if columns.measures_completions else None)
    further = (columns.sample, columns.environment, *columns.policies, *columns.rewards, *columns.times, *long)
    texts = tuple(name for name in long if name is not None and name not in columns.entries)
    read = [name for name in (*roles, *further, *columns.held_out) if name is not None and name not in texts]
    key_of_name = {name: name.partition(".")[0] if name in columns.entries else name for name in read}
    optional = {*columns.rewards, *columns.times} - {names.reward}
    required = {key for name, key in key_of_name.items() if name not in optional}
    return ColumnLog(
        files=files,
        rows=read_rows,
        to_columns=columns.to_columns,
        keys=tuple(dict.fromkeys(key_of_name.values())),
        raw=texts,
        quarantine=quarantine,
        looks_at_path=bool(columns.steps),
        may_be_nan=tuple(set(key_of_name.values()) - required),
    )


def _recognizes(request: ReadRequest) -> bool:
    """Whether the path holds rows with a reward and something to group by, under usual names."""
    columns = columns_of_rows(peek(request.path), request.columns)
    return columns.reward is not None and key_of(columns) is not None


def read_flat(
    request: ReadRequest, *, format: str, with_steps: bool, layout: nested.Layout = (), with_held_out: bool = False
) -> Run:
    """Read rows that are rollouts, or have them within; without steps, all rows of a prompt are one group."""
    rows = peek(request.path)
    outer = "a document" if len(rows) == 1 else "each row"
    of_lists = nested.first_rows_of_lists(rows, layout) if layout else ()
    rows = nested.first_rows_within(rows, layout) if layout else rows
    plain, first = columns_in(rows), with_entries(rows)
    names = columns_in(first)
    columns = _require(resolve_columns(names, request.columns), names, request.path)
    _require_numbers(request, rows, columns)
    asked = {(text_of(row.get(columns.prompt_id or "")), text_of(row.get(columns.prompt or ""))) for row in first}
    of_states = columns.prompt_id is not None and 2 * len({of for of, _ in asked}) < len(asked)  # states of a world
    is_guess = of_states and request.columns == ColumnNames() if columns.step is None else request.columns.step is None
    if is_guess and are_turns({name: [row.get(name) for row in rows] for name in plain}):
        counts = f": {columns.step!r} counts no updates." if columns.step else "."
        raise InputError(
            f"{request.path} has a row for each step of an episode{counts}",
            hint="Write a row an episode, with its prompt or task, the sum of its rewards, and the step of training.",
        )
    if columns.completion is not None:  # rows without a text may be equal by chance
        keys = (columns.step, key_of(columns), columns.completion, columns.reward, *SAMPLE_IDS)
        refuse_copies(request.path, [key or "" for key in keys])
    if "filtered_resps" in plain:  # of an older lm-eval, which scores the same responses after each filter
        refuse_copies(request.path, ["", "", "doc_id", "resps"])
    columns = columns if with_steps else replace(columns, step=None)
    steps = steps_of_files(request.path, columns) if with_steps else {}
    is_guess = columns.group is not None and request.columns.group is None
    key = (columns.step, columns.group, columns.prompt_id)
    searched = of_lists or peek(request.path, num_rows=NUM_SEARCHED)
    labelled = with_entries(searched) if is_guess else ()
    has_labels = is_guess and are_labels(*([text_of(row.get(of or "")) for row in labelled] for of in key))
    ids_recur = has_labels or (is_guess and not layout and _ids_recur(request.path, columns, steps))
    if ids_recur:
        columns = replace(columns, group=None, prompt_id=columns.prompt_id if has_labels else None)
    files = expand(request.path)
    kinds = sorted({(suffix_of(file) or ".jsonl").removeprefix(".") for file in files})
    quarantine = WatchedLog(request.progress, files)
    policies = tuple(name for name in POLICIES if any(isinstance(row.get(name), str) for row in rows))[:1]
    is_evaluation = not (columns.step or columns.group or steps)
    of_list, is_key_named = ("name",) if layout else (), key_of(request.columns) is not None
    are_first = not layout and has_more_rows(request.path, searched)

    def keep_apart(names: ColumnNames) -> tuple[tuple[str, ...], str | None]:
        is_part = are_first and is_evaluation
        benchmark = None if is_key_named else benchmark_column(with_entries(searched), names, are_first=is_part)
        if not is_evaluation:
            return run_columns(searched, names), benchmark
        return setting_columns(searched, names, *of_list, are_first=are_first), benchmark

    (apart, benchmark), numbered = keep_apart(columns), columns.prompt_id
    within = filter(None, (*apart, benchmark))
    question = None if is_key_named else question_of_several(searched, columns, *within)
    if question is not None:
        columns = replace(columns, prompt_id=None, prompt=question)
        apart, benchmark = keep_apart(columns)
    policies = (*apart, *policies)
    sample = sample_column(first, columns)
    numeric = [name for name in names if not any(isinstance(row.get(name), (dict, list)) for row in first)]
    named = reward_columns(numeric, columns.reward or "")
    total, terms = _terms(first, columns, [*named, *(name for name in names if name not in named)])
    roles = set(astuple(columns))
    environment = benchmark or next((name for name in ENVIRONMENTS if name in names and name not in roles), None)
    rewards = tuple(dict.fromkeys([*named, *terms]))
    times = tuple(name for name in _TIMES if name in names)
    flat = FlatColumns(
        names=columns,
        rewards=rewards,
        sample=sample,
        environment=environment,
        steps=steps,
        policies=policies,
        held_out=() if is_evaluation or with_held_out else held_out_columns(names),
        apart=tuple(filter(None, (*(policies if is_evaluation else apart), benchmark))),
        times=times,
        entries=frozenset(names) - set(plain),
        measures_completions=not request.rewards_only and "completion_ids" not in names,
    )
    log = column_log(files, flat, quarantine)
    if are_first and request.rewards_only:
        log = replace(log, validate=partial(without_constants, rows=searched, settings=apart, benchmark=benchmark))
    title = f"{' and '.join(kinds)} with a row a rollout, {counted(len(files), 'file')}"
    if layout:
        inner = partial(nested.to_columns_within, layout=layout, to_columns=flat.to_columns)
        log = replace(log, to_columns=inner, declared=columns_of_whole_rows(inner), lines_hold_many=True)
        title = f"samples in {nested.title_of(layout)} of {outer}"
    inferred = list(_inferred(flat, request.columns, total, terms))
    if ids_recur:
        inferred.append("The column of groups has the same ids with several prompts, so it tells no groups apart.")
    if question is not None:
        inferred.append(f"Under most ids in {numbered!r} questions differ: {question!r} tells prompts apart.")
    episodes = step_numbers([row.get("episode") for row in searched])
    if is_evaluation and len(episodes) > 1 and (np.diff(episodes, prepend=-1) > 0).all():
        inferred.append("'episode' rises from row to row, and counts no steps: of training, --step-column episode.")
    notes = dict[Any, None]()
    groups = reduced_groups(replace(log, note=notes.setdefault), request) or ()
    if flat.held_out and not len(groups):  # a log of nothing but evaluations
        everything = replace(request, so_far=None)
        return read_flat(everything, format=format, with_steps=with_steps, layout=layout, with_held_out=True)
    return assemble_groups(
        request,
        request.source(format, title, inferred=[*inferred, *notes]),
        groups=groups,
        quarantine=quarantine,
    )


def without_constants(
    table: RewardTable, rows: Sequence[Mapping[str, Any]], settings: Sequence[str], benchmark: str | None
) -> RewardTable:
    """The table without the settings and the benchmark of its first rows where no others came.

    They were read as labels in case others follow; a shorter log of the same rows has none, nor is it to differ.
    """

    def without(name: str, labels: Sequence[str]) -> Sequence[str]:
        label = only_text(rows, name)
        is_alone = bool(label) and (set(labels) == {label} or all(of.startswith(f"{label}/") for of in labels))
        return tuple(of.removeprefix(label).removeprefix("/") for of in labels) if is_alone else labels

    policies, prompts = table.policies, table.prompts
    for name in settings:
        policies = tuple(without(name, policies))
    if benchmark is not None and benchmark not in ENVIRONMENTS:
        prompts = without(benchmark, prompts)
    if not any(policies):
        table = replace(table, policy=None)
    return replace(table, policies=policies if any(policies) else (), prompts=prompts)


def question_of_several(rows: Sequence[Mapping[str, Any]], columns: ColumnNames, *within: str) -> str | None:
    """The column of questions that begin otherwise under most ids with several rows, as where each seed has its own."""
    question = first_present(columns_in(rows), ("question", "problem"))
    begins: dict[tuple[str, ...], list[str]] = {}
    for row in rows if question and columns.prompt_id and columns.group is None else ():
        key = tuple(text_of(row.get(name or "")) for name in (columns.step, columns.prompt_id, *within))
        begins.setdefault(key, []).append(text_of(row.get(question or ""))[:_BEGINNING])
    several = [of for of in begins.values() if len(of) > 1]
    return question if sum(len(set(of)) > 1 for of in several) > len(several) / 2 else None


def _ids_recur(path: Path, names: ColumnNames, steps: Mapping[Path, int]) -> bool:
    """Whether ids name several groups of a step, or of steps that no row names: whole groups of several prompts.

    Raises:
        InputError: There is no prompt that would tell them apart, and the same ids come round and round.
    """
    files = expand(path)[: 1 if names.prompt is None else 2]
    rows = [(file, row) for file in files for row in peek(file, num_rows=NUM_SEARCHED)]
    ids = [text_of(row.get(names.group or "")) for _, row in rows]
    numbers = [steps.get(file, row.get(names.step or "")) for file, row in rows]
    if names.prompt is None and (names.step or steps):
        return False
    if names.prompt is None:
        stretches = [(group, len(list(rows_of_group))) for group, rows_of_group in groupby(ids)]
        order = list(dict.fromkeys(ids))
        in_turn = all(group == order[at % len(order)] for at, (group, _) in enumerate(stretches))
        if in_turn and len(stretches) >= 2 * len(order) > 2 and min(size for _, size in stretches[:-1]) > 1:
            raise InputError(
                f"{path} has the same ids in {names.group!r} again and again: groups of several steps would be one.",
                hint=f"Name the step, --step-column NAME; if an id is one group, say so: --group-column {names.group}.",
            )
        return False
    if names.prompt.endswith(CONVERSATION):  # with its answer
        return False
    return are_labels(numbers, ids, [prompt_text_id(row.get(names.prompt)) for _, row in rows])


def _require(columns: ColumnNames, names: tuple[str, ...], path: Path) -> ColumnNames:
    for column, role, hint in (
        (columns.reward, "that is known to be a reward", "Name it: --reward-column NAME."),
        (key_of(columns), "to group rollouts by", "Name one: --group-column NAME, or --prompt-column NAME."),
    ):
        if column is None:
            raise InputError(f"{path} has no column {role}; its columns are {list_names(names)}.", hint=hint)
    return columns


_OF_MANY = frozenset(("acc", "accuracy", "exact_match", "em"))  # rewards that are also names of shares
_VERDICTS = frozenset(USUAL["reward"][USUAL["reward"].index("passed") :])


def _require_numbers(request: ReadRequest, rows: Sequence[Mapping[str, Any]], columns: ColumnNames) -> None:
    """Refuse rewards that are objects or texts in all first rows, and a verdict on no single response."""
    path, name = request.path, columns.reward or ""
    rewards: list[Any] = [row.get(name) for row in rows]
    is_named, is_answered = request.columns.reward is not None, columns.completion is not None
    is_one = len(rows) == len(expand(path)) == 1 and not is_answered
    is_sure = is_named or is_answered
    as_it_is = f"or say that it is one's: --reward-column {name}."
    hint = "Name a column of numbers, as in --reward-column NAME, or write verdicts as 1 and 0."
    if all(map(mapping_of, rewards)):
        entries = list(dict.fromkeys(f"{name}.{entry}" for reward in rewards for entry in reward))
        message = f"has objects as {name!r}, with {list_names(entries)}."
        hint = f"Name the number that the trainer used, as in --reward-column {entries[0]}."
    elif all(isinstance(reward, str) and reward and math.isnan(as_number(reward)) for reward in rewards):
        message = f"has no numbers as {name!r}: the reward is text, {list_names(dict.fromkeys(rewards))}."
    elif is_one and name.rpartition(".")[2] in _OF_MANY:
        message = f"has one row, without a response: its {name!r} is that of a whole evaluation."
        hint = "Give the file with a row for each sample or prompt."
    elif is_one and not is_named and name.endswith("_reward") and name not in USUAL["reward"]:
        message = f"has one row, without a response: whether its {name!r} is a rollout's reward is not known."
        hint = f"Give the file with a row for each sample or prompt, {as_it_is}"
    elif not is_sure and name in _VERDICTS and (of := _list_of_responses(rows)):
        message = (
            f"has one {name!r} for several responses, {of!r}: whether of their vote, or of the best, is not known."
        )
        hint = f"Write a list of as many verdicts as responses, {as_it_is}"
    elif not is_named and name == "success" and len(rows) > 1 and rewards == [True] * len(rows) and _are_calls(rows):
        message = "has 'success' and no 'error' in every row: whether calls or answers succeeded is not known."
        hint = f"Name the verdict on the answer, {as_it_is}"
    else:
        return
    raise InputError(f"{path} {message}", hint=hint)


def _are_calls(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether rows name an error and have none, and what was asked of a model, as a record of calls does."""
    tokens = ("prompt_tokens", "completion_tokens", "usage", "finish_reason", "latency", "latency_ms")
    return all("error" in row and not row["error"] and not row.keys().isdisjoint(tokens) for row in rows)


def _list_of_responses(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The list of as many responses in every row, as turns of an episode seldom are."""
    sizes = {name: {len(list_of(row.get(name))) for row in rows} for name in TEXT_LISTS if name != "content"}
    return next(
        (name for name, of_rows in sizes.items() if len(rows) > 1 and len(of_rows) == 1 and max(of_rows) > 1), None
    )


def _inferred(
    flat: FlatColumns, named_by_user: ColumnNames, total: str | None, terms: Mapping[str, float]
) -> Iterator[str]:
    columns, sample = flat.names, flat.sample
    roles = [("reward", columns.reward, named_by_user.reward), ("step", columns.step, named_by_user.step)]
    guessed = [f"{role} from {name!r}" for role, name, named in roles if name is not None and named is None]
    key = key_of(columns)
    if key not in {named_by_user.group, named_by_user.prompt_id, named_by_user.prompt}:
        guessed.append(f"groups from {key!r}")
    if guessed:
        yield f"Columns were guessed by their names: {', '.join(guessed)}."
    if flat.steps:
        yield "Rows name no step: each file is one, by the number in its name."
    if settings := [name for name in flat.apart if name not in POLICIES]:
        yield f"Rows of one group have the same {' and '.join(map(repr, settings))}."
    if sample is not None:
        yield f"Rollouts of a group are told apart by {sample!r}: a row of the same sample again does not count."
    if key == columns.prompt:
        yield "Rollouts were grouped by the prompt's text; two groups of one prompt at one step would merge."
    if terms:
        text = " + ".join(f"{weight:g} {name}" for name, weight in terms.items()).replace("+ -", "- ")
        yield f"{total!r} is the weighted sum of other columns, its reward functions: {text}."


def _terms(
    rows: Sequence[Mapping[str, Any]], columns: ColumnNames, names: Sequence[str]
) -> tuple[str | None, Mapping[str, float]]:
    """A reward that is a weighted sum of columns, and these: the reward, or one of which the reward is a part."""
    usual = resolve_columns(names, ColumnNames()).reward
    if usual not in (None, columns.reward):
        terms = summed_columns(rows, replace(columns, reward=usual), names)
        if columns.reward in terms:
            return usual, terms
    return columns.reward, summed_columns(rows, columns, names)


FORMAT = Format(
    name="generic",
    looks_for="rows with a reward, a group or prompt, and a step (any JSONL, Parquet or CSV)",
    recognizes=_recognizes,
    read=lambda request: with_run_files(request, read_flat(request, format="generic", with_steps=True)),
    takes=frozenset({"columns"}),
)
