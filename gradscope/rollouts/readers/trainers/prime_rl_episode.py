"""An episode of prime-rl's traces, which is a line of its logs, with one or several trained agents.

A usual line is decoded to no more than the structs declared here, and :func:`columns_of` interprets them. A line that
does not fit the declaration is read by itself, as far as possible. An agent's trace is a tree of messages with their
tokens; the path from its root to a leaf is a sequence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain, compress, islice, takewhile
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args, get_origin

import numpy as np
from msgspec import UNSET, MsgspecError, Raw, Struct, convert, to_builtins
from msgspec.structs import fields, replace
from numpy.typing import ArrayLike, NDArray

from gradscope.results.source import BROKEN_REWARD
from gradscope.rollouts.arrays import Counts, Floats, to_floats
from gradscope.rollouts.groups import REWARD, UNKNOWN, Tokens
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing.quarantine import BRANCHED, QuarantineLog, UnusableRowError
from gradscope.rollouts.readers.parsing.records import Record, common_advantage
from gradscope.rollouts.readers.parsing.tables import read_jsonl
from gradscope.rollouts.readers.reduction.columns import Cells, Columns, LineColumns, Note, records_in
from gradscope.rollouts.readers.reduction.log import ColumnLog
from gradscope.rollouts.readers.reduction.numbers import numbers_of

_COLUMNS = ("logprobs", "advantages", "trainer_logprobs", "entropies")  # lists of a node: a value per sampled token


class AgentTrace(Struct, frozen=True, kw_only=True):
    """The text and tokens of one agent."""

    prompt: str  # the contents of the messages before the first sampled one, joined by newlines
    messages: tuple[dict[str, Any], ...] | None  # those messages; None where one of them has no role
    completion: str  # the contents of the messages from then on, joined by newlines
    tokens: Tokens | None
    """Its tokens, of several sequences the last; None where they were not logged or contradict each other."""
    earlier: tuple[Tokens, ...]  # tokens of the earlier sequences: each branch that was trained on is one

    @property
    def num_tokens(self) -> int:
        """Completion tokens of all its sequences, -1 where they are unknown."""
        sequences = () if self.tokens is None else (*self.earlier, self.tokens)
        return sum(len(tokens.completion_ids) for tokens in sequences) if sequences else UNKNOWN

    def advantage(self, default: float | None = None) -> float | None:
        """The advantage of all sampled tokens; ``default`` where tokens lack one or are unknown."""
        return default if self.tokens is None else common_advantage(default, (*self.earlier, self.tokens))


def read_trace(trace: Mapping[str, Any]) -> AgentTrace:
    """The text and tokens of a trace; of one that branches, the text of the last branch that was trained on."""
    nodes = nodes_of(trace)
    links = [list(map(parse.mapping_of, parse.list_of(node.get("semantic_parents")))) for node in nodes]
    resumed = {link.get("node") for node_links in links for link in node_links if link.get("type") == "compaction"}
    leaves = [  # of branches that were trained on; of attempts to compact the context only those resumed from
        leaf
        for leaf in leaves_of(nodes)
        if leaf in resumed or all(link.get("type") != "compaction_attempt" for link in links[leaf])
    ]
    path = [nodes[index] for index in path_to_leaf(leaves[-1], nodes)] if leaves else []
    sampled = next((index for index, node in enumerate(path) if node.get("sampled") is True), len(path))
    messages = [node.get("message") for node in path]
    sequences = _sequences(leaves, nodes)
    return AgentTrace(
        prompt="\n".join(_text(message) for message in messages[:sampled]),
        messages=parse.parse_messages(messages[:sampled]),
        completion="\n".join(_text(message) for message in messages[sampled:]),
        tokens=sequences[-1] if sequences else None,
        earlier=sequences[:-1],
    )


def nodes_of(trace: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The messages of a trace."""
    return [parse.mapping_of(node) for node in parse.list_of(trace.get("nodes"))]


def leaves_of(nodes: Sequence[Mapping[str, Any]]) -> list[int]:
    """The last node of each branch, in the order in which prime-rl numbers branches."""
    parents = {node.get("parent") for node in nodes if type(node.get("parent")) is int}
    return [index for index in range(len(nodes)) if index not in parents]


def path_to_leaf(leaf: int, nodes: Sequence[Mapping[str, Any]]) -> list[int]:
    """The nodes from the root to a leaf; parents have lower numbers than their children, so there are no cycles."""
    path = [leaf]
    while type(parent := nodes[path[-1]].get("parent")) is int and 0 <= parent < path[-1]:
        path.append(parent)
    return path[::-1]


