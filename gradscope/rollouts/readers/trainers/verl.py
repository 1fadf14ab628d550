"""verl's JSONL dumps of rollouts: the V1 trainer's, which name the group, and the legacy trainer's, which do not.

A run that was patched to log them also has token ids, masks, log-probabilities and advantages: of a row by itself, and
counted for many rows.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import compress, islice
from operator import and_
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.errors import InputError
from gradscope.reason import Reason
from gradscope.rollouts.groups import REWARD, UNKNOWN, RewardTable, RolloutGroup, Tokens, reward_table
from gradscope.rollouts.readers.format import Format
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing import json_text
from gradscope.rollouts.readers.parsing.cells import numbers
from gradscope.rollouts.readers.parsing.quarantine import (
    BRANCHED,
    QuarantineLog,
    UnusableRowError,
    WatchedLog,
    filter_caveat,
)
from gradscope.rollouts.readers.parsing.records import ReadRequest, Record, assemble_groups, build_groups, peek
from gradscope.rollouts.readers.parsing.tables import Row, expand, read_jsonl
from gradscope.rollouts.readers.reduction.columns import (
    Cells,
    Columns,
    LineColumns,
    line_columns,
    names_of_cells,
    names_of_runs,
    records_in,
)
from gradscope.rollouts.readers.reduction.log import ColumnLog, FileRow, reduced_groups
from gradscope.rollouts.readers.reduction.numbers import int_steps, numbers_of, texts_of
from gradscope.rollouts.readers.run_files import SWITCH_ON, are_metrics, verl_metrics, verl_settings, verl_weights
from gradscope.rollouts.run import Run
from gradscope.say import counted

COLUMNS = frozenset(
    {"prompts", "responses", "prompt_ids", "response_ids", "attention_mask", "response_mask", "rollout_log_probs"}
    | {"old_log_probs", "ref_log_prob", "advantages", "entropys"}
)
"""Columns of tokens, which are no rewards."""


def row_tokens(row: Mapping[str, Any]) -> Tokens | None:
    """A row's tokens, None where it has no ids; unusable where lists are none or differ in length."""
    prompt, response = (row.get(f"{name}s", row.get(f"{name}_ids")) for name in ("prompt", "response"))
    if prompt is None or response is None:
        return None
    prompt_ids, response_ids = parse.token_ids(prompt), parse.token_ids(response)
    if prompt_ids is None or response_ids is None:
        raise UnusableRowError(parse.NOT_IDS)
    attended = row.get("attention_mask")
    attended = [1] * (len(prompt_ids) + len(response_ids)) if attended is None else attended
    if not isinstance(attended, list) or len(attended) != len(prompt_ids) + len(response_ids):
        raise UnusableRowError(parse.NOT_ALIGNED)
    is_attended = attended[len(prompt_ids) :]
    completion_ids = tuple(compress(response_ids, is_attended))
    mask = _aligned(row.get("response_mask"), is_attended)
    advantages = row.get("advantages")
    if parse.is_number(advantages):  # one a response counts for each of its tokens
        advantages = [advantages] * len(response_ids)
    return Tokens(
        prompt_ids=tuple(compress(prompt_ids, attended)),
        completion_ids=completion_ids,
        mask=(True,) * len(completion_ids) if mask is None else tuple(map(bool, mask)),
        logprobs=_aligned(row.get("rollout_log_probs"), is_attended),
        token_advantages=None if parse.is_not_finite(advantages) else _aligned(advantages, is_attended),
        trainer_logprobs=_where_logged(row.get("old_log_probs"), is_attended),
        entropies=_where_logged(row.get("entropys"), is_attended),
    )


def _aligned(values: Any, is_attended: list[Any]) -> tuple[float, ...] | None:
    if values is None:
        return None
    parsed = numbers(values, len(is_attended))
    if parsed is None:
        is_long_enough = isinstance(values, list) and len(values) == len(is_attended)
        raise UnusableRowError(parse.NOT_FINITE if is_long_enough else parse.NOT_ALIGNED)
    return tuple(compress(parsed, is_attended))


def _where_logged(values: Any, is_attended: list[Any]) -> tuple[float, ...] | None:
    parsed = parse.numbers_with_gaps(values, len(is_attended))
    return None if parsed is None else tuple(compress(parsed, is_attended))


def tokens_of_row(rows: Cells, row: int) -> Tokens | None:
    """:func:`row_tokens` of the cells of a row."""
    return row_tokens({name: rows.cell(name, row) for name in COLUMNS if rows.column(name)[row] is not UNSET})


