"""Sample files for pass@k: n samples of each prompt, as rows, lists, counts or a key for each policy.

A prompt is a group. A file whose rows name their step is a log with a row for each group: the samples of a prompt at
two steps are two groups. Other files have step 0 throughout.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, islice, repeat, starmap
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import astuple, replace
from numpy.typing import NDArray

from gradscope.errors import InputError
from gradscope.outside.limits import allowed
from gradscope.outside.plain_json import beginning
from gradscope.results.source import BY_NUMBER
from gradscope.rollouts.groups import REWARD, numbered_policies
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers import column_roles as roles
from gradscope.rollouts.readers import generic, nested
from gradscope.rollouts.readers.evaluations.shapes import (
    COUNTS,
    LISTS_OF_PROMPTS,
    MAX_DEPTH,
    NAMES,
    NO_COLUMNS,
    ROW_IDS,
    TOTALS,
    PromptPart,
    PromptSamples,
    cells_around,
    from_counts,
    listed_prompts,
    prompt_rows,
    refuse_lone_list,
    samples_of,
    unjudged,
)
from gradscope.rollouts.readers.evaluations.uniform_rows import LogColumns, Prompt, uniform_prompts, uniform_table
from gradscope.rollouts.readers.flat_columns import IMAGES, hold_tokens
from gradscope.rollouts.readers.format import Format
from gradscope.rollouts.readers.nested import NUM_LISTED, Layout, Level, first_rows_within, layout_of, with_single_names
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing.quarantine import WatchedLog
from gradscope.rollouts.readers.parsing.records import (
    NUM_SEARCHED,
    ReadRequest,
    are_cut_off,
    assemble_groups,
    end_column,
    has_more_rows,
    list_names,
    peek,
)
from gradscope.rollouts.readers.parsing.tables import expand, is_columnar, read_rows, stem_of
from gradscope.rollouts.readers.reduction.columns import Cells, Columns, Fact, Note, columns_of_whole_rows, facts_in
from gradscope.rollouts.readers.reduction.log import ColumnLog, reduced_groups, too_many_rollouts
from gradscope.rollouts.readers.reduction.numbers import numbers_of
from gradscope.rollouts.readers.run_files import with_run_files
from gradscope.rollouts.run import Run

_NAMELESS = frozenset({_BY_KEYS := "their keys", BY_NUMBER})  # how prompts are told apart that have no id of their own
_ROUNDED = 0.001  # how far a share that is written next to its counts may be from them
_MANY_SAMPLES = 20  # counts of so many times more samples than there are counts are totals, with or without a share
_EVALUATION = re.compile(
    r"(pre|post|before|after|base|baseline|first|initial|last|final|best|held_?out)_?(eval\w*|test|training|rl|sft)"
    r"|(eval\w*|test)_?(pre|post|before|after|base|baseline|initial|final)|overall|summary|totals?",
    re.IGNORECASE,
)
"""Keys of whole evaluations, whose counts are their totals."""
CHUNK = r"(part|shard|rank|chunk|worker)[-_.]?[0-9]+|[0-9]+-of-[0-9]+"
"""What names of files say that hold some of the prompts each, of which positions and lines are their own."""
_CHUNK, _CHUNK_OF_GROUPS = re.compile(f"({CHUNK})$"), re.compile(f"({CHUNK}|^[0-9]+)$")
_NUM_PARTS = 1000  # of a list or object, that are searched for samples before a document is taken for one of samples
_NUM_ELEMENTS_EACH = 24  # the same of the lists in each of several rows
_NO_STEP = "the step is not a whole number"
MAX_SAMPLES = 20_000_000  # samples of all prompts: a row of counts declares up to a million with a few digits


def _recognizes(request: ReadRequest) -> bool:
    rows = peek(request.path)
    request = _with_entry(request, rows)
    if _listed(rows, request) or _holds_shapes(rows, request.columns):
        return True
    columns = roles.columns_of_rows(rows, request.columns)
    are_rows = columns.step is None and roles.have_rollouts(columns)
    return are_rows and not generic.have_steps(request.path, columns)


def _read(request: ReadRequest) -> Run:
    """Read a sample file: a group for each prompt, at step 0."""
    rows = peek(request.path)
    request = _with_entry(request, rows)
    if rows and {"accuracy", "correct_count", "total_count"} <= rows[0].keys() and rows[0].keys().isdisjoint(NAMES):
        results = Path(*("result" if part == "score" else part for part in request.path.parts))
        files = shlex.join([str(request.path), str(results).removesuffix("score.json") + "result.json"])
        raise InputError(
            f"{request.path} is a score file of BFCL, which lists the cases that failed and no other.",
            hint="Take all from its results: jq -cs '[.[] | select(.valid == false).id] as $failed | .[] "
            f"| select(.result) | {{id, correct: (.id as $id | all($failed[]; . != $id))}}' {files} > rows.jsonl",
        )
    layout = _listed(rows, request)
    if layout:
        _refuse_excerpts(request.path, rows)
        if len(rows) == 1 and rows[0].get("truncated") is True:
            raise InputError(
                f"{request.path} says that it is truncated: {nested.title_of(layout)} has some of the samples.",
                hint="Give the file with all samples of each prompt.",
            )
        run = generic.read_flat(request, format=FORMAT.name, with_steps=True, layout=layout)
        script_run = replace(run, source=replace(run.source, format=generic.FORMAT.name))  # where it has steps
        return with_run_files(request, script_run) if any(run.steps) else run
    if not _holds_shapes(rows, request.columns):
        reward = roles.columns_of_rows(rows, request.columns).reward
        refuse_lone_list(request.path, [{reward: row.get(reward)} for row in rows] if reward else rows)
        return generic.read_flat(request, format="samples", with_steps=False)
    return _read_shapes(request, rows)


def _read_shapes(request: ReadRequest, rows: Sequence[Mapping[str, Any]]) -> Run:
    is_bare = len(rows) == 1 and request.columns == NO_COLUMNS
    if is_bare and all(starmap(_is_nameless_count, prompt_rows(rows[0]))):
        parts = list(prompt_rows(rows[0]))
        _refuse_totals(request.path, len(list(_without_repeats(parts))), parts)  # rather than make millions of samples
    searched = peek(request.path, num_rows=NUM_SEARCHED)  # so many that ids are seen to recur
    num_parts = _NUM_PARTS if len(searched) > 1 else 20 * _NUM_PARTS
    parts_by_row = [list(islice(prompt_rows(row, request.columns), num_parts)) for row in searched]
    contexts = map(cells_around, searched)
    first = [cells | dict(part) for cells, parts in zip(contexts, parts_by_row, strict=True) for _, part, _ in parts]
    if roles.key_of(request.columns) is None and _have_own_ids(first):
        request = replace(request, options=replace(request.options, columns=replace(request.columns, prompt_id="id")))
    located = [(str(index), *part) for index, parts in enumerate(parts_by_row) for part in parts]
    unattributed = [(row, *keys) for row, keys, part, _ in located if part.keys().isdisjoint(roles.POLICIES)]
    level = _level_of_policies(unattributed, are_rows=len(searched) > 1)
    named_key, counted = roles.key_of(request.columns), None
    step_key = request.columns.step or roles.first_present(roles.columns_in(rows), roles.USUAL["step"])
    if step_key is None:
        key = named_key or roles.first_present(roles.columns_in(searched), NAMES)
        is_part = has_more_rows(request.path, searched)
        step_key = counted = roles.counted_step(searched, key, are_first=is_part, are_groups=True)
    has_steps = step_key is not None or not set(roles.USUAL["step"]).isdisjoint(roles.columns_in(first))
    steps = {} if has_steps else generic.steps_of_files(request.path, _names_in(first))
    has_steps |= bool(steps)
    are_first = not has_steps and len(first) > 1 and has_more_rows(request.path, first)
    grouping = roles.grouping_of(
        first,
        replace(_names_in(first), step=step_key) if named_key is None else request.columns,
        lambda names: () if has_steps else roles.setting_columns(first, names, "name", are_first=are_first),
        is_key_named=named_key is not None,
        are_first=are_first,
    )
    settings, question = grouping.settings, (request.columns if grouping.names.prompt_id else grouping.names).prompt
    columns = replace(request.columns, prompt=question)
    listed = [samples for *_, samples in located if isinstance(samples, PromptSamples)]
    if {samples.shape for samples in listed} == {"objects"}:
        _refuse_excerpts(request.path, rows)
    names, rewards = dict.fromkeys(chain.from_iterable(samples.columns for samples in listed)), _rewards_in(listed)
    end = end_column(names, lambda name: list(chain.from_iterable(samples.columns.get(name, ()) for samples in listed)))
    log_columns = LogColumns(
        named=columns, step=step_key, benchmark=grouping.benchmark, level=level, rewards=rewards, end=end, steps=steps
    )
    files = expand(request.path)
    in_full = request.measures_completions and not any(map(is_columnar, files))  # whose texts are read back alone
    to_columns = partial(_to_columns, columns=log_columns, settings=settings, in_full=in_full)
    uniform = None if settings or steps else partial(uniform_table, columns=log_columns)
    notes, quarantine = set[Note](), WatchedLog(request.progress, files)
    log = ColumnLog(
        files=files,
        declared=columns_of_whole_rows(to_columns, uniform, looks_at_path=bool(steps)),
        rows=read_rows,
        to_columns=to_columns,
        quarantine=quarantine,
        note=notes.add,
        lines_hold_many=True,
        max_rollouts=allowed(MAX_SAMPLES),
    )
    if are_first and request.rewards_only:
        log = replace(log, validate=partial(grouping.without_constants, rows=first))
    groups = reduced_groups(log, request) or ()
    shapes, identities = facts_in(notes, "shape"), facts_in(notes, "identity")
    is_named = request.columns.num_samples is not None or not _NAMELESS.issuperset(identities)
    if shapes == [COUNTS] and not is_named:
        _refuse_totals(request.path, len(groups), [part for row in rows for part in prompt_rows(row)])
    return assemble_groups(
        request,
        request.source(
            generic.FORMAT.name if steps else FORMAT.name,
            f"samples of prompts as {' and '.join(shapes)}",
            inferred=[
                f"Prompts are told apart by {' and '.join(identities)}.",
                *([f"Rows of one group have the same {' and '.join(map(repr, settings))}."] if settings else ()),
                *([f"No column is called a step: {counted!r} counts as one."] if counted else ()),
                *([generic.STEPS_IN_NAMES] if steps else ()),
            ],
        ),
        groups=groups,
        quarantine=quarantine,
    )


def _level_of_policies(paths: Sequence[tuple[str, ...]], *, are_rows: bool) -> int | None:
    """Which of the keys that lead from rows to samples name policies: the fewest whose other keys are mostly shared."""
    # Keys that lead to numbers, as those of benchmarks do as well, have to say so; those in several rows need not.
    levels = list[tuple[int, int]]()
    for index in range(1, min(map(len, paths), default=0)):
        names: dict[tuple[str, ...], set[str]] = {}
        for path in paths:
            names.setdefault(path[:index] + path[index + 1 :], set()).add(path[index])
        values, num_shared = set[str]().union(*names.values()), sum(len(keys) > 1 for keys in names.values())
        are_policies = any(map(nested.POLICY.search, values)) or not all(rest[-1].isdecimal() for rest in names)
        if (are_rows or are_policies) and len(values) < len(names) < 2 * num_shared:
            levels.append((len(values), index - 1))
    return min(levels)[1] if levels else None


def _rewards_in(prompts: Sequence[PromptSamples]) -> frozenset[str]:
    """The numbers of samples that are rewards by their names, or that the reward is a weighted sum of."""
    names = {name: cells is prompt.rewards for prompt in prompts for name, cells in prompt.columns.items()}
    main = next((name for name, is_main in names.items() if is_main), "")
    named = {
        name
        for name in names
        if name in (main, *roles.REWARD_LISTS)
        or roles.reward_columns([name, name.removesuffix("s")], "")
        or name.rstrip("s").endswith("_score")
    }
    rows = (
        {"": index, **{name: cells[sample] for name, cells in prompt.columns.items()}}
        for index, prompt in enumerate(prompts)
        for sample in range(len(prompt.rewards))
    )
    terms = roles.summed_columns(list(islice(rows, NUM_LISTED)), ColumnNames(reward=main, group=""), names)
    return frozenset(named | terms.keys())


def _with_entry(request: ReadRequest, rows: Sequence[Mapping[str, Any]]) -> ReadRequest:
    """A request whose reward ``list.entry`` is the entry where the list is of several prompts, or lies deeper."""
    request = replace(request, options=replace(request.options, columns=with_single_names(request.columns, rows)))
    name, _, entry = (request.columns.reward or "").rpartition(".")
    columns = replace(request.columns, reward=entry)
    is_of_several = any(listed_prompts({name: row.get(name)}, entry) for row in rows if name)
    key = roles.key_of(columns)
    is_within = all(name not in row or (key is not None and key not in row) for row in rows)
    if not name or not (is_of_several or (is_within and layout_of(rows, columns))):
        return request
    return replace(request, options=replace(request.options, columns=columns))


def _is_nameless_count(keys: tuple[str, ...], part: Mapping[str, Any], samples: PromptSamples | str) -> bool:
    return getattr(samples, "shape", "") == COUNTS and _identify(part, "", keys)[1] in _NAMELESS


def _refuse_totals(path: Path, num_pairs: int, first: Sequence[PromptPart]) -> None:
    """Refuse counts without a prompt's name that are totals, say one for each checkpoint or benchmark."""
    # A pair alone, several that mostly have their share next to them and differ in size or each count more samples than
    # there are pairs, several of as many sizes, as by category, several that count many times as many, or one that is
    # the sum of others within it.
    counts = [(part, samples) for _, part, samples in first if isinstance(samples, PromptSamples)]
    sizes = [len(samples) for _, samples in counts]
    num_shares = 0  # of pairs with a cell next to them that is their share, of 1 or of 100
    for part, samples in counts:
        share = dict(zip(samples.rewards, samples.counts, strict=True)).get(1.0, 0) / len(samples)
        cells = [cell for cell in part.values() if isinstance(cell, float)]
        num_shares += any(min(abs(cell - share), abs(cell / 100 - share)) < _ROUNDED for cell in cells)
    has_shares = num_shares > len(counts) / 2
    are_uneven = max(sizes) > 2 * min(sizes) and (has_shares or 2 * len(set(sizes)) > len(sizes) > 2)
    names = [next((key for key in reversed(keys) if not key.isdecimal()), "") for keys, _, _ in first]
    are_whole = has_shares and sum(map(bool, map(_EVALUATION.fullmatch, names))) > len(names) / 2
    are_few = sum(sizes) <= num_pairs * len(counts) * (1 if has_shares else _MANY_SAMPLES)
    inner = ([samples for _, _, samples in prompt_rows([*part.values()])] for part, _ in counts)
    sums = (sum(len(samples) for samples in parts if isinstance(samples, PromptSamples)) for parts in inner)
    are_sums = any(size == total for size, total in zip(sizes, sums, strict=True))
    if num_pairs > 1 and are_few and not (are_uneven or are_whole or are_sums):
        return
    pairs = f"{num_pairs} pairs of counts" if num_pairs > 1 else "one pair of counts"
    hint = (
        "Give the file with a row for each sample or prompt; if each pair is of one prompt, say so: --n-column N "
        "--c-column C"
    )
    lists = ((name, cell[0]) for part, _ in counts for name, cell in part.items() if parse.is_list_of_objects(cell))
    for name, row in lists:
        if reward := roles.first_present(row, roles.USUAL["reward"]):
            choice = f"NAME, one of {list_names(key for key in row if key != reward)}"
            hint = f"If the rows of {name!r} are samples: --reward-column {reward} --prompt-column {choice}."
    raise InputError(
        f"{path} holds {pairs} and names no prompt: these are totals of evaluations, and pass@k needs the samples of "
        "each prompt.",
        hint=hint,
    )