def _text(message: Any) -> str:
    return parse.text_of([message]) if isinstance(message, Mapping) and "role" in message else parse.text_of(message)


def _sequences(leaves: Sequence[int], nodes: Sequence[Mapping[str, Any]]) -> tuple[Tokens, ...]:
    """The tokens of each branch that sampled tokens of its own; those before a fork count in its first branch."""
    # Empty where the tokens of one branch are damaged, since a part would pass for all.
    sequences: list[Tokens] = []
    counted: set[int] = set()
    for leaf in leaves:
        path = path_to_leaf(leaf, nodes)
        are_new = [index not in counted for index in path]
        counted.update(index for index in path if nodes[index].get("sampled") is True)
        branch = [nodes[index] for index in path]
        if not any(any(parse.list_of(node.get("mask"))) for node in compress(branch, are_new)):
            continue
        tokens = _tokens(branch, are_new)
        if tokens is None:
            return ()
        sequences.append(tokens)
    return tuple(sequences)


def _tokens(path: Sequence[Mapping[str, Any]], are_new: Sequence[bool]) -> Tokens | None:
    """The tokens of a branch; those of nodes that are not its own are only conditioned on."""
    ids: list[Any] = []
    mask: list[Any] = []
    columns: dict[str, list[Any] | None] = {name: [] for name in _COLUMNS}
    for node, is_new in zip(path, are_new, strict=True):
        flags = parse.list_of(node.get("mask")) if is_new else [False] * len(parse.list_of(node.get("mask")))
        num_sampled = sum(map(bool, flags))
        ids += parse.list_of(node.get("token_ids"))
        mask += flags
        for name, joined in columns.items():
            compact = parse.list_of(node.get(name)) if is_new and joined is not None else []
            if joined is None or len(compact) != num_sampled:
                columns[name] = None  # not one value for each sampled token
            else:
                values = iter(compact)
                joined += [next(values) if flag else 0.0 for flag in flags] if compact else [0.0] * len(flags)
    try:
        return parse.cut_sequence(ids, mask, **columns)
    except UnusableRowError:
        return None


AGENTS = "Episodes with several trained agents: the rollouts of one agent form a group."  # for ``Source.inferred``
_NUM_PEEKED = 20
"""Episodes that are read first to learn whether traces branch, so that later ones are not searched for branches."""


class _Score(Struct, gc=False, frozen=True):
    score: Any = None
    weight: Any = 1.0


class _Agent(Struct, gc=False, frozen=True):
    name: Any = None
    trainable: Any = None


class _Node(Struct, gc=False, frozen=True):
    """A message; its text and tokens stay JSON, so that they can be counted without being parsed."""

    parent: int | None = None
    sampled: Any = None
    message: Raw = Raw(b"null")
    token_ids: Raw = Raw(b"[]")
    mask: Raw = Raw(b"[]")
    logprobs: Raw = Raw(b"null")
    advantages: list[float | None] | None = None
    semantic_parents: list[Raw] | None = None


class _Info(Struct, gc=False, frozen=True):
    kind: Any = None
    ship: Any = None
    dispatch: Any = None
    advantage: Any = None


class Trace(Struct, gc=False, frozen=True):
    """The decoded part of an agent's trace."""

    id: Any = None
    rewards: dict[str, _Score] = {}
    agent: _Agent | None = None
    nodes: list[_Node] = []
    info: _Info | None = None

    @property
    def is_trained(self) -> bool:
        """Whether its agent was trained."""
        return self.agent is None or self.agent.trainable is not False


_NO_TRACE = Trace()
_NODES, _PARENT = attrgetter("nodes"), attrgetter("parent")
_AGENT_CELLS = attrgetter("traces", "group.id", "task.hash")
_NODE_CELLS = attrgetter("parent", "semantic_parents", "token_ids", "mask", "advantages")


class _Work(Struct, gc=False, frozen=True):
    step: Any = UNSET
    type: Any = None


class _RunCell(Struct, gc=False, frozen=True):
    work: _Work = _Work()


class _Named(Struct, gc=False, frozen=True):
    id: Any = None


class _Task(Struct, gc=False, frozen=True):
    hash: Any = None


