"""Rollouts that lie within the rows of a log: lists under steps, prompts or the names of benchmarks, and batches.

What stands outside of a list holds for each of its elements, but for rewards, which are then means or sums.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, permutations, repeat
from typing import Any

import numpy as np
from msgspec import UNSET, Struct
from msgspec.structs import asdict, replace

from gradscope.rollouts.arrays import Counts
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers import column_roles as roles
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing.records import EPISODE_ENDS, list_names
from gradscope.rollouts.readers.reduction.columns import Cells, Columns

_ROLLOUT_KEYS = frozenset((*roles.TRIALS, *roles.ANSWER_KEYS, *roles.USUAL["completion"]))
_TURNS = r"turn|step|message|histor|action|transition|dialog(ue)?$|conversation$|tool|(?<!per_)trajectory$"
_NO_ROLLOUTS = re.compile(
    rf"{_TURNS}|trace$|dialog|conversation|segment|sentence|token|criteri|rubric|test|check|metric|judg", re.IGNORECASE
)
"""How lists are called whose elements are parts of one rollout, or verdicts on it."""
POLICY = re.compile(
    r"(?<![a-z])(base(line)?|(fine_?)?tuned|(un)?trained|sft|rl(vr|hf)?|grpo|ppo|dpo|lora|ckpt|checkpoint|before|after"
    r"|adapter|teacher|student|greedy|model|temp(erature)?|shot|cot|vanilla|direct|thinking|run|seed|trial|attempt)(?![a-z])",
    re.IGNORECASE,
)
"""What keys of policies say whose prompts are numbered alike, as those of benchmarks may be as well."""
_PROMPT_KEYS = frozenset((*roles.USUAL["prompt"], *roles.USUAL["prompt_id"], *roles.USUAL["group"])) - {
    parse.CONVERSATION
}
_SINGULAR = {f"{name}s": name for names in roles.USUAL.values() for name in names}
_PROMPT_LISTS = frozenset(f"{name}s" for name in _PROMPT_KEYS)
_CHOSEN = re.compile(
    r"(^|_)(fail(ed|ures?)?|errors?|wrong|mistakes?|miss(es|ed)|(in)?correct|(un)?solved|success(es|ful)?|passed)(_|$)",
    re.IGNORECASE,
)
"""How lists are called whose rollouts were chosen by their outcome, where they all have the same."""
TOTAL = re.compile(r"accura|(^|_)(acc|mean|avg|average)(_|$)|(pass|success|solve)_?rate|pass@", re.IGNORECASE)
_VERDICTS = frozenset(roles.USUAL["reward"])
_KEY_OF_ROW = "id"  # the column of keys each of which has one row
_NUMBERED = re.compile(
    rf"({roles.PROMPT_NUMBER.pattern.partition('_?')[0]}|prompt|sample|[pq]|\w+/)?[-_ ]?[0-9]+", re.IGNORECASE
)
"""Keys that number prompts."""
_HASH = re.compile(r"(?=.*[0-9])[0-9a-f]{8}[-0-9a-f]*")
_TURN_COUNTERS = ("turn", "turn_id", "turn_idx", "turn_index", "round")
_TURN_KEYS = frozenset((*_TURN_COUNTERS, "action", "observation"))
_MAX_LEVELS = 3
_MAX_LISTS = 100  # side by side, of which one may hold the rollouts: more are under keys, as those of prompts
_SHARED = 0.1  # of the prompts under several keys: benchmarks have none in common, policies asked for some of each do
NUM_LISTED = 200  # rollouts by which columns are known
_MAX_SEARCHED = 100 * NUM_LISTED


class Level(Struct, frozen=True, kw_only=True):
    """Where the rows within a row lie: in a list, under each key of an object, or across several lists."""

    name: str | None = None  # the key of the list or object, also that of lists; None: the row is the object itself
    key_column: str | None = None  # the column that the keys of the object become; None: there is no such object
    columns: tuple[str, ...] = ()  # the keys of lists with a cell for each row

    def rows(self, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The rows within a row; nothing of cells that are something else."""
        cell = row if self.name is None else row.get(self.name)
        if self.columns:
            lists = parse.mapping_of(cell)
            for cells in zip(*(parse.list_of(lists.get(name)) for name in self.columns), strict=False):
                named = zip(self.columns, cells, strict=True)
                yield {_named_singly(name, cell): cell for name, cell in named}
            return
        if self.key_column is None:
            yield from parse.objects_in(cell)
            return
        for key, under in parse.mapping_of(cell).items():
            is_row = isinstance(under, dict) and (self.key_column == _KEY_OF_ROW or rows_under(under))
            elements = [under] if is_row else parse.list_of(under)
            yield from ({self.key_column: key} | element for element in elements if isinstance(element, dict))

    @property
    def inner(self) -> frozenset[str | None]:
        """The keys of the lists or the object in which the rows lie."""
        return frozenset((self.name, *self.columns))


