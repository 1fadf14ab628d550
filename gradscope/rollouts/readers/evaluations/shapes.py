"""The samples of a prompt that a row, or a part of a document, holds: lists, counts or one of each policy."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import Struct

from gradscope.errors import InputError, UsageError
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers import column_roles as roles
from gradscope.rollouts.readers.nested import are_rows_by_key, are_turns_of_one, key_column, rows_under
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing.records import END_COLUMNS, list_names

_ANSWERS = frozenset((*roles.ANSWER_KEYS, *roles.TEXT_LISTS))
_ANSWERS_OF_ONE = (*roles.ANSWER_KEYS, "generation", "generations", "responses", "completions")
_RESPONSES = _ANSWERS.union(roles.REWARD_LISTS)
_ONE_RESPONSE = ("response", "completion", "output", "generation", "output_response", *roles.ANSWER_KEYS[:1])
"""Keys under which a text is the policy's response, and not the task's own solution."""
_PREDICTIONS = ("pred", "prediction", "predicted", "response", "completion", "generation", "model_answer")
PROMPTS = tuple(name + plural for name in (*roles.USUAL["prompt"], *roles.USUAL["prompt_id"]) for plural in ("", "s"))

TOTALS = ("n", "num_samples", "n_samples", "total_samples", "num_rollouts", "total_rollouts", "total")
_SIZES = ("n_samples", "num_samples", "num_rollouts")  # those that count items less often, wherever they stand
_NUM_CORRECT = ("c", "num_correct", "n_correct", "correct_count", "num_passed", "n_passed", "correct", "passed")
_ALSO_VERDICTS = ("correct", "passed")  # also names of the verdict on one sample: a boolean is no count
_COUNTS_OF_PROMPTS = re.compile(r"per_\w+_(correct|passed)|(num|n)_(correct|passed)|(correct|passed)_counts?")
COUNTS = "counts"  # the shape of a row with n and c
NO_COLUMNS, _NO_TOTAL = ColumnNames(), "the number of samples is missing"
_MAX_COUNT = 1_000_000
MAX_DEPTH = 12
_MANY_TOKENS = 20
_WORDS_OF_A_NAME = 4  # at most, of a benchmark or model
_MANY_PROMPTS = 10  # keys of an object whose lists of 0 and 1 are verdicts on as many prompts, and no columns
_ID_OF_PROMPT = re.compile(
    r"(?!.*(^|[/_:])(test|check|criteri\w*|rubric|metric|step)s?[-_/:.])(?=.*[a-z])(?=.*[0-9]).*(/|-|__)", re.I
)
"""Keys with a single truth value each that are ids of prompts, as SWE-bench Pro's, and no switches or tests of one."""
NUMBERS = frozenset({bool, int, float})
_OUTCOMES = ("resolved", "unresolved", "completed", "empty_patch", "error")  # of instances that SWE-bench evaluated
ROW_IDS = (*roles.USUAL["prompt_id"], "id", "idx")
NAMES = (*ROW_IDS, *roles.USUAL["prompt"])
_DISTINCT = frozenset((*PROMPTS, *roles.USUAL["step"], "user"))
_CONTEXT = frozenset((*roles.POLICIES, *parse.ENVIRONMENTS, *roles.BENCHMARKS, *roles.USUAL["step"]))
_NO_SAMPLES = re.compile(
    rf"ref|reference|gold|canonical|expected|ground_truth|few_shot|demo|{roles.OFFERED.pattern}", re.IGNORECASE
)
"""How lists are called of solutions that are not the policy's, or of the answers that a question offers."""
LISTS_OF_PROMPTS = re.compile(r"(\w+_)?(results|details|cases|items|questions|problems|tasks|examples|records)|per_\w+")
"""How lists are called that hold prompts, where they number them, and no samples of one."""
_STEP_KEY = re.compile(r"[a-z_ ]*(step|iter)", re.IGNORECASE)
_GENERATED = re.compile(r"(?!.*(test|input|expected|gold|token|step))(.*_)?(generat|complet|response|rollout|predict)")
_VERDICT = re.compile(
    r"(?!.*(compil|format|valid|finish))(.*_)?(pass|correct|right|success|solved|verdict|result|grad|outcome)"
)
"""How lists of the policy's texts, and of truth values about them, are called under names of their own."""