class Episode(Struct, gc=False, frozen=True):
    """The decoded part of an episode."""

    run: _RunCell = _RunCell()
    group: _Named = _Named()
    traces: list[Trace] = []
    task: _Task = _Task()
    env: _Named | None = None

    @property
    def is_evaluation(self) -> bool:
        """Whether it is an evaluation within a training run."""
        kinds = (trace.info.kind for trace in self.traces if trace.info is not None and trace.is_trained)
        return self.run.work.type == "eval" or "eval" in kinds


_NOT_PARSED: Mapping[str, Any] = MappingProxyType({})  # one for all: a dictionary would be made for each rollout


class AgentRollout(Struct, gc=False, frozen=True):
    """One trained agent of an episode."""

    episode: Episode
    trace: Trace
    group: str  # the name of its group
    line: Mapping[str, Any] = _NOT_PARSED  # the episode as parsed JSON, where it was not decoded as declared alone
    parsed: Mapping[str, Any] = _NOT_PARSED  # the trace, likewise

    @property
    def as_json(self) -> Mapping[str, Any]:
        """The trace as parsed JSON, of one that was decoded as declared the parts that are."""
        if self.parsed:
            return self.parsed
        nodes = [
            {name: parse.plain_cell(getattr(node, name)) for name in _Node.__struct_fields__}
            for node in self.trace.nodes
        ]
        return {"id": self.trace.id, "info": to_builtins(self.trace.info), "nodes": nodes}

    @property
    def step(self) -> Any:
        """The cell of its work's step; UNSET where it has none."""
        return self.episode.run.work.step

    @property
    def logprobs(self) -> list[Any]:
        """The log-probabilities of its nodes, as JSON where they were not parsed."""
        return [node.logprobs for node in self.trace.nodes] or [node.get("logprobs") for node in nodes_of(self.parsed)]

    @property
    def prompt_id(self) -> str:
        """The id of its prompt: the environment and the hash of the task, or of its data."""
        environment = parse.text_of(self.episode.env.id) if self.episode.env else ""
        key = parse.text_of(self.episode.task.hash) or parse.digest(parse.mapping_of(self.line.get("task")).get("data"))
        return f"{environment}/{key}"

    @property
    def prompt(self) -> str:
        """:attr:`AgentTrace.prompt`, of a path without parsing its tokens."""
        nodes = self.trace.nodes
        if not nodes or any(node.semantic_parents for node in nodes) or not _are_paths([self.trace]):
            return read_trace(self.as_json).prompt
        before = takewhile(lambda node: node.sampled is not True, nodes)
        return "\n".join(_text(parse.plain_cell(node.message)) for node in before)


def _are_paths(traces: Sequence[Trace]) -> bool:
    """Whether each node of each follows the one before."""
    nodes = list(map(_NODES, traces))
    return list(map(_PARENT, chain.from_iterable(nodes))) == _path_parents(nodes)


def _path_parents(nodes: Sequence[Sequence[_Node]]) -> list[int | None]:
    return list(chain.from_iterable(map(_parents_on_path, map(len, nodes))))


@lru_cache
def _parents_on_path(num_nodes: int) -> tuple[int | None, ...]:
    return (None, *range(num_nodes - 1))[:num_nodes]


def count_tokens(rollouts: Sequence[AgentRollout]) -> tuple[Counts, Floats]:
    """The tokens of the completions of rollouts, -1 where they are unknown, and their common advantages, NaN for none.

    [R] each; paths, as most are, are not parsed for it.
    """
    num_tokens, advantages = np.full(len(rollouts), UNKNOWN), np.full(len(rollouts), np.nan)
    pending = [np.arange(len(rollouts))]
    while pending:
        chosen = pending.pop()
        if (counts := _path_counts([rollouts[index] for index in chosen.tolist()])) is not None:
            num_tokens[chosen], advantages[chosen] = counts
        elif len(chosen) > 1:  # halves, until those that are unlike the others are alone
            pending += np.array_split(chosen, 2)
        else:
            trace = read_trace(rollouts[chosen[0]].as_json)
            num_tokens[chosen], advantages[chosen] = trace.num_tokens, to_floats([trace.advantage()])
    return num_tokens, advantages