def _listed(rows: list[dict[str, Any]], request: ReadRequest) -> Layout:
    name = _list_of_samples(rows, request)
    if name is not None:
        return (Level(name=name),)
    present = roles.columns_in(roles.with_entries(rows, request.columns))
    if set(present).issuperset(filter(None, astuple(request.columns))):
        flat = roles.resolve_columns(present, request.columns)
        is_flat = roles.key_of(flat) and any(parse.is_number(row.get(flat.reward or "")) for row in rows)
        if is_flat or request.columns.num_correct is not None:
            return ()
    layout = layout_of(rows, request.columns) or ()
    num_parts = _NUM_PARTS if layout else 1
    shapes = [part for row in _beginnings(rows) for part in islice(prompt_rows(row, request.columns), num_parts)]
    are_items = bool(layout) and LISTS_OF_PROMPTS.fullmatch(layout[-1].name or "") and not request.columns.num_correct
    if are_items and shapes and all(starmap(_is_nameless_count, shapes)):
        num_rows = sum(1 for row in rows for _ in nested.rows_within(row, layout))
        if num_rows >= max(len(samples) for *_, samples in shapes):
            return layout  # of which counts next to or around it are the totals
    if _holds_shapes(rows, request.columns) and any(isinstance(samples, PromptSamples) for _, _, samples in shapes):
        # they are read from the parts of rows, whose steps are those of whole rows
        inner_names = roles.columns_in(first_rows_within(rows, layout))
        steps = {request.columns.step, *roles.USUAL["step"]}.intersection(inner_names)
        has_ids = hold_tokens(inner_names)
        return layout if steps - set(present) or (steps and has_ids) else ()
    return layout