Count = tuple[int, float]  # how many tokens a completion has, and the advantage that all sampled ones share, else NaN
NO_COUNT: Count = (UNKNOWN, math.nan)
_FLOATS = msgspec.json.Decoder(list[float])
_NUMBER_STARTS = b"-0123456789"
_FLAGS = bytes.maketrans(b"01", b"\0\1")


def token_counts(rows: Cells) -> list[Count | None]:
    """The counts of rows, None where lists are unusable, [R]."""
    columns = (zip(rows.column(f"{name}s"), rows.column(f"{name}_ids"), strict=True) for name in ("prompt", "response"))
    lengths = (json_text.nums_ids([other if cell is UNSET else cell for cell, other in pairs]) for pairs in columns)
    sizes = zip(*map(np.ndarray.tolist, lengths), strict=True)
    names = ("attention_mask", "response_mask", "rollout_log_probs", "advantages")
    lists = zip(*(json_text.jsons_of(rows.column(name)) for name in names), strict=True)
    counts = [_plain_count(*size, *texts) for size, texts in zip(sizes, lists, strict=True)]
    for row in (row for row, count in enumerate(counts) if count is None):
        with suppress(UnusableRowError):
            tokens = tokens_of_row(rows, row)
            advantage = None if tokens is None else tokens.advantage
            length = UNKNOWN if tokens is None else len(tokens.completion_ids)
            counts[row] = length, math.nan if advantage is None else advantage
    return counts


def _plain_count(
    num_prompt: int, size: int, attended: bytes, mask: bytes, logprobs: bytes, advantages: bytes
) -> Count | None:
    """The count by the JSON of a row's lists; None where they are not all as verl writes them."""
    is_attended, is_sampled = _flags(attended, num_prompt + size), _flags(mask, size)
    if min(num_prompt, size) < 0 or is_attended is None or is_sampled is None:
        return None
    if advantages[:1] in _NUMBER_STARTS:  # one number counts for each token
        advantages = b"[%b]" % b",".join([advantages] * size)
    of_sampler, of_tokens = _floats(logprobs, size), _floats(advantages, size)
    if of_sampler is None or of_tokens is None:
        return None
    is_attended = is_attended[num_prompt:]
    levels = set(compress(of_tokens, map(and_, is_attended, is_sampled)))
    return sum(is_attended), levels.pop() if len(levels) == 1 else math.nan


def _floats(text: bytes, size: int) -> Sequence[float] | None:
    """A list of so many finite numbers, empty where there is none; None where the text is another one."""
    if text == b"null":
        return ()
    try:
        values = _FLOATS.decode(text)
    except msgspec.MsgspecError:
        return None
    return values if len(values) == size and math.isfinite(sum(values)) else None


def _flags(text: bytes, size: int) -> bytes | None:
    """A list of so many zeros and ones, all ones where there is none; None where the text is another one."""
    if text == b"null":
        return b"\1" * size
    flags = text.translate(_FLAGS, b"[], ")
    return flags if len(flags) == size == json_text.flat_length(text, b"01, ") else None


NO_REWARDS = COLUMNS | {"input", "output", "gts", "score", "step", "uid", "request_id", "reward"}
"""Columns whose numbers, if they hold any, are not those of a reward function."""

_PROMPT = ("input", "gts")
"""Columns whose cells together name a prompt."""

Uids = Literal["of outputs", "of groups"] | None
"""What uids name: each output, as ``<group>_<session>_<index>``, or its group; None: rows have none."""


def dump_columns(
    first: Iterable[Mapping[str, Any]], uids: Uids, *, has_tokens: bool, in_full: bool = False
) -> LineColumns | None:
    """The columns of a dump, by the keys of its first rows: a row with another is irregular: it may hold a reward."""
    with_texts = in_full and not has_tokens
    raw = {"input", "gts", "reward", "request_id"} | (set() if with_texts else {"output"})
    raw |= COLUMNS if has_tokens else set()
    keys = dict.fromkeys([*sorted(NO_REWARDS), *(name for row in first for name in row)])
    usual = [key for key in keys if key not in raw and key not in COLUMNS]
    numbers = [key for key in usual if key not in NO_REWARDS and key != "data_source"]
    to_columns = partial(_rows, uids, in_full=with_texts)
    return line_columns(to_columns, usual, sorted(raw), is_complete=True, may_be_nan=numbers)


_NUMBERS = frozenset((bool, int, float))


