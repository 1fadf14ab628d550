"""Any log with a row a rollout: JSON lines, JSON, Parquet or CSV with a reward and something to group by.

Which column is what is told by usual names; a name that was given always wins.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, astuple, replace
from numpy.typing import NDArray

from gradscope.errors import InputError, UsageError
from gradscope.rollouts.arrays import to_floats
from gradscope.rollouts.function_rewards import reward_terms
from gradscope.rollouts.groups import REWARD, UNKNOWN
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.format import Format
from gradscope.rollouts.readers.parsing.cells import (
    CONVERSATION,
    ENVIRONMENTS,
    before_answers,
    generation_seconds,
    in_environment,
    is_list_of_objects,
    is_not_finite,
    mapping_of,
    parse_messages,
    parse_reward,
    prompt_text_id,
    text_of,
)
from gradscope.rollouts.readers.parsing.quarantine import BROKEN_ADVANTAGE, QuarantineLog, WatchedLog
from gradscope.rollouts.readers.parsing.records import (
    NUM_SEARCHED,
    ReadRequest,
    are_turns,
    assemble_groups,
    list_names,
    peek,
    refuse_copies,
)
from gradscope.rollouts.readers.parsing.tables import Row, expand, read_rows, stem_of, suffix_of
from gradscope.rollouts.readers.reduction.columns import Cells, Columns, texts_in
from gradscope.rollouts.readers.reduction.log import ColumnLog, reduced_groups
from gradscope.rollouts.run import Run
from gradscope.say import counted

USUAL: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "question", "problem", "input", "query", "instruction", "prompt_ids", CONVERSATION),
    "completion": ("completion", "response", "output", "solution", "generation", "answer_text"),
    "reward": (
        *("reward", "score", "total_reward", "reward_total", "final_reward"),
        *("passed", "correct", "is_correct", "success", "acc", "accuracy", "resolved", "exact_match", "em"),
    ),
    "step": (
        *("step", "global_step", "training_step", "train_step", "trainer_step", "iteration"),
        *("optimizer_step", "training_iteration", "update"),
    ),
    "group": ("group_id", "uid", "group", "group_index", "group_idx"),
    "prompt_id": (
        *("prompt_id", "task_id", "problem_id", "question_id", "example_id", "doc_id", "instance_id"),
        *("prompt_idx", "prompt_index", "qid", "query_id"),
    ),
    "advantage": ("advantage", "advantages"),
}
"""Role -> column names, most telling first. Entries of objects, as ``info.reward``, come after all of them."""
PROMPT_NUMBER = re.compile(r"(problem|puzzle|task|question|example|case|item|scenario|exercise)_?(id|idx|index|number)")
"""Further names of a prompt's id, which may as well number the rows: they count where nothing else tells prompts."""

REWARD_LISTS = (
    *("passed", "scores", "score", "rewards", "reward", "correct", "correctness", "is_correct", "success"),
    *("graded_list", "correct_list"),  # of LiveCodeBench, as two text lists below, and of others
    *("rollout_rewards", "group_rewards", "all_rewards", "sample_rewards"),
)
TEXT_LISTS = (
    *("completions", "samples", "responses", "generations", "generation", "solutions", "code", "outputs", "texts"),
    "content",
    *("predictions", "preds", "model_outputs", "model_answers", "code_list", "output_list"),
    *("rollouts", "rollout_texts", "all_responses", "extracted", "extracted_answers", "predicted_answers"),
)
ANSWER_KEYS = (
    *("full_model_response", "completion", "response", "output", "solution", "model_answer", "text", "assistant"),
)
"""Names of lists of rewards and of texts in the row of a prompt, and of the text in an object of such a list."""

_OF_RESPONSE = re.compile(
    r"^[^.]*(info|extra|meta|result|eval|metric|scor|grad|judg|verdict|outcome|test|verif|feedback|check|detail|stat"
    r"|output|response|completion|generation|answer|sample|episode|rollout|traj|data|label|annotation)",
    re.IGNORECASE,
)
"""Objects whose score may be that of a response, by their names; one that says reward is so anywhere."""
POLICIES = ("policy", "model", "model_name")
RUNS = ("run_name", "run_id", "run", "_run", "experiment_name", "experiment", "exp_name")
"""Columns that name the run of a row."""
ARMS = (
    *("condition", "method", "strategy", "variant", "setting", "approach", "baseline", "arm", "algorithm", "framework"),
    *("prompt_type", "prompt_style", "effort", "budget", "mode", "model_id", "checkpoint", "temperature"),
)
"""Names of columns that set policies apart where they differ within a prompt of an evaluation."""
SAMPLE_IDS = ("sample_idx", "sample_index", "sample_id", "rollout_idx", "traj_idx", "trajectory_id", "completion_id")
"""Names of columns that may tell the rollouts of a group apart."""


