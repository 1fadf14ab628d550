"""The request to a reader and what it returns: flat records, groups of them, a run.

Groups are built from the records of any log, in the order of first appearance. How a completion ended is read from the
words of trainers, engines and services.
"""

from __future__ import annotations

import filecmp
import math
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from gradscope.errors import InputError
from gradscope.outside.limits import open_file
from gradscope.progress import ProgressCallback, no_progress
from gradscope.results.source import Source
from gradscope.rollouts.arrays import Floats
from gradscope.rollouts.groups import (
    TOKEN_FIELDS,
    TRUNCATED,
    Rollout,
    RolloutGroup,
    Status,
    Tokens,
    group_name,
    num_used,
    rollouts_by_step,
    sizes_of,
)
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.parsing.cells import text_of
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, WatchedLog
from gradscope.rollouts.readers.parsing.settings import read_trainer_settings
from gradscope.rollouts.readers.parsing.tables import expand, read_rows, suffix_of
from gradscope.rollouts.run import Run
from gradscope.rollouts.run_folder import find_base, find_tokenizer, with_initial
from gradscope.say import as_ranges

Measured = Literal["samples", "completions"] | None
"""Hashes of what distinguishes the rollouts of a group, for a part of a log; lengths and hashes of completions."""


class ReadRequest(Struct, frozen=True, kw_only=True):
    """One call of ``read_run``."""

    path: Path
    options: ReadOptions = field(default_factory=ReadOptions)
    rewards_only: bool = False
    """Whether the caller uses nothing but rewards: rollouts are then neither stored nor read back."""
    measured: Measured = None  # what is measured of rollouts besides their rewards, if these are read alone
    parts_answer: bool = False  # whether parts of a log, reduced to their rewards, are accepted
    progress: ProgressCallback = no_progress  # called during a long reading
    so_far: Any = None  # the ``ReadSoFar`` of earlier readings of a log that is still being written

    def source(
        self,
        format: str,
        recognized: str,
        *,
        files: Iterable[Path | str] | None = None,
        inferred: Iterable[str] = (),
        missing: Iterable[str] = (),
        **fields: Any,
    ) -> Source:
        """What was read, as a reader recognized it; of ``files`` None: those of the path; ``fields``: others."""
        return Source(
            path=str(self.path),
            format=format,
            recognized=recognized,
            files=tuple(map(str, expand(self.path) if files is None else files)),
            inferred=tuple(inferred),
            missing=tuple(missing),
            **fields,
        )

    @property
    def measures_completions(self) -> bool:
        """Whether the texts of completions are read for their lengths and hashes."""
        return not self.rewards_only or self.measured == "completions"

    @property
    def columns(self) -> ColumnNames:
        """The column names that the user gave."""
        return self.options.columns

    @property
    def model(self) -> str | None:
        """The base model of the run's adapters."""
        return None if self.options.model is None else str(self.options.model)

    def base_of(self, run: Path) -> Callable[[Path], str | None]:
        """The base of each adapter of a run: the model that the user named, else what its configuration names."""
        return lambda adapter: self.model or find_base(adapter, run)

    @property
    def initial(self) -> Path | None:
        """The weights before the first update."""
        return None if self.options.initial_weights is None else Path(self.options.initial_weights)

    @property
    def run_config(self) -> Path | None:
        """The trainer's arguments as JSON."""
        return None if self.options.trainer_args is None else Path(self.options.trainer_args)

    @property
    def completion_ids(self) -> Path | None:
        """A side file with the exact completion token ids: columns step, row, completion_ids."""
        return None if self.options.completion_ids is None else Path(self.options.completion_ids)


def list_names(names: Iterable[str]) -> str:
    """Column names for a message: at most 20 of them, quoted."""
    quoted = [repr(name) for name in names]
    return ", ".join(quoted[:20]) + (f" and {len(quoted) - 20} more" if len(quoted) > 20 else "") if quoted else "none"