def _rows(uids: Uids, rows: Cells, *, in_full: bool = False) -> Columns:
    """What rows hold, each output by itself."""
    rewards, cells = rows.numbers("score"), rows.column("uid")
    numbers: dict[str, NDArray[Any]] = {"reward": rewards, REWARD + "score": rewards}
    for name in (name for name in rows.keys if name not in NO_REWARDS):
        if not _NUMBERS.isdisjoint(map(type, of_name := rows.column(name))):
            numbers[REWARD + name] = numbers_of(of_name)
    is_irregular = np.zeros(len(rows), dtype=np.bool_)
    has_tokens = not COLUMNS.isdisjoint(rows.keys)
    if has_tokens:
        counts = token_counts(rows)
        is_irregular |= [count is None for count in counts]
        lengths, advantages = zip(*(count or NO_COUNT for count in counts), strict=True)
        numbers |= {"num_tokens": np.array(lengths), "advantage": np.array(advantages)}
    samples: list[str | None] | None = None
    ids: list[str] = []
    match uids:
        case "of outputs":
            groups, samples = _cut_uids(texts_of(cells))
        case "of groups":
            groups = texts_of(cells)
        case None:
            if cells.count(UNSET) < len(cells):
                is_irregular |= [cell is not UNSET for cell in cells]
            groups = ids = names_of_runs([rows.column(name) for name in _PROMPT], json_text.digests_of)

    def prompts(firsts: list[int]) -> list[str]:
        if ids:
            names = [ids[row] for row in firsts]
        else:
            names = names_of_cells([rows.selected(name, firsts) for name in _PROMPT], json_text.digests_of)
        return (
            list(map(parse.in_environment, rows.cells("data_source", firsts), names))
            if "data_source" in rows.keys
            else names
        )

    def details(row: int) -> dict[str, Any]:
        tokens = tokens_of_row(rows, row) if has_tokens else None
        return {"completion": parse.text_of(rows.cell("output", row)), "tokens": tokens}

    return Columns(
        step=int_steps(rows.column("step")),
        group=groups,
        no_group="the uid is not <group>_<session>_<index>" if uids == "of outputs" else "the uid is no text",
        prompts=prompts,
        texts=lambda firsts: list(map(parse.text_of, rows.cells("input", firsts))),
        numbers=numbers,
        no_reward=partial(rows.no_reward, "score"),
        is_irregular=is_irregular,
        samples=samples,
        completions=(lambda: list(map(parse.text_of, rows.cells("output")))) if in_full else None,
        details=details,
        flaw=partial(rows.flaw_of_advantage, "advantages") if has_tokens else lambda _: None,
    )


def _cut_uids(uids: Sequence[str]) -> tuple[list[str], list[str | None]]:
    """The groups and the sessions that uids of outputs name; "" and None where one is none, [R] each."""
    # All at once, with a line end as a further part between two: half the time of cutting each by itself.
    parts = "_\n_".join(uids).split("_")
    width, rest = divmod(len(parts) + 1, len(uids))
    if not rest and width >= 4 and parts[width - 1 :: width].count("\n") == len(uids) - 1:
        *names, sessions, indices = (parts[part::width] for part in range(width - 1))
        groups = names[0] if len(names) == 1 else list(map("_".join, zip(*names, strict=True)))
        if _are_digits(sessions) and _are_digits(indices) and "\n" not in "".join(groups) and "" not in groups:
            return groups, list(sessions)
    matches = list(map(_UID.fullmatch, uids))
    return [match["group"] if match else "" for match in matches], [match and match["session"] for match in matches]


def _are_digits(texts: Sequence[str]) -> bool:
    digits = "".join(texts)
    return digits.isascii() and digits.isdigit() and "" not in texts


_UID = re.compile(r"(?P<group>.+)_(?P<session>[0-9]+)_(?P<index>[0-9]+)")
_NUM_PEEKED = 1000  # rows that tell what uids name
_WELL_KNOWN = 20
"""Files of which several rows are looked at before the log is read; of the others one, as there may be thousands."""
_NUMBERED = re.compile(r"[0-9]+\.jsonl(\.\w+)?")
_BY_TEXT = (
    "Rows carry no group id and are reordered: rollouts were grouped by input and ground truth within the step; equal "
    "prompts at one step merge."
)
_KINDS: dict[Uids, tuple[str, ...]] = {
    "of outputs": ("of the V1 trainer",),
    "of groups": ("with a uid for each group", "Rollouts of one uid at one step are a group."),
    None: ("of the legacy trainer", _BY_TEXT),
}
"""What uids name -> the dump in words, and how its rollouts were grouped where they do not say it."""
_NO_TOKENS = (
    "verl's dump has no token ids, log-probabilities or advantages, and its texts lost the chat template's markers; "
    "gradients need them as columns prompts, responses, response_mask, rollout_log_probs and advantages (docs/logs.md)."
)
_FILTERED = filter_caveat("With algorithm.filter_groups, verl drops groups of equal rewards before it dumps")
_SHARDS = (
    "Checkpoints of verl are shards; merge one with `python -m verl.model_merger` and give it with --initial, as to "
    "`rank`."
)
_SEVERAL_OUTPUTS = Reason(
    "several_sequences",
    "an agent loop gave several outputs, all trained on, and gradients are computed of one sequence a rollout",
)