Layout = tuple[Level, ...]  # the levels of lists within a row, the outermost first


def rows_within(row: Mapping[str, Any], layout: Layout) -> Iterator[dict[str, Any]]:
    """The innermost rows of a row, each with what holds for it of those around it."""
    if not layout:
        yield dict(row)
        return
    outer = {name: cell for name, cell in row.items() if name not in layout[0].inner and _holds_within(name, cell)}
    for element in layout[0].rows(row):
        yield from rows_within(outer | element, layout[1:])


def layout_of(rows: Sequence[Mapping[str, Any]], named: ColumnNames) -> Layout | None:
    """Where the rollouts within some rows lie, where one place alone, the least deep, holds rollouts; else None."""
    first = next((row for row in rows if any(isinstance(cell, (list, dict)) and cell for cell in row.values())), {})
    layouts: list[Layout] = [()]
    for _ in range(_MAX_LEVELS):
        outer = [(layout, next(rows_within(first, layout), {})) for layout in layouts]
        layouts = [
            (*layout, level)
            for layout, row in outer
            for level in _levels_in(row, named, is_of_batch=bool(layout and layout[-1].columns))
        ]
        if len(layouts) > _MAX_LISTS:
            return None
        holding = list(islice((layout for layout in layouts if _holds_rollouts(rows, layout, named)), 2))
        if holding:
            return holding[0] if len(holding) == 1 else None
    return None


def columns_within(rows: Sequence[Mapping[str, Any]], named: ColumnNames) -> ColumnNames:
    """The columns of some rows, else of those within them."""
    columns = roles.columns_of_rows(rows, named)
    layout = None if roles.have_rollouts(columns) else layout_of(rows, named)
    return roles.columns_of_rows(first_rows_within(rows, layout), named) if layout else columns


def to_columns_within(rows: Cells, *, layout: Layout, to_columns: Callable[[Cells], Columns]) -> Columns:
    """The rollouts of the innermost rows of some rows."""
    in_lists = _cells_in_lists(rows, layout[0]) if len(layout) == 1 else None
    if in_lists is None:
        numbered = [(number, inner) for number, row in enumerate(rows.rows) for inner in rows_within(row, layout)]
        outer = np.array([number for number, _ in numbered], dtype=np.int64)
        in_lists = Cells.of_rows([inner for _, inner in numbered], rows.path), outer
    cells, outer = in_lists
    columns = to_columns(cells)
    return replace(columns, row=outer[columns.row_of])


def _cells_in_lists(rows: Cells, level: Level) -> tuple[Cells, Counts] | None:
    """The cells of the innermost rows column by column, in a third of the time; None where a row does not suit."""
    parts = None if level.key_column is not None else _aligned(rows, level) if level.columns else _elements(rows, level)
    if parts is None:
        return None
    sizes, keys, cells_of = parts
    contexts = [
        {name: cell for name, cell in row.items() if name not in level.inner and _holds_within(name, cell)}
        for row in rows.rows
    ]

    def column(key: str | None) -> list[Any]:
        cells = cells_of(key) if key in keys else [UNSET] * sum(sizes)
        if not any(key in row for row in contexts):
            return cells
        outer = chain.from_iterable(
            repeat(row.get(key or "", UNSET), size) for row, size in zip(contexts, sizes, strict=True)
        )
        return [other if cell is UNSET else cell for cell, other in zip(cells, outer, strict=True)]

    all_keys = dict.fromkeys((*chain.from_iterable(contexts), *keys))
    return Cells(rows.path, sum(sizes), all_keys, column), np.repeat(np.arange(len(sizes)), sizes)


_Parts = tuple[list[int], Collection[str], Callable[[Any], list[Any]]]
"""How many rows lie within each row, their keys, and their cells by key, UNSET where one has none."""


def _elements(rows: Cells, level: Level) -> _Parts:
    lists = [parse.objects_in(row.get(level.name or "")) for row in rows.rows]
    elements = list(chain.from_iterable(lists))
    keys = dict.fromkeys(chain.from_iterable(elements))
    return list(map(len, lists)), keys, lambda key: [element.get(key, UNSET) for element in elements]