def _refuse_excerpts(path: Path, node: Any) -> int:
    """The number of rows in the lists of a document; an InputError where totals next to them are of more samples."""
    if not isinstance(node, dict):
        return sum(max(1, _refuse_excerpts(path, row)) for row in node) if parse.is_list_of_objects(node) else 0
    listed = {name: num for name, cell in node.items() if (num := _refuse_excerpts(path, cell))}
    objects = (cell for name, cell in node.items() if isinstance(cell, dict) and name not in listed)
    num, total = sum(listed.values()), 0
    for part in (node, *objects):
        if isinstance(counts := from_counts(part, NO_COLUMNS), PromptSamples):
            total = max(total, len(counts))
        elif any(nested.TOTAL.search(name) and parse.is_number(cell) for name, cell in part.items()):
            total = max(total, parse.whole_number(part.get(roles.first_present(part, TOTALS) or "")) or 0)
    if 0 < num < total:
        raise InputError(
            f"{path} counts {total:,} samples and lists {num:,} of them in {next(iter(listed))!r}.",
            hint="Give the file with all samples of each prompt.",
        )
    return num


def _list_of_samples(rows: Sequence[Mapping[str, Any]], request: ReadRequest) -> str | None:
    """The name of the one list of a document whose objects are samples with a reward and a prompt each."""
    if len(rows) != 1 or len(expand(request.path)) != 1:
        return None
    lists = {name: cell for name, cell in rows[0].items() if parse.is_list_of_objects(cell)}
    lists = {name: elements for name, elements in lists.items() if not nested.are_turns_of_one(name, elements)}
    holding = [name for name, elements in lists.items() if _are_samples(elements, request.columns)]
    unchosen = [name for name in holding if not nested.are_chosen(name, lists[name])]
    if holding and not unchosen and request.columns.reward is None:
        raise InputError(
            f"{request.path} lists rollouts that were chosen by how they ended, in {holding[0]!r}: no sample of all.",
            hint="Give the file with all samples of each prompt; if these are all: --reward-column NAME",
        )
    holding = unchosen or holding
    return holding[0] if len(holding) == 1 else None