_STEP_IN_NAME = re.compile(
    r"(?P<before>.*?)(?:step|steps|iter|iteration|update)[-_.=]?(?P<step>[0-9]+)(?P<after>[^0-9].*)?|(?P<bare>[0-9]+)",
    re.IGNORECASE,
)
_HELD_OUT = re.compile(r"eval|valid|test", re.IGNORECASE)


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
    if len(files) < 2 or len(matches) < len(files) or len(rests) > 1 or any(map(_HELD_OUT.search, rests)):
        return {}
    if matches[0]["bare"] is not None:
        first, second = (Counter(text_of(row.get(names.group or "")) for row in peek(file)) for file in files[:2])
        if names.group is None or not any(first[group] > 1 < second[group] for group in first):
            return {}
    return {file: int(match["step"] or match["bare"]) for file, match in zip(files, matches, strict=True)}


def resolve_columns(present: Collection[str], named_by_user: ColumnNames) -> ColumnNames:
    """A column a role, None where no column has it; a UsageError where a given name is not present."""
    columns_of_roles = asdict(named_by_user)
    for role, name in columns_of_roles.items():
        if name is not None and name not in present:
            raise UsageError(
                f"There is no column {name!r} to take as {role.replace('_', ' ')}.",
                hint=f"The columns are {list_names(present)}.",
            )
    entries = [name for name in present if "." in name]
    rewards = [name for name in entries if _entry(name) in USUAL["reward"] or reward_columns([name], "")]
    # Of several, which the trainer's is, or what sum of them, is not known; and the score of a bucket or level is none.
    if len(rewards) > 1 or not any("reward" in name or _OF_RESPONSE.search(name) for name in rewards):
        entries = [name for name in entries if name not in rewards]
    inner = {_entry(name): name for name in reversed(entries)}
    columns = inner | {name: name for name in present}
    guessed = {role: next((columns[name] for name in names if name in columns), None) for role, names in USUAL.items()}
    if key_of(ColumnNames(**guessed)) is None:
        guessed["prompt_id"] = next(filter(PROMPT_NUMBER.fullmatch, present), None)
    if named_by_user.prompt is not None:  # somebody who names the prompt means to tell prompts apart by it
        guessed["prompt_id"] = None
    if named_by_user.prompt is not None or named_by_user.prompt_id is not None:
        guessed["group"] = None
    return ColumnNames(**{role: columns_of_roles[role] or guessed[role] for role in USUAL})


def _entry(name: str) -> str:
    return name.partition(".")[2]


