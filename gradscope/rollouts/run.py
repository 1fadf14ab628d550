"""Run: everything that was read from disk about one training run, in the same shape for every trainer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gradscope.reason import Reason
from gradscope.results.source import Source
from gradscope.rollouts.groups import GroupsOnDisk, groups_at, steps_of

Status = Literal["completed", "truncated", "error", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """One sequence of tokens that was trained on, cut where the model starts to write."""

    prompt_ids: tuple[int, ...]
    """Everything before the first sampled token, [P]."""
    completion_ids: tuple[int, ...]
    """From the first sampled token on, [T]; a tool's tokens between two turns are among them."""
    mask: tuple[bool, ...]
    """Which of them were sampled, [T]."""
    logprobs: tuple[float, ...] | None = None
    """The sampler's log-probabilities, [T], 0 where not sampled; None unless every sampled token has one."""
    token_advantages: tuple[float, ...] | None = None
    """Advantages, [T], 0 where not sampled; None unless every sampled token has one."""
    trainer_logprobs: tuple[float, ...] | None = None
    """The trainer's log-probabilities, [T], 0 where not sampled, NaN where there is none; None unless there are T."""
    entropies: tuple[float, ...] | None = None
    """Entropies of the trainer's policy, [T], likewise."""

    @property
    def advantage(self) -> float | None:
        """The one advantage that all sampled tokens have; None where they differ or have none."""
        if self.token_advantages is None:
            return None
        levels = {value for value, sampled in zip(self.token_advantages, self.mask, strict=True) if sampled}
        return levels.pop() if len(levels) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One sampled completion with its reward."""

    group_id: str
    """The group it belongs to; unique within a run."""
    sample: int
    """Index within its group, from 0."""
    row: int
    """Row within the step, from 0, in the order of the log."""
    prompt: str
    """The prompt's text as logged (for a conversation: the contents of its messages, joined by newlines)."""
    completion: str
    """The completion's text as logged."""
    messages: tuple[Mapping[str, Any], ...] | None = None
    """The prompt as chat messages, where it was logged so."""
    prompt_ids: tuple[int, ...] | None = None
    """Exact prompt token ids; None where only text was logged."""
    completion_ids: tuple[int, ...] | None = None
    """Exact completion token ids, end-of-sequence included where it was sampled; None where only text was logged."""
    reward: float | None
    """The scalar reward; None where it is missing or not a finite number."""
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    """Reward per reward function, unweighted."""
    token_rewards: tuple[float, ...] | None = None
    """Reward per completion token, [T]."""
    advantage: float | None = None
    """The advantage that the optimizer saw."""
    token_advantages: tuple[float, ...] | None = None
    """Advantage per completion token, [T], where the trainer used one per token."""
    logprobs: tuple[float, ...] | None = None
    """The sampler's log-probability of each completion token, [T]."""
    trainer_logprobs: tuple[float, ...] | None = None
    """The trainer's log-probability of each completion token before the step's first update, [T]; NaN where the log has
    none that is a number."""
    entropies: tuple[float, ...] | None = None
    """Entropy of the trainer's policy where each completion token was sampled, in nats, [T]; NaN as above."""
    mask: tuple[bool, ...] | None = None
    """Which completion tokens count in the loss, [T]; None: all."""
    status: Status = "unknown"
    """How the completion ended."""
    seconds: float | None = None
    """How long it took to generate; None where the log does not time its rollouts."""
    policy: str | None = None
    """Name of the policy that sampled it, where a log pools several; None: the only one."""
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
        names = [field.name for field in dataclasses.fields(Tokens)]
        own = dataclasses.replace(self, earlier=())
        return (
            *(dataclasses.replace(own, **{name: getattr(each, name) for name in names}) for each in self.earlier),
            own,
        )

    @property
    def num_tokens(self) -> int | None:
        """Completion tokens of all its sequences; None where only text was logged."""
        if self.completion_ids is None:
            return None
        return len(self.completion_ids) + sum(len(each.completion_ids) for each in self.earlier)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutGroup:
    """The rollouts of one prompt at one step."""

    step: int
    """The trainer's step: these rollouts feed update number ``step`` (counted from 1)."""
    group_id: str
    """Unique within the run."""
    prompt_id: str
    """The same for every group of the same prompt: prompts, not groups, are the unit of resampling."""
    rollouts: tuple[Rollout, ...]
    """At least one."""

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """Scalar rewards, [G], missing ones as None."""
        return tuple(rollout.reward for rollout in self.rollouts)

    @property
    def size(self) -> int:
        """Number of rollouts, G."""
        return len(self.rollouts)