class PromptSamples(Struct, kw_only=True):
    """The samples of one prompt."""

    shape: str  # their layout, in words
    rewards: Sequence[Any]  # a cell for each sample, not yet parsed
    columns: Mapping[str, Sequence[Any]] = {}
    """Other numbers of the samples, by name, the scalar reward among them, and what may say how they ended."""
    texts: Sequence[Any] = ()  # completions, where they were written
    policies: tuple[str, ...] = ()  # the policy of each sample, where a row holds one of each
    counts: tuple[int, ...] = ()  # how many samples each stands for; empty: one

    def __len__(self) -> int:
        return sum(self.counts) or len(self.rewards)


def samples_of(row: Mapping[str, Any], columns: ColumnNames = NO_COLUMNS) -> PromptSamples | str | None:
    """The samples that a row, or a part of a document, holds.

    A list of rewards counts as samples where the row also has a list of as many responses, or where it was named: a
    list alone may as well hold the criteria, tests or tokens of one response. With one response it holds those, named
    or not; with a list of different prompts it holds a batch.

    Returns:
        The samples; the reason for the quarantine where they contradict themselves; None where the row has none.
    """
    if columns.num_samples or columns.num_correct:
        return from_counts(row, columns)
    if listed_prompts(row, columns.reward):
        return None  # counts next to samples of several prompts are the totals of these
    return _from_lists(row, columns) or from_counts(row, columns) or _from_policies(row, columns.reward)


def listed_prompts(row: Mapping[str, Any], reward: str | None) -> list[dict[str, Any]]:
    """The rollouts of several prompts or steps that a row lists, in a policy's evaluation those with texts as ids."""
    for name, cell in row.items():
        main = (reward or "").removeprefix(f"{name}.")  # `list.entry`, or an entry
        is_of_rewards = parse.is_list_of_objects(cell) and not cell[0].keys().isdisjoint((main, *roles.USUAL["reward"]))
        if is_of_rewards and not are_turns_of_one(name, cell):
            keys = _DISTINCT & set().union(*cell)
            is_of_policy = any(isinstance(row.get(key), str) for key in roles.POLICIES) and row.keys().isdisjoint(NAMES)
            has_ids = is_of_policy and isinstance(cell[0].get("id"), str)  # numbers may be those of samples
            if has_ids or any(element.get(key) != cell[0].get(key) for element in cell for key in keys):
                return list(cell)
    return []


Keys = tuple[str, ...]
PromptPart = tuple[Keys, Mapping[str, Any], PromptSamples | str]