def chosen_name(names: Iterable[str], request: ReadRequest, noun: str, lacking: str) -> str:
    """Which scorer or metric of a document is the reward: the one that was named, else the first.

    Args:
        names: Those that are there, the same one as often as it is.
        noun: What the format calls one.
        lacking: What to say of a document without any: "... has {lacking}".

    Raises:
        InputError: There is none, or it is not among them.
    """
    present, named = list(dict.fromkeys(names)), request.columns.reward
    if named is None and present:
        return present[0]
    if named in present:
        return str(named)
    raise InputError(
        f"{request.path} has no {noun} {named!r}." if named else f"{request.path} has {lacking}.",
        hint=f"Its {noun}s are {list_names(present)}; name one with --reward-column."
        if present
        else f"Give a log with a {noun} for each sample.",
    )


REPEATED = "the row repeats an earlier one of the same sample"
CONTRADICTED = "the row contradicts an earlier one of the same sample, so that neither counts"


class Record(Struct, frozen=True, kw_only=True):
    """One usable row of a foreign log."""

    step: int  # the trainer's step; 0 where the log has none
    group: str  # the name that the rows of a group share within a step
    prompt_id: str  # the id that all groups of a prompt share
    prompt: str  # the prompt's text
    completion: str  # the completion's text
    reward: float | None
    """The scalar reward; None where the row has no usable one, so that its group counts as incomplete."""
    rewards: Mapping[str, float | None] = {}  # reward per reward function
    messages: tuple[Mapping[str, Any], ...] | None = None  # the prompt as messages
    advantage: float | None = None  # the advantage that the optimizer saw
    status: Status = "unknown"  # how the completion ended
    seconds: float | None = None  # how long it took to generate, where the log says
    tokens: Tokens | None = None  # exact tokens, where the log has them; their common advantage wins over ``advantage``
    earlier: tuple[Tokens, ...] = ()
    """Tokens of the earlier sequences, where the rollout is several; empty without ``tokens``."""
    num_tokens: int | None = None
    """How many tokens its completions have, where a reading only counts them."""
    sample_id: str | None = None  # distinguishes the rollouts of a group; None where the log has none
    location: str = ""  # ``file:line``, where ``sample_id`` is known
    policy: str | None = None  # the policy that sampled it, where the log names one
    policy_versions: tuple[int, int] | None = None
    """How many updates the weights that sampled its first and its last token had had, where the log says."""
    count: int = 1  # how many equal rollouts it stands for, which become one object


_SAME_FIELDS = {*Record.__struct_fields__} & {*Rollout.__struct_fields__} - {"advantage", "earlier"}
"""Those of a rollout that its record has as they are."""


def build_groups(records: Iterable[Record], quarantine: QuarantineLog) -> tuple[RolloutGroup, ...]:
    """Groups by step, then by first row; rows that repeat or contradict an earlier one go to the quarantine."""
    members: dict[tuple[int, str], list[Rollout]] = {}
    names: dict[tuple[int, str], tuple[str, str]] = {}  # of each group, and of its prompt
    rows: dict[int, int] = {}
    seen: dict[tuple[int, str, str], int] = {}
    for record in records:
        key = (record.step, record.group)
        rollouts = members.setdefault(key, [])
        if key not in names:
            names[key] = group_name(*key), record.prompt_id
        if record.sample_id is not None:
            first = seen.setdefault((*key, record.sample_id), len(rollouts))
            if first < len(rollouts):
                before = rollouts[first]
                if (before.reward, before.completion) == (record.reward, record.completion):
                    quarantine.add(REPEATED, record.location)
                    continue
                for _ in range(1 if before.reward is None else 2):  # this row, and the earlier if it counted until now
                    quarantine.add(CONTRADICTED, record.location)
                rollouts[first] = replace(before, reward=None, rewards=dict.fromkeys(before.rewards))
                continue
        row, tokens = rows.get(record.step, 0), record.tokens
        rows[record.step] = row + record.count
        fields: dict[str, Any] = {"advantage": record.advantage}
        if tokens is not None:
            fields = {name: getattr(tokens, name) for name in TOKEN_FIELDS} | {"earlier": record.earlier}
            fields["advantage"] = common_advantage(record.advantage, (*record.earlier, tokens))
        rollouts += [
            Rollout(
                group_id=names[key][0],
                sample=len(rollouts),
                row=row,
                **{name: getattr(record, name) for name in _SAME_FIELDS},
                **fields,
            )
        ] * record.count
    return tuple(
        RolloutGroup(step=key[0], group_id=names[key][0], prompt_id=names[key][1], rollouts=tuple(members[key]))
        for key in sorted(members, key=itemgetter(0))
    )