def group_name(step: int, group: str) -> str:
    """A group's name within its run: its step (0 where the log has none) and what its rows share within the step.

    Returns:
        The name; without a step the group alone.

    Example:
        >>> group_name(3, "a"), group_name(0, "a")
        ('3:a', 'a')
    """
    return f"{step}:{group}" if step else group


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsRef:
    """A set of weights on disk."""

    num_updates: int
    """How many optimizer updates they have had: 0 is the model before the first."""
    path: Path
    """A Hugging Face model folder or a PEFT adapter folder."""
    kind: Literal["full", "adapter"]
    """Whether ``path`` holds the whole model or an adapter."""
    base: str | None = None
    """For an adapter: folder or hub id of its base model, with moved relative paths already resolved."""
    is_base_given: bool = False
    """Whether a person named ``base``: only then is a hub asked for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """The trainer's arguments as far as they are known: TRL's, or another's by their paths in its configuration."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """Argument -> value, only those that are known: ``loss_type``, ``beta``, ``temperature``, ``scale_rewards``,
    ``num_generations``, ``max_completion_length``, ``reward_weights``, ``epsilon``, ``num_iterations``, ...; of another
    trainer, which ``trainer`` then names, ``actor_rollout_ref.actor.loss_agg_mode`` and the like."""
    origin: str | None = None
    """Where they come from: a file's path, "the run's manifest"; None where nothing is known."""

    def get(self, name: str, default: Any = None) -> Any:
        """One argument, by TRL's name of it; the default where it is not known or null."""
        value = self.values.get(name)
        return default if value is None else value

    def at(self, path: str, default: Any = None) -> Any:
        """One argument of a trainer whose configuration is nested, by its path or by its last name alone.

        Returns:
            The value; the default where it is not known or null.

        Example:
            >>> TrainerSettings(values={"actor.kl_loss_coef": 0.1, "n": 8}).at("actor.kl_loss_coef")
            0.1
            >>> TrainerSettings(values={"actor.kl_loss_coef": 0.1, "n": 8}).at("rollout.n")
            8
        """
        return self.get(path, self.get(path.rpartition(".")[2], default))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Run:
    """One run as read from disk."""

    path: Path
    """The folder or file that was given."""
    source: Source
    """What was recognized, inferred, missing and quarantined."""
    groups: Sequence[RolloutGroup]
    """Training rollouts by step, then in the order of the log. Evaluation rows are not among them. They
    mostly stay in the log, and are read back a step at a time as they are asked for."""
    metrics: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Step -> what the trainer logged at that step (``grad_norm``, ``frac_reward_zero_std``, ``reward``, ...)."""
    settings: TrainerSettings = TrainerSettings()
    """The trainer's arguments."""
    weights: tuple[WeightsRef, ...] = ()
    """All sets of weights on disk, by ``num_updates``."""
    damaged_weights: Mapping[int, str] = field(default_factory=dict)
    """Number of updates -> why the weights after them, of which there is a folder, are of no use."""
    unmerged_weights: Mapping[int, Reason] = field(default_factory=dict)
    """Number of updates -> what to run before the weights after them, which are shards, can be read."""
    tokenizer: Path | None = None
    """A folder that holds the tokenizer, where one was found."""
    notes: Mapping[int, Reason] = field(default_factory=dict)
    """Step -> why its rollouts are not those of its update (a batch that several updates share, ...)."""
    windows: Mapping[int, int] = field(default_factory=dict)
    """Step -> over how many steps its metrics are means, where that is more than one. ``grad_norm`` is the step's own
    all the same."""
    repeats: Mapping[int, int] = field(default_factory=dict)
    """Step -> the step whose rollouts its update used again, all of them; such a step has no rollouts of its own."""

    def __repr__(self) -> str:
        """What it is, without its rollouts."""
        size = f"{len(self.steps)} steps, {len(self.groups)} groups"
        return f"<{type(self).__name__} of {self.source.path}: {self.source.recognized}; {size}>"

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps that have rollouts, ascending."""
        return steps_of(self.groups)

    @property
    def every_step(self) -> tuple[int, ...]:
        """Every step that the log knows of, ascending: those with rollouts and those with metrics alone."""
        logged = (step for step, values in self.metrics.items() if values)
        return tuple(sorted({*self.updates, *logged}))

    @property
    def trained_by_trl(self) -> bool:
        """Whether TRL's trainer made the run, as it makes our own."""
        return self.source.format in ("trl", "gradscope")

    @property
    def updates(self) -> tuple[int, ...]:
        """Steps whose update the log tells the rollouts of, those that used a batch again included, ascending."""
        return tuple(sorted({*self.steps, *self.repeats}))

    def groups_at(self, step: int) -> tuple[RolloutGroup, ...]:
        """The groups that a step's update used, in the order of the log; empty where the step was not logged."""
        sampled = self.repeats.get(step, step)
        groups = groups_at(self.groups, sampled)
        return groups if sampled == step else tuple(replace(group, step=step) for group in groups)

    def by_step(self) -> Iterator[tuple[int, tuple[RolloutGroup, ...]]]:
        """The groups of each step that has any, ascending; of those on disk one step is in memory at a time."""
        if isinstance(self.groups, GroupsOnDisk):
            yield from ((step, self.groups.at(step)) for step in self.steps)
            return
        found: dict[int, list[RolloutGroup]] = {step: [] for step in self.steps}
        for group in self.groups:
            found[group.step].append(group)
        yield from ((step, tuple(groups)) for step, groups in found.items())

    def is_means(self, step: int) -> bool:
        """Whether what was logged at a step is not of its rollouts alone."""
        return step in self.notes or step in self.windows

    def weights_before(self, step: int) -> WeightsRef | None:
        """The weights, after ``step - 1`` updates, that the update of ``step`` started from; None where not on disk."""
        return next((weights for weights in self.weights if weights.num_updates == step - 1), None)

    def weights_after(self, step: int) -> WeightsRef | None:
        """The first weights on disk that have had the update of ``step``; None without any."""
        later = (weights for weights in self.weights if weights.num_updates >= step)
        return min(later, key=lambda weights: weights.num_updates, default=None)