def _are_samples(samples: Sequence[Mapping[str, Any]], named: ColumnNames) -> bool:
    first = roles.with_entries(samples[:NUM_LISTED], named)
    names = roles.columns_in(first)
    are_named = set(names).issuperset(filter(None, astuple(named)))
    columns = roles.resolve_columns(names, named) if are_named else NO_COLUMNS
    # A verdict next to several responses is one on all of them.
    has_lists = isinstance(first[0].get(columns.reward or ""), list) or (
        columns.completion is None
        and isinstance(samples_of(samples[0], named), PromptSamples)
        and any(len(parse.list_of(samples[0].get(name))) > 1 for name in roles.TEXT_LISTS)
    )
    return roles.have_rollouts(columns) and not has_lists


def _beginnings(rows: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Rows with the first parts of what is long in them, by which samples are recognized."""
    num_elements = _NUM_PARTS if len(rows) == 1 else _NUM_ELEMENTS_EACH
    return (beginning(row, MAX_DEPTH, _NUM_PARTS, num_elements) for row in rows)


def _holds_shapes(rows: list[dict[str, Any]], columns: ColumnNames) -> bool:
    """Whether most of the first rows hold several samples each; a few broken rows do not matter."""
    parts = [(row, samples) for row in _beginnings(rows) for _, _, samples in islice(prompt_rows(row, columns), 1)]
    counted = [(row, len(part)) for row, part in parts if isinstance(part, PromptSamples) and part.shape == COUNTS]
    counts, sizes = [row for row, _ in counted], [size for _, size in counted]
    names = _names_in(counts)
    benchmark, question = roles.benchmark_column(counts, names), None if names.prompt_id else names.prompt
    ids = (_identify(row, str(index), benchmark=benchmark)[0] for index, row in enumerate(counts))
    ids = (parse.text_of(row[question]) for row in counts) if question else ids
    prompts = [(name, str(cells_around(row))) for name, row in zip(ids, counts, strict=True)]
    is_named = columns.num_samples is not None or columns.num_correct is not None
    # Where most prompts have several rows, each of another n, this numbers single samples.
    are_counts = 2 * len(set(prompts)) > len(counts) or len(set(zip(prompts, sizes, strict=True))) == len(set(prompts))
    return len(parts) > len(rows) / 2 and (is_named or len(counts) < 2 or are_counts)


def _names_in(parts: Sequence[Mapping[str, Any]]) -> ColumnNames:
    """The columns of ids and texts of prompts in some rows or parts that hold samples."""
    keys = roles.columns_in(parts)
    named = roles.first_present(keys, ROW_IDS) or next(filter(roles.PROMPT_NUMBER.fullmatch, keys), None)
    first = ColumnNames(prompt_id=named, prompt=roles.first_present(keys, roles.USUAL["prompt"]))
    columns = roles.by_cells(parts, first, NO_COLUMNS)
    return columns if named or columns != first else NO_COLUMNS


def _have_own_ids(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether ``id`` tells apart groups of different prompts that share the usual id, as LiveCodeBench's executions."""
    names, ids = _names_in(rows), {parse.text_of(row.get("id")) for row in rows}
    prompts: dict[str, list[str]] = {}
    for row in rows if names.prompt_id and names.prompt and len(ids - {""}) == len(rows) else ():
        text = parse.text_of(row.get(names.prompt or ""))
        prompts.setdefault(parse.text_of(row.get(names.prompt_id or "")), []).append(text)
    return 0 < len(prompts) < len(rows) and all(len(set(texts)) == len(texts) for texts in prompts.values())


def _to_columns(rows: Cells, *, columns: LogColumns, settings: tuple[str, ...] = (), in_full: bool = False) -> Columns:
    """The samples of the prompts of rows; a prompt that has a name by its line alone is left to the row reader."""
    uniform = [] if settings else uniform_prompts(rows.rows, columns)
    prompts, flaws = uniform, list[tuple[int, str]]()
    for index, row in () if prompts else enumerate(rows.rows):
        location = rows.locations[index] if rows.locations else ""
        for prompt in _prompts_of(row, index, location, columns, settings):
            if isinstance(prompt, str):
                flaws.append((index, prompt))
            else:
                prompts.append(prompt)
    file_step, sizes = columns.steps.get(rows.path, 0), [len(prompt.samples.rewards) for prompt in prompts]
    starts = [0, *accumulate(sizes)]
    prompt_index = np.repeat(np.arange(len(prompts)), sizes)
    sized = list(zip(prompts, sizes, strict=True))
    counts = list(chain.from_iterable(prompt.samples.counts or repeat(1, n) for prompt, n in sized))
    if sum(counts) > allowed(MAX_SAMPLES):
        raise too_many_rollouts(rows.path, allowed(MAX_SAMPLES))
    rewards = list(chain.from_iterable(prompt.samples.rewards for prompt in prompts))
    keys = dict.fromkeys(chain.from_iterable(dict.fromkeys(tuple(prompt.samples.columns) for prompt in prompts)))
    names = [name for name in keys if name in columns.rewards]
    numbers: dict[str, NDArray[Any]] = {"reward": numbers_of(rewards)}
    for name in names:
        lists = [prompt.samples.columns.get(name) or (None,) * n for prompt, n in sized]
        is_main = all(cells is prompt.samples.rewards for cells, prompt in zip(lists, prompts, strict=True))
        numbers[REWARD + name] = numbers["reward"] if is_main else numbers_of(list(chain.from_iterable(lists)))
    if columns.end is not None:
        ends = (prompt.samples.columns.get(columns.end) or (None,) * n for prompt, n in sized)
        numbers["truncated"] = are_cut_off(list(chain.from_iterable(ends)), columns.end)
    groups = [prompt.name if prompt.policy is None else f"{prompt.policy}/{prompt.name}" for prompt in prompts]
    sampled_by = list(chain.from_iterable(prompt.samples.policies or repeat(prompt.policy, n) for prompt, n in sized))
    policies, policy = numbered_policies(sampled_by)
    numbers |= policy

    def completions() -> list[str]:
        return [parse.text_of(text) for prompt, n in sized for text in prompt.samples.texts or repeat("", n)]

    def details(rollout: int) -> dict[str, Any]:
        prompt, sample = prompts[prompt_index[rollout]], rollout - starts[prompt_index[rollout]]
        samples = prompt.samples
        return {
            "completion": parse.text_of(samples.texts[sample]) if samples.texts else "",
            "rewards": {
                name: parse.finite_or_none(samples.columns[name][sample]) for name in names if name in samples.columns
            },
            "messages": parse.parse_messages(prompt.cell),
        }

    return Columns(
        row=np.repeat(np.array([prompt.row for prompt in prompts], dtype=np.int64), sizes),
        flaws=flaws,
        count=None if all(count == 1 for count in counts) else np.array(counts),
        step=np.repeat(np.array([prompt.step for prompt in prompts], dtype=np.int64), sizes) + file_step,
        group=np.repeat(np.array(groups, dtype=object), sizes).tolist(),
        no_group="the id of its prompt is missing",
        prompts=lambda chosen: [prompts[prompt_index[rollout]].name for rollout in chosen],
        texts=lambda chosen: [parse.text_of(prompts[prompt_index[rollout]].cell) for rollout in chosen],
        numbers=numbers,
        no_reward=lambda rollout: str(parse.parse_reward(rewards[rollout])),
        notes=[
            *(Fact("shape", shape) for shape in {prompt.samples.shape for prompt in prompts}),
            *(Fact("identity", identity) for identity in {prompt.identity for prompt in prompts}),
        ],
        policies=policies,
        completions=completions if in_full else None,
        details=details,
    )


def _prompts_of(
    row: Mapping[str, Any], row_index: int, location: str, columns: LogColumns, settings: tuple[str, ...] = ()
) -> Iterator[Prompt | str]:
    """The prompts of a row, and reasons why it, or a part of it, is set aside."""
    step = 0 if columns.step is None else parse.step_number(row.get(columns.step))
    if step is None:
        yield _NO_STEP
        return
    parts = list(prompt_rows(row, columns.named))
    parts = parts if len(parts) < 2 else list(_without_repeats(parts))
    if failed := None if parts else unjudged(row):
        parts = [((), row, failed)]
    if not parts:
        yield "the row holds no samples with a reward"
    named = roles.key_of(columns.named)
    prompt_keys = roles.USUAL["prompt"] if columns.named.prompt is None else (columns.named.prompt,)
    for keys, part, samples in parts:
        if not isinstance(samples, PromptSamples):
            yield samples
            continue
        step_column = roles.first_present(part, roles.USUAL["step"]) if columns.step is None else None
        step_of_part = step if step_column is None else parse.step_number(part[step_column])
        if step_of_part is None:
            yield _NO_STEP
            continue
        if named is not None and not parse.text_of(part.get(named)):
            yield f"{named} is missing"
            continue
        if columns.benchmark is not None and columns.benchmark in row:
            part = {columns.benchmark: row[columns.benchmark], **part}
        if columns.level is not None and len(keys) > columns.level and part.keys().isdisjoint(roles.POLICIES):
            part, keys = {"policy": keys[columns.level], **part}, keys[: columns.level] + keys[columns.level + 1 :]
            part = part if keys else {name: row[name] for name in NAMES if name in row} | part
        name, identity = _identify(part, location, keys, columns.benchmark, is_group=len(samples.rewards) > 1)
        name, identity = (name, identity) if named is None else (parse.text_of(part[named]), named)
        if identity in _NAMELESS and not location:
            yield "the number of its line is not known"
            continue
        policies = [parse.text_of(part.get(name)) for name in settings]
        policies += [part[key] for key in roles.POLICIES if isinstance(part.get(key), str)][:1]
        yield Prompt(
            row=row_index,
            step=step_of_part,
            name=name,
            identity=identity,
            cell=next((part[key] for key in prompt_keys if key in part), None),
            samples=samples,
            policy="/".join(filter(None, policies)) or None,
        )


def _without_repeats(parts: Iterable[PromptPart]) -> Iterator[PromptPart]:
    """Parts of a document without lists of which each part stands in an earlier list, as prompts sorted again have."""
    by_path: dict[tuple[str, ...], list[PromptPart]] = {}
    for part in parts:
        by_path.setdefault(tuple(key for key in part[0] if not key.isdecimal()), []).append(part)
    earlier: set[str] = set()
    for listed in by_path.values():
        rows = [part for _, part, _ in listed] if len(by_path) > 1 else []
        are_named = not any(row.keys().isdisjoint(NAMES) for row in rows)
        contents = {parse.digest(dict(row)) for row in rows} if are_named else set()
        if not contents or not contents <= earlier:
            yield from listed
        earlier |= contents


def _identify(
    row: Mapping[str, Any],
    location: str,
    outer_keys: tuple[str, ...] = (),
    benchmark: str | None = None,
    *,
    is_group: bool = False,
) -> tuple[str, str]:
    """The id of a row's prompt, and the columns it comes from; without one the keys of a part, or the row's line."""
    # A row that is a whole group has another prompt than those in files of other numbers, whose lines may be samples.
    if isinstance(row.get("dataset"), str):
        position_key = next((key for key in ("i", "idx", "index", "id") if row.get(key) is not None), None)
        if position_key is not None:
            keys = [key for key in ("category", "dataset", position_key) if row.get(key) is not None]
            return "/".join(parse.text_of(row[key]) for key in keys), ", ".join(keys)
    for key in ROW_IDS:
        if name := parse.text_of(row.get(key)):
            test = parse.text_of(row.get("test_id"))  # where LiveCodeBench asks for the output of several of a problem
            name, key = (f"{name}/{test}", f"{key}, test_id") if test else (name, key)
            return parse.in_environment(row.get(benchmark or ""), name), ", ".join(filter(None, (benchmark, key)))
    for key in roles.USUAL["prompt"]:
        if row.get(key) and (name := parse.prompt_text_id(row[key])):
            images = [image for image in IMAGES if isinstance(row.get(image), str)][:1]
            name = "/".join([*(parse.digest(row[image]) for image in images), name])
            return name, ", ".join([f"the text of {key}", *images])
    if number := next(filter(roles.PROMPT_NUMBER.fullmatch, row), None):
        names = ", ".join(filter(None, (benchmark, number)))
        return parse.in_environment(row.get(benchmark or ""), parse.text_of(row[number])), names
    file, _, line = location.rpartition(":")
    is_number = not outer_keys or outer_keys[-1].isdecimal()
    pattern = _CHUNK_OF_GROUPS if is_group else _CHUNK
    chunk = pattern.search(stem_of(Path(file))) if is_number else None
    lines = [] if outer_keys and line == "1" else [line]
    return "/".join((*([chunk[0]] if chunk else ()), *lines, *outer_keys)), BY_NUMBER if is_number else _BY_KEYS


FORMAT = Format(name="samples", recognizes=_recognizes, read=_read, takes=frozenset({"columns"}))