def _aligned(rows: Cells, level: Level) -> _Parts | None:
    batches = [parse.mapping_of(row if level.name is None else row.get(level.name)) for row in rows.rows]
    lists = {name: [parse.list_of(batch.get(name)) for batch in batches] for name in level.columns}
    sizes = [min(map(len, sides)) for sides in zip(*lists.values(), strict=True)]
    columns: dict[str, list[Any]] = {}
    for name, columns_of_batches in lists.items():
        cells = list(chain.from_iterable(map(islice, columns_of_batches, sizes)))
        names = {_named_singly(name, [] if is_list else None) for is_list in {type(cell) is list for cell in cells}}
        if len(names) != 1 or not names.isdisjoint(columns):
            return None
        columns[names.pop()] = cells
    return sizes, columns, columns.__getitem__


def title_of(layout: Layout) -> str:
    """The lists of a layout, for a sentence."""
    names = dict.fromkeys(name for level in layout for name in (level.columns or (level.name,)) if name is not None)
    return f"the list{'s' * (len(names) > 1)} {list_names(names)}" if names else "the lists under the keys"


def first_rows_within(rows: Iterable[Mapping[str, Any]], layout: Layout) -> list[dict[str, Any]]:
    """The innermost rows of the first rows of a log."""
    return list(islice((inner for row in rows for inner in rows_within(row, layout)), NUM_LISTED))


def first_rows_of_lists(rows: Iterable[Mapping[str, Any]], layout: Layout) -> list[dict[str, Any]]:
    """The first rows of every innermost list, in which what is the same throughout a list is seen to differ."""
    outer = chain.from_iterable(rows_within(row, layout[:-1]) for row in rows)
    lists = (islice(rows_within(row, layout[-1:]), NUM_LISTED) for row in outer)
    return list(islice(chain.from_iterable(lists), _MAX_SEARCHED))


def _levels_in(row: Mapping[str, Any], named: ColumnNames, *, is_of_batch: bool) -> Iterator[Level]:
    if (column := key_column(row, is_whole=True)) is not None:
        yield Level(key_column=column)
        return
    for name, cell in row.items():
        if parse.is_list_of_objects(cell) or parse.is_list_of_objects(next(iter(parse.list_of(cell)), None)):
            yield Level(name=name)
        elif (column := key_column(cell)) is not None:
            yield Level(name=name, key_column=column)
        elif aligned := _aligned_lists(parse.mapping_of(cell), named, is_of_batch=False):
            yield Level(name=name, columns=aligned)
    if aligned := _aligned_lists(row, named, is_of_batch=is_of_batch):
        yield Level(columns=aligned)


def _aligned_lists(row: Mapping[str, Any], named: ColumnNames, *, is_of_batch: bool) -> tuple[str, ...]:
    """The keys of lists with a cell for each rollout, one a reward and, but in a batch, one a text."""
    names = (named.reward or "", *roles.REWARD_LISTS)
    rewards = next((name for name in names if isinstance(row.get(name), list) and row[name]), None)
    if rewards is None:
        return ()
    size = len(row[rewards])
    lists = ((name, cell) for name, cell in row.items() if isinstance(cell, list) and len(cell) == size)
    # the ids of one prompt may be as many
    aligned = tuple(key for key, cell in lists if key not in roles.USUAL["prompt"] or not isinstance(cell[0], int))
    texts = (*roles.TEXT_LISTS, *roles.USUAL["prompt"], roles.key_of(named) or "")
    has_texts = any(name in texts or _SINGULAR.get(name, name) in texts for name in aligned)
    has_ids = any(
        isinstance(row[name][0], list) for name in aligned if name in roles.RESPONSE_IDS
    )  # else of one response
    return aligned if is_of_batch or has_texts or has_ids else ()