def _recognizes(request: ReadRequest) -> bool:
    rows = map(peek, expand(_folder(request.path)))
    first = next((first_rows[0] for first_rows in rows if first_rows and not are_metrics(first_rows)), {})
    is_text = isinstance(first.get("step"), str)  # of forks that write all cells so, which are rows as any
    return {"input", "output", "score", "step"} <= first.keys() and not is_text


def _read(request: ReadRequest) -> Run:
    dump = _folder(request.path)
    firsts = {file: peek(file, num_rows=1) for file in expand(dump)}
    files = tuple(file for file, rows in firsts.items() if not are_metrics(rows))
    # Forks also write their tasks beside the steps.
    files = tuple(file for file in files if _NUMBERED.fullmatch(file.name)) or files
    if not files:
        raise InputError(f"{request.path} holds no rollouts.", hint="Train with trainer.rollout_data_dir=DIR.")
    read = _reduced(files, firsts, request) or _by_row(files, request)
    kind, *inferred = _KINDS[read.uids]
    inferred += [BRANCHED] if read.folded else []
    folder = dump if dump.is_dir() else dump.parent
    metrics_file, metrics, sentences = verl_metrics(
        folder, read.groups, request.options.metric_run, read.quarantine, set(files)
    )
    if dump != request.path:
        inferred.append(f"Rollouts were read from {folder.name}/; other folders (validation) are left out.")
    settings = verl_settings(request, folder, is_v1=read.uids == "of outputs")
    saved = verl_weights(request, folder, settings.values)
    run = assemble_groups(
        request,
        request.source(
            "verl",
            f"verl rollouts {kind}, {counted(len(files), 'file')}",
            files=(*files, *(() if metrics_file is None else (metrics_file,))),
            inferred=[*inferred, *sentences],
            missing=(
                *(() if reward_table(read.groups).num_tokens is not None else (_NO_TOKENS,)),
                _FILTERED,
                *(() if saved["weights"] else (_SHARDS,)),
                *(() if metrics_file is not None else (SWITCH_ON,)),
            ),
        ),
        groups=read.groups,
        quarantine=read.quarantine,
    )
    return replace(
        run, metrics=metrics, settings=settings, **saved, notes=dict.fromkeys(sorted(read.folded), _SEVERAL_OUTPUTS)
    )


class _Dump(Struct, frozen=True, kw_only=True):
    groups: Sequence[RolloutGroup]
    quarantine: QuarantineLog
    uids: Uids  # what uids name
    folded: frozenset[int]  # steps at which a session had several outputs


def _by_row(files: Sequence[Path], request: ReadRequest) -> _Dump:
    quarantine = WatchedLog(request.progress, files)
    rows = [row for file in files for row in read_jsonl(file, quarantine)]
    uids = _uids_of(row for _, row in rows)
    if (
        uids == "of groups"
        and max(Counter((str(row.get("step")), str(row.get("uid"))) for _, row in rows).values()) == 1
    ):
        uids = "of outputs"  # which none is the uid of
    sessions = _sessions(rows, uids)
    groups = build_groups(_rollouts(sessions, quarantine, uids), quarantine)
    return _Dump(groups=groups, quarantine=quarantine, uids=uids, folded=_steps_with_several(sessions))


