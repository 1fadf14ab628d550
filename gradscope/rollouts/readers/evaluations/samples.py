"""Sample files for pass@k: n samples of each prompt, as rows, lists, counts or a key for each policy.

A prompt is a group. A file whose rows name their step is a log with a row for each group: the samples of a prompt at
two steps are two groups. Other files have step 0 throughout.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from gradscope.errors import InputError, UsageError
from gradscope.outside.limits import allowed
from gradscope.outside.plain_json import beginning
from gradscope.rollouts.groups import REWARD, UNKNOWN
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers import generic
from gradscope.rollouts.readers.format import Format
from gradscope.rollouts.readers.generic import ANSWER_KEYS, POLICIES, REWARD_LISTS, SAMPLE_IDS, TEXT_LISTS, USUAL
from gradscope.rollouts.readers.parsing.cells import (
    digest,
    finite_or_none,
    is_list_of_objects,
    is_number,
    parse_messages,
    parse_reward,
    prompt_text_id,
    step_number,
    text_of,
    unwrapped,
    whole_number,
)
from gradscope.rollouts.readers.parsing.quarantine import WatchedLog
from gradscope.rollouts.readers.parsing.records import ReadRequest, assemble_groups, list_names, peek
from gradscope.rollouts.readers.parsing.tables import expand, read_rows, suffix_of
from gradscope.rollouts.readers.reduction.columns import (
    Cells,
    Columns,
    Fact,
    LineColumns,
    ListColumns,
    Note,
    facts_in,
    numbers_of,
    step_numbers,
)
from gradscope.rollouts.readers.reduction.log import ColumnLog, reduced_groups, too_many_rollouts
from gradscope.rollouts.run import Run

_RESPONSES = frozenset((*REWARD_LISTS, *ANSWER_KEYS, *TEXT_LISTS))
_ONE_RESPONSE = ("response", "completion", "output", "generation", "output_response", *ANSWER_KEYS[:1])
"""Keys under which a text is the policy's response, and not the task's own solution."""
_PREDICTIONS = ("pred", "prediction", "predicted", "response", "completion", "generation", "model_answer")
_PROMPTS = (*USUAL["prompt"], *USUAL["prompt_id"])
_TRIALS = ("trial", *SAMPLE_IDS)
_TOTALS = ("n", "num_samples", "n_samples", "total_samples", "num_rollouts", "total_rollouts", "total")
_RIGHTS = ("c", "num_correct", "n_correct", "correct_count", "num_passed", "n_passed", "correct", "passed")
_ALSO_VERDICTS = ("correct", "passed")  # also names of the verdict on one sample: a boolean is no count
_COUNTS = "counts"  # the shape of a row with n and c
_BY_KEYS, _BY_LINES = "their keys", "their lines"  # how prompts are told apart that have no id of their own
_NO_COLUMNS, _NO_TOTAL = ColumnNames(), "the number of samples is missing"
_MAX_COUNT = 1_000_000
_ROUNDED = 0.001  # how far a share that is written beside its counts may be from them
_MANY = 20  # counts of so many times more samples than there are counts are totals, with or without a share
_MAX_DEPTH = 12
_NUM_PARTS = 1000  # of a list or object, that are searched for samples before a document is taken for one of samples
_MANY_PROMPTS = 10  # keys of an object whose lists of 0 and 1 are verdicts on as many prompts, and no columns
_NUMBERS = frozenset({bool, int, float})
_ROW_IDS = (*USUAL["prompt_id"], "id", "idx")
_NAMES = (*_ROW_IDS, *USUAL["prompt"])
_WITHIN_DATASET = ("i", "idx", "index", "id")
_TOLD_BY_CELLS = frozenset(("n", "dataset", *POLICIES))  # keys that mean one thing or another, as their cells are
_NO_SAMPLES = re.compile(r"(ref|reference|gold|canonical|expected|ground_truth|few_shot|demo)", re.IGNORECASE)
"""How lists of solutions are called that are not the policy's."""
MAX_SAMPLES = 20_000_000  # samples of all prompts: a row of counts declares up to a million with a few digits


