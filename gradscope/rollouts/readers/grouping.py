"""What tells groups apart beside their ids, by the first rows of a log: settings, benchmarks, what was asked."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace

from gradscope.rollouts.groups import RewardTable
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers import column_roles as roles
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.reduction.columns import step_numbers

_BENCHMARKS = (*parse.ENVIRONMENTS, *roles.BENCHMARKS)
_BEGINNING = 40  # characters of a question: the answers it offers may be in another order each time
_OF_TALK = re.compile(
    r"answer|info\.(\w+_)?(seed|id|idx|index|answer|target|secret|word)"
)  # the like of right answers beside a conversation
_COUNTS_ROWS = re.compile(r"seed|(^|_)(id|idx|index|number|num|rank|fold|worker|device|gpu|node|batch)$", re.IGNORECASE)
"""Names of columns whose numbers or words tell rows apart, and set nothing."""
_BY_DESIGN = 10  # prompts that do not by chance have all their samples divided into parts of one size

_EPISODE_ID = re.compile(r"(episode|traj|trajectory)_(id|uid|uuid|key)")
_COUNTS_TURNS = re.compile(
    r"(env_|event_|action_)?(turn|step|timestep|time|event|action|t)(_?(id|idx|index|number|num))?"
)


class Grouping(Struct, frozen=True, kw_only=True):
    """The columns that tell groups apart."""

    names: ColumnNames  # by role; the prompt is the question where one id has several
    settings: tuple[str, ...] = ()  # those of policies or runs, each of which has groups of its own
    benchmark: str | None = None  # the one within whose names the ids of prompts count
    has_questions: bool = False  # whether the prompt is the question, as ids do not tell prompts apart

    def without_constants(self, table: RewardTable, rows: Sequence[Mapping[str, Any]]) -> RewardTable:
        """The table without the settings and the benchmark of its first rows where no others came.

        They were read as labels in case others follow; a shorter log of the same rows has none, nor is it to differ.
        """

        def without(name: str, labels: Sequence[str]) -> Sequence[str]:
            label = roles.only_text(rows, name)
            is_alone = bool(label) and (set(labels) == {label} or all(of.startswith(f"{label}/") for of in labels))
            return tuple(of.removeprefix(label).removeprefix("/") for of in labels) if is_alone else labels

        policies, prompts = table.policies, table.prompts
        for name in self.settings:
            policies = tuple(without(name, policies))
        if self.benchmark is not None and self.benchmark not in parse.ENVIRONMENTS:
            prompts = without(self.benchmark, prompts)
        if not any(policies):
            table = replace(table, policy=None)
        return replace(table, policies=policies if any(policies) else (), prompts=prompts)


def grouping_of(
    rows: Sequence[Mapping[str, Any]],
    names: ColumnNames,
    settings_of: Callable[[ColumnNames], tuple[str, ...]],
    *,
    is_key_named: bool,
    are_first: bool,
) -> Grouping:
    """How rows are grouped by columns of known roles.

    Args:
        rows: The first of a log, enough to see ids recur.
        names: Its columns by role.
        settings_of: The settings, once the roles are known.
        is_key_named: Whether the user named what tells prompts apart: then no benchmark or question does.
        are_first: Whether more rows follow, among which a benchmark that is the same so far may change.
    """

    def of(names: ColumnNames) -> Grouping:
        benchmark = None if is_key_named else benchmark_column(rows, names, are_first=are_first)
        return Grouping(names=names, settings=settings_of(names), benchmark=benchmark)

    by_id = of(names)
    within = filter(None, (*by_id.settings, by_id.benchmark))
    question = None if is_key_named else _question_of_several(rows, names, *within)
    if question is None:
        return by_id
    return replace(of(replace(names, prompt_id=None, prompt=question)), has_questions=True)


def counted_step(
    rows: Sequence[Mapping[str, Any]], key: str | None, *, are_first: bool, are_groups: bool = False
) -> str | None:
    """The column that counts as the step where none is called one, by rows that are a rollout or a group each.

    Its numbers never fall, and prompts have several rollouts of a policy under each; inspect's epochs number samples
    instead. Of rows that are only the first of a log, it may have been the same so far.
    """
    for name in filter(rows[0].__contains__, roles.INSTEAD_OF_STEPS) if rows and key else ():
        steps = step_numbers([row.get(name) for row in rows])
        ids = ([parse.text_of(row.get(of)) for of in (key or "", *roles.ARMS)] for row in rows)
        sizes = Counter(zip(steps.tolist(), map(tuple, ids), strict=True))
        are_several = are_groups or sum(size > 1 for size in sizes.values()) > len(sizes) / 2
        if are_several and (np.diff(steps, prepend=0) >= 0).all() and (are_first or steps[0] < steps[-1]):
            return name
    return None


def are_parts_of_rollouts(rows: Sequence[Mapping[str, Any]], columns: ColumnNames) -> bool:
    """Whether most rollouts, by the names of their episodes, have several rows, which some column counts."""
    present = roles.columns_in(rows)
    counters = list(filter(_COUNTS_TURNS.fullmatch, present))
    for name in filter(_EPISODE_ID.fullmatch, present if counters else ()):
        parts: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
        for row in rows:
            ids = (columns.step, roles.key_of(columns), name)
            parts.setdefault(tuple(parse.text_of(row.get(of or "")) for of in ids), []).append(row)
        several = [of_rollout for of_rollout in parts.values() if len(of_rollout) > 1]
        if len(several) > len(parts) / 2 and any(all(_rises(of, counter) for of in several) for counter in counters):
            return True
    return False


def _rises(rows: Iterable[Mapping[str, Any]], name: str) -> bool:
    numbers = [roles.as_number(row.get(name)) for row in rows]
    return numbers == sorted(numbers) and numbers[0] < numbers[-1]


def run_columns(rows: Sequence[Mapping[str, Any]], columns: ColumnNames) -> tuple[str, ...]:
    """The columns that tell runs apart: most of their texts stand in several rows of a group, as no sample's would."""
    counters = {name: Counter[tuple[str, ...]]() for name in (*roles.RUNS, "method", "algorithm", "arm")}
    step, key = columns.step or "", roles.key_of(columns) or ""
    for row, (name, sizes) in product(rows, counters.items()):
        if text := parse.text_of(row.get(name)):
            sizes[parse.text_of(row.get(step)), parse.text_of(row.get(key)), text] += 1
    return tuple(name for name, sizes in counters.items() if sum(size > 1 for size in sizes.values()) > len(sizes) / 2)


