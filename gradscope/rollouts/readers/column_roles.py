"""Which column of a log with a row a rollout is what, by usual names and by what the first rows hold.

A name that was given always wins. Groups are distinguished by ids, settings, benchmarks and questions.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from msgspec import UNSET, Struct
from msgspec.structs import asdict, astuple, replace

from gradscope.errors import UsageError
from gradscope.rollouts.arrays import Flags
from gradscope.rollouts.function_rewards import adds_up, reward_terms
from gradscope.rollouts.groups import RewardTable
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing.records import list_names
from gradscope.rollouts.readers.parsing.tables import STEP_NAMES, entry_in
from gradscope.rollouts.readers.reduction.numbers import step_numbers

_VERDICTS = ("passed", "correct", "success", "resolved", "solved")
USUAL: dict[str, tuple[str, ...]] = {
    "prompt": (
        *("prompt", "question", "problem", "input", "query", "instruction", "prompt_text", "prompt_ids"),
        parse.CONVERSATION,
    ),
    "completion": ("completion", "response", "output", "solution", "generation", "answer_text"),
    "reward": (
        *("reward", "score", "total_reward", "reward_total", "final_reward", "episode_return"),
        *(f"{prefix}{name}" for name in _VERDICTS for prefix in ("", "is_", "is")),
        *("acc", "accuracy", "exact_match", "em", "symbolic_correct"),
    ),
    "step": STEP_NAMES,
    "group": ("group_id", "uid", "group", "group_index", "group_idx"),
    "prompt_id": (
        "_ng_task_index",  # of NeMo Gym, beside which ids count within a task's own data
        *("prompt_id", "task_id", "problem_id", "question_id", "example_id", "doc_id", "instance_id"),
        *("prompt_idx", "prompt_index", "qid", "query_id"),
    ),
    "advantage": ("advantage", "advantages", "adv"),
}
"""Role -> column names, most telling first. Entries of objects, as ``info.reward``, come after all of them."""
PROMPT_NUMBER = re.compile(r"(problem|puzzle|task|question|example|case|item|scenario|exercise)_?(id|idx|index|number)")
"""Further names of a prompt's id, which may as well number the rows: they count where nothing else tells prompts."""

RIGHT_ANSWER = re.compile(
    r"(?i)ground_?truth.*|correct_(answer|index|idx|text|option|choice|letter|label)"
    r"|(gt|gold|true|expected|ref|reference|target)(_(answer|label|letter|output|text))?"
)
"""Names of what all samples of a prompt share, and prompts of one text, as games that all begin alike, do not."""

REWARD_LISTS = (
    *("passed", "scores", "score", "rewards", "reward", "correct", "correctness", "is_correct", "success"),
    *("verdicts", "grading", "graded_list", "correct_list", "accs"),  # of LiveCodeBench and others
    *("rollout_rewards", "group_rewards", "all_rewards", "sample_rewards", "correctness_math_verify"),
)
TEXT_LISTS = (
    *("completions", "samples", "responses", "generations", "generation", "solutions", "code", "outputs", "texts"),
    *("content", "ys", "predictions", "preds", "model_outputs", "model_answers", "code_list", "output_list"),
    *("rollouts", "rollout_texts", "all_responses", "extracted", "extracted_answers", "predicted_answers"),
)
RESPONSE_IDS = ("completion_ids", "completion_token_ids", "response_ids", "response_token_ids")
ANSWER_KEYS = (
    *("full_model_response", "completion", "response", "output", "solution", "model_answer", "text", "assistant"),
    "output_text",
)
"""Names of lists of rewards, texts and token ids in the row of a prompt, and of the text in an object of such lists."""