def describe_groups(groups: Sequence[RolloutGroup]) -> tuple[str, ...]:
    """Sentences on groups that differ in size, and on steps with a multiple of the usual rollouts, as resumes leave."""
    sizes = sizes_of(groups)
    sentences = (f"{DIFFER}: {sizes[0]} to {sizes[-1]} rollouts.",) if len(sizes) > 1 else ()
    steps, numbers = rollouts_by_step(groups)
    levels, counts = np.unique(numbers, return_counts=True)
    usual = int(levels[counts.argmax()]) if len(levels) else 1
    if usual % 2 == 0 and usual // 2 in levels:  # more than half of the run was logged twice
        usual //= 2
    times = np.rint(numbers / usual)
    is_repeated = (times > 1) & (np.abs(numbers / np.maximum(times, 1) / usual - 1) <= _SIZE_TOLERANCE)
    unrepeated = numbers[~is_repeated]
    if not is_repeated.any() or len(unrepeated) < 2 or unrepeated.max() > (1 + _SIZE_TOLERANCE) * usual:
        return sentences
    repeats = (
        f"steps {as_ranges(steps[is_repeated].tolist())} have"
        if is_repeated.sum() > 1
        else f"step {steps[is_repeated][0]} has"
    )
    rollouts = f"{numbers[is_repeated].sum():,} rollouts, where others have {usual:,} a step"
    return (
        *sentences,
        f"{TWICE_LOGGED}: {repeats} {rollouts}, and no id tells a resumed run's samples from the earlier ones.",
    )


DIFFER, TWICE_LOGGED = "Groups differ in size", "Perhaps logged twice"
_SIZE_TOLERANCE = 0.1  # relative distance of a step from a multiple of the usual size, since rows may be set aside


def common_advantage(default: float | None, sequences: Sequence[Tokens]) -> float | None:
    """The advantage of all sampled tokens; None where they differ, the rollout's own where tokens lack one."""
    if any(tokens.token_advantages is None for tokens in sequences):
        return default
    levels = {tokens.advantage for tokens in sequences if any(tokens.mask)}
    return levels.pop() if len(levels) == 1 else None


_NUM_PEEKED = 50  # rows that are read to learn the columns: not every row of a log has every key
_MAX_PEEKED = 16_000_000
"""Bytes after which no further row is read, however few there were: a row may be all rollouts of a step."""


def peek(path: Path, quarantine: QuarantineLog | None = None, *, num_rows: int = _NUM_PEEKED) -> list[dict[str, Any]]:
    """The first readable rows of a file, or of the first file of a folder or glob that has any."""
    for file in expand(path):
        stat = file.stat()
        num_read = NUM_SEARCHED if suffix_of(file) == ".json" else num_rows  # a document is decoded as a whole
        rows, watched = _first_rows(file, stat.st_size, stat.st_mtime_ns, num_read)
        if quarantine is not None:
            quarantine.include(watched, {})
        if rows:
            return list(rows[:num_rows])
    return []