def setting_columns(
    rows: Sequence[Mapping[str, Any]], columns: ColumnNames, *further: str, are_first: bool = False
) -> tuple[str, ...]:
    """The settings that differ within most prompts of an evaluation, so that their samples are of several policies.

    Of rows that are only the first of a log, also those that have been the same so far: another may follow.
    """
    by_prompt: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_prompt.setdefault(parse.text_of(row.get(roles.key_of(columns) or "")), []).append(row)
    groups = [group for group in by_prompt.values() if len(group) > 1]
    arms = (*roles.ARMS, *further)
    num = {arm: sum(len({parse.text_of(row.get(arm)) for row in group}) > 1 for group in groups) for arm in arms}
    so_far = [arm for arm in arms if are_first and roles.only_text(rows, arm)]
    present = roles.columns_in(rows)
    known_names = {*arms, *astuple(columns), *roles.reward_columns(present, "")}
    free = (name for name in present if name not in known_names and not _COUNTS_ROWS.search(name))
    levels = (name for name in free if _are_levels(groups, name) or _are_conditions(groups, name, columns.reward))
    designed = levels if len(groups) > 2 else ()
    return (*so_far, *(arm for arm in num if num[arm] > len(groups) / 2), *designed)


def _are_levels(groups: Iterable[Iterable[Mapping[str, Any]]], name: str) -> bool:
    """Whether every prompt has the same numbers equally often, and these count nothing, as the places of samples do."""
    cells = ([row.get(name) for row in group] for group in groups)
    sizes = [Counter(math.nan if type(cell) is bool else roles.as_number(cell) for cell in of) for of in cells]
    levels = sorted(sizes[0])
    are_alike = all(sorted(of) == levels and len(set(of.values())) == 1 < len(of) for of in sizes)
    return are_alike and (levels != [levels[0] + at for at in range(len(levels))] or levels[0] not in (0, 1))


