"""The groups of a run: in memory, made from a table of rewards, or left on disk until a step is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from itertools import compress, groupby, islice
from operator import attrgetter
from typing import Any, Literal, overload

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from gradscope.errors import InputError
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS
from gradscope.rollouts.arrays import Counts, Flags, Floats, to_floats, to_indices, to_texts

Status = Literal["completed", "truncated", "error", "unknown"]


class Tokens(Struct, frozen=True, kw_only=True):
    """One sequence of tokens that was trained on, cut where the model starts to write."""

    prompt_ids: tuple[int, ...] | None  # everything before the first sampled token, [P]; None: its text was logged
    completion_ids: tuple[int, ...]
    """From the first sampled token on, [T]; a tool's tokens between two turns are among them."""
    mask: tuple[bool, ...]  # which of them were sampled, [T]
    logprobs: tuple[float, ...] | None = None
    """The sampler's log-probabilities, [T], 0 where not sampled; None unless every sampled token has one."""
    token_advantages: tuple[float, ...] | None = None
    """Advantages, [T], 0 where not sampled; None unless every sampled token has one."""
    trainer_logprobs: tuple[float, ...] | None = None
    """The trainer's log-probabilities, [T], 0 where not sampled, NaN where there is none; None unless there are T."""
    entropies: tuple[float, ...] | None = None  # entropies of the trainer's policy, [T], likewise

    @property
    def advantage(self) -> float | None:
        """The advantage that all sampled tokens share; None where they differ or have none."""
        if self.token_advantages is None:
            return None
        levels = {value for value, sampled in zip(self.token_advantages, self.mask, strict=True) if sampled}
        return levels.pop() if len(levels) == 1 else None


TOKEN_FIELDS = Tokens.__struct_fields__


class Rollout(Struct, frozen=True, kw_only=True):
    """One sampled completion with its reward."""

    group_id: str  # the group it belongs to; unique within a run
    sample: int  # index within its group, from 0
    row: int  # row within the step, from 0, in the order of the log
    prompt: str  # the prompt's text as logged (for a conversation: the contents of its messages, joined by newlines)
    completion: str  # the completion's text as logged
    messages: tuple[Mapping[str, Any], ...] | None = None  # the prompt as chat messages, where it was logged so
    prompt_ids: tuple[int, ...] | None = None  # exact prompt token ids; None where only text was logged
    completion_ids: tuple[int, ...] | None = None
    """Exact completion token ids, end-of-sequence included where it was sampled; None where only text was logged."""
    reward: float | None  # the scalar reward; None where it is missing or not a finite number
    rewards: Mapping[str, float | None] = {}  # reward per reward function, unweighted
    token_rewards: tuple[float, ...] | None = None  # reward per completion token, [T]
    advantage: float | None = None  # the advantage that the optimizer saw
    token_advantages: tuple[float, ...] | None = None
    """Advantage per completion token, [T], where the trainer used one per token."""
    logprobs: tuple[float, ...] | None = None  # the sampler's log-probability of each completion token, [T]
    trainer_logprobs: tuple[float, ...] | None = None
    """The trainer's log-probability of each completion token before the step's first update, [T]; NaN where the log has
    none that is a number."""
    entropies: tuple[float, ...] | None = None
    """Entropy of the trainer's policy where each completion token was sampled, in nats, [T]; NaN as above."""
    mask: tuple[bool, ...] | None = None  # which completion tokens count in the loss, [T]; None: all
    status: Status = "unknown"  # how the completion ended
    seconds: float | None = None  # how long it took to generate; None where the log does not time its rollouts
    policy: str | None = None  # name of the policy that sampled it, where a log pools several; None: the only one
    policy_versions: tuple[int, int] | None = None
    """How many updates the weights that sampled its first and its last token had had; None where the log does not
    say. Weights that are fresh at step N have had N - 1."""
    earlier: tuple[Tokens, ...] = ()
    """The sequences before its own, where it was trained on as several: branches of a trace, outputs of a session. They
    share its reward."""

    @property
    def sequences(self) -> tuple[Rollout, ...]:
        """Each of its sequences as a rollout of one, its own last."""
        if not self.earlier:
            return (self,)
        last = replace(self, earlier=())
        return (*(replace(last, **asdict(tokens)) for tokens in self.earlier), last)

    def counted(self, length: int) -> Flags:
        """Which of so many completion tokens count in the loss, [T]."""
        return np.ones(length, dtype=bool) if self.mask is None else np.array(self.mask, dtype=bool)

    @property
    def num_tokens(self) -> int | None:
        """Completion tokens of all its sequences; None where only text was logged."""
        if self.completion_ids is None:
            return None
        return len(self.completion_ids) + sum(len(tokens.completion_ids) for tokens in self.earlier)