def has_more_rows(path: Path, searched: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a log may go on below the rows that were searched, with other settings, say."""
    files = expand(path)
    return len(searched) >= NUM_SEARCHED or len(files) > 1 or any(file.stat().st_size >= _MAX_PEEKED for file in files)


@lru_cache(maxsize=4)
def _first_rows(
    file: Path, size: int, modified: int, num_rows: int
) -> tuple[tuple[dict[str, Any], ...], QuarantineLog]:
    """The first rows of a file and the rows set aside before them, cached since every format asks for them."""
    watched, rows = WatchedLog(no_progress, ()), []
    with open_file(file) as stream:
        if suffix_of(file) is None and b"\0" in stream.read(_BINARY):
            return (), watched
    for _, row in islice(read_rows(file, watched), num_rows):
        rows.append(row)
        if watched.num_read >= _MAX_PEEKED:
            break
    return tuple(rows), watched


_BINARY = 4096  # bytes of a file without a known suffix that are searched for a NUL byte

EPISODE_ENDS = ("done", "is_done", "terminated", "terminal", "is_terminal")
_STATES = {"obs", "state", "observation"}
_NEXT_STATES = {f"next_{name}" for name in _STATES}
_RUNNING_SUM = {"action", "cumulative_reward"}


def are_turns(columns: Mapping[str, Sequence[Any]]) -> bool:
    """Whether rows with a step are those of episodes in an environment: most of them do not end one.

    Of rows of what was seen and done, one that does not is enough.
    """
    by_name = {name.rpartition(".")[2]: cells for name, cells in columns.items()}
    ends = next((by_name[name] for name in EPISODE_ENDS if name in by_name), ())
    num_within = sum(text_of(cell).lower() in ("false", "0", "0.0") for cell in ends)
    are_moves = "action" in by_name and not _STATES.isdisjoint(by_name)
    is_within = num_within > (0 if are_moves else len(ends) / 2)
    return is_within or not _NEXT_STATES.isdisjoint(columns) or columns.keys() >= _RUNNING_SUM


def refuse_turns(path: Path, step: str | None) -> NoReturn:
    """Refuse a log of such rows, whose column of steps, if it has one, counts them."""
    counts = f": {step!r} counts no updates." if step else "."
    raise InputError(
        f"{path} has a row for each step of an episode{counts}",
        hint="Write a row an episode, with its prompt or task, the sum of its rewards, and the step of training.",
    )


def refuse_copies(path: Path, keys: Sequence[str]) -> None:
    """Refuse a log that several processes wrote, by the columns of a rollout: its step, its group, its text and others.

    Raises:
        InputError: A file is there twice, or goes on where another ends, or each row is there as often as there were
            processes.
    """
    files = expand(path)
    sized = sorted((file.stat().st_size, file) for file in files)
    for (size, file), (next_size, following) in pairwise(sized):
        if _SMALL_FILE < size == next_size and filecmp.cmp(file, following, shallow=False):
            raise InputError(
                f"{following} is a copy of {file}, and groups would be twice as large.", hint="Take one of them away."
            )
    pairs = [] if suffix_of(files[0]) == ".json" else pairwise(sized)  # a document is parsed as a whole
    closest = min(pairs, key=lambda pair: pair[1][0] - pair[0][0], default=sized[:1])

    def contents_of(rows: Iterable[Mapping[str, Any]]) -> list[tuple[int, ...]]:
        return [tuple(hash(str(row.get(key))) for key in keys) for row in rows]  # without times of writing

    (size, shorter), (next_size, longer) = (closest if len(closest) > 1 else [*sized[:2], *sized])[:2]
    contents = contents_of(peek(shorter, num_rows=NUM_SEARCHED)) if size < next_size else []
    num = len(contents) if len(set(contents)) >= _MIN_REPEATED else 0
    if num and contents_of(peek(longer, num_rows=NUM_SEARCHED)[:num]) == contents:
        last = shlex.quote(str(sized[-1][1]))
        raise InputError(
            f"{longer} begins with the rows of {shorter}, and groups would be larger by them.",
            hint=f"Where each file repeats what was written before, name the last: {last}",
        )
    rows = [row for _, file in closest for row in peek(file, num_rows=NUM_SEARCHED)]
    times = Counter(contents_of(rows))
    may_be_shuffled = NUM_SEARCHED <= len(rows) > len(times)
    num_bytes = len(str(rows[:_NUM_PEEKED])) / _NUM_PEEKED if may_be_shuffled else 0
    if closest[0][0] < _NUM_SHUFFLED * num_bytes:  # of more rows, copies would lie too far apart
        readings = (islice(read_rows(file, QuarantineLog(), keys), _NUM_SHUFFLED) for _, file in closest)
        times = Counter(contents_of(row for rows in readings for _, row in rows))
    groups = {content[:2] for content in times}
    ((usual, num_rows),) = Counter(times.values()).most_common(1) or [(1, 0)]
    if usual > 1 and num_rows > max(_FEW_ROWS, _MIN_SHARE * len(times)) and len(times) > _MIN_UNLIKE * len(groups):
        raise InputError(
            f"{path} has each row {usual} times, and groups would be larger by that factor.",
            hint="Keep those of one process or filter; of equal lines: awk '!seen[$0]++' LOG > ONCE.",
        )


NUM_SEARCHED = 2000  # rows in which something is seen to recur
_NUM_SHUFFLED = 20_000  # rows of a file that are counted, in whatever order, where any recurs among the first
_SMALL_FILE, _FEW_ROWS = 4096, 20  # bytes of a file, and unlike rows, that may be there twice by chance
_MIN_REPEATED = 4  # unlike rows with which a file begins as another does
_MIN_SHARE = 0.9  # of the rows, since the last ones that are looked at may have their copies behind them
_MIN_UNLIKE = 1.5  # unlike rows of a group, without which equal ones may be all that the policy wrote


def assemble_groups(
    request: ReadRequest,
    source: Source,
    *,
    groups: Sequence[RolloutGroup],
    quarantine: QuarantineLog,
    needs_reward: bool = True,
) -> Run:
    """A run from its groups; the source, as its reader recognized it, gets the rows that were used and set aside.

    Raises:
        InputError: No row is usable, or no file readable.
    """
    set_aside = quarantine.result()
    num_rows = num_used(groups, needs_reward=needs_reward)
    if not num_rows:
        if not set_aside.num_rows:
            quarantine.raise_unreadable()
        first = next((f"; set aside: {set_aside.num_rows}, first {r.first}: {r.reason}" for r in set_aside.reasons), "")
        raise InputError(
            f"{request.path} has no usable rows{first}.",
            hint="A row needs a finite number as reward and something to group by.",
        )
    folder = request.path if request.path.is_dir() else request.path.parent
    inferred = (*source.inferred, *describe_groups(groups))
    return Run(
        path=request.path,
        source=replace(source, num_rows=num_rows, inferred=inferred, quarantined=set_aside),
        groups=groups,
        settings=read_trainer_settings(request.run_config),
        weights=with_initial((), request.initial, request.base_of(folder)),
        tokenizer=find_tokenizer(request.initial, request.model),
    )


_STATUS = "status"  # a column of how completions ended, or of calls or tests
END_COLUMNS = ("finish_reason", "stop_reason", "is_truncated", "truncated", "finish_reasons", "stop_reasons", _STATUS)
"""Names of columns of how completions ended, and of lists of as much."""
_WORDS: dict[str, Status] = {
    **dict.fromkeys(("stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls"), "completed"),
    **dict.fromkeys(("completed", "succeeded"), "completed"),
    **dict.fromkeys(("length", "max_tokens", "max_new_tokens", "max_length", "truncated"), "truncated"),
    **dict.fromkeys(("abort", "aborted", "failed", "error"), "error"),
}
_FLAGS: dict[str, Status] = {
    **dict.fromkeys(("true", "1", "1.0"), "truncated"),
    **dict.fromkeys(("false", "0", "0.0"), "completed"),
}


def status_in(cell: Any, name: str = _STATUS) -> Status:
    """How a completion ended, by a cell of a column of that name: a word, also of an enumeration, or a flag.

    SGLang's reasons are objects with such a word as their type.

    >>> status_in("FinishReason.LENGTH", "finish_reason"), status_in(False, "is_truncated"), status_in("passed")
    ('truncated', 'completed', 'unknown')
    """
    word = text_of(cell["type"] if isinstance(cell, Mapping) and "type" in cell else cell).lower()
    flag = _FLAGS.get(word) if name.endswith("truncated") else None
    return flag or _WORDS.get(word.rpartition(".")[2], "unknown")


def are_cut_off(cells: Sequence[Any], name: str) -> Floats:
    """Whether completions were cut off, by the cells of a column of that name, [R]; NaN where that is not known."""
    are_texts = {str}.issuperset(map(type, cells))
    texts = cells if are_texts else list(map(text_of, cells))
    cell_of = {text: text for text in set(texts)} if are_texts else dict(zip(texts, cells, strict=True))
    ends = {text: TRUNCATED.get(status_in(cell, name), math.nan) for text, cell in cell_of.items()}
    return np.fromiter(map(ends.__getitem__, texts), np.float64, len(texts))


def end_column(names: Collection[str], cells_of: Callable[[str], Sequence[Any]]) -> str | None:
    """The column of how completions ended: by its name, or ``status`` where it says so of all and some were cut off."""
    named = (name for end in END_COLUMNS for name in names if name.rpartition(".")[2] == end)
    column = next(named, None)
    if column is None or not column.endswith(_STATUS):
        return column
    statuses = {status_in(cell) for cell in cells_of(column) if cell is not None}
    return column if "truncated" in statuses and "unknown" not in statuses else None