def prompt_rows(
    node: Any,
    columns: ColumnNames = NO_COLUMNS,
    depth: int = MAX_DEPTH,
    keys: Keys = (),
    above: Sequence[Any] = (),
    *,
    is_whole: bool = True,
) -> Iterator[PromptPart]:
    """The parts of a nested document that hold samples, outermost first, down to ``depth`` levels.

    What is ``above`` the node may say how many samples its counts are of. Whole is a document, and each of several
    runs in one.

    Yields:
        The keys and list indices that lead from the document to the part, after ``keys``; the part; its samples.
    """
    node, count_names = (node, columns) if columns.num_correct else _listed_counts(node, above)
    rights = count_names.num_correct or ""
    counts = node.get(rights) if isinstance(node, dict) else None
    is_by_prompt = isinstance(node, dict) and _are_prompts(node)
    samples = samples_of(node, columns) if isinstance(node, dict) and not is_by_prompt else None
    if isinstance(counts, list):  # a count a prompt, of as many samples each
        rows = ({**node, rights: count} for count in counts)
        yield from (((*keys, str(i)), {}, from_counts(row, count_names) or _NO_TOTAL) for i, row in enumerate(rows))
    elif samples is not None:
        yield keys, node, samples
    elif isinstance(node, dict) and (by_key := _verdicts_by_key(node, is_whole=is_whole)):
        yield from (((*keys, str(key)), *part) for key, part in by_key.items())
    elif isinstance(node, dict) and (
        (policy := {key: node[key] for key in roles.POLICIES if key in node})
        and (listed := listed_prompts(node, columns.reward))
    ):
        main = roles.first_present(listed[0], (columns.reward or "", *roles.USUAL["reward"])) or ""
        for i, row in enumerate(listed):
            yield (*keys, str(i)), {**row, **policy}, PromptSamples(shape="objects", rewards=(row.get(main),))
    elif (
        isinstance(node, dict) and parse.is_number(node.get(columns.reward or "")) and not node.keys().isdisjoint(NAMES)
    ):
        return  # a sample, with its id and the reward that was named: lists deep in it are its criteria
    elif isinstance(node, (dict, list)) and depth:
        layouts, empty = set[tuple[str, ...]](), list[tuple[str, dict[str, Any]]]()
        outer_cells = cells_around(parse.mapping_of(node), is_row=not keys)
        first = parse.mapping_of(node[0]) if isinstance(node, list) and node else {}
        has_names = isinstance(first.get("name"), str) and rows_under(first)
        by_name = {parse.text_of(parse.mapping_of(row).get("name")): row for row in node} if has_names else {}
        column = key_column(node if isinstance(node, dict) else by_name, is_whole=not keys)
        are_steps = isinstance(node, dict) and all(
            _STEP_KEY.match(key) and parse.step_number(key) is not None for key in node
        )
        are_runs = is_whole and isinstance(node, dict) and len(node) > 1 and {dict}.issuperset(map(type, node.values()))
        for key, item in node.items() if isinstance(node, dict) else enumerate(node):
            context = outer_cells
            if is_by_prompt:
                context, has_lists = outer_cells | {"prompt": key}, list in map(type, parse.mapping_of(item).values())
                item = item if has_lists else {"samples": item if isinstance(item, list) else [item]}
            elif are_steps and isinstance(item, (dict, list)):
                context = outer_cells | {"step": key}
            elif column and rows_under(item):
                context = outer_cells | {
                    column: key if isinstance(node, dict) else parse.text_of(parse.mapping_of(item).get("name"))
                }
            inner = prompt_rows(item, columns, depth - 1, (*keys, str(key)), (*above, node), is_whole=are_runs)
            parts = ((path, context | dict(part), samples) for path, part, samples in inner) if context else inner
            if part := next(parts, None):
                yield part
                yield from parts
                layouts |= {tuple(item)} if isinstance(item, dict) else set()
            elif isinstance(item, dict):
                empty.append((str(key), item))
        empty_prompts = [(key, item) for key, item in empty if tuple(item) in layouts]  # with an empty list, say
        yield from (((*keys, key), item, unjudged(item) or "the prompt has no samples") for key, item in empty_prompts)


def _num_without_verdict(row: Mapping[str, Any], num_verdicts: int) -> int:
    """How many samples a row numbers in a list, as many as it says that it has, beyond those with a verdict.

    They failed before, as samples that did not compile, which no test could judge.
    """
    num = parse.whole_number(row.get(roles.first_present(row, TOTALS) or "")) or 0
    lists = (cell for cell in row.values() if parse.is_list_of_objects(cell) and len(cell) == num)
    return max(0, num - num_verdicts) if any(not cell[0].keys().isdisjoint(roles.SAMPLE_IDS) for cell in lists) else 0


def unjudged(row: Mapping[str, Any]) -> PromptSamples | None:
    """The samples of a row with an empty list of verdicts, if there are any."""
    failed = (False,) * (_num_without_verdict(row, 0) if [] in row.values() else 0)
    return PromptSamples(shape="failures without a verdict", rewards=failed) if failed else None


def _listed_counts(node: Any, above: Sequence[Any]) -> tuple[Any, ColumnNames]:
    """An object with one list, a number of right samples a prompt, and how many samples it, or one around it, says."""
    cells = parse.mapping_of(node).items()
    lists = [name for name, cell in cells if isinstance(cell, list) and _COUNTS_OF_PROMPTS.fullmatch(name)]
    if len(lists) != 1 or not {int}.issuperset(map(type, node[lists[0]])):
        return node, NO_COLUMNS
    objects = [cell for outer in map(parse.mapping_of, (*above, node)) for cell in (outer, *outer.values())]
    contexts, length = list(map(parse.mapping_of, objects)), len(node[lists[0]])
    sizes = {name: cells[name] for cells in contexts for name in _SIZES if cells.get(name) not in (None, length)}
    total = roles.first_present(node, TOTALS) or roles.first_present(sizes, _SIZES)
    return sizes | node, ColumnNames(num_samples=total, num_correct=lists[0]) if total else NO_COLUMNS