class RolloutGroup(Struct, frozen=True, kw_only=True):
    """The rollouts of one prompt at one step."""

    step: int  # the trainer's step: these rollouts feed update number ``step`` (counted from 1)
    group_id: str  # unique within the run
    prompt_id: str  # the same for every group of the same prompt: prompts, not groups, are the unit of resampling
    rollouts: tuple[Rollout, ...]  # at least one

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """Scalar rewards, [G], missing ones as None."""
        return tuple(rollout.reward for rollout in self.rollouts)

    @property
    def size(self) -> int:
        """Number of rollouts, G."""
        return len(self.rollouts)


def group_name(step: int, group: str) -> str:
    """A group's name within its run: its step and its name within the step, alone where the log has no step (0).

    Example:
        >>> group_name(3, "a"), group_name(0, "a")
        ('3:a', 'a')
    """
    return f"{step}:{group}" if step else group


_AT_ONCE = 1 << 17  # groups of one size in a block, so that arrays made from it stay below a few dozen MB
_OPTIONAL = ("advantage", "num_tokens", "seconds", "truncated", "policy", "sample", "num_characters", "text_hash")
TRUNCATED: dict[Status, float] = {"completed": 0.0, "truncated": 1.0}  # the column ``truncated``, by status
UNKNOWN = -1  # a number or hash that is not known, and a rollout without a policy's name
REWARD = "reward/"  # what stands before the name of a reward function in the name of its column


def numbered_policies(names: Sequence[str | None]) -> tuple[tuple[str, ...], dict[str, Counts]]:
    """The policies that are named, and, where some are, the column ``policy``: the index of each name among them, [N].

    That of None and "" is ``UNKNOWN``.
    """
    policies = tuple(filter(None, dict.fromkeys(names)))
    numbers = {name: index for index, name in enumerate(policies)}
    column = np.array([numbers.get(name or "", UNKNOWN) for name in names], dtype=np.int64) if policies else None
    return policies, {} if column is None else {"policy": column}


def status_of(truncated: float | None) -> Status:
    """How a completion ended, by its entry in the column ``truncated``."""
    return next((status for status, end in TRUNCATED.items() if end == truncated), "unknown")


def completion_columns(completions: Sequence[str]) -> dict[str, Counts]:
    """``num_characters`` and ``text_hash`` of completions, [N] each."""
    return {
        name: np.fromiter(map(measure, completions), np.int64, len(completions))
        for name, measure in (("num_characters", len), ("text_hash", hash))
    }