def _path_counts(rollouts: Sequence[AgentRollout]) -> tuple[Counts, Floats] | None:
    """:func:`count_tokens` of paths by the JSON of their lists; None where one is not as prime-rl writes them."""
    if any(rollout.parsed for rollout in rollouts):
        return None
    nodes = [rollout.trace.nodes for rollout in rollouts]
    cells = list(map(_NODE_CELLS, chain.from_iterable(nodes)))
    parents, links, ids, masks, levels = zip(*cells, strict=True) if cells else ((),) * 5
    if any(links) or list(parents) != _path_parents(nodes):
        return None
    all_ids, all_masks, lists = b"".join(ids), b"".join(masks), b"[]" * len(cells)
    if all_ids.translate(None, b"0123456789, ") != lists or all_masks.translate(None, b"truefals, ") != lists:
        return None
    first, id_bounds, mask_bounds = (_bounds([*map(len, sized)]) for sized in (nodes, ids, masks))
    start = mask_bounds[first]
    commas, is_true, is_false = (
        np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == ord(letter))
        for text, letter in ((all_ids, ","), (all_masks, "t"), (all_masks, "f"))
    )
    num_filled = _bounds(np.diff(id_bounds) > len(b"[]"))[first]  # lists with a token
    num_ids = np.diff(np.searchsorted(commas, id_bounds[first]) + num_filled)
    num_true, num_false = (np.diff(np.searchsorted(flags, start)) for flags in (is_true, is_false))
    is_sampled = num_true > 0
    if (is_sampled & (num_true + num_false != num_ids)).any():
        return None
    begin = np.append(is_true, len(all_masks))[np.searchsorted(is_true, start[:-1])]  # of the completion
    num_tokens = num_true + np.searchsorted(is_false, start[1:]) - np.searchsorted(is_false, begin)
    advantages = np.full(len(rollouts), np.nan)
    if any(levels):
        num_levels = np.array([len(node_levels or ()) for node_levels in levels])
        is_lacking = num_levels != np.diff(np.searchsorted(is_true, mask_bounds))
        is_complete = np.diff(_bounds(is_lacking)[first]) == 0
        for index in np.flatnonzero(is_sampled & is_complete).tolist():
            distinct = set(chain.from_iterable(filter(None, levels[first[index] : first[index + 1]])))
            advantages[index] = distinct.pop() if len(distinct) == 1 else np.nan
    return np.where(is_sampled, num_tokens, UNKNOWN), advantages


def _bounds(sizes: ArrayLike) -> Counts:
    return np.append(0, np.cumsum(sizes, dtype=np.int64))


def agent_rollouts(
    episode: Episode, line: Mapping[str, Any], group: Any, names: Callable[[str, Sequence[Trace]], list[str]]
) -> list[AgentRollout]:
    """The trained agents of an episode with their groups; an UnusableRowError without an agent or a group."""
    pairs = zip(episode.traces, map(parse.mapping_of, parse.list_of(line.get("traces"))), strict=True)
    trained = [(trace, parsed) for trace, parsed in pairs if parsed and trace.is_trained]
    if not parse.text_of(group):
        raise UnusableRowError("group.id is missing")
    if not trained:
        raise UnusableRowError("the episode has no trace of a trained agent")
    named = zip(names(parse.text_of(group), [trace for trace, _ in trained]), trained, strict=True)
    return [AgentRollout(episode, trace, name, line, parsed) for name, (trace, parsed) in named]


def episode_of(line: Mapping[str, Any]) -> Episode:
    """The declared parts of a line, without its nodes; parts of another type are left out."""
    traces = [{**trace, "nodes": []} if type(trace) is dict else trace for trace in parse.list_of(line.get("traces"))]
    bare = {**line, "traces": traces}
    try:
        return convert(bare, Episode)
    except (MsgspecError, ValueError):  # the latter for a key that is no text
        made: Episode = _as_declared(bare, Episode)
        return made


def _as_declared(cell: Any, kind: Any) -> Any:
    cells = cell if type(cell) is dict else {}
    decoders = [(declared.name, _decoder(declared.type)) for declared in fields(kind)]
    return kind(**{name: decode(cells[name]) if decode else cells[name] for name, decode in decoders if name in cells})


@cache
def _decoder(kind: Any) -> Callable[[Any], Any] | None:
    arguments = get_args(kind)
    if get_origin(kind) is list:
        return lambda cell: [_as_declared(item, arguments[0]) for item in parse.list_of(cell)]
    if get_origin(kind) is dict:
        return lambda cell: {name: _as_declared(item, arguments[1]) for name, item in parse.mapping_of(cell).items()}
    struct = next((item for item in (kind, *arguments) if isinstance(item, type) and issubclass(item, Struct)), None)
    return None if struct is None else lambda cell: _as_declared(cell, struct)


def is_standalone(episode: Mapping[str, Any]) -> bool:
    """Whether an episode is of an evaluation outside of training."""
    return isinstance(episode.get("traces"), list) and parse.mapping_of(episode.get("run")).get("type") == "eval"