def with_entries(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows with the entries of their objects beside them, as ``object.entry``."""
    return [
        dict(row)
        | {f"{of}.{name}": cell for of, cells in row.items() for name, cell in mapping_of(cells).items()}
        | dict(row)  # a key of the row's own wins
        for row in rows
    ]


def reward_columns(present: Iterable[str], main: str) -> tuple[str, ...]:
    """The main reward's column and others that are rewards by name: ``reward/x``, ``x_reward`` and usual ones."""
    usual = USUAL["reward"]
    return tuple(
        name
        for name in present
        if name == main
        or name in usual
        or name.startswith(("reward/", "rewards/", "reward.", "rewards."))
        or (name.startswith("reward_") and "." not in name)  # no entry of reward_info
        or name.endswith("_reward")
    )


def summed_columns(
    rows: Sequence[Mapping[str, Any]], columns: ColumnNames, names: Iterable[str]
) -> Mapping[str, float]:
    """The columns that the reward is a weighted sum of, by the first rows of a log.

    A column that is the same throughout each group, such as the mean of the group, is none unless its name says so.

    Returns:
        Column -> weight; empty where there are fewer than two, or none for sure.
    """
    roles = set(astuple(columns))
    keys = [name for name in (columns.step, columns.group, columns.prompt_id, columns.prompt) if name is not None]
    of_group: dict[str, list[int]] = {}
    for at, row in enumerate(rows):
        of_group.setdefault(str([row.get(key) for key in keys]), []).append(at)
    numbers = {
        name: np.array([float(_as_number(row.get(name))) for row in rows])
        for name in names
        if name not in roles and name not in SAMPLE_IDS
    }
    named = reward_columns(numbers, "")
    varying = {
        name: values
        for name, values in numbers.items()
        if name in named or any(len(set(values[group].tolist())) > 1 for group in of_group.values())
    }
    reward = np.array([float(_as_number(row.get(columns.reward or ""))) for row in rows])
    terms = reward_terms(reward, varying) or {}
    return terms if len(terms) > 1 else {}


def _as_number(cell: Any) -> float:
    """A cell as a number, text of CSV included; NaN where it is none."""
    value = parse_reward(cell, from_text=isinstance(cell, str))
    return math.nan if isinstance(value, str) else value


def _runs(rows: Sequence[Mapping[str, Any]], columns: ColumnNames) -> tuple[str, ...]:
    """The columns that tell runs apart: most of their texts stand in several rows of a group, as no sample's would."""
    counters = {name: Counter[tuple[str, ...]]() for name in (*RUNS, "method", "algorithm", "arm")}
    for row, (name, sizes) in product(rows, counters.items()):
        if text := text_of(row.get(name)):
            sizes[text_of(row.get(columns.step or "")), text_of(row.get(key_of(columns) or "")), text] += 1
    return tuple(name for name, sizes in counters.items() if sum(map((1).__lt__, sizes.values())) > len(sizes) / 2)


def _arms(rows: Sequence[Mapping[str, Any]], columns: ColumnNames) -> tuple[str, ...]:
    """The settings that differ within most prompts of an evaluation, so that their samples are of several policies."""
    by_prompt: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_prompt.setdefault(text_of(row.get(key_of(columns) or "")), []).append(row)
    groups = [group for group in by_prompt.values() if len(group) > 1]
    differ = {arm: sum(len({text_of(row.get(arm)) for row in group}) > 1 for group in groups) for arm in ARMS}
    return tuple(arm for arm, num in differ.items() if num > len(groups) / 2)


def sample_column(rows: Sequence[Mapping[str, Any]], columns: ColumnNames) -> str | None:
    """The column that tells the rollouts of a group apart, by its name and by what it holds.

    Some logs call the prompt a sample: then the same id stands in every row of a group, and the column is none.

    Returns:
        The first column with such a name of which hardly any row of the same step and group has the same id; else None.

    Example:
        >>> named = ColumnNames(group="uid")
        >>> sample_column([{"uid": 1, "sample_id": 0}, {"uid": 1, "sample_id": 1}], named)
        'sample_id'
        >>> sample_column([{"uid": 1, "sample_id": 7}, {"uid": 1, "sample_id": 7}], named)
    """
    keys = [name for name in (columns.step, columns.group, columns.prompt_id, columns.prompt) if name is not None]
    for name in SAMPLE_IDS:
        ids = [str([row.get(key) for key in (*keys, name)]) for row in rows if row.get(name) is not None]
        if name not in keys and ids and len(set(ids)) > len(ids) / 2:
            return name
    return None


class FlatColumns(Struct, frozen=True, kw_only=True):
    """The columns of a log with a row a rollout."""

    names: ColumnNames  # by role; the reward and something to group by are known
    rewards: tuple[str, ...]  # those of reward functions
    sample: str | None  # the one that tells the rollouts of a group apart
    environment: str | None = None  # the one that names a row's environment, data source or agent
    steps: Mapping[Path, int] = {}  # the step of each file, where rows name none
    policies: tuple[str, ...] = ()  # those that name the policy
    num_apart: int = 0  # how many of them, from the first, tell groups apart
    times: tuple[str, ...] = ()  # those that ``generation_seconds`` looks at
    entries: frozenset[str] = frozenset()  # those that are entries of objects

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
        names, all_cells = self.names, rows.with_entries(self.entries)
        rows = all_cells.changed(names.prompt or "", before_answers) if self.holds_answers else all_cells
        reward = rows.numbers(names.reward)
        numbers: dict[str, NDArray[Any]] = {"reward": reward}
        for name in self.rewards:
            numbers[REWARD + name] = reward if name == names.reward else rows.numbers(name)
        if self.times and not rows.from_text:
            timed = zip(*map(rows.cells, self.times), strict=True)
            numbers["seconds"] = to_floats(
                generation_seconds(dict(zip(self.times, of_row, strict=True))) for of_row in timed
            )
        if names.advantage is not None and not rows.from_text:
            numbers["advantage"] = rows.numbers(names.advantage)
        parts = [texts_in(rows.names(name)) for name in self.policies]
        sampled_by, apart = (
            ["/".join(filter(None, of_row)) for of_row in zip(*of_rows, strict=True)]
            for of_rows in (parts, parts[: self.num_apart])
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
            return ids if self.environment is None else list(map(in_environment, cells.cells(self.environment), ids))

        def details(at: int) -> dict[str, Any]:
            asked = rows.cell(names.prompt, at)
            is_cut = self.holds_answers and isinstance(asked, list) and asked
            answer = all_cells.cell(names.prompt, at)[len(asked) :] or None if is_cut else None
            completion = rows.cell(names.completion, at) if names.completion else answer
            return {"completion": text_of(completion), "messages": parse_messages(asked)}

        return Columns(
            step=rows.steps(names.step) if names.step else np.full(len(rows), self.steps.get(rows.path, 0)),
            group=[name and f"{of}/{name}" for of, name in zip(apart, texts_in(group), strict=True)]
            if self.num_apart
            else group,
            no_group=f"{self.key} is missing",
            prompts=prompts,
            texts=None if names.prompt is None else lambda firsts: list(map(text_of, rows.cells(names.prompt, firsts))),
            numbers=numbers,
            no_reward=partial(rows.no_reward, names.reward or ""),
            is_odd=rows.not_finite(names.advantage),
            samples=samples,
            policies=tuple(policies),
            has_all_functions=True,
            details=details,
            flaw=lambda at: BROKEN_ADVANTAGE if is_not_finite(rows.cell(names.advantage, at)) else None,
        )


def key_of(names: ColumnNames) -> str | None:
    """The column that rollouts are grouped by; None where there is none."""
    return names.group or names.prompt_id or names.prompt


_TIMES = ("generation_seconds", "timing")


_NUM_PEEKED = 200  # elements of a document's list by which columns are known


def column_log(files: Sequence[Path], columns: FlatColumns, quarantine: QuarantineLog) -> ColumnLog:
    """How the files of a log are read, in their order; what is set aside goes to the quarantine."""
    names = columns.names
    roles = (names.reward, names.step, columns.key, names.prompt_id, names.advantage)
    further = (columns.sample, columns.environment, *columns.policies, *columns.rewards, *columns.times, names.prompt)
    texts = () if names.prompt is None or names.prompt in columns.entries else (names.prompt,)
    read = [name for name in (*roles, *further) if name is not None and name not in texts]
    heads = [name.partition(".")[0] for name in read if name in columns.entries]
    wanted = dict.fromkeys([*heads, *(name for name in read if name not in columns.entries)])
    return ColumnLog(
        files=files,
        rows=read_rows,
        to_columns=columns.to_columns,
        keys=tuple(wanted),
        raw=texts,
        quarantine=quarantine,
        looks_at_path=bool(columns.steps),
    )


def _recognizes(request: ReadRequest) -> bool:
    """Whether the path holds rows with a reward and something to group by, under usual names."""
    columns = resolve_columns(columns_in(with_entries(peek(request.path))), request.columns)
    return columns.reward is not None and key_of(columns) is not None


def read_flat(request: ReadRequest, *, format: str, with_steps: bool, listed: str | None = None) -> Run:
    """Read rows that are rollouts, or a document's list of them; without steps, all rows of a prompt are one group."""
    rows = peek(request.path)
    rows = rows if listed is None else rows[0][listed][:_NUM_PEEKED]
    plain, first = columns_in(rows), with_entries(rows)
    names = columns_in(first)
    columns = _require(resolve_columns(names, request.columns), names, request.path)
    if all(mapping_of(row.get(columns.reward or "")) for row in rows):
        inner = [name for name in names if name.startswith(f"{columns.reward}.")]
        hint = f"Name the number that the trainer used, as in --reward-column {inner[0]}."
        raise InputError(f"{request.path} has objects as {columns.reward!r}, with {list_names(inner)}.", hint=hint)
    is_guess = columns.step is not None and request.columns.step is None
    if is_guess and are_turns({name: [row.get(name) for row in rows] for name in plain}):
        raise InputError(
            f"{request.path} has a row for each step of an episode: {columns.step!r} counts no updates.",
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
    ids_recur = is_guess and listed is None and _ids_recur(request.path, columns, steps)
    if ids_recur:
        columns = replace(columns, group=None, prompt_id=None)
    files = expand(request.path)
    kinds = sorted({(suffix_of(file) or ".jsonl").removeprefix(".") for file in files})
    quarantine = WatchedLog(request.progress, files)
    policies = tuple(name for name in POLICIES if any(isinstance(row.get(name), str) for row in rows))[:1]
    is_evaluation = not (columns.step or columns.group or steps)
    searched = first if listed else peek(request.path, num_rows=NUM_SEARCHED)
    apart = _arms(searched, columns) if is_evaluation else _runs(searched, columns)
    policies = (*apart, *policies)
    sample = sample_column(first, columns)
    named = reward_columns(names, columns.reward or "")
    total, terms = _terms(first, columns, [*named, *(name for name in names if name not in named)])
    roles = set(astuple(columns))
    environment = next((name for name in ENVIRONMENTS if name in names and name not in roles), None)
    rewards = tuple(dict.fromkeys([*named, *terms]))
    times = tuple(name for name in _TIMES if name in names)
    flat = FlatColumns(
        names=columns,
        rewards=rewards,
        sample=sample,
        environment=environment,
        steps=steps,
        policies=policies,
        num_apart=len(policies if is_evaluation else apart),
        times=times,
        entries=frozenset(names) - set(plain),
    )
    log = column_log(files, flat, quarantine)
    title = f"{' and '.join(kinds)} with a row a rollout, {counted(len(files), 'file')}"
    if listed is not None:
        log = replace(log, rows=partial(_rows_of_list, name=listed), keys=(), raw=())
        title = f"samples in the list {listed!r} of a document"
    inferred = list(_inferred(flat, request.columns, total, terms))
    if ids_recur:
        inferred.append("The column of groups has the same ids with several prompts, so it tells no groups apart.")
    return assemble_groups(
        request,
        request.source(format, title, inferred=inferred),
        groups=reduced_groups(log, request) or (),
        quarantine=quarantine,
    )


def _ids_recur(path: Path, names: ColumnNames, steps: Mapping[Path, int]) -> bool:
    """Whether ids name several groups of a step, or of steps that no row names: whole groups of several prompts.

    Raises:
        InputError: There is no prompt that would tell them apart, and the same ids come round and round.
    """
    files = expand(path)[: 1 if names.prompt is None else 2]
    rows = [(file, row) for file in files for row in peek(file, num_rows=NUM_SEARCHED)]
    ids = [(steps.get(file, row.get(names.step or "")), text_of(row.get(names.group or ""))) for file, row in rows]
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
    prompts = (prompt_text_id(row.get(names.prompt)) for _, row in rows)
    sizes = Counter(zip(map(str, ids), prompts, strict=True))
    num_prompts = Counter(group for group, _ in sizes)
    are_whole = [size > 1 for (group, _), size in sizes.items() if num_prompts[group] > 1]
    return sum(are_whole) > len(are_whole) / 2


def _rows_of_list(file: Path, quarantine: QuarantineLog, *, name: str) -> Iterator[Row]:
    for _, document in read_rows(file, quarantine):
        yield from ((f"{file}:{number}", row) for number, row in enumerate(document[name], start=1))


def list_of_samples(rows: Sequence[Mapping[str, Any]], request: ReadRequest) -> str | None:
    """The name of the one list of a document whose objects are samples with a reward and a prompt each."""
    if len(rows) != 1 or len(expand(request.path)) != 1:
        return None
    lists = ((name, cell) for name, cell in rows[0].items() if is_list_of_objects(cell))
    holding = [name for name, samples in lists if _are_samples(samples, request.columns)]
    return holding[0] if len(holding) == 1 else None


def _are_samples(samples: Sequence[Mapping[str, Any]], named: ColumnNames) -> bool:
    first = with_entries(samples[:_NUM_PEEKED])
    names = columns_in(first)
    if not set(names).issuperset(filter(None, astuple(named))):
        return False
    columns = resolve_columns(names, named)
    return None not in (columns.reward, key_of(columns)) and not isinstance(first[0].get(columns.reward or ""), list)


def columns_in(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Every key of some rows, in order of first appearance."""
    return tuple({name: None for row in rows for name in row})


def _require(columns: ColumnNames, names: tuple[str, ...], path: Path) -> ColumnNames:
    for column, role, hint in (
        (columns.reward, "that is known to be a reward", "Name it: --reward-column NAME."),
        (key_of(columns), "to group rollouts by", "Name one: --group-column NAME, or --prompt-column NAME."),
    ):
        if column is None:
            raise InputError(f"{path} has no column {role}; its columns are {list_names(names)}.", hint=hint)
    return columns


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
    if settings := [name for name in flat.policies[: flat.num_apart] if name not in POLICIES]:
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
    read=lambda request: read_flat(request, format="generic", with_steps=True),
    takes=frozenset({"columns"}),
)