def rollout_columns(rollouts: Sequence[Any], *, with_completions: bool = False) -> dict[str, NDArray[Any]]:
    """The numbers of rollouts, or of the records that become such, by name as in :meth:`RewardTable.from_columns`."""
    lengths = [UNKNOWN if (number := rollout.num_tokens) is None else number for rollout in rollouts]
    columns: dict[str, NDArray[Any]] = {
        "reward": to_floats(rollout.reward for rollout in rollouts),
        **{
            REWARD + name: to_floats(rollout.rewards.get(name) for rollout in rollouts)
            for name in dict.fromkeys(name for rollout in rollouts for name in rollout.rewards)
        },
        "seconds": to_floats(rollout.seconds for rollout in rollouts),
        "truncated": to_floats(TRUNCATED.get(rollout.status) for rollout in rollouts),
        "advantage": to_floats(rollout.advantage for rollout in rollouts),
        "num_tokens": np.array(lengths, dtype=np.int64),
    }
    if with_completions:
        columns |= completion_columns([rollout.completion for rollout in rollouts])
    return {name: values for name, values in columns.items() if name not in _OPTIONAL or _has_known(values)}


def _has_known(values: NDArray[Any]) -> bool:
    return bool(np.any(~np.isnan(values) if values.dtype.kind == "f" else values != UNKNOWN))