class PromptSamples(Struct, kw_only=True):
    """The samples of one prompt."""

    shape: str  # their layout, in words
    rewards: Sequence[Any]  # a cell for each sample, not yet parsed
    further: Mapping[str, Sequence[Any]] = {}
    """Other numbers of the samples, by name, the scalar reward among them."""
    texts: Sequence[Any] = ()  # completions, where they were written
    policies: tuple[str, ...] = ()  # the policy of each sample, where a row holds one of each
    counts: tuple[int, ...] = ()  # how many samples each stands for; empty: one

    def __len__(self) -> int:
        return sum(self.counts) or len(self.rewards)


def samples_of(row: Mapping[str, Any], columns: ColumnNames = _NO_COLUMNS) -> PromptSamples | str | None:
    """The samples that a row, or a part of a document, holds.

    A list of rewards counts as samples where the row also has a list of as many responses, or where it was named: a
    list alone may as well hold the criteria, tests or tokens of one response. With one response it holds those, named
    or not; with a list of different prompts it holds a batch.

    Returns:
        The samples; the reason for the quarantine where they contradict themselves; None where the row has none.
    """
    if columns.num_samples or columns.num_correct:
        return _from_counts(row, columns)
    if _listed_prompts(row, columns.reward):
        return None  # counts beside samples of several prompts are the totals of these
    return _from_lists(row, columns.reward) or _from_counts(row, columns) or _from_policies(row, columns.reward)


def _listed_prompts(row: Mapping[str, Any], reward: str | None) -> list[dict[str, Any]]:
    """The rollouts of several prompts or steps that a row lists, in a policy's evaluation those with texts as ids."""
    for cell in row.values():
        if is_list_of_objects(cell) and not cell[0].keys().isdisjoint((reward, *USUAL["reward"])):
            keys = (*_PROMPTS, *USUAL["step"], "user")
            is_of_policy = any(isinstance(row.get(key), str) for key in POLICIES) and row.keys().isdisjoint(_NAMES)
            has_ids = is_of_policy and isinstance(cell[0].get("id"), str)  # numbers may be those of samples
            if has_ids or any(element.get(key) != cell[0].get(key) for element in cell for key in keys):
                return list(cell)
    return []


_Part = tuple[tuple[str, ...], Mapping[str, Any], PromptSamples | str]


def prompt_rows(
    node: Any, columns: ColumnNames = _NO_COLUMNS, depth: int = _MAX_DEPTH, keys: tuple[str, ...] = ()
) -> Iterator[_Part]:
    """The parts of a nested document that hold samples, outermost first, down to ``depth`` levels.

    Yields:
        The keys and list indices that lead from the document to the part, after ``keys``; the part; its samples.
    """
    counts = node.get(columns.num_correct or "") if isinstance(node, dict) else None
    samples = samples_of(node, columns) if isinstance(node, dict) else None
    if isinstance(counts, list):  # a count a prompt, of as many samples each
        rows = ({**node, columns.num_correct or "": count} for count in counts)
        yield from (((*keys, str(at)), {}, _from_counts(row, columns) or _NO_TOTAL) for at, row in enumerate(rows))
    elif samples is not None:
        yield keys, node, samples
    elif isinstance(node, dict) and (by_key := _verdicts_by_key(node)):
        yield from (((*keys, str(key)), *part) for key, part in by_key.items())
    elif isinstance(node, dict) and (
        (policy := {key: node[key] for key in POLICIES if key in node})
        and (listed := _listed_prompts(node, columns.reward))
    ):
        main = _first(listed[0], (columns.reward or "", *USUAL["reward"])) or ""
        for at, row in enumerate(listed):
            yield (*keys, str(at)), {**row, **policy}, PromptSamples(shape="objects", rewards=(row.get(main),))
    elif isinstance(node, (dict, list)) and depth:
        layouts, without = set[tuple[str, ...]](), list[tuple[str, dict[str, Any]]]()
        for key, item in node.items() if isinstance(node, dict) else enumerate(node):
            parts = prompt_rows(item, columns, depth - 1, (*keys, str(key)))
            if first := next(parts, None):
                yield first
                yield from parts
                layouts |= {tuple(item)} if isinstance(item, dict) else set()
            elif isinstance(item, dict):
                without.append((str(key), item))
        of_prompts = [(key, item) for key, item in without if tuple(item) in layouts]  # with an empty list, say
        yield from (((*keys, key), item, "the prompt has no samples") for key, item in of_prompts)