OFFERED = re.compile(
    r"(\w+_)?(option|choice|alternative|distractor|passage|context|document|doc|chunk|source|citation|hit)s?$"
    r"|(\w+_)?(retrieved|retrieval|evidence)(_\w+)?$",
    re.IGNORECASE,
)
"""How lists are called of what a question comes with: the answers it offers, or texts that were retrieved for it."""
_RESPONSE_OBJECTS = re.compile(
    r"(?i)^[^.]*(info|extra|meta|result|eval|metric|scor|grad|judg|verdict|outcome|test|verif|feedback|check|detail|stat"
    r"|output|response|completion|generation|answer|sample|episode|rollout|traj|data|label|annotation)"
)
"""Objects whose score may be that of a response, by their names; one that says reward is so anywhere."""
_CALL_COLUMNS = ("status_code", "http_status", "retry_count", "request_id", "call_id", "request_time", "cached")
"""What stands next to a ``success`` that is a call's, which came back, and not its answer's."""
_AGGREGATES = re.compile(
    r"reward[_/]|(mean|avg|average|median|max|min|best|peak|top|std|sum|group|batch|baseline|expected|(last|first)_?\d*)_"
)
"""Rewards by their names that are none of a rollout alone: of reward functions, or of several rollouts."""
STEP_SUBSTITUTES = ("iter", "policy_version", "weight_version", "epoch", "round", "episode")
"""Columns that may count as steps where no column is called one."""
POLICIES = ("policy", "model", "model_name")
RUNS = ("run_name", "run_id", "run", "_run", "experiment_name", "experiment", "exp_name")
"""Columns that name the run of a row."""
ARMS = (
    *("condition", "method", "strategy", "variant", "setting", "approach", "baseline", "arm", "algorithm", "framework"),
    *("prompt_type", "prompt_style", "effort", "budget", "mode", "model_id", "checkpoint", "temperature"),
    *("phase", "stage", "version", "adapter", "agent", "system", "sampler", "decoding", "sampling_method"),
)
"""Names of columns that set policies apart where they differ within a prompt of an evaluation."""
BENCHMARKS = (
    *("benchmark", "benchmark_name", "task", "task_name", "dataset_name", "subset", "domain", "subject", "split"),
)
"""Names of columns, as well as those of environments, that say what a prompt's id counts within."""
_EVALUATION = ("eval", "evaluation", "val", "validation")
_HELD_OUT: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("split", "phase", "stage", "mode"), (*_EVALUATION, "valid", "dev", "test", "held_out", "heldout")),
    **dict.fromkeys(("type", "kind", "event", "log_type", "event_type", "record_type", "row_type"), _EVALUATION),
    **dict.fromkeys(("is_eval", "is_val", "is_validation", "is_test"), ("true", "1")),
    **dict.fromkeys(("is_train", "is_training"), ("false", "0")),
}
"""Name of a column -> what it says of rows of an evaluation during training."""
SAMPLE_IDS = (
    *("sample_idx", "sample_index", "sample_id", "rollout_idx", "traj_idx", "trajectory_id", "completion_id"),
    "_ng_rollout_index",
)
"""Names of columns that may tell the rollouts of a group apart."""
TRIALS = ("trial", "attempt", "attempt_id", "attempt_idx", *SAMPLE_IDS)
"""Names of columns that number the samples of a prompt."""


def resolve_columns(present: Collection[str], named_by_user: ColumnNames) -> ColumnNames:
    """A column a role, None where no column has it; a UsageError where a given name is not present."""
    columns_of_roles = asdict(named_by_user)
    for role, name in columns_of_roles.items():
        if name is not None and name not in present:
            raise UsageError(
                f"There is no column {name!r} to take as {role.replace('_', ' ')}.",
                hint=f"The columns are {list_names(present)}.",
            )
    present = [name for name in present if not is_of_call(name, present)]
    are_of_runs = "params" not in present and any(name.startswith("params.") for name in present)  # of MLflow's table
    entries = [name for name in present if "." in name and not (are_of_runs and name.startswith("metrics."))]
    entry = {name: name.partition(".")[2] for name in entries}
    rewards = dict.fromkeys(name for name in entries if entry[name] in USUAL["reward"] or reward_columns([name], ""))
    # Of several functions or objects, which reward the trainer's is, or what sum of them, is not known, but a score and
    # whether it passed are one verdict; and the score of a bucket or level is none.
    verdicts = [name for name in rewards if entry[name] in USUAL["reward"] and not name.startswith("reward")]
    objects = {name.partition(".")[0] for name in rewards}
    are_one = len(rewards) == 1 or (len(objects) == 1 and len(verdicts) == len(rewards))
    if not are_one or not any("reward" in name or _RESPONSE_OBJECTS.search(name) for name in rewards):
        entries = [name for name in entries if name not in rewards]
    inner = {entry[name]: name for name in reversed(entries)}
    columns = {_usual_spelling(name): name for name in reversed(list(present)) if "." not in name}
    columns |= inner | {name: name for name in present}
    guessed = {role: next((columns[name] for name in names if name in columns), None) for role, names in USUAL.items()}
    candidates = [name for name in reward_columns(present, "") if not _AGGREGATES.match(name) and "." not in name]
    if guessed["reward"] is None and len(candidates) == 1:
        guessed["reward"] = candidates[0]
    totals = tuple(f"{guessed['reward'] or 'rewards'}.{entry}" for entry in ("total", "reward"))
    guessed["reward"] = first_present(present, totals) or guessed["reward"]  # of an object with its parts
    if key_of(ColumnNames(**guessed)) is None:
        ids = () if guessed["step"] else ("id", "idx")  # next to a step they number rows
        numbers = (name for name in present if PROMPT_NUMBER.fullmatch(name) or name in ids)
        # Names of a prompt where trials of it are numbered next to a verdict; elsewhere they are those of benchmarks.
        is_verdict = guessed["reward"] in ("passed", "success", "resolved", "solved")
        tasks = ("task", "task_name") if is_verdict and first_present(present, TRIALS[:4]) else ()
        guessed["prompt_id"] = next(numbers, None) or first_present(present, tasks)
    if named_by_user.prompt is not None:  # somebody who names the prompt means to tell prompts apart by it
        guessed["prompt_id"] = None
    if named_by_user.prompt is not None or named_by_user.prompt_id is not None:
        guessed["group"] = None
    return ColumnNames(**{role: columns_of_roles[role] or guessed[role] for role in USUAL})