class RewardTable(Struct, frozen=True, kw_only=True, dict=True):
    """Groups in the order of the log, by step."""

    step: Counts  # the trainer's step, [J]
    names: tuple[str, ...] | pa.Array
    """Names of the groups: within the run, or, as an array of strings, within their steps, [J]."""
    prompt: Counts  # the index of a group's prompt in ``prompts``, [J]
    prompts: Sequence[str]  # ids of the prompts, each once, by their first group
    size: Counts  # rollouts of the group, at least 1, [J]
    reward: Floats  # the scalar reward, [N]; NaN where it is missing or not a finite number
    rewards: Mapping[str, Floats] = {}
    """Reward function -> its rewards, unweighted, [N]; NaN likewise."""
    advantage: Floats | None = None
    """The advantage that the optimizer saw, [N]; NaN where it was not logged, None where no rollout has one."""
    prompt_texts: Sequence[str] | None = None  # the texts of ``prompts``; None where only their ids were read
    num_tokens: Counts | None = None
    """Completion tokens of all its sequences, [N]; -1 where they were not logged, None where no rollout has them."""
    seconds: Floats | None = None
    """How long a completion took to generate, [N]; NaN where it was not logged, None where no rollout has it."""
    truncated: Floats | None = None
    """1 where a completion was cut off at the length limit, 0 where it came to its end, [N]; NaN and None likewise."""
    policy: Counts | None = None
    """The index of a rollout's policy in ``policies``, [N]; -1 where it has none, None where the log names none."""
    policies: tuple[str, ...] = ()  # names of the policies, by their first rollout
    first_row: Counts | None = None
    """The number of each group's first row within the log, ascending from file to file, [J]; None where the rows were
    not numbered."""
    sample: NDArray[np.uint32] | None = None
    """A short hash that distinguishes a rollout within its group, [N]; 0 where there is nothing to hash, None where
    nothing was hashed."""
    num_characters: Counts | None = None  # of the completion, [N]; -1 where unknown, None where no rollout's are known
    text_hash: Counts | None = None  # Python's hash of the completion, [N], likewise; another in each process

    @classmethod
    def from_groups(cls, groups: Iterable[RolloutGroup], *, with_completions: bool = False) -> RewardTable:
        """The table of groups that were read into objects; with ``num_characters`` and ``text_hash`` if so."""
        groups = tuple(groups)
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        prompts = {name: index for index, name in enumerate(dict.fromkeys(group.prompt_id for group in groups))}
        texts = {group.prompt_id: group.rollouts[0].prompt for group in reversed(groups)}
        policies, policy = numbered_policies([rollout.policy for rollout in rollouts])
        columns = {**rollout_columns(rollouts, with_completions=with_completions), **policy}
        return cls.from_columns(
            columns,
            step=np.array([group.step for group in groups], dtype=np.int64),
            names=tuple(group.group_id for group in groups),
            prompt=np.array([prompts[group.prompt_id] for group in groups], dtype=np.int64),
            prompts=tuple(prompts),
            size=np.array([group.size for group in groups], dtype=np.int64),
            prompt_texts=tuple(texts[name] for name in prompts) if any(texts.values()) else None,
            policies=policies,
        )

    @classmethod
    def from_columns(cls, columns: Mapping[str, NDArray[Any]], **fields: Any) -> RewardTable:
        """A table from the numbers of its rollouts by name, [N]: ``reward``, functions' as ``reward/NAME``, and others.

        Others that hold no number are left out. ``fields`` are the table's other fields.
        """
        optional: dict[str, Any] = {
            name: columns[name] for name in _OPTIONAL if name in columns and _has_known(columns[name])
        }
        rewards = {name.removeprefix(REWARD): columns[name] for name in columns if name.startswith(REWARD)}
        return cls(reward=columns["reward"], rewards=rewards, **optional, **fields)

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The numbers of its rollouts by name, as :meth:`from_columns` takes them."""
        optional = {name: values for name in _OPTIONAL if (values := getattr(self, name)) is not None}
        return {"reward": self.reward, **{REWARD + name: self.rewards[name] for name in self.rewards}, **optional}

    def __len__(self) -> int:
        return len(self.size)

    @cached_property
    def starts(self) -> Counts:
        """The index of each group's first rollout, [J]."""
        return np.asarray(np.cumsum(self.size) - self.size, dtype=np.int64)

    @cached_property
    def repeats(self) -> tuple[Flags, Flags]:
        """Which rollouts repeat a text of their group, and with another reward, [N]; none where texts were not read."""
        no_rollout = np.zeros(len(self.reward), dtype=np.bool_)
        if self.num_characters is None or self.text_hash is None:
            return no_rollout, no_rollout
        group, rows = np.repeat(np.arange(len(self)), self.size), np.flatnonzero(self.num_characters > 0)
        order = rows[np.lexsort((self.reward[rows], self.text_hash[rows], group[rows]))]
        repeats, are_torn = no_rollout.copy(), no_rollout.copy()
        repeats[order[1:]] = (np.diff(group[order]) == 0) & (np.diff(self.text_hash[order]) == 0)
        are_torn[order[1:]] = repeats[order[1:]] & (np.diff(self.reward[order]) != 0)
        return repeats, are_torn

    def ids(self) -> tuple[str, ...]:
        """The name of each group within the run, [J]."""
        if isinstance(self.names, tuple):
            return self.names
        return tuple(map(group_name, self.step.tolist(), to_texts(self.names)))

    def prompts_of_groups(self) -> list[str]:
        """The id of each group's prompt, [J]."""
        return [self.prompts[index] for index in self.prompt.tolist()]

    def texts_of_groups(self) -> list[str]:
        """The text of each group's prompt, [J]; "" where texts were not read."""
        texts = self.prompt_texts or [""] * len(self.prompts)
        return [texts[index] for index in self.prompt.tolist()]

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Sums of values [N] over the rollouts of each group, [J]: integers of integers and of flags."""
        sums = np.zeros(len(self), dtype=np.int64 if values.dtype == np.bool_ else values.dtype)
        for start in range(0, len(self), _AT_ONCE):  # flags become numbers on the way
            rows = self.starts[start : start + _AT_ONCE]
            end = rows[-1] + self.size[start : start + _AT_ONCE][-1]
            sums[start : start + _AT_ONCE] = np.add.reduceat(values[rows[0] : end], rows - rows[0], dtype=sums.dtype)
        return sums

    @property
    def measures_completions(self) -> bool:
        """Whether each completion was measured, and none has tokens."""
        measured = self.num_characters
        return self.num_tokens is None and measured is not None and not np.any(measured == UNKNOWN)

    @property
    def tokens(self) -> NDArray[Any] | None:
        """The tokens of each group, [J]; None where those of a rollout were not logged."""
        if self.num_tokens is None or np.any(self.num_tokens == UNKNOWN):
            return None
        return self.sums(self.num_tokens)

    def mean_by_step(self, values: NDArray[Any], weights: NDArray[Any]) -> dict[int, float]:
        """Step -> sum of the values of its groups over that of their weights, [J] each; NaN where these sum to 0."""
        steps, step_index = np.unique(self.step, return_inverse=True)
        sums, totals = (np.bincount(step_index, weights=column) for column in (values, weights))
        means = np.divide(sums, totals, out=np.full(len(steps), np.nan), where=totals > 0)
        return dict(zip(steps.tolist(), means.tolist(), strict=True))

    def mean_reward_by_step(self) -> dict[int, float]:
        """Step -> mean reward of the rollouts of its groups whose rewards are all known."""
        table = self.select(self.is_complete)
        return table.mean_by_step(table.sums(table.reward), table.size)

    def spread(self, values: Floats) -> Floats:
        """The greatest of the values [N] of each group minus the least, [J]; NaN where one of them is NaN."""
        return self._reward_spread if values is self.reward else self._spread(values)

    @cached_property
    def _reward_spread(self) -> Floats:  # which half of all numbers about groups begin with
        return self._spread(self.reward)

    def _spread(self, values: Floats) -> Floats:
        if not len(self):
            return np.zeros(0)
        return np.asarray(np.maximum.reduceat(values, self.starts) - np.minimum.reduceat(values, self.starts))

    @property
    def is_complete(self) -> Flags:
        """Which groups have the rewards of all their rollouts, [J]."""
        return np.asarray(self.sums(np.isnan(self.reward)) == 0)

    @property
    def is_dead(self) -> Flags:
        """Which groups have several rollouts whose rewards are all known and equal, [J]."""
        return np.asarray((self.size > 1) & (self.spread(self.reward) <= EQUAL_REWARDS))

    def by_size(self, values: NDArray[Any]) -> Iterator[tuple[Counts, NDArray[Any]]]:
        """Blocks of groups of one size: indices [j] and values [j, G]; sizes in the order of their first groups."""
        sizes, first = np.unique(self.size, return_index=True)
        for size in sizes[np.argsort(first)].tolist():
            same_size = np.flatnonzero(self.size == size)
            for start in range(0, len(same_size), _AT_ONCE):
                indices = same_size[start : start + _AT_ONCE]
                if indices[-1] - indices[0] < len(indices):  # contiguous groups need no copy
                    begin = int(self.starts[indices[0]])
                    yield indices, values[begin : begin + len(indices) * size].reshape(-1, size)
                else:
                    yield indices, np.asarray(values[self.starts[indices, None] + np.arange(size)])

    def select(self, is_selected: Flags) -> RewardTable:
        """The selected groups, of a mask [J]; ``prompts``, their texts and ``policies`` stay as they are."""
        if is_selected.all():
            return self
        rows = np.repeat(is_selected, self.size)
        if isinstance(self.names, tuple):
            names = tuple(compress(self.names, is_selected.tolist()))
        else:
            names = self.names.take(to_indices(np.flatnonzero(is_selected)))
        return replace(
            self.with_rows(rows),
            step=self.step[is_selected],
            names=names,
            prompt=self.prompt[is_selected],
            size=self.size[is_selected],
            first_row=None if self.first_row is None else self.first_row[is_selected],
        )

    def with_rows(self, is_selected: Flags) -> RewardTable:
        """The same groups with the selected rollouts alone, of a mask [N]."""
        if is_selected.all():
            return self
        columns = ((name, getattr(self, name)) for name in ("reward", *_OPTIONAL))
        chosen: dict[str, Any] = {name: None if values is None else values[is_selected] for name, values in columns}
        rewards = {name: values[is_selected] for name, values in self.rewards.items()}
        return replace(self, size=self.sums(is_selected), rewards=rewards, **chosen)


def slices_of_steps(ordered: Counts, size: int) -> Iterator[slice]:
    """Slices of ascending steps, each of so many elements, or more, as none divides a step."""
    ends = np.append(np.flatnonzero(np.diff(ordered)) + 1, len(ordered))
    start = 0
    while start < len(ordered):
        end = int(ends[min(int(np.searchsorted(ends, start + size)), len(ends) - 1)])
        yield slice(start, end)
        start = end


_BUILT_AT_ONCE = 1 << 13  # groups that are made together


class GroupsOfTable(Sequence[RolloutGroup]):
    """Groups that are made on demand: with rewards, without text or location in the log."""

    def __init__(self, table: RewardTable) -> None:
        self.table = table

    @cached_property
    def _groups(self) -> tuple[RolloutGroup, ...]:
        return tuple(self.build(0, len(self)))

    def build(self, first: int, last: int) -> Iterator[RolloutGroup]:
        """The groups from ``first`` to ``last``; rollouts of equal numbers are one object."""
        table = self.table

        @cache
        def rollout_of(row: tuple[float, ...]) -> Rollout:
            reward, *rewards, advantage, seconds, truncated = (
                value if math.isfinite(value) else None for value in row[:-1]
            )
            return Rollout(
                group_id="",
                sample=0,
                row=0,
                prompt="",
                completion="",
                reward=reward,
                rewards=dict(zip(table.rewards, rewards, strict=True)),
                advantage=advantage,
                status=status_of(truncated),
                seconds=seconds,
                policy=table.policies[int(row[-1])] if 0 <= row[-1] < len(table.policies) else None,
            )

        begin, end = (int(table.starts[index]) if index < len(table) else len(table.reward) for index in (first, last))
        # A missing reward as infinity, which no reward is: unlike NaN it equals itself.
        numbers = (table.reward, *table.rewards.values(), table.advantage, table.seconds, table.truncated, table.policy)
        missing = np.full(end - begin, np.nan)
        columns = (missing if values is None else values[begin:end] for values in numbers)
        rows = zip(*(np.where(np.isnan(values), np.inf, values).tolist() for values in columns), strict=True)
        names = table.names[first:last]
        steps, sizes, prompts = (values[first:last].tolist() for values in (table.step, table.size, table.prompt))
        names = names if isinstance(names, tuple) else map(group_name, steps, to_texts(names))
        for step, name, prompt, size in zip(steps, names, prompts, sizes, strict=True):
            rollouts = tuple(map(rollout_of, islice(rows, size)))
            yield RolloutGroup(step=step, group_id=name, prompt_id=table.prompts[prompt], rollouts=rollouts)

    def build_by_step(self) -> Iterator[tuple[int, tuple[RolloutGroup, ...]]]:
        """The groups of each step, ascending, built some thousands at a time."""
        for rows in slices_of_steps(self.table.step, _BUILT_AT_ONCE):
            for step, groups in groupby(self.build(rows.start, rows.stop), key=attrgetter("step")):
                yield step, tuple(groups)

    def __len__(self) -> int:
        return len(self.table)

    @overload
    def __getitem__(self, index: int) -> RolloutGroup: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[RolloutGroup, ...]: ...

    def __getitem__(self, index: int | slice) -> RolloutGroup | tuple[RolloutGroup, ...]:
        if isinstance(index, slice):
            return tuple(map(self._group, range(len(self))[index]))
        return self._group(range(len(self))[index])

    def _group(self, index: int) -> RolloutGroup:
        return self._groups[index]

    def __iter__(self) -> Iterator[RolloutGroup]:
        return iter(self._groups)


class GroupsOnDisk(GroupsOfTable):
    """Groups whose rollouts stay in the log until a step is asked for, and of which two steps at most are in memory."""

    def __init__(
        self, table: RewardTable, read: Callable[[int], Sequence[RolloutGroup]], *, reads_all: bool = False
    ) -> None:
        """Groups with these rewards; ``read`` reads those of a step back, in order, perhaps from the whole log."""
        super().__init__(table)
        self.read, self.reads_all = read, reads_all
        self.at_step = lru_cache(maxsize=2)(self._read_back)
        """The groups of a step, empty where it has none; an InputError where they no longer match the table."""

    def _read_back(self, step: int) -> tuple[RolloutGroup, ...]:
        sizes = self.table.size[self.table.step == step].tolist()
        groups = tuple(self.read(step)) if sizes else ()
        if [group.size for group in groups] != sizes:
            raise InputError(
                f"Step {step} does not have the rollouts any more that it had when the log was scanned.",
                hint="If the log was changed, read it again; else some rows name a key twice, or hold a small nan.",
            )
        return groups

    def _group(self, index: int) -> RolloutGroup:
        step = int(self.table.step[index])
        return self.at_step(step)[index - int(np.searchsorted(self.table.step, step))]

    def __iter__(self) -> Iterator[RolloutGroup]:
        for step in steps_of(self):
            yield from self.at_step(step)


def holds_rewards_alone(groups: Sequence[RolloutGroup]) -> bool:
    """Whether groups were reduced to their rewards, so that their texts and tokens cannot be read."""
    return isinstance(groups, GroupsOfTable) and not isinstance(groups, GroupsOnDisk)


def groups_at(groups: Sequence[RolloutGroup], step: int) -> tuple[RolloutGroup, ...]:
    """The groups of one step, in their order."""
    if isinstance(groups, GroupsOnDisk):
        return groups.at_step(step)
    return tuple(group for group in groups if group.step == step)


def reward_table(groups: Sequence[RolloutGroup]) -> RewardTable:
    """The table that a run's groups are made from, or one made from them."""
    return groups.table if isinstance(groups, GroupsOfTable) else RewardTable.from_groups(groups)