def _single_agents(episodes: Sequence[Episode]) -> list[AgentRollout] | None:
    """The agents of episodes that have one each, trained and with a path of nodes; None unless all are like this."""
    traces, groups, tasks = ([*cells] for cells in zip(*map(_AGENT_CELLS, episodes), strict=True))
    agents = [trace for members in traces for trace in members]
    is_usual = (
        {1}.issuperset(map(len, traces))
        and {str}.issuperset(map(type, chain(groups, tasks)))
        and all(chain(groups, tasks))
        and all(agent.is_trained for agent in agents)
        and _NO_TRACE not in agents
        and _are_paths(agents)
    )
    return list(map(AgentRollout, episodes, agents, groups)) if is_usual else None


def names_by_agent(group: str, traces: Sequence[Trace]) -> list[str]:
    """A group for each agent of an episode, by its name where names differ, else by its position."""
    agents = [parse.text_of(trace.agent.name if trace.agent else None) for trace in traces]
    if len(traces) == 1 or len(set(agents)) < len(agents):
        return names_by_position(group, traces)
    return [f"{group}/{agent}" for agent in agents]


def names_by_position(group: str, traces: Sequence[Trace]) -> list[str]:
    """A group for each agent of an episode, by its position."""
    return [group] if len(traces) == 1 else [f"{group}/{index}" for index in range(len(traces))]


def columns_of(
    rollouts: Sequence[AgentRollout],
    step: Counts,
    read: Callable[[int], AgentTrace],
    note: Callable[[str], object],
    count: Callable[[], tuple[Counts, Floats]] | None = None,
) -> Columns:
    """The columns of rollouts; ``count`` counts the tokens of those that were decoded as declared."""
    reward, rewards = _rewards_of([rollout.trace.rewards for rollout in rollouts])
    numbers: dict[str, NDArray[Any]] = {"reward": reward, **rewards}
    if count is not None and rollouts and not rollouts[0].line:
        numbers["num_tokens"], numbers["advantage"] = count()
    trace_at = lru_cache(maxsize=1)(read)

    def details(row: int) -> dict[str, Any]:
        line, trace = rollouts[row].line, trace_at(row)
        if trace.earlier:
            note(BRANCHED)
        policy = parse.mapping_of(parse.mapping_of(parse.mapping_of(line.get("run")).get("work")).get("policy"))
        first, last = parse.whole_number(policy.get("start")), parse.whole_number(policy.get("end"))
        return {
            "prompt": trace.prompt,
            "completion": trace.completion,
            "messages": trace.messages,
            "status": "error" if line.get("ok") is False else "unknown",
            "tokens": trace.tokens,
            "earlier": trace.earlier,
            "policy_versions": None if first is None or last is None or first > last else (first, last),
        }

    def no_reward(row: int) -> str:
        scores = rollouts[row].trace.rewards.values()
        cells = [cell for entry in scores for cell in (entry.score, entry.weight)] or [parse.ABSENT]
        return next((reason for reason in map(parse.parse_reward, cells) if isinstance(reason, str)), BROKEN_REWARD)

    return Columns(
        step=step,
        group=[rollout.group for rollout in rollouts],
        no_group="group.id is missing",
        prompts=lambda rows: [rollouts[row].prompt_id for row in rows],
        texts=lambda rows: [rollouts[row].prompt for row in rows],
        numbers=numbers,
        no_reward=no_reward,
        details=details,
    )


def _rewards_of(scored: Sequence[Mapping[str, _Score]]) -> tuple[Floats, dict[str, Floats]]:
    """The scalar rewards [R], sums of scores times weights, NaN where one of these is no number; columns of scores."""
    kinds: dict[tuple[str, ...], list[int]] = {}
    for row, scores in enumerate(scored):
        kinds.setdefault(tuple(scores), []).append(row)
    total = np.full(len(scored), np.nan)
    columns: dict[str, Floats] = {}
    for kind, rows in kinds.items():
        if kind:
            total[rows] = 0.0
        for name in kind:
            cells = [scored[row][name] for row in rows]
            score = numbers_of([cell.score for cell in cells])
            columns.setdefault(REWARD + name, np.full(len(scored), np.nan))[rows] = score
            with np.errstate(over="ignore", invalid="ignore"):
                total[rows] += score * numbers_of([cell.weight for cell in cells])
    return total, columns