def _are_prompts(node: Mapping[str, Any]) -> bool:
    """Whether the keys of an object are texts of prompts, each with its samples: most ask, or say much for a name."""
    if not _are_questions(node):
        return False
    first_rows = (
        cell[0] if parse.is_list_of_objects(cell) else parse.mapping_of(cell) for cell in node.values() if cell != []
    )
    return all(row.keys().isdisjoint(NAMES) and not _ANSWERS.isdisjoint(row) for row in first_rows)


def _are_questions(keys: Collection[str]) -> bool:
    spaced = [key for key in keys if " " in key]  # no name of a column, so that most objects cost no more
    questions = [key for key in spaced if key.rstrip().endswith("?") or len(key.split()) > _WORDS_OF_A_NAME]
    return len(keys) > 1 and 2 * len(questions) > len(keys)


def cells_around(node: Mapping[str, Any], *, is_row: bool = False) -> dict[str, Any]:
    """What an object says of all prompts within it, as a row that lists them by its name."""
    arms = (*roles.ARMS, "name") if is_row and rows_under(node) else roles.ARMS
    return {name: cell for name, cell in node.items() if name in _CONTEXT or (name in arms and isinstance(cell, str))}


def _verdicts_by_key(node: Mapping[str, Any], *, is_whole: bool) -> dict[str, tuple[Mapping[str, Any], PromptSamples]]:
    """Each of many keys, none of which names a column, with its prompt and samples: verdicts in a list, or one."""
    # SWE-bench Pro's whole document has the latter, OpenCompass an object a prompt; those without a prediction may be
    # tests of one response, but for what SWE-bench calls resolved.
    submitted, resolved = (node.get(f"{name}_ids") for name in ("submitted", "resolved"))
    if isinstance(submitted, list) and isinstance(resolved, list) and submitted:  # SWE-bench's report lists ids
        lists = {name: set(map(parse.text_of, parse.list_of(node.get(f"{name}_ids")))) for name in _OUTCOMES}
        ids, rights = dict.fromkeys(map(parse.text_of, submitted)), lists["resolved"]
        if lists["completed"]:  # others were not asked for, as of a run with --instance_ids
            ids = dict.fromkeys(id for id in ids if any(id in ended for ended in lists.values()))
        rest = len(parse.list_of(node.get("incomplete_ids"))) + len(submitted) - len(ids)
        shape = "ids in SWE-bench's report" + (f", without {rest} that were not run" if rest else "")
        return {id: ({"instance_id": id}, PromptSamples(shape=shape, rewards=(id in rights,))) for id in ids}
    cells = list(node.values())
    are_texts = _are_questions(node)
    if (len(node) < _MANY_PROMPTS and not are_texts) or not _RESPONSES.isdisjoint(node):
        return {}
    if all(isinstance(cell, list) and cell and NUMBERS.issuperset(map(type, cell)) for cell in cells):
        are_rewards = are_texts or all({0, 1}.issuperset(cell) for cell in cells)
        rows = {key: {"prompt": key} if are_texts else {} for key in node if are_rewards}
        return {key: (row, PromptSamples(shape="lists", rewards=node[key])) for key, row in rows.items()}
    are_verdicts = all(isinstance(cell, int) and cell in (0, 1) for cell in cells)
    if is_whole and are_verdicts and all(map(_ID_OF_PROMPT.match, node)):
        return {key: ({}, PromptSamples(shape="verdicts", rewards=(cell,))) for key, cell in node.items()}
    if not all(isinstance(cell, dict) and any(key in cell for key in ("resolved", *_PREDICTIONS)) for cell in cells):
        return {}
    names = [name for name in roles.USUAL["reward"] if all(type(cell.get(name)) is bool for cell in cells)][:1]
    return {
        key: (cell, PromptSamples(shape="objects", rewards=(cell[name],)))
        for name in names
        for key, cell in node.items()
    }