def is_of_call(name: str, present: Collection[str]) -> bool:
    """Whether a column says that a call succeeded, as of an API, by what stands next to it."""
    parent, dot, entry = name.rpartition(".")
    return entry == "success" and any(f"{parent}{dot}{other}" in present for other in _CALL_COLUMNS)


def _usual_spelling(name: str) -> str:
    """A name as usual names are spelled: ``task_id`` of ``Task ID`` and ``taskId``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[\s-]+", "_", name.strip()).lower()


def with_entries(
    rows: Iterable[Mapping[str, Any]],
    named_by_user: ColumnNames = ColumnNames(),  # noqa: B008 (it is frozen)
) -> list[dict[str, Any]]:
    """Rows with the plain entries of their objects as ``object.entry``, too, and deeper ones that are named."""
    deep = [name for name in astuple(named_by_user) if name is not None and name.count(".") > 1]
    return [
        dict(row)
        | {name: cell for name in deep if (cell := entry_in(row, name)) is not UNSET}
        | {
            f"{key}.{name}": cell
            for key, cells in row.items()
            for name, cell in parse.mapping_of(cells).items()
            if cell is not None and not isinstance(cell, dict)
        }
        | dict(row)  # a key of the row's own wins
        for row in rows
    ]


def reward_columns(present: Iterable[str], main: str) -> tuple[str, ...]:
    """The main reward's column and others that are rewards by name: ``reward/x``, ``x_reward`` and usual ones."""
    usual = USUAL["reward"]
    return tuple(
        name
        for name in present
        if (main and name == main)
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
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(str([row.get(key) for key in keys]), []).append(index)
    numbers = {
        name: np.array([float(as_number(row.get(name))) for row in rows])
        for name in names
        if name not in roles and name not in SAMPLE_IDS
    }
    named = reward_columns(numbers, "")
    varying = {
        name: values
        for name, values in numbers.items()
        if name in named or any(len(set(values[group].tolist())) > 1 for group in groups.values())
    }
    reward = np.array([float(as_number(row.get(columns.reward or ""))) for row in rows])
    terms = reward_terms(reward, varying) or {}
    if not terms:  # many functions add up with a weight of 1 each, if at all
        unit_weights = {name: 1.0 for name in named if np.nan_to_num(numbers[name]).any()}
        terms = unit_weights if adds_up(reward, numbers, unit_weights) else terms
    return terms if len(terms) > 1 else {}


def as_number(cell: Any) -> float:
    """A cell as a number, text of CSV included; NaN where it is none."""
    value = parse.parse_reward(cell, from_text=isinstance(cell, str))
    return math.nan if isinstance(value, str) else value


_PASSED = ("pass", "passed", "success", "successful", "correct", "right", "accepted", "solved", "resolved", "yes", "c")
_FAILED = (
    *("fail", "failed", "failure", "incorrect", "wrong", "wrong answer", "rejected", "unsolved", "unresolved", "no"),
    *("unsuccessful", "error", "timeout", "timed out", "timed_out", "i"),
)
VERDICTS = dict.fromkeys(_PASSED, 1.0) | dict.fromkeys(_FAILED, 0.0)
"""A verdict in a word, or a letter of inspect_ai's, as tests and judges give it -> the reward."""


def verdict_of(cell: Any) -> Any:
    """The number of a verdict in a word, or of a number that is text; any other cell as it is."""
    if not isinstance(cell, str):
        return cell
    number = VERDICTS.get(cell.strip().lower(), as_number(cell))
    return cell if math.isnan(number) else number


def are_words(cells: Iterable[Any]) -> bool:
    """Whether cells, but for null, are verdicts in words."""
    texts = [cell for cell in cells if cell not in (None, "")]
    return texts != [] and all(isinstance(cell, str) and cell.strip().lower() in VERDICTS for cell in texts)


def are_other_texts(cells: Iterable[Any]) -> bool:
    """Whether cells are text, none a number, and not all verdicts."""
    texts = list(cells)
    return not are_words(texts) and all(isinstance(cell, str) and math.isnan(as_number(cell)) for cell in texts)


def are_numbers_in_text(cells: Iterable[Any]) -> bool:
    """Whether cells, but for null, are text that is a number or a truth value, every one: mixed, they are a fault."""
    texts = [cell for cell in cells if cell is not None]
    return texts != [] and all(isinstance(cell, str) and not math.isnan(as_number(cell)) for cell in texts)


def only_text(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """The text that a column has in every row; empty where rows differ, or one lacks it."""
    texts = {parse.text_of(row.get(name)) for row in rows}
    return texts.pop() if len(texts) == 1 else ""


def held_out_columns(names: Iterable[str]) -> tuple[str, ...]:
    """The columns that may say of rows that they are of an evaluation."""
    return tuple(name for name in names if _usual_spelling(name.rpartition(".")[2]) in _HELD_OUT)


def are_held_out(texts_of: Mapping[str, Iterable[str]]) -> Flags:
    """Whether any such column says so of each row, by the texts of its cells, [R]."""
    words = {name: _HELD_OUT[_usual_spelling(name.rpartition(".")[2])] for name in texts_of}
    matches = [[text.lower() in words[name] for text in texts] for name, texts in texts_of.items()]
    return np.asarray(np.array(matches, dtype=bool).any(axis=0))


def sample_column(rows: Sequence[Mapping[str, Any]], columns: ColumnNames) -> str | None:
    """The column that tells the rollouts of a group apart, by its name and by what it holds.

    Some logs call the prompt a sample: then the same id stands in every row of a group, and the column is none.

    Returns:
        The first column with such a name of which hardly any row of the same step and group has the same id; else None.

        >>> sample_column([{"uid": 1, "sample_id": 0}, {"uid": 1, "sample_id": 1}], ColumnNames(group="uid"))
        'sample_id'
        >>> sample_column([{"uid": 1, "sample_id": 7}, {"uid": 1, "sample_id": 7}], ColumnNames(group="uid"))
    """
    keys = [name for name in (columns.step, columns.group, columns.prompt_id, columns.prompt) if name is not None]
    for name in SAMPLE_IDS:
        ids = [str([row.get(key) for key in (*keys, name)]) for row in rows if row.get(name) is not None]
        if name not in keys and ids and len(set(ids)) > len(ids) / 2:
            return name
    return None


def are_labels(steps: Iterable[object], groups: Sequence[str], prompts: Sequence[str]) -> bool:
    """Whether most groups with rows of several prompts have several of each, or ids number the rows of a prompt."""
    steps, ids = list(map(str, steps)), set(groups)
    sizes = Counter(zip(zip(steps, groups, strict=True), prompts, strict=True))
    are_numbers = 1 < len(ids) < len(set(prompts)) and ids <= set(map(str, range(len(ids) + 1)))
    if are_numbers and len(sizes) == len(groups) >= 2 * len(set(zip(steps, prompts, strict=True))):
        return True
    num_prompts = Counter(group for group, _ in sizes)
    are_whole = [size > 1 for (group, _), size in sizes.items() if num_prompts[group] > 1]
    return sum(are_whole) > len(are_whole) / 2


def key_of(names: ColumnNames) -> str | None:
    """The column that rollouts are grouped by; None where there is none."""
    return names.group or names.prompt_id or names.prompt


def have_rollouts(names: ColumnNames) -> bool:
    """Whether rows of these columns are rollouts, or samples: they have a reward and something to group by."""
    return names.reward is not None and key_of(names) is not None


def columns_of_rows(rows: Sequence[Mapping[str, Any]], named_by_user: ColumnNames) -> ColumnNames:
    """A column a role of some rows, entries of their objects among them; none of no rows, as of a console."""
    rows = with_entries(rows, named_by_user)
    columns = resolve_columns(columns_in(rows), named_by_user) if rows else ColumnNames()
    return by_cells(rows, columns, named_by_user)


def by_cells(rows: Sequence[Mapping[str, Any]], columns: ColumnNames, named_by_user: ColumnNames) -> ColumnNames:
    """The columns with the question as prompt where what is called one is a template, its name or settings.

    Most of these stand next to several questions, of which there are more; a column of another name than question or
    problem, as what the policy asked a search engine, counts only next to one that is the same throughout. The reward
    is none of text, as a right answer that is called correct, where there is another.
    """
    if columns.reward and named_by_user.reward is None and are_other_texts(row.get(columns.reward) for row in rows):
        no_texts = [name for name in columns_in(rows) if not are_other_texts(row.get(name) for row in rows)]
        columns = replace(columns, reward=resolve_columns(no_texts, ColumnNames()).reward or columns.reward)
    prompt, by_prompt = columns.prompt or "", dict[str, list[str]]()
    names = [name for name in columns_in(rows) if name != prompt and any(row.get(name) is not None for row in rows)]
    question = resolve_columns(names if prompt and named_by_user.prompt is None else (), ColumnNames()).prompt or ""
    for row in rows if question else ():
        if cell := parse.before_answer(row.get(question)):
            by_prompt.setdefault(parse.prompt_text_id(row.get(prompt)), []).append(parse.prompt_text_id(cell))
    differ = [len(set(ids)) > 1 for ids in by_prompt.values() if len(ids) > 1]
    have_more = len(set(chain.from_iterable(by_prompt.values()))) > len(by_prompt)
    is_question = len(by_prompt) == 1 or _usual_spelling(question.rpartition(".")[2]) in ("question", "problem")
    return replace(columns, prompt=question) if have_more and is_question and sum(differ) > len(differ) / 2 else columns


def first_present(columns: Collection[str], names: Iterable[str]) -> str | None:
    """The first of some names that is a column."""
    return next((name for name in names if name in columns), None)


def columns_in(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Every key of some rows, in order of first appearance."""
    return tuple({name: None for row in rows for name in row})


_BEGINNING = 40  # characters of a question: the answers it offers may be in another order each time
_TALK_ANSWERS = re.compile(r"answer|info\.(\w+_)?(seed|id|idx|index|answer|target|secret|word)")
"""What stands next to a conversation as its right answer does."""
_COUNTS_ROWS = re.compile(
    r"(?i)seed|(^|_)(id|idx|index|n[or]|num(ber)?|rank|fold|worker|device|gpu|node|batch|sample|trial|attempt|run|repeat)$"
)
"""Names of columns whose numbers or words tell rows apart, and set nothing."""
_BY_DESIGN = 10  # prompts that do not by chance have all their samples divided into parts of one size

_EPISODE_ID = re.compile(r"(episode|traj|trajectory)_(id|uid|uuid|key)")
_COUNTS_TURNS = re.compile(r"(env_|event_|action_)?(turn|step|timestep|time|event|action|t)(_?(idx?|index|num(ber)?))?")


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

        def unlabeled(name: str, labels: Sequence[str]) -> Sequence[str]:
            first = only_text(rows, name)
            is_constant = first and (set(labels) == {first} or all(label.startswith(f"{first}/") for label in labels))
            return tuple(label.removeprefix(first).removeprefix("/") for label in labels) if is_constant else labels

        policies, prompts = table.policies, table.prompts
        for name in self.settings:
            policies = tuple(unlabeled(name, policies))
        if self.benchmark is not None and self.benchmark not in parse.ENVIRONMENTS:
            prompts = unlabeled(self.benchmark, prompts)
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

    def grouping(names: ColumnNames) -> Grouping:
        benchmark = None if is_key_named else benchmark_column(rows, names, are_first=are_first)
        return Grouping(names=names, settings=settings_of(names), benchmark=benchmark)

    by_id = grouping(names)
    settings = filter(None, (*by_id.settings, by_id.benchmark))
    question = None if is_key_named else _question_column(rows, names, *settings)
    if question is None:
        return by_id
    return replace(grouping(replace(names, prompt_id=None, prompt=question)), has_questions=True)


def counted_step(
    rows: Sequence[Mapping[str, Any]], key: str | None, *, are_first: bool, are_groups: bool = False
) -> str | None:
    """The column that counts as the step where none is called one, by rows that are a rollout or a group each.

    Its numbers never fall, and prompts have several rollouts of a policy under each; inspect's epochs number samples
    instead. Of rows that are only the first of a log, it may have been the same so far.
    """
    for name in filter(rows[0].__contains__, STEP_SUBSTITUTES) if rows and key else ():
        steps = step_numbers([row.get(name) for row in rows])
        ids = ([parse.text_of(row.get(column)) for column in (key or "", *ARMS)] for row in rows)
        sizes = Counter(zip(steps.tolist(), map(tuple, ids), strict=True))
        are_several = are_groups or sum(size > 1 for size in sizes.values()) > len(sizes) / 2
        if are_several and (np.diff(steps, prepend=0) >= 0).all() and (are_first or steps[0] < steps[-1]):
            return name
    return None


def are_parts_of_rollouts(rows: Sequence[Mapping[str, Any]], columns: ColumnNames) -> bool:
    """Whether most rollouts, by the names of their episodes, have several rows, which some column counts."""

    def rises(rows: Iterable[Mapping[str, Any]], name: str) -> bool:
        numbers = [as_number(row.get(name)) for row in rows]
        return numbers == sorted(numbers) and numbers[0] < numbers[-1]

    present = columns_in(rows)
    counters = list(filter(_COUNTS_TURNS.fullmatch, present))
    for name in filter(_EPISODE_ID.fullmatch, present if counters else ()):
        parts: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
        for row in rows:
            ids = (columns.step, key_of(columns), name)
            parts.setdefault(tuple(parse.text_of(row.get(column or "")) for column in ids), []).append(row)
        episodes = [episode for episode in parts.values() if len(episode) > 1]
        are_counted = any(all(rises(episode, counter) for episode in episodes) for counter in counters)
        if are_counted and len(episodes) > len(parts) / 2:
            return True
    return False


def setting_columns(
    rows: Sequence[Mapping[str, Any]], columns: ColumnNames, *extra: str, are_first: bool = False
) -> tuple[str, ...]:
    """The settings that differ within most prompts of an evaluation, so that their samples are of several policies.

    Of rows that are only the first of a log, also those that have been the same so far: another may follow.
    """
    by_prompt: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_prompt.setdefault(parse.text_of(row.get(key_of(columns) or "")), []).append(row)
    groups = [group for group in by_prompt.values() if len(group) > 1]
    arms = (*ARMS, *extra)
    so_far = [arm for arm in arms if are_first and only_text(rows, arm)]
    present = columns_in(rows)
    known_names = {*arms, *astuple(columns), *reward_columns(present, "")}
    free = (name for name in present if name not in known_names and not _COUNTS_ROWS.search(name))
    levels = (name for name in free if _are_levels(groups, name) or _are_conditions(groups, name, columns.reward))
    templates = (name for name in ("prompt", "instruction") if key_of(columns) not in (None, name))
    arms += tuple(name for name in templates if _num_of(rows, name) < len(groups))  # or their names
    named = [arm for arm in arms if sum(_num_of(group, arm) > 1 for group in groups) > len(groups) / 2]
    # What each policy has one value of, as the time that its samples took, sets nothing more apart.
    policies = (*POLICIES, *named)
    designed = (name for name in levels if all(_num_of(rows, arm) < _num_of(rows, arm, name) for arm in policies))
    return (*so_far, *named, *(designed if len(groups) > 2 else ()))


def _num_of(rows: Iterable[Mapping[str, Any]], *names: str) -> int:
    return len({tuple(parse.text_of(row.get(name)) for name in names) for row in rows})


def _are_levels(groups: Iterable[Iterable[Mapping[str, Any]]], name: str) -> bool:
    """Whether every prompt has the same numbers equally often, and these count nothing, as the places of samples do."""
    columns = ([row.get(name) for row in group] for group in groups)
    counts = [Counter(math.nan if type(cell) is bool else as_number(cell) for cell in cells) for cells in columns]
    levels = sorted(counts[0])
    are_alike = all(sorted(count) == levels and len(set(count.values())) == 1 < len(count) for count in counts)
    return are_alike and (levels != [levels[0] + index for index in range(len(levels))] or levels[0] not in (0, 1))


def _are_conditions(groups: Sequence[Iterable[Mapping[str, Any]]], name: str, reward: str | None) -> bool:
    """Whether a few words, not verdicts, divide the samples of most prompts into parts of one size."""
    # A part is of several samples; of one alone where words are those of prompts, or rows hold several samples each.
    sizes, pairs = Counter[tuple[int, str | bool]](), set[tuple[str | bool, str]]()
    for index, row in ((index, row) for index, group in enumerate(groups) for row in group):
        if not isinstance(cell := row.get(name), (str, bool)):
            return False
        sizes[index, cell] += 1
        pairs.add((cell, parse.text_of(row.get(reward or ""))))
    words, num = {word for _, word in sizes}, set(sizes.values())
    min_size = 1 if reward is None or name in USUAL["prompt"] else 2
    are_few = len(groups) >= _BY_DESIGN and len(words) < len(groups) and len(sizes) > 1.5 * len(groups)
    are_words = are_few and all(type(word) is bool or math.isnan(as_number(word)) for word in words)
    is_free = name not in (*parse.ENVIRONMENTS, *BENCHMARKS, *POLICIES) and (reward is None or len(pairs) > len(words))
    return are_words and is_free and len(num) == 1 and min(num) >= min_size


def benchmark_column(rows: Sequence[Mapping[str, Any]], columns: ColumnNames, *, are_first: bool = False) -> str | None:
    """The column within whose names ids count, as of files in which several benchmarks number their prompts from 0.

    Where each value of a column has the same prompt, its id needs no more to name it. Where only their texts tell
    prompts apart, it is the right answer that differs within a text, or what an environment was told, if it recurs.
    Of rows that are only the first of a log, it may have been the same so far.
    """
    key = columns.group or columns.prompt_id
    # Next to a conversation as completion, as verifiers logs it, what that was about counts like an answer.
    is_talk = any(isinstance(row.get(columns.completion or ""), list) for row in rows)
    present = columns_in(rows) if key is None else ()
    answers = filter(_TALK_ANSWERS.fullmatch, present if is_talk else ())
    right_answers = (name for name in present if RIGHT_ANSWER.fullmatch(name.rpartition(".")[2]))
    names = (*answers, *right_answers) if key is None else (*parse.ENVIRONMENTS, *BENCHMARKS)
    for name in names if key or columns.prompt else ():
        prompts: dict[tuple[str, str], dict[str, str]] = {}
        sizes = Counter[tuple[str, str, str]]()
        for row in rows if name not in astuple(columns) else ():
            if label := parse.text_of(row.get(name)):
                text = parse.prompt_text_id(row.get(columns.prompt)) if columns.prompt else ""
                prompt = parse.text_of(row.get(columns.step or "")), parse.text_of(row.get(key)) if key else text
                prompts.setdefault(prompt, {}).setdefault(label, text if key else "")
                sizes[*prompt, label] += 1
        shared = [list(named.values()) for named in prompts.values() if len(named) > 1]
        recurs = not name.startswith("info.") or min(sizes.values(), default=0) > 1
        if recurs and sum(texts[0] == "" or len(set(texts)) > 1 for texts in shared) > len(shared) / 2:
            return name
    return next((name for name in names if key and are_first and only_text(rows, name)), None)


def _question_column(rows: Sequence[Mapping[str, Any]], columns: ColumnNames, *settings: str) -> str | None:
    """The column of questions that begin otherwise under most ids with several rows, as where each seed has its own."""
    question = first_present(columns_in(rows), ("question", "problem"))
    begins: dict[tuple[str, ...], list[str]] = {}
    for row in rows if question and columns.prompt_id and columns.group is None else ():
        key = tuple(parse.text_of(row.get(name or "")) for name in (columns.step, columns.prompt_id, *settings))
        begins.setdefault(key, []).append(parse.text_of(row.get(question or ""))[:_BEGINNING])
    shared = [texts for texts in begins.values() if len(texts) > 1]
    return question if sum(len(set(texts)) > 1 for texts in shared) > len(shared) / 2 else None