def _reduced(files: Sequence[Path], firsts: Mapping[Path, list[dict[str, Any]]], request: ReadRequest) -> _Dump | None:
    """The groups of a log, without an object a rollout; None where all rows have to be seen at once."""
    # So it is where some lack a uid that others have, no two share one, or an output of a session, which may have
    # several, has no score or no tokens that can be used.
    first = [row for file in files[:_WELL_KNOWN] for row in peek(file)]
    first += [row for file in files[_WELL_KNOWN:] for row in firsts[file]]
    uids, has_tokens = _uids_of(first), any(COLUMNS & row.keys() for row in first)
    if not first or len({"uid" in row for row in first}) > 1:
        return None
    quarantine, folded, depend = QuarantineLog(), set[int](), set[str]()

    def build_records(rows: Sequence[FileRow]) -> Iterator[Record]:
        all_rows = [row for _, row in rows]
        sessions = _sessions(all_rows, uids)
        steps = _steps_with_several(sessions)
        folded.update(steps)
        depend.update(
            location
            for location, row in all_rows
            if steps and isinstance(parse.parse_reward(row.get("score", parse.ABSENT)), str)
        )
        return _rollouts(sessions, QuarantineLog(), uids)

    def to_columns(rows: Cells) -> Columns:
        for location, row in zip(rows.locations, rows.rows, strict=True):
            if ("uid" in row and uids is None) or (uids == "of outputs" and isinstance(_tokens(row), UnusableRowError)):
                depend.add(location)
        return _rows(uids, rows)

    lines = dump_columns(first, uids, has_tokens=has_tokens, in_full=request.measures_completions)
    if lines is None:
        return None

    def validate(table: RewardTable) -> RewardTable | None:
        is_alone = uids == "of groups" and len(table) > 0 and table.size.max() == 1
        return None if depend or is_alone else table

    log = ColumnLog(
        files=files,
        declared=lambda _: lines,
        rows=read_jsonl,
        to_columns=to_columns,
        build_records=build_records,
        quarantine=quarantine,
        validate=validate,
        keys=lines.row.__struct_encode_fields__,
    )

    groups = reduced_groups(log, request)
    if groups is None:
        return None
    return _Dump(groups=groups, quarantine=quarantine, uids=uids, folded=frozenset(folded))


def _uids_of(rows: Iterable[Mapping[str, Any]]) -> Uids:
    """What uids name, by the first rows of a log."""
    uids = (str(row["uid"]) for row in rows if "uid" in row)
    first = list(islice(uids, _NUM_PEEKED))
    if not first:
        return None
    return "of outputs" if any(map(_UID.fullmatch, first)) else "of groups"


def _steps_with_several(sessions: Sequence[Sequence[Row]]) -> frozenset[int]:
    """Steps at which some session has several outputs."""
    steps = (row.get("step") for outputs in sessions if len(outputs) > 1 for _, row in outputs[:-1])
    return frozenset(step for step in steps if type(step) is int)


def _folder(path: Path) -> Path:
    """The folder of rollouts: the one given, or its folder ``rollout``."""
    below = path / "rollout"
    has_own = path.is_dir() and any(_NUMBERED.fullmatch(file.name) for file in path.iterdir())
    return below if below.is_dir() and not has_own else path


def _tokens(cells: Mapping[str, Any]) -> Tokens | UnusableRowError | None:
    try:
        return row_tokens(cells)
    except UnusableRowError as error:
        return error


def _sessions(rows: Sequence[Row], uids: Uids) -> list[list[Row]]:
    """The outputs of each agent loop, which share a score; without a proper new uid a row is a loop of its own."""
    if uids != "of outputs":
        return [[row] for row in rows]
    groups, names = _cut_uids([str(row.get("uid")) for _, row in rows])
    steps = [repr(row.get("step")) for _, row in rows]
    if len(set(zip(steps, groups, names, strict=True))) == len(rows):  # as of a loop with one output, and fast
        return [[row] for row in rows]
    sessions: dict[Any, list[Row]] = {}
    earlier: set[tuple[str, str]] = set()
    for location, row in rows:
        step, uid = repr(row.get("step")), str(row.get("uid"))
        match = _UID.fullmatch(uid)
        is_new = match is not None and (step, uid) not in earlier
        earlier.add((step, uid))
        key = (step, match["group"], match["session"]) if match and is_new else location
        sessions.setdefault(key, []).append((location, row))
    return list(sessions.values())


def _rollouts(sessions: Sequence[Sequence[Row]], quarantine: QuarantineLog, uids: Uids) -> Iterator[Record]:
    """The rollouts of sessions: of one with several outputs its last one, with the tokens of all."""
    last = [outputs[-1] for outputs in sessions]
    for session, record in records_in(partial(_rows, uids), Path(), last, quarantine):
        before, earlier = sessions[session][:-1], list[Tokens]()
        for location, row in reversed(before):
            tokens = _tokens(row)
            if isinstance(tokens, UnusableRowError):
                quarantine.add(str(tokens), location)
            elif tokens is not None:
                earlier.append(tokens)
        if before:  # without tokens where one has none, as a part would pass for all
            is_whole = record.tokens is not None and len(earlier) == len(before)
            tokens, in_order = (record.tokens, tuple(earlier[::-1])) if is_whole else (None, ())
            record = replace(record, tokens=tokens, earlier=in_order, advantage=None)
        yield record


FORMAT = Format(name="verl", recognizes=_recognizes, read=_read, takes=frozenset({"metric_run"}))