def refuse_lone_list(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Refuse, with a hint, a file in which most first rows have a list of rewards that cannot be read as samples."""
    written = [with_lists(row)[0] for row in rows]
    batches = [name for row in written if (name := _prompts_in(row)) is not None]
    if len(batches) > len(rows) / 2:
        columns = "" if any(batches[0] in row for row in rows) else ", which numbered columns write out"
        raise InputError(
            f"{path} has rows with a list of several prompts each ({batches[0]!r}{columns}): batches, in an unknown "
            "form.",
            hint="Write a row a rollout: step, prompt, response, reward. In verl, trainer.rollout_data_dir=DIR does."
            if columns
            else "Write a row a rollout: step, prompt, response, reward.",
        )
    for name in dict.fromkeys((*roles.REWARD_LISTS, *roles.USUAL["reward"])):
        cells = (row.get(name) for row in written)
        lists = [cell for cell in cells if isinstance(cell, list) and not parse.is_list_of_objects(cell)]
        are_numbers = all(NUMBERS.issuperset(map(type, cells)) for cells in lists)
        if len(lists) > len(rows) / 2 and (name in roles.REWARD_LISTS or are_numbers):
            source = "" if any(name in row for row in rows) else ", which numbered columns write out"
            raise InputError(
                f"{path} has a list {name!r} in a row{source}, and no list of as many responses beside it: whether "
                "its entries are samples, or parts of one, is not known.",
                hint=f"If each entry is a sample, name the list: --reward-column {name}",
            )


def _prompts_in(row: Mapping[str, Any], named: ColumnNames = NO_COLUMNS) -> str | None:
    """The name of a list with a prompt for each response, not all the same; a conversation is one prompt."""
    lists = {name: cell for name, cell in row.items() if isinstance(cell, list)}
    names = (*PROMPTS, roles.key_of(named) or "")
    if lists.keys().isdisjoint(names):
        return None
    sizes = {len(cells) for name, cells in lists.items() if name in _RESPONSES or name == named.reward}
    for name in names if sizes else ():
        cells = lists.get(name, ())
        is_conversation = any(isinstance(cell, dict) for cell in cells)
        if len(cells) in sizes and not is_conversation and len(set(map(parse.digest, cells))) > 1:
            return name
    return None


def _from_lists(row: Mapping[str, Any], named_by_user: ColumnNames) -> PromptSamples | str | None:
    reward = named_by_user.reward
    row, sample_lists = with_lists(row, reward)
    if _prompts_in(row, named_by_user) is not None:
        return None
    columns: dict[str, Any] = {}
    aligned = set(sample_lists)
    entries = {
        name: value[0].keys()
        for name, value in row.items()
        if parse.is_list_of_objects(value)
        and (reward or not (_NO_SAMPLES.match(name) or _are_of_prompts(name, row) or are_turns_of_one(name, value)))
    }
    named = {name: (reward or "").removeprefix(f"{name}.") for name in entries}  # `list.entry`, or an entry
    chosen = [  # where it is a list again, each element is a prompt
        name for name in entries if not isinstance(parse.unwrapped(row[name][0].get(named[name], [])), list)
    ]
    if len(chosen) == 1 and row.keys().isdisjoint(NAMES) and _are_of_prompts(chosen[0], row, is_named=True):
        raise UsageError(
            f"The list {chosen[0]!r} has answers to several prompts.",
            hint=f"Name what tells them apart, too: --reward-column {named[chosen[0]]} --prompt-column NAME.",
        )
    listed = chosen or [name for name, keys in entries.items() if not keys.isdisjoint(roles.USUAL["reward"])]
    answered = [name for name in listed if reward or not entries[name].isdisjoint((*roles.ANSWER_KEYS, *roles.TRIALS))]
    if len(answered) > 1 and row.keys().isdisjoint(NAMES):
        return None  # of several prompts, steps or policies
    if len(answered) > 1:
        return f"several lists hold objects with a reward, {list_names(answered)}: --reward-column LIST.ENTRY"
    for name, value in row.items():
        if name in listed:
            objects = {key: [element.get(key) for element in value] for key in value[0]}
            columns |= objects | ({reward: objects[named[name]]} if reward and chosen else {})
            aligned |= set(objects) if name in answered else set()
        elif isinstance(value, list):
            columns.setdefault(name, list(map(parse.unwrapped, value)) if list in set(map(type, value)) else value)
    if reward in row and reward not in columns:
        return None
    if reward is not None and reward not in columns and roles.first_present(columns, roles.REWARD_LISTS):
        raise UsageError(f"There is no list {reward!r} of rewards.", hint=f"The lists are {list_names(columns)}.")
    generated = (name for name in columns if _GENERATED.match(name) and {str}.issuperset(map(type, columns[name])))
    names = (*roles.ANSWER_KEYS, *roles.TEXT_LISTS, *generated)
    sizes = {len(columns[name]) for name in names if name in columns}
    is_counted = isinstance(row.get("n"), int) and isinstance(row.get("c"), int)  # they give the list's length
    aligned |= {name for name, value in columns.items() if is_counted or len(value) in sizes}
    main = reward if reward in columns else roles.first_present(aligned, roles.REWARD_LISTS)
    is_one = any(isinstance(row.get(name), str) for name in _ONE_RESPONSE)
    if main is None and not is_one:
        verdicts = [name for name in aligned if _VERDICT.match(name) and {bool} == set(map(type, columns[name]))]
        main = verdicts[0] if len(verdicts) == 1 else None
    if main is None or isinstance(row.get(main), (bool, int, float, str)):
        return None
    if not sizes and is_one:
        return "the list of rewards stands beside one response, whose parts or tokens it then holds"
    size = len(columns[main])
    if not size:
        return None if is_counted else "the list of samples is empty"
    if is_counted and (row["n"], row["c"]) != (len(columns[main]), sum(map(bool, columns[main]))):
        return "n and c contradict the list of samples"
    failed = _num_without_verdict(row, size)
    same = {
        name: (*value, *[False if name == main else None] * failed)
        for name, value in columns.items()
        if len(value) == size
    }
    texts = roles.first_present(same, names)
    return PromptSamples(
        shape=f"lists{', with failures without a verdict' if failed else ''}",
        rewards=same[main],
        columns={
            name: value
            for name, value in same.items()
            if name in (main, *END_COLUMNS) or NUMBERS.issuperset(map(type, value)) or all(map(parse.is_number, value))
        },
        texts=same[texts] if texts else (),
    )


def objects_as_lists(rows: Sequence[Mapping[str, Any]], reward: str | None) -> Sequence[Mapping[str, Any]]:
    """Rows with a list for each key of the objects that they list, of which :func:`samples_of` makes the same samples.

    Rows stay as they are where their objects differ in keys or are not the samples of one prompt.
    """
    listed = [name for name, cell in (rows[0] if rows else {}).items() if parse.is_list_of_objects(cell)]
    are_samples = len(listed) == 1 and not _NO_SAMPLES.match(listed[0])
    are_samples = are_samples and not are_turns_of_one(listed[0], rows[0][listed[0]])
    if not are_samples or not all(isinstance(row.get(listed[0]), list) for row in rows):
        return rows
    samples = [row[listed[0]] for row in rows]
    keys = tuple(samples[0][0])
    texts = roles.first_present(rows[0], roles.TEXT_LISTS)  # of rows whose objects are rewards alone
    are_answered = not set(keys).isdisjoint(roles.USUAL["reward"]) and (
        not set(keys).isdisjoint((*roles.ANSWER_KEYS, *roles.TRIALS))
        or all(type(cell := row.get(texts or "")) is list and len(cell) == len(row[listed[0]]) for row in rows)
    )
    are_of_one_prompt = {*rows[0], *_DISTINCT}.isdisjoint(keys) and not any(map(roles.RIGHT_ANSWER.fullmatch, keys))
    are_alike = {tuple(cell) if type(cell) is dict else None for cell in chain.from_iterable(samples)} == {keys}
    if not (are_answered and are_of_one_prompt and are_alike and reward in (None, *keys)) or [] in samples:
        return rows
    lists = (zip(keys, map(list, zip(*map(dict.values, objects), strict=True)), strict=True) for objects in samples)
    contexts = ({name: cell for name, cell in row.items() if name != listed[0]} for row in rows)
    return [row | dict(columns) for row, columns in zip(contexts, lists, strict=True)]


def _are_of_prompts(name: str, row: Mapping[str, Any], *, is_named: bool = False) -> bool:
    """Whether objects have right answers that differ, or responses or, unless named, numbers of their own."""
    objects, first = row[name], row[name][0]
    keys = [key for key, cell in first.items() if isinstance(cell, str) and roles.RIGHT_ANSWER.fullmatch(key)]
    have_several = any(len(parse.list_of(first.get(key))) > 1 for key in roles.TEXT_LISTS if key != "content")
    ids = [element.get(roles.first_present(first, ROW_IDS) or "") for element in objects]
    are_numbered = row.keys().isdisjoint(NAMES) and LISTS_OF_PROMPTS.fullmatch(name) and 1 < len(set(ids)) == len(ids)
    return (
        have_several
        or bool(are_numbered and not is_named)
        or any(element.get(key) != first[key] for element in objects for key in keys)
    )


def from_counts(row: Mapping[str, Any], columns: ColumnNames) -> PromptSamples | str | None:
    """The samples that a row counts; why it is set aside where the counts cannot be; None where it has none."""
    names = (name for name in _NUM_CORRECT if name not in _ALSO_VERDICTS or not isinstance(row.get(name), (bool, list)))
    num_right = columns.num_correct or roles.first_present(row, names)
    lists = (name for name in roles.TEXT_LISTS if num_right not in _ALSO_VERDICTS and isinstance(row.get(name), list))
    total = columns.num_samples or roles.first_present(row, TOTALS) or next(lists, None)
    if total is None or num_right is None or total not in row or num_right not in row:
        return None
    if columns == NO_COLUMNS and len(row) > _MANY_TOKENS and set(map(type, row.values())) == {int}:
        return None  # the numbers of tokens, or of letters, n and c among them
    is_list = total not in TOTALS and isinstance(row[total], list)  # of the samples themselves
    n, c = len(row[total]) if is_list else parse.whole_number(row[total]), parse.whole_number(row[num_right])
    if n is None or c is None or not 1 <= n <= _MAX_COUNT or c > n:
        return f"{total} and {num_right} are not counts with 0 <= {num_right} <= {total} and {total} >= 1"
    rewards = {1.0: c, 0.0: n - c}
    counts = {reward: count for reward, count in rewards.items() if count}
    return PromptSamples(shape=COUNTS, rewards=tuple(counts), counts=tuple(counts.values()))


def _from_policies(row: Mapping[str, Any], reward: str | None) -> PromptSamples | None:
    names = (reward,) if reward is not None else roles.USUAL["reward"]
    named = {
        policy: value
        for policy, value in row.items()
        if isinstance(value, dict) and any(parse.is_number(value.get(name)) for name in names)
    }
    main = next((name for name in names if any(parse.is_number(value.get(name)) for value in named.values())), None)
    answers = [next((value[key] for key in _ANSWERS_OF_ONE if key in value), None) for value in named.values()]
    if any(isinstance(answer, list) and len(answer) > 1 for answer in answers):
        return None  # of which the verdict may be that of a vote
    texts = [answer[0] if isinstance(answer, list) and answer else answer for answer in answers]
    are_answered = any(not value.keys().isdisjoint(_ANSWERS_OF_ONE) for value in named.values())
    are_verdicts = any(isinstance(value.get(main), bool) for value in named.values())
    has_prompt = not row.keys().isdisjoint(NAMES)
    if len(named) < 2 or not (are_answered or (are_verdicts and has_prompt)):  # numbers alone are means of many samples
        return None
    if not has_prompt and are_rows_by_key(row):
        return None
    return PromptSamples(
        shape=f"one sample of each of {len(named)} policies ({', '.join(named)})",
        rewards=tuple(value.get(main) for value in named.values()),
        texts=tuple(texts),
        policies=tuple(named),
    )


_NUMBERED = re.compile(r"([a-z][a-z_]*?)[_ ]?\[?([0-9]{1,5})\]?(?:[_ ]([a-z_]+))?", re.IGNORECASE)
_SAMPLE_WORDS = frozenset(
    ("sample", "rollout", "completion", "response", "generation", "run", "trial", "attempt", "try")
)
"""Words next to a number that say which sample a column is of: a reward may also be the first of several functions."""
_NUMBERS = re.compile(r"[\[(]([-+\w\s.,]*)[\])]")
_WRAPPED = re.compile(r"(?:np\.\w+|tensor)\(([^()]*)\)")  # as NumPy 2 and PyTorch print the numbers in a list
_TEXTS = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\s*(?:,|$)""", re.DOTALL)
_MAX_COLUMNS = 2000
_Numbered = tuple[tuple[str, tuple[str, ...], bool], ...]