def are_counted(elements: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the elements of a list count the turns of an episode, or only the last of them says that it ended.

    >>> are_counted([{"done": False}, {"done": True}]), are_counted([{"turn": 0}, {"turn": 1}]), are_counted([{}, {}])
    (True, True, False)
    """
    names = (roles.first_present(roles.columns_in(elements), names) for names in (_TURN_COUNTERS, EPISODE_ENDS))
    turns, ends = ([element.get(name or "") for element in elements] for name in names)
    size = len(elements)
    return size > 1 and (turns in (list(range(size)), list(range(1, size + 1))) or ends == [*[0] * (size - 1), 1])


def are_turns_of_one(name: str, elements: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a list, by its name, holds the turns of one episode, which name no prompt of their own but in a trace."""
    keys = frozenset(chain.from_iterable(elements := list(elements)))
    if are_counted(elements):
        return True
    is_trace = re.fullmatch(r"(\w+_)?(?<!per_)(trace|turns|trajectory)", name, re.IGNORECASE)
    if is_trace and keys & (_ROLLOUT_KEYS | _PROMPT_KEYS):
        return True
    return re.search(_TURNS, name, re.IGNORECASE) is not None and _PROMPT_KEYS.isdisjoint(keys)


def are_chosen(name: str, rollouts: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a list, by its name and as all in it have one reward, holds rollouts chosen by it, as the failures."""
    reward = roles.columns_of_rows(rollouts[:NUM_LISTED], ColumnNames()).reward or ""
    return _CHOSEN.search(name) is not None and roles.only_text(roles.with_entries(rollouts), reward) != ""


def rows_under(cell: Any) -> Sequence[Mapping[str, Any]]:
    """The rows under a key: a list, or the one list in an object; none where there is no such list."""
    lists = list(filter(parse.is_list_of_objects, cell.values())) if isinstance(cell, Mapping) else [cell]
    return lists[0] if len(lists) == 1 and parse.is_list_of_objects(lists[0]) else ()


def are_rows_by_key(cell: Any) -> bool:
    """Whether an object has a rollout under each key, by the prompts that these name, or keys that number prompts.

    >>> are_rows_by_key({"a": {"question": "1+1?", "correct": True}, "b": {"question": "2+2?", "correct": False}})
    True
    >>> are_rows_by_key({"gpt": {"output": "2", "correct": True}, "llama": {"output": "3", "correct": False}})
    False
    """
    by_key = parse.mapping_of(cell)
    rows = [row for row in by_key.values() if isinstance(row, dict) and not _VERDICTS.isdisjoint(row)]
    if not 1 < len(by_key) < 2 * len(rows) or not all(isinstance(row, dict) for row in by_key.values()):
        return False  # some may have failed without a verdict
    shared = frozenset(rows[0]).intersection(*rows[1:])
    columns = roles.resolve_columns(sorted(shared), ColumnNames())
    if columns.reward is None or any(isinstance(row[columns.reward], (list, dict)) for row in rows):
        return False
    if shared & _PROMPT_KEYS:
        names = (name for name in (columns.group, columns.prompt_id, columns.prompt) if name is not None)
        return any(len({parse.text_of(row[name]) for row in rows}) > 1 for name in names)
    return not shared.isdisjoint(_ROLLOUT_KEYS) and all(map(_NUMBERED.fullmatch, by_key))


def _are_samples_by_key(by_key: Mapping[str, Sequence[Mapping[str, Any]]]) -> bool:
    """Whether the rows under each of several keys are samples of one prompt, which they name or the key numbers."""
    first_rows = [rows[0] for rows in by_key.values()]
    if len(first_rows) < 2 or max(map(len, by_key.values())) < 2 or any(map(_ROLLOUT_KEYS.isdisjoint, first_rows)):
        return False
    if not all(map(_TURN_KEYS.isdisjoint, first_rows)):
        return False
    name = roles.first_present(roles.columns_in(first_rows), (*roles.USUAL["prompt"], *roles.USUAL["prompt_id"]))
    prompts = [{parse.text_of(row.get(name or "")) for row in rows} for rows in by_key.values()]
    if any(len(texts) > 1 for texts in prompts):
        return False
    keys_identify = all(_NUMBERED.fullmatch(key) or _HASH.fullmatch(key) for key in by_key)
    return keys_identify or len(set().union(*prompts)) == len(prompts)


def key_column(cell: Any, *, is_whole: bool = False) -> str | None:
    """What the keys of an object are: steps, policies where they have the same prompts, else benchmarks.

    Returns:
        None unless two keys or more have rows under them, or are one's, or steps; next to other keys only policies
        count, and of a whole document, which may list one benchmark, benchmarks only where they have the same ids.
    """
    if are_rows_by_key(cell):
        return _KEY_OF_ROW
    by_key = {key: rows for key, under in parse.mapping_of(cell).items() if (rows := rows_under(under))}
    are_all = len(by_key) == len(parse.mapping_of(cell))
    if by_key and are_all and all(parse.step_number(key) is not None for key in by_key):
        return "step"
    if are_all and _are_samples_by_key(by_key):
        return _KEY_OF_ROW
    lists = list(by_key.values())
    names = (*roles.USUAL["prompt"], *roles.USUAL["prompt_id"], "id", "idx")
    prompt = roles.first_present(roles.columns_in(rows[0] for rows in lists), names) or ""
    cells = [[id for row in rows if (id := row.get(prompt)) and not parse.text_of(id).isdecimal()] for rows in lists]
    numbers = [frozenset(parse.text_of(row.get(prompt)) for row in rows) for rows in lists]
    if (
        not any(cells)
        and len(lists) > 1
        and len(set(numbers)) == 1 < len(numbers[0])
        and any(map(POLICY.search, by_key))
    ):
        return "policy"
    num_keys = Counter(chain.from_iterable(set(map(parse.prompt_text_id, texts)) for texts in cells))
    num_shared = sum(num > 1 for num in num_keys.values())
    have_same = len(set().union(*numbers) - {""}) < sum(len(prompt_ids - {""}) for prompt_ids in numbers)
    contents = [{parse.digest(dict(row)) for row in rows} for rows in lists] if have_same else []
    if any(first <= second for first, second in permutations(contents, 2)):  # as the failures among all
        return None
    if num_shared > (_SHARED if are_all else 1 - _SHARED) * len(num_keys):
        return "policy"
    return "benchmark" if are_all and len(by_key) > 1 and (have_same or not is_whole) else None


def _holds_rollouts(rows: Sequence[Mapping[str, Any]], layout: Layout, named: ColumnNames) -> bool:
    """Whether the innermost rows are rollouts, each with its reward, of the prompts that they or outer rows name."""
    inner = roles.with_entries(first_rows_within(rows, layout), named)
    names = roles.columns_in(inner)
    if not set(names).issuperset(filter(None, (named.reward, named.prompt, named.prompt_id, named.group, named.step))):
        return False
    columns = roles.by_cells(inner, roles.resolve_columns(names, named), named)
    key, level = roles.key_of(columns), layout[-1]
    outer = next((row for row in rows if any(rows_within(row, layout))), {})
    context = next(rows_within(outer, layout[:-1]), {})
    level_names = set(roles.columns_in(roles.with_entries(islice(level.rows(context), NUM_LISTED))))
    if columns.reward is None or key is None or columns.reward not in level_names:
        return False
    if not any(isinstance(parse.parse_reward(roles.verdict_of(row.get(columns.reward))), float) for row in inner):
        return False
    steps = [parse.text_of(row.get(columns.step)) for row in level.rows(context)] if columns.step in level_names else []
    if len(steps) > 1 and len(set(steps)) > len(steps) / 2:
        return False  # an episode's, or a row for each update
    groups = Counter((parse.text_of(row.get(columns.step or "")), parse.text_of(row.get(key))) for row in inner)
    if columns.step is not None and sum(size > 1 for size in groups.values()) <= len(groups) / 2:
        return False  # examples next to the metrics of each step
    has_several_prompts = key in level_names and len({parse.text_of(row.get(key)) for row in level.rows(context)}) > 1
    is_answered = bool(level.columns) or not level_names.isdisjoint(_ROLLOUT_KEYS)
    has_several_prompts &= named.reward is not None or not are_turns_of_one(level.name or "", level.rows(context))
    if named.reward is None and are_counted(list(level.rows(context))):
        return False
    is_of_rollouts = has_several_prompts or (is_answered and not _NO_ROLLOUTS.search(level.name or ""))
    return is_of_rollouts and not roles.OFFERED.match(level.name or "")


def _holds_within(name: str, cell: Any) -> bool:
    """Whether a cell around rows is also one of each row."""
    if isinstance(cell, (list, dict)) and name not in roles.USUAL["prompt"]:
        return False
    if roles.reward_columns([name], "") or (TOTAL.search(name) and parse.is_number(cell)):
        return False
    return name not in (*roles.USUAL["advantage"], *roles.USUAL["completion"])


def with_single_names(named: ColumnNames, rows: Sequence[Mapping[str, Any]]) -> ColumnNames:
    """The names that the user gave, as those of single cells where that of prompts is a list of them in each row."""
    key = roles.key_of(named) or next(filter(_PROMPT_LISTS.__contains__, roles.columns_in(rows)), "")
    prompts = [parse.list_of(row.get(key)) for row in rows]
    if not prompts or not all(len(set(map(parse.prompt_text_id, cells))) > 1 for cells in prompts):
        return named
    return ColumnNames(**{role: _SINGULAR.get(name or "", name) for role, name in asdict(named).items()})


def _named_singly(name: str, cell: Any) -> str:
    """The name of one cell of a list: ``prompt`` of ``prompts``, but ``rewards`` as long as it is a list again."""
    singular = _SINGULAR.get(name, name)
    return name if isinstance(cell, list) and singular not in roles.USUAL["prompt"] else singular