def untrained(trace: AgentTrace) -> AgentTrace:
    """A trace none of whose tokens was trained on."""
    sequences = () if trace.tokens is None else (*trace.earlier, trace.tokens)
    sizes = [len(tokens.mask) for tokens in sequences]
    masked = [
        replace(tokens, mask=(False,) * size, token_advantages=(0.0,) * size)
        for tokens, size in zip(sequences, sizes, strict=True)
    ]
    return replace(trace, tokens=masked[-1], earlier=tuple(masked[:-1])) if masked else trace


class EpisodeLayout(Struct, frozen=True, kw_only=True):
    """How logs of episodes with one layout are read."""

    names: Callable[[str, Sequence[Trace]], list[str]]  # groups of an episode's agents, from the episode's group
    group: Callable[[Mapping[str, Any]], Any] = lambda line: parse.mapping_of(line.get("group")).get("id")
    """The cell of an episode's group; raises an UnusableRowError where the line is none."""
    to_columns: Callable[[Sequence[AgentRollout], Path], Columns]  # the columns of a file's rollouts
    is_left_out: Callable[[Episode], bool] = lambda _: False  # whether an episode is skipped
    noted: set[Note] = set()  # sentences that an episode called for

    def lines(self, files: Sequence[Path]) -> LineColumns:
        """How lines are read as columns."""
        first, discarded = islice(read_jsonl(files[0], QuarantineLog()), _NUM_PEEKED), QuarantineLog()
        deque(records_in(self.columns_of_cells, files[0], first, discarded, self.noted.add), maxlen=0)
        may_branch = BRANCHED in self.noted

        def to_columns(episodes: Sequence[Episode], path: Path) -> Columns:
            if (single := None if any(map(self.is_left_out, episodes)) else _single_agents(episodes)) is not None:
                return self.to_columns(single, path)
            are_usual = may_branch or _are_paths([trace for episode in episodes for trace in episode.traces])

            def agents(_: int, episode: Episode) -> list[AgentRollout]:
                group, task = episode.group.id, episode.task.hash
                group, task = (group, task) if type(group) is type(task) is str else map(parse.text_of, (group, task))
                trained = [trace for trace in episode.traces if trace.is_trained]
                if not (group and task and trained) or _NO_TRACE in trained or not (are_usual or _are_paths(trained)):
                    raise UnusableRowError("the row reader is to look at the line")
                return [AgentRollout(episode, *pair) for pair in zip(trained, self.names(group, trained), strict=True)]

            return self._columns(episodes, path, agents)

        return LineColumns(row=Episode, to_columns=to_columns, looks_at_path=True)

    def _columns(
        self, episodes: Iterable[Episode], path: Path, agents: Callable[[int, Episode], list[AgentRollout]]
    ) -> Columns:
        """The columns of lines with these episodes, whose trained agents a function of line and episode gives."""
        rollouts, rows, flaws = list[AgentRollout](), list[int](), list[tuple[int, str]]()
        for row, episode in enumerate(episodes):
            if self.is_left_out(episode):
                continue
            try:
                trained = agents(row, episode)
            except UnusableRowError as error:
                flaws.append((row, str(error)))
            else:
                rollouts += trained
                rows += [row] * len(trained)
        columns = self.to_columns(rollouts, path)
        notes = [*columns.notes, *([AGENTS] if len(set(rows)) < len(rows) else [])]
        return replace(columns, row=np.array(rows, dtype=np.int64), flaws=flaws, notes=notes)

    def columns_of_cells(self, cells: Cells) -> Columns:
        """The columns of lines that the row reader made."""

        def agents(row: int, episode: Episode) -> list[AgentRollout]:
            return agent_rollouts(episode, cells.rows[row], self.group(cells.rows[row]), self.names)

        return self._columns(map(episode_of, cells.rows), cells.path, agents)

    def all_records(self, files: Sequence[Path], quarantine: QuarantineLog) -> list[Record]:
        """The rollouts of all lines of files."""
        rows = ((file, read_jsonl(file, quarantine.for_lines())) for file in files)
        records = (records_in(self.columns_of_cells, *located, quarantine, self.noted.add) for located in rows)
        return [record for located in records for _, record in located]

    def log(self, files: Sequence[Path], quarantine: QuarantineLog) -> ColumnLog:
        """How files are read."""
        lines = self.lines(files)
        return ColumnLog(
            files=files,
            declared=lambda _: lines,
            rows=read_jsonl,
            to_columns=self.columns_of_cells,
            quarantine=quarantine,
            note=self.noted.add,
            lines_hold_many=True,
        )