def with_lists(row: Mapping[str, Any], named: str | None = None) -> tuple[Mapping[str, Any], frozenset[str]]:
    """A row with its samples as lists, and the names of those that are of samples by the names of their columns.

    >>> with_lists({"task": 7, "run_1_correct": "True", "run_2_correct": "False"})[0]["correct"]
    [1.0, 0.0]
    >>> with_lists({"task": 7, "trial 1": "pass", "trial 2": "fail"})[0]["correct"]
    [1.0, 0.0]
    >>> with_lists({"task": 7, "scores": "[1, 0, 1]"})[0]["scores"]
    [1.0, 0.0, 1.0]
    >>> with_lists({"task": 7, "scores": ["pass", "fail"]})[0]["scores"]
    [1.0, 0.0]
    """
    lists: dict[str, Any] = {}
    for name in (*roles.REWARD_LISTS, named or ""):  # as JSON, Python or NumPy writes numbers and truth values
        if isinstance(text := row.get(name), list) and (roles.are_words(text) or roles.are_numbers_in_text(text)):
            lists[name] = list(map(roles.verdict_of, text))
        elif isinstance(text, str) and text[:1] in "[(":
            inner = _NUMBERS.fullmatch(_WRAPPED.sub(r"\1", text.strip()))
            cells = _as_numbers(filter(None, re.split(r"[\s,]+", inner[1]))) if inner else []
            if cells and all(isinstance(cell, float) or cell in ("nan", "None", "null") for cell in cells):
                lists[name] = cells
    for name in roles.TEXT_LISTS if lists else ():
        if isinstance(text := row.get(name), str) and text[:1] == "[":
            inner_text, end, texts = text.strip()[1:-1], 0, list[str]()
            while match := _TEXTS.match(inner_text, end):
                end = match.end()
                texts.append(match[1][1:-1])
            lists |= {name: texts} if texts and end == len(inner_text) else {}
    numbered = _numbered_columns(tuple(row)) if 1 < len(row) <= _MAX_COLUMNS else ()
    of_samples = {name for name, _, are_samples in numbered if are_samples}
    for name, columns, _ in numbered:
        cells = [row[column] for column in columns]
        is_text = columns[0].lower().startswith(("response", "completion", "generation"))
        if name == "samples" and not is_text and roles.are_words(cells) and min(map(len, filter(None, cells))) > 3:
            lists["correct"] = _as_numbers(map(roles.verdict_of, cells))  # "yes", "no" and letters may be answers
            of_samples.add("correct")
        else:
            lists[name] = cells if name in roles.TEXT_LISTS or name in PROMPTS else _as_numbers(cells)
    return ({**row, **lists} if lists else row), frozenset(of_samples)