def steps_of(groups: Sequence[RolloutGroup]) -> tuple[int, ...]:
    """The steps of a run's groups, ascending."""
    return tuple(np.unique(_column(groups, "step")).tolist())


def sizes_of(groups: Sequence[RolloutGroup]) -> tuple[int, ...]:
    """The sizes that groups have, each once, ascending."""
    return tuple(np.unique(_column(groups, "size")).tolist())


def _column(groups: Sequence[RolloutGroup], name: Literal["step", "size"]) -> Counts:
    if isinstance(groups, GroupsOfTable):
        return groups.table.step if name == "step" else groups.table.size
    return np.array([getattr(group, name) for group in groups], dtype=np.int64)


MAX_READ_BACK = 1 << 16
"""Rollouts of a step that are read back for a look at it: more, as of a log without steps, take gigabytes."""


def rollouts_by_step(groups: Sequence[RolloutGroup]) -> tuple[Counts, Counts]:
    """The steps, ascending, and how many rollouts each has, [S] and [S]."""
    unique_steps, step_index = np.unique(_column(groups, "step"), return_inverse=True)
    return unique_steps, np.bincount(step_index, weights=_column(groups, "size")).astype(np.int64)


def groups_of_steps(groups: Sequence[RolloutGroup], steps: Iterable[int]) -> Sequence[RolloutGroup]:
    """The groups of the chosen steps, in their order."""
    chosen = set(steps)
    if isinstance(groups, GroupsOfTable):
        table = groups.table.select(np.isin(groups.table.step, list(chosen)))
        if isinstance(groups, GroupsOnDisk):
            return GroupsOnDisk(table, groups.read, reads_all=groups.reads_all)
        return GroupsOfTable(table)
    return tuple(group for group in groups if group.step in chosen)


def num_used(groups: Sequence[RolloutGroup], *, needs_reward: bool = True) -> int:
    """How many rollouts are usable: those with a reward, or all of them where none is needed."""
    if isinstance(groups, GroupsOfTable):
        return int(np.sum(~np.isnan(groups.table.reward))) if needs_reward else len(groups.table.reward)
    return sum(group.size - (group.rewards.count(None) if needs_reward else 0) for group in groups)