def _are_conditions(groups: Sequence[Iterable[Mapping[str, Any]]], name: str, reward: str | None) -> bool:
    """Whether a few words, not verdicts, divide the samples of most prompts into parts of one size."""
    # A part is of several samples; of one alone where words are those of prompts, or rows hold several samples each.
    sizes, verdicts = Counter[tuple[int, str | bool]](), set[tuple[str | bool, str]]()
    for at, row in ((at, row) for at, group in enumerate(groups) for row in group):
        if not isinstance(cell := row.get(name), (str, bool)):
            return False
        sizes[at, cell] += 1
        verdicts.add((cell, parse.text_of(row.get(reward or ""))))
    words, num = {word for _, word in sizes}, set(sizes.values())
    least = 1 if reward is None or name in roles.USUAL["prompt"] else 2
    are_few = len(groups) >= _BY_DESIGN and len(words) < len(groups) and len(sizes) > 1.5 * len(groups)
    are_words = are_few and all(type(word) is bool or math.isnan(roles.as_number(word)) for word in words)
    is_free = name not in (*_BENCHMARKS, *roles.POLICIES) and (reward is None or len(verdicts) > len(words))
    return are_words and is_free and len(num) == 1 and min(num) >= least


def benchmark_column(rows: Sequence[Mapping[str, Any]], columns: ColumnNames, *, are_first: bool = False) -> str | None:
    """The column within whose names ids count, as of files in which several benchmarks number their prompts from 0.

    Where each value of a column has the same prompt, its id needs no more to name it. Where only their texts tell
    prompts apart, it is the right answer that differs within a text, or what an environment was told, if that recurs.
    Of rows that are only the first of a log, it may have been the same so far.
    """
    key = columns.group or columns.prompt_id
    # Beside a conversation as completion, as verifiers logs it, what that was about counts like an answer.
    is_talk = any(isinstance(row.get(columns.completion or ""), list) for row in rows)
    present = roles.columns_in(rows) if key is None else ()
    answers = (*filter(_OF_TALK.fullmatch, present if is_talk else ()), *filter(roles.RIGHT_ANSWER.fullmatch, present))
    names = answers if key is None else _BENCHMARKS
    for name in names if key or columns.prompt else ():
        prompts: dict[tuple[str, str], dict[str, str]] = {}
        sizes = Counter[tuple[str, str, str]]()
        for row in rows if name not in astuple(columns) else ():
            if of := parse.text_of(row.get(name)):
                text = parse.prompt_text_id(row.get(columns.prompt)) if columns.prompt else ""
                prompt = parse.text_of(row.get(columns.step or "")), parse.text_of(row.get(key)) if key else text
                prompts.setdefault(prompt, {}).setdefault(of, text if key else "")
                sizes[*prompt, of] += 1
        several = [list(named.values()) for named in prompts.values() if len(named) > 1]
        recurs = not name.startswith("info.") or min(sizes.values(), default=0) > 1
        if recurs and sum(texts[0] == "" or len(set(texts)) > 1 for texts in several) > len(several) / 2:
            return name
    return next((name for name in names if key and are_first and roles.only_text(rows, name)), None)


def _question_of_several(rows: Sequence[Mapping[str, Any]], columns: ColumnNames, *within: str) -> str | None:
    """The column of questions that begin otherwise under most ids with several rows, as where each seed has its own."""
    question = roles.first_present(roles.columns_in(rows), ("question", "problem"))
    begins: dict[tuple[str, ...], list[str]] = {}
    for row in rows if question and columns.prompt_id and columns.group is None else ():
        key = tuple(parse.text_of(row.get(name or "")) for name in (columns.step, columns.prompt_id, *within))
        begins.setdefault(key, []).append(parse.text_of(row.get(question or ""))[:_BEGINNING])
    several = [of for of in begins.values() if len(of) > 1]
    return question if sum(len(set(of)) > 1 for of in several) > len(several) / 2 else None


def num_turns_asked(conversations: Iterable[Any]) -> int | None:
    """How many of the assistant's messages prompts hold, where those that follow were sampled; None: all but the last.

    Sampled is the first message that most conversations which are the same before it differ in: those of examples, and
    of a dialogue that is to go on, they have in common.
    """
    asked = [of for of in conversations if isinstance(of, list) and parse.before_answer(of) is not of]
    turns = [[at for at, message in enumerate(of) if message["role"] == "assistant"] for of in asked]
    for number in range(max(map(len, turns), default=0)):
        answers: dict[str, list[str]] = {}
        for of, at in zip(asked, turns, strict=True):
            if len(at) > number:
                answers.setdefault(parse.prompt_text_id(of[: at[number]]), []).append(parse.text_of(of[at[number]]))
        differ = [len(set(of)) > 1 for of in answers.values() if len(of) > 1]
        if sum(differ) > len(differ) / 2:
            are_last = all(parse.before_answer(of, number) == parse.before_answer(of) for of in asked)
            return None if are_last else number
    return None