@lru_cache(maxsize=64)
def _numbered_columns(names: tuple[str, ...]) -> _Numbered:
    """The lists that columns with a number in their names make, counted up from 0 or 1, with those columns."""
    lists: dict[tuple[str, bool], dict[int, str]] = {}
    for match in filter(None, map(_NUMBERED.fullmatch, names)):
        before, number, after = match[1].lower(), int(match[2]), (match[3] or "").lower()
        words = [*before.split("_"), *filter(None, after.split("_"))]
        rest = [word for word in words if word not in _SAMPLE_WORDS]
        plural = "samples" if not rest else f"{before}s"
        texts = None if after else roles.first_present(roles.TEXT_LISTS, (before, plural))
        prompts = plural if not after and before in PROMPTS else None  # one each, as verl's table of a validation has
        name = texts or prompts or ("_".join(rest) if "_".join(rest) in roles.REWARD_LISTS else None)
        if name is not None:
            lists.setdefault((name, len(rest) < len(words)), {}).setdefault(number, match[0])
    return tuple(
        (name, tuple(columns[number] for number in sorted(columns)), are_samples)
        for (name, are_samples), columns in lists.items()
        if name not in names and len(columns) > 1 and max(columns) - len(columns) + 1 == min(columns) in (0, 1)
    )


def _as_numbers(cells: Iterable[Any]) -> list[Any]:
    numbers = ((cell, parse.parse_reward(cell, from_text=isinstance(cell, str))) for cell in cells)
    return [(cell or None) if isinstance(number, str) else number for cell, number in numbers]