def _verdicts_by_key(node: Mapping[str, Any]) -> dict[str, tuple[Mapping[str, Any], PromptSamples]]:
    """Each of many keys, none of which names a column, with its prompt and samples: a list of verdicts, or one verdict.

    OpenCompass writes the latter as an object for each prompt; those without a prediction may be tests of one response.
    """
    cells = list(node.values())
    if len(node) < _MANY_PROMPTS or not _RESPONSES.isdisjoint(node):
        return {}
    if all(isinstance(cell, list) and cell and _NUMBERS.issuperset(map(type, cell)) for cell in cells):
        are_verdicts = all({0, 1}.issuperset(cell) for cell in cells)
        return {key: ({}, PromptSamples(shape="lists", rewards=cell)) for key, cell in node.items() if are_verdicts}
    if not all(isinstance(cell, dict) and any(key in cell for key in _PREDICTIONS) for cell in cells):
        return {}
    names = [name for name in USUAL["reward"] if all(type(cell.get(name)) is bool for cell in cells)][:1]
    return {
        key: (cell, PromptSamples(shape="objects", rewards=(cell[name],)))
        for name in names
        for key, cell in node.items()
    }


def refuse_lone_list(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Refuse, with a hint, a file in which most first rows have a list of rewards that cannot be read as samples."""
    batches = [name for row in rows if (name := _prompts_in(row)) is not None]
    if len(batches) > len(rows) / 2:
        raise InputError(
            f"{path} has rows with a list of several prompts each ({batches[0]!r}): batches, in an unknown form.",
            hint="Write a row a rollout: step, prompt, response, reward.",
        )
    for name in REWARD_LISTS:
        if sum(isinstance(row.get(name), list) for row in rows) > len(rows) / 2:
            raise InputError(
                f"{path} has a list {name!r} in a row, and no list of as many responses beside it: whether its entries "
                "are samples, or parts of one, is not known.",
                hint=f"If each entry is a sample, name the list: --reward-column {name}",
            )


def _prompts_in(row: Mapping[str, Any]) -> str | None:
    """The name of a list with a prompt for each response, not all the same; a conversation is one prompt."""
    lists = {name: cell for name, cell in row.items() if isinstance(cell, list)}
    if lists.keys().isdisjoint(_PROMPTS):
        return None
    sizes = {len(cells) for name, cells in lists.items() if name in _RESPONSES}
    for name in _PROMPTS if sizes else ():
        cells = lists.get(name, ())
        is_conversation = any(isinstance(cell, dict) for cell in cells)
        if len(cells) in sizes and not is_conversation and len(set(map(digest, cells))) > 1:
            return name
    return None


def _from_lists(row: Mapping[str, Any], reward: str | None) -> PromptSamples | str | None:
    if _prompts_in(row) is not None:
        return None
    columns: dict[str, Any] = {}
    aligned: set[str] = set()
    entries = {
        name: value[0].keys()
        for name, value in row.items()
        if is_list_of_objects(value) and (reward or not _NO_SAMPLES.match(name))
    }
    named = {name: (reward or "").removeprefix(f"{name}.") for name in entries}  # `list.entry`, or an entry
    of_named = [name for name, keys in entries.items() if named[name] in keys]
    of_samples = of_named or [name for name, keys in entries.items() if not keys.isdisjoint(USUAL["reward"])]
    answered = [name for name in of_samples if reward or not entries[name].isdisjoint((*ANSWER_KEYS, *_TRIALS))]
    if len(answered) > 1:
        return f"several lists hold objects with a reward, {list_names(answered)}: --reward-column LIST.ENTRY"
    for name, value in row.items():
        if name in of_samples:
            objects = {key: [element.get(key) for element in value] for key in value[0]}
            columns |= objects | ({reward: objects[named[name]]} if reward and of_named else {})
            aligned |= set(objects) if name in answered else set()
        elif isinstance(value, list):
            columns.setdefault(name, list(map(unwrapped, value)) if list in set(map(type, value)) else value)
    if reward is not None and reward not in columns and _first(columns, REWARD_LISTS):
        raise UsageError(f"There is no list {reward!r} of rewards.", hint=f"The lists are {list_names(columns)}.")
    sizes = {len(columns[name]) for name in (*ANSWER_KEYS, *TEXT_LISTS) if name in columns}
    is_counted = isinstance(row.get("n"), int) and isinstance(row.get("c"), int)  # they give the list's length
    aligned |= {name for name, value in columns.items() if is_counted or len(value) in sizes}
    main = reward if reward in columns else next((name for name in REWARD_LISTS if name in aligned), None)
    if main is None or isinstance(row.get(main), (bool, int, float, str)):
        return None
    if not sizes and any(isinstance(row.get(name), str) for name in _ONE_RESPONSE):
        return "the list of rewards stands beside one response, whose parts or tokens it then holds"
    size = len(columns[main])
    if not size:
        return None if is_counted else "the list of samples is empty"
    if is_counted and (row["n"], row["c"]) != (len(columns[main]), sum(map(bool, columns[main]))):
        return "n and c contradict the list of samples"
    same = {name: tuple(value) for name, value in columns.items() if len(value) == size}
    texts = _first(same, (*ANSWER_KEYS, *TEXT_LISTS))
    return PromptSamples(
        shape="lists",
        rewards=same[main],
        further={
            name: value
            for name, value in same.items()
            if name == main or _NUMBERS.issuperset(map(type, value)) or all(map(is_number, value))
        },
        texts=same[texts] if texts else (),
    )


def _from_counts(row: Mapping[str, Any], columns: ColumnNames) -> PromptSamples | str | None:
    rights = (name for name in _RIGHTS if name not in _ALSO_VERDICTS or not isinstance(row.get(name), (bool, list)))
    right = columns.num_correct or next((name for name in rights if name in row), None)
    lists = (name for name in TEXT_LISTS if right not in _ALSO_VERDICTS and isinstance(row.get(name), list))
    total = columns.num_samples or _first(row, _TOTALS) or next(lists, None)
    if total is None or right is None or total not in row or right not in row:
        return None
    is_list = total not in _TOTALS and isinstance(row[total], list)  # of the samples themselves
    n, c = len(row[total]) if is_list else whole_number(row[total]), whole_number(row[right])
    if n is None or c is None or not 1 <= n <= _MAX_COUNT or c > n:
        return f"{total} and {right} are not counts with 0 <= {right} <= {total} and {total} >= 1"
    rewards = {1.0: c, 0.0: n - c}
    counts = {reward: count for reward, count in rewards.items() if count}
    return PromptSamples(shape=_COUNTS, rewards=tuple(counts), counts=tuple(counts.values()))


def _from_policies(row: Mapping[str, Any], reward: str | None) -> PromptSamples | None:
    names = (reward,) if reward is not None else USUAL["reward"]
    named = {
        policy: value
        for policy, value in row.items()
        if isinstance(value, dict) and any(is_number(value.get(name)) for name in names)
    }
    main = next((name for name in names if any(is_number(value.get(name)) for value in named.values())), None)
    texts = [next((value[key] for key in ANSWER_KEYS if key in value), None) for value in named.values()]
    are_verdicts = any(isinstance(value.get(main), bool) for value in named.values())
    has_prompt = not row.keys().isdisjoint(_NAMES)
    if len(named) < 2 or not (any(texts) or (are_verdicts and has_prompt)):  # numbers alone are means over many samples
        return None
    return PromptSamples(
        shape=f"one sample of each of {len(named)} policies ({', '.join(named)})",
        rewards=tuple(value.get(main) for value in named.values()),
        texts=tuple(texts),
        policies=tuple(named),
    )


def _first(columns: Collection[str], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in columns), None)


def _recognizes(request: ReadRequest) -> bool:
    """Whether the path holds lists or counts of samples, or rows with a reward, a prompt and no step."""
    rows = peek(request.path)
    if _listed(rows, request) is not None or _holds_shapes(rows, request.columns):
        return True
    columns = generic.resolve_columns(generic.columns_in(generic.with_entries(rows)), request.columns)
    are_rows = columns.step is None and None not in (columns.reward, generic.key_of(columns))
    return are_rows and not generic.steps_of_files(request.path, columns)


def _read(request: ReadRequest) -> Run:
    """Read a sample file: a group for each prompt, at step 0."""
    rows = peek(request.path)
    listed = _listed(rows, request)
    if listed is not None:
        return generic.read_flat(request, format=FORMAT.name, with_steps=True, listed=listed)
    if not _holds_shapes(rows, request.columns):
        reward = generic.resolve_columns(generic.columns_in(generic.with_entries(rows)), request.columns).reward
        refuse_lone_list(request.path, [{reward: row.get(reward)} for row in rows] if reward else rows)
        return generic.read_flat(request, format="samples", with_steps=False)
    step_key = request.columns.step or _first(generic.columns_in(rows), USUAL["step"])
    to_columns, files = partial(_to_columns, columns=request.columns, step_key=step_key), expand(request.path)
    decoded = LineColumns(row=dict[str, Any], to_columns=lambda rows, path: to_columns(Cells.of_rows(rows, path)))
    declared = {".json": ListColumns(lines=decoded), ".csv": None, ".tsv": None, ".parquet": None}
    notes, quarantine = set[Note](), WatchedLog(request.progress, files)
    log = ColumnLog(
        files=files,
        declared=lambda file: declared.get(suffix_of(file) or "", decoded),
        rows=read_rows,
        to_columns=to_columns,
        quarantine=quarantine,
        note=notes.add,
        lines_hold_many=True,
        max_rollouts=allowed(MAX_SAMPLES),
    )
    groups = reduced_groups(log, request) or ()
    shapes, identities = facts_in(notes, "shape"), facts_in(notes, "identity")
    is_named = request.columns.num_samples is not None or not {_BY_KEYS, _BY_LINES}.issuperset(identities)
    if shapes == [_COUNTS] and not is_named:
        _refuse_totals(request.path, len(groups), [part for row in rows for part in prompt_rows(row)])
    return assemble_groups(
        request,
        request.source(
            "samples",
            f"samples of prompts as {' and '.join(shapes)}",
            inferred=[f"Prompts are told apart by {' and '.join(identities)}."],
        ),
        groups=groups,
        quarantine=quarantine,
    )


def _refuse_totals(path: Path, num_pairs: int, first: Sequence[_Part]) -> None:
    """Refuse counts without a prompt's name that are totals, say one for each checkpoint or benchmark."""
    # A pair alone, several that mostly have their share beside them and differ in size or each count more samples than
    # there are pairs, or several that count many times as many.
    counts = [(part, samples) for _, part, samples in first if isinstance(samples, PromptSamples)]
    sizes = [len(samples) for _, samples in counts]
    has_shares = sum(_has_share(part, samples) for part, samples in counts) > len(counts) / 2
    are_slices = has_shares and max(sizes) > 2 * min(sizes)  # of one evaluation, by category and the like
    if num_pairs > 1 and not are_slices and sum(sizes) <= num_pairs * len(counts) * (1 if has_shares else _MANY):
        return
    pairs = f"{num_pairs} pairs of counts" if num_pairs > 1 else "one pair of counts"
    raise InputError(
        f"{path} holds {pairs} and names no prompt: these are totals of evaluations, and pass@k needs the samples of "
        "each prompt.",
        hint="Give the file with a row for each sample or prompt; if each pair is of one prompt, say so: --n-column N "
        "--c-column C",
    )


def _has_share(part: Mapping[str, Any], samples: PromptSamples) -> bool:
    """Whether a cell beside counts is their share, of 1 or of 100."""
    share = dict(zip(samples.rewards, samples.counts, strict=True)).get(1.0, 0) / len(samples)
    cells = [cell for cell in part.values() if isinstance(cell, float)]
    return any(min(abs(cell - share), abs(cell / 100 - share)) < _ROUNDED for cell in cells)


def _listed(rows: Sequence[Mapping[str, Any]], request: ReadRequest) -> str | None:
    """:func:`list_of_samples`; an InputError where the document counts more samples than it lists."""
    name = generic.list_of_samples(rows, request)
    counts = None if name is None else _from_counts(rows[0], _NO_COLUMNS)
    if name is not None and isinstance(counts, PromptSamples) and len(counts) > len(rows[0][name]):
        raise InputError(
            f"{request.path} counts {len(counts):,} samples and lists {len(rows[0][name]):,} of them in {name!r}.",
            hint="Give the file with all samples of each prompt.",
        )
    return name


def _holds_shapes(rows: list[dict[str, Any]], columns: ColumnNames) -> bool:
    """Whether most of the first rows hold several samples each; a few broken rows do not matter."""
    first = (beginning(row, _MAX_DEPTH, _NUM_PARTS) for row in rows)
    parts = [(row, samples) for row in first for _, _, samples in islice(prompt_rows(row, columns), 1)]
    counts = [row for row, samples in parts if isinstance(samples, PromptSamples) and samples.shape == _COUNTS]
    prompts = {_identify(row, str(index))[0] for index, row in enumerate(counts)}
    is_named = columns.num_samples is not None or columns.num_correct is not None
    # Where most prompts have several rows, what looks like counts are single samples numbered n.
    return len(parts) > len(rows) / 2 and (is_named or len(counts) < 2 or len(prompts) > len(counts) / 2)


class _Prompt(NamedTuple):
    """A prompt of a row, with its samples."""

    row: int
    step: int
    name: str  # its id
    how: str  # what the id comes from
    cell: Any  # the prompt itself
    samples: PromptSamples
    policy: str | None  # the policy of all its samples, where the row names one


def _to_columns(rows: Cells, *, columns: ColumnNames, step_key: str | None) -> Columns:
    """The samples of the prompts of rows; a prompt that has a name by its line alone is left to the row reader."""
    prompts, flaws = _prompts_alike(rows.rows, columns, step_key), list[tuple[int, str]]()
    for at, row in () if prompts else enumerate(rows.rows):
        for prompt in _prompts_of(row, at, rows.locations[at] if rows.locations else "", columns, step_key):
            if isinstance(prompt, str):
                flaws.append((at, prompt))
            else:
                prompts.append(prompt)
    sizes = [len(prompt.samples.rewards) for prompt in prompts]
    starts = [0, *accumulate(sizes)]
    of_prompt = np.repeat(np.arange(len(prompts)), sizes)
    sized = list(zip(prompts, sizes, strict=True))
    counts = list(chain.from_iterable(prompt.samples.counts or repeat(1, n) for prompt, n in sized))
    if sum(counts) > allowed(MAX_SAMPLES):
        raise too_many_rollouts(rows.path, allowed(MAX_SAMPLES))
    rewards = list(chain.from_iterable(prompt.samples.rewards for prompt in prompts))
    names = dict.fromkeys(chain.from_iterable(dict.fromkeys(tuple(prompt.samples.further) for prompt in prompts)))
    numbers = {"reward": numbers_of(rewards)}
    for name in names:
        lists = [prompt.samples.further.get(name) or (None,) * n for prompt, n in sized]
        is_main = all(cells is prompt.samples.rewards for cells, prompt in zip(lists, prompts, strict=True))
        numbers[REWARD + name] = numbers["reward"] if is_main else numbers_of(list(chain.from_iterable(lists)))
    groups = [of.name if of.policy is None else f"{of.policy}/{of.name}" for of in prompts]
    sampled_by = list(chain.from_iterable(of.samples.policies or repeat(of.policy, n) for of, n in sized))
    policies = {policy: number for number, policy in enumerate(filter(None, dict.fromkeys(sampled_by)))}
    if policies:
        numbers["policy"] = np.array([policies.get(policy or "", UNKNOWN) for policy in sampled_by])

    def details(at: int) -> dict[str, Any]:
        prompt, sample = prompts[of_prompt[at]], at - starts[of_prompt[at]]
        samples = prompt.samples
        return {
            "completion": text_of(samples.texts[sample]) if samples.texts else "",
            "rewards": {name: finite_or_none(cells[sample]) for name, cells in samples.further.items()},
            "messages": parse_messages(prompt.cell),
            "policy": sampled_by[at],
        }

    return Columns(
        row=np.repeat(np.array([prompt.row for prompt in prompts], dtype=np.int64), sizes),
        flaws=flaws,
        count=None if all(count == 1 for count in counts) else np.array(counts),
        step=np.repeat(np.array([prompt.step for prompt in prompts], dtype=np.int64), sizes),
        group=np.repeat(np.array(groups, dtype=object), sizes).tolist(),
        prompts=lambda chosen: [prompts[of_prompt[at]].name for at in chosen],
        texts=lambda chosen: [text_of(prompts[of_prompt[at]].cell) for at in chosen],
        numbers=numbers,
        no_reward=lambda at: str(parse_reward(rewards[at])),
        notes=[
            *(Fact("shape", shape) for shape in {prompt.samples.shape for prompt in prompts}),
            *(Fact("identity", how) for how in {prompt.how for prompt in prompts}),
        ],
        policies=tuple(policies),
        details=details,
    )


def _prompts_alike(rows: Sequence[Mapping[str, Any]], columns: ColumnNames, step_key: str | None) -> list[_Prompt]:
    """The prompts of rows with the same keys, lists of scalars as long as that of responses, and an id; else none.

    What :func:`samples_of` and :func:`_identify` make of such rows follows from the keys alone.
    """
    keys = tuple(rows[0]) if rows else ()
    id_key, prompt_key = _first(keys, (*_ROW_IDS, *USUAL["prompt"])), _first(keys, USUAL["prompt"])
    is_named = columns != ColumnNames(reward=columns.reward, step=columns.step)
    if is_named or id_key is None or not _TOLD_BY_CELLS.isdisjoint(keys) or set(map(tuple, rows)) != {keys}:
        return []
    by_key = dict(zip(keys, zip(*(row.values() for row in rows), strict=True), strict=True))
    types = {key: set(map(type, cells)) for key, cells in by_key.items()}
    lists = {key: set(map(type, chain.from_iterable(by_key[key]))) for key in keys if types[key] == {list}}
    main = columns.reward or _first(lists, REWARD_LISTS) or ""
    texts = _first(lists, (*ANSWER_KEYS, *TEXT_LISTS)) or ""
    sizes = {tuple(map(len, by_key[key])) for key in lists}
    steps = [0] * len(rows) if step_key is None else step_numbers(by_key.get(step_key, ())).tolist()
    is_text = id_key in USUAL["prompt"]
    are_ids = (types[id_key] == {str} and all(by_key[id_key])) or (types[id_key] == {int} and not is_text)
    are_plain = all(kinds == {str} or kinds <= _NUMBERS for kinds in lists.values())
    are_known = not any(list in types[key] for key in keys - lists.keys()) and lists.keys().isdisjoint(_PROMPTS)
    has_all = main in lists and texts in lists and len(sizes) == 1 and 0 not in next(iter(sizes))
    if not (are_ids and are_plain and are_known and has_all and min(steps, default=-1) >= 0):
        return []
    further = [key for key in keys if key == main or _NUMBERS.issuperset(lists.get(key, {str}))]
    names = map(prompt_text_id if is_text else text_of, by_key[id_key])
    prompts = by_key.get(prompt_key or "", [None] * len(rows))
    samples = [
        PromptSamples(shape="lists", rewards=row[main], further={name: row[name] for name in further}, texts=row[texts])
        for row in rows
    ]
    return [
        _Prompt(at, step, name, f"the text of {id_key}" if is_text else id_key, prompt, of_row, None)
        for at, (step, name, prompt, of_row) in enumerate(zip(steps, names, prompts, samples, strict=True))
    ]


def _prompts_of(
    row: Mapping[str, Any], at: int, location: str, columns: ColumnNames, step_key: str | None
) -> Iterator[_Prompt | str]:
    """The prompts of a row, and reasons why it, or a part of it, is set aside."""
    step = 0 if step_key is None else step_number(row.get(step_key))
    if step is None:
        yield "the step is not a whole number"
        return
    parts = list(prompt_rows(row, columns))
    parts = parts if len(parts) < 2 else list(_without_repeats(parts))
    if not parts:
        yield "the row holds no samples with a reward"
    named = generic.key_of(columns)
    prompt_keys = USUAL["prompt"] if columns.prompt is None else (columns.prompt,)
    for keys, part, samples in parts:
        if not isinstance(samples, PromptSamples):
            yield samples
            continue
        if named is not None and part.get(named) is None:
            yield f"{named} is missing"
            continue
        name, how = _identify(part, location, keys) if named is None else (text_of(part[named]), named)
        if how in (_BY_KEYS, _BY_LINES) and not location:
            yield "the number of its line is not known"
            continue
        yield _Prompt(
            row=at,
            step=step,
            name=name,
            how=how,
            cell=next((part[key] for key in prompt_keys if key in part), None),
            samples=samples,
            policy=next((text_of(part[key]) for key in POLICIES if isinstance(part.get(key), str)), None),
        )


def _without_repeats(parts: Iterable[_Part]) -> Iterator[_Part]:
    """Parts of a document without lists of which each part stands in an earlier list, as prompts sorted again have."""
    by_path: dict[tuple[str, ...], list[_Part]] = {}
    for part in parts:
        by_path.setdefault(tuple(key for key in part[0] if not key.isdecimal()), []).append(part)
    earlier: set[str] = set()
    for listed in by_path.values():
        rows = [part for _, part, _ in listed] if len(by_path) > 1 else []
        are_named = not any(row.keys().isdisjoint(_NAMES) for row in rows)
        contents = {digest(dict(row)) for row in rows} if are_named else set()
        if not contents or not contents <= earlier:
            yield from listed
        earlier |= contents


def _identify(row: Mapping[str, Any], location: str, outer_keys: tuple[str, ...] = ()) -> tuple[str, str]:
    """The id of a row's prompt, and the columns it comes from; without one the keys of a part, or the row's line."""
    if isinstance(row.get("dataset"), str):
        within = next((key for key in _WITHIN_DATASET if row.get(key) is not None), None)
        if within is not None:
            keys = [key for key in ("category", "dataset", within) if row.get(key) is not None]
            return "/".join(text_of(row[key]) for key in keys), ", ".join(keys)
    for key in _ROW_IDS:
        if row.get(key) is not None and row[key] != "":
            return text_of(row[key]), key
    for key in USUAL["prompt"]:
        if row.get(key):
            return prompt_text_id(row[key]), f"the text of {key}"
    if number := next(filter(generic.PROMPT_NUMBER.fullmatch, row), None):
        return text_of(row[number]), number
    line = location.rpartition(":")[2]
    return ("/".join(outer_keys if line == "1" else (line, *outer_keys)), _BY_KEYS) if outer_keys else (line, _BY_LINES)


FORMAT = Format(
    name="samples",
    looks_for="samples of prompts: task_id with passed, score or n and c (sample files)",
    recognizes=_recognizes,
    read=_read,
    takes=frozenset({"columns"}),
)
