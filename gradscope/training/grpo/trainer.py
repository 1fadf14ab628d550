"""TRL's GRPOTrainer with two things added: the advantages are ours, and every step is recorded.

One method of the training is overridden, ``_generate_and_score_completions``; its name and the keys of its result have
been stable where its body was not. Rewards come through ordinary reward functions that record their return values.

One Parquet a step goes to disk when the step is done. A step is first staged, when its completions are sampled and
scored, and held while the update is made. It is written together with the step's metrics once the trainer logs
it, so a file on disk is always of a finished step.

Shapes: R rollouts of a step, N groups or tokens of a step, T tokens of a completion, H width of the states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import TrainerCallback
from trl import GRPOTrainer

from gradscope.advantages.group import gae
from gradscope.advantages.online import Memory, OnlineAdvantage, StepRollouts
from gradscope.gradients.model.calls import removed_later
from gradscope.machine import num_processes, process_index
from gradscope.metrics.outcomes.groups import all_equal
from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.rollouts.run_folder import append_metrics
from gradscope.rollouts.store import write_step_rollouts
from gradscope.training.grpo.policy import RewardFunctions, TrainedPolicy, problems_of
from gradscope.training.processes import gather, own_part
from gradscope.training.recording.rows import step_groups
from gradscope.training.sampling import Row, Sampling, Scored
from gradscope.training.tasks.task import Problem, Task, incoherence_metrics


def _batch_numbers(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """TRL's metrics of rewards and lengths, by its names."""
    # As TRL has them: the share of dead groups counts groups whatever their size, standard deviations are of the
    # batch, with R - 1, and without a completion that ended the lengths of ended ones are 0.
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    by_name = {name: [rollout.rewards[name] or 0.0 for rollout in rollouts] for name in rollouts[0].rewards}
    ended = [rollout for rollout in rollouts if rollout.status == "completed"]
    total = [rollout.reward or 0.0 for rollout in rollouts]
    numbers = {"reward": float(np.mean(total)), "reward_std": float(np.std(total, ddof=1))}
    for name, values in by_name.items():
        numbers |= {
            f"rewards/{name}/mean": float(np.mean(values)),
            f"rewards/{name}/std": float(np.std(values, ddof=1)),
        }
    numbers["frac_reward_zero_std"] = float(np.mean([_is_degenerate(group) for group in groups]))
    numbers["completions/clipped_ratio"] = 1.0 - len(ended) / len(rollouts)
    return numbers | dict(_lengths("", rollouts)) | dict(_lengths("terminated_", ended))


def _is_degenerate(group: RolloutGroup) -> bool:
    """Whether the rewards of a group that was just scored are all equal: a group-mean baseline leaves it nothing."""
    return all_equal([reward for reward in group.rewards if reward is not None])


def _lengths(prefix: str, rollouts: Sequence[Rollout]) -> Iterator[tuple[str, float]]:
    lengths = [len(rollout.completion_ids or ()) for rollout in rollouts] or [0]
    for name, statistic in (("mean", np.mean), ("min", np.min), ("max", np.max)):
        yield f"completions/{name}_{prefix}length", float(statistic(lengths))


class Recorder:
    """Writes a run's rollouts and metrics."""

    def __init__(self, run: Path, task: Task, policy: TrainedPolicy) -> None:
        self._run = run
        self._task = task
        self._policy = policy
        self._eos_ids = policy.eos_ids()
        self._pieces: dict[int, str] = {}
        self._staged: dict[int, tuple[tuple[RolloutGroup, ...], Mapping[str, int]]] = {}

    def grade_steps(
        self, problems: Sequence[Problem], completion_ids: Sequence[Sequence[int]]
    ) -> list[tuple[float, ...]] | None:
        """The reward of every token, [R][T], where the task grades the steps of a completion; None elsewhere."""
        if self._task.step_grader is None:
            return None
        grade, decode = self._task.step_grader, self._policy.tokenizer.decode
        for token in {token for ids in completion_ids for token in ids} - self._pieces.keys():
            self._pieces[token] = decode([token], skip_special_tokens=True)
        return [
            grade(problem.prompt, [self._pieces[token] for token in ids])
            for problem, ids in zip(problems, completion_ids, strict=True)
        ]

    def stage(
        self,
        step: int,
        problems: Sequence[Problem],
        rows: Sequence[Mapping[str, Any]],
        sizes: Sequence[int],
        cost: Mapping[str, int],
    ) -> None:
        """Keep a step's rollouts, group by group, [R], until the step is done; steps count from 1.

        A row has the fields of a :class:`Rollout` that the trainer knows. The cost is the sampling of the step,
        empty where the rows are all that was.
        """
        fields = []
        for problem, row in zip(problems, rows, strict=True):
            messages, ids = self._policy.messages(problem), row["completion_ids"]
            fields.append(
                {
                    "prompt": problem.prompt,
                    "messages": None if messages is None else tuple(messages),
                    "completion": self._policy.tokenizer.decode(list(ids), skip_special_tokens=True),
                    "status": "completed" if ids[-1] in self._eos_ids else "truncated",
                    **row,
                }
            )
        prompt_ids = [problems[start].prompt_id for start in np.cumsum((0, *sizes))[:-1]]
        self._staged = {step: (step_groups(step, fields, prompt_ids, sizes), cost)}

    def write(self, step: int, logs: Mapping[str, Any]) -> None:
        """Write the step that is now done, with the trainer's metrics of it."""
        groups, cost = self._staged.pop(step)
        write_step_rollouts(self._run, step, groups)
        numbers = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
        if cost:
            numbers |= {**_batch_numbers(groups), **cost}
        append_metrics(
            self._run,
            step,
            numbers
            | {"num_groups": len(groups), "num_degenerate_groups": sum(map(_is_degenerate, groups))}
            | incoherence_metrics(groups, self._task.is_coherent),
        )


_COLUMNS = ("prompt_id", "text", "answer")  # columns of the dataset that make a problem


class RecordingTrainer(GRPOTrainer):  # type: ignore[misc]  # TRL has no types
    """GRPOTrainer with an exchangeable advantage and a recorder.

    Args:
        rewards: The reward functions, which also go to TRL.
        recorder: Where each step's rollouts go.
        sampling: How they are sampled.
        **trl: The arguments of TRL's trainer.
    """

    def __init__(
        self, *, online: OnlineAdvantage, rewards: RewardFunctions, recorder: Recorder, sampling: Sampling, **trl: Any
    ) -> None:
        super().__init__(reward_funcs=rewards.functions, **trl)
        self._online = online
        self._rewards = rewards
        self._recorder = recorder
        self._sampling = sampling
        if rewards.dense is not None:
            rewards.dense.forward = self._logits

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        # 1. Generate and score: TRL's own method, in as many rounds as the sampling takes.
        step = self.state.global_step + 1
        batch = self._sampling(inputs, step, self._sample)
        output, scored = batch.scored.output, batch.scored
        own_prompts = _unpad(output["prompt_ids"], output["prompt_mask"])
        own_completions = _unpad(output["completion_ids"], output["completion_mask"])
        own_logprobs, own_max_logprobs, own_states = self._sampler_logprobs(own_prompts, own_completions)
        engine = output.get("sampling_per_token_logps")  # vLLM's
        # 2. All rows of the step in every process: a group may span several, and a formulation may use all groups.
        prompt_ids, completion_ids = gather(own_prompts), gather(own_completions)
        logprobs, max_logprobs = gather(own_logprobs), gather(own_max_logprobs)
        states = None if own_states is None else gather(own_states)
        sampler = None if engine is None else gather(_unpad(engine, output["completion_mask"]))
        problems = gather(problems_of(**{name: [row[name] for row in scored.rows] for name in _COLUMNS}))
        totals = np.asarray(gather(scored.totals.tolist()), dtype=np.float64)
        per_function = {name: gather(values) for name, values in scored.rewards.items()}
        sizes = batch.sizes
        if len(problems) > len(scored.rows):  # of several processes, whose groups are all of one size
            sizes = (self.num_generations,) * (len(problems) // self.num_generations)
        starts = np.cumsum(sizes)[:-1]
        # 3. Our advantages replace TRL's: this process's part goes into the loss.
        token_rewards = self._recorder.grade_steps(problems, completion_ids)
        advantages = self._online.advantages(
            StepRollouts(
                rewards=np.split(totals, starts),
                prompt_ids=tuple(problems[start].prompt_id for start in (0, *starts)),
                logprobs=logprobs,
                max_logprobs=max_logprobs,
                token_rewards=token_rewards,
                states=states,
                function_rewards={name: per_function[name] for name in scored.trained},
                completion_ids=completion_ids,
                rescore=lambda groups, earlier: self._sampler_logprobs(
                    [prompt_ids[(0, *starts)[group]] for group in groups], [tuple(ids) for ids in earlier]
                )[0],
            )
        )
        local, trl_advantages = own_part(len(problems)), output["advantages"]
        if self._online.by_token:
            output["advantages"] = _padded(advantages[local], output["completion_ids"].shape).to(trl_advantages)
        else:
            output["advantages"] = torch.as_tensor(np.concatenate(advantages)[local]).to(trl_advantages)
        # 4. Record: the main process keeps the step until its update is done.
        if process_index() > 0:
            return output
        # each rollout's advantage as the loss sees it: a number, or one a token
        logged: list[Any] = [tuple(torch.as_tensor(values).to(trl_advantages.dtype).tolist()) for values in advantages]
        if not self._online.by_token:
            logged = list(chain.from_iterable(logged))
        rows = [
            {
                "prompt_ids": prompt_ids[index],
                "completion_ids": completion_ids[index],
                "reward": float(totals[index]),
                "rewards": {name: values[index] for name, values in per_function.items()},
                "token_rewards": None if token_rewards is None else token_rewards[index],
                "token_advantages" if self._online.by_token else "advantage": logged[index],
                "logprobs": (logprobs if sampler is None else sampler)[index],
                "trainer_logprobs": None if sampler is None else logprobs[index],
            }
            for index in range(len(problems))
        ]
        self._recorder.stage(step, problems, rows, sizes, batch.cost)
        return output

    def _sample(self, rows: Sequence[Row]) -> Scored:
        """One round of a step: TRL's own method on these rows."""
        num_generations: int = self.args.num_generations
        # TRL's own statistics need complete groups; those of such a round are not used.
        if num_processes() == 1 and len(rows) % num_generations:
            self.num_generations = len(rows)
        try:
            output = super()._generate_and_score_completions(list(rows))
        finally:
            self.num_generations = num_generations
        return Scored(rows=rows, output=output, rewards=dict(self._rewards.last), trained=self._rewards.trained)

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Write no model card: TRL would add one to the checkpoints of every run."""

    @torch.no_grad()
    def _logits(self, ids: torch.Tensor) -> torch.Tensor:
        """The scores of the next token by the weights as they are, [R, T] to [R, T, V], on the model's device."""
        with self.accelerator.autocast():
            logits: torch.Tensor = self.model(input_ids=ids.to(self.model.device)).logits
        return logits

    @torch.no_grad()
    def _sampler_logprobs(
        self, prompt_ids: list[tuple[int, ...]], completion_ids: list[tuple[int, ...]]
    ) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]], list[NDArray[np.float32]] | None]:
        """The log-probability of each sampled token and of the most likely one, by the weights that sampled it."""
        # Hugging Face's generation returns none, and another engine's are of its own arithmetic. Rows are padded on the
        # right, so that each token has the position it was sampled at whatever kind of positions the model has.
        # Both are [R][T], at the sampling temperature, in float32. Where the formulation reads the last hidden states,
        # before the first token and at each, these come with them, [R][1 + T, H].
        size, needs_states = self.args.per_device_train_batch_size, self._online.reads_states
        rows = [torch.tensor(ids + completion) for ids, completion in zip(prompt_ids, completion_ids, strict=True)]
        logprobs: list[tuple[float, ...]] = []
        max_logprobs: list[tuple[float, ...]] = []
        states: list[NDArray[np.float32]] = []
        head, seen = self.model.get_output_embeddings(), list[torch.Tensor]()  # its inputs: the last hidden states
        for start in range(0, len(rows), size):
            ids = torch.nn.utils.rnn.pad_sequence(rows[start : start + size], batch_first=True).to(self.model.device)
            seen.clear()
            hooks = [head.register_forward_pre_hook(lambda _, x: seen.append(x[0].detach()))] if needs_states else []
            with removed_later(hooks):
                logits = self._logits(ids)
            scores = torch.log_softmax(logits[:, :-1].float() / self.temperature, dim=-1)
            chosen, top = scores.gather(-1, ids[:, 1:, None]).squeeze(-1).cpu(), scores.amax(-1).cpu()
            for index in range(len(chosen)):
                begin = len(prompt_ids[start + index]) - 1
                sampled = slice(begin, begin + len(completion_ids[start + index]))
                logprobs.append(tuple(chosen[index, sampled].tolist()))
                max_logprobs.append(tuple(top[index, sampled].tolist()))
                if needs_states:
                    states.append(seen[0][index, begin : sampled.stop + 1].float().cpu().numpy())
        return logprobs, max_logprobs, states if needs_states else None


class StepCallback(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Reports when a step is logged and when a checkpoint is complete.

    Args:
        on_step: Called with (step, its metrics) once a step is done.
        on_checkpoint: Called with the number of updates once a checkpoint is written.
    """

    def __init__(self, on_step: Callable[[int, dict[str, Any]], None], on_checkpoint: Callable[[int], None]) -> None:
        self._on_step = on_step
        self._on_checkpoint = on_checkpoint

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Pass on a step's log entry; the summary at the end of training is none."""
        if logs is not None and "grad_norm" in logs:
            self._on_step(state.global_step, logs)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Pass on that a checkpoint is complete."""
        self._on_checkpoint(state.global_step)


def _padded(advantages: Sequence[NDArray[np.float64]], shape: torch.Size) -> torch.Tensor:
    """Advantages of tokens as one tensor, zero where a completion has ended, [R, T]."""
    padded = torch.zeros(shape, dtype=torch.float64)
    for index, row in enumerate(advantages):
        padded[index, : len(row)] = torch.as_tensor(row)
    return padded


def _unpad(rows: torch.Tensor, mask: torch.Tensor) -> list[tuple[Any, ...]]:
    """Ids or numbers of tokens, [R][T], without padding."""
    return [tuple(row[keep.bool()].tolist()) for row, keep in zip(rows, mask, strict=True)]


# Two formulations read a small head on the policy's last hidden state: b_t = w . h_t + c, linear, learned by one AdamW
# update after each step's advantages are made. It starts at zero. The states are detached: neither gradient reaches the
# other.
#
# ``token_critic``: A_it = A_i + b_it, with A_i the ``grpo`` advantage and h the state *at* token t, which has seen it;
# the head lowers -A_i b_it, averaged over the step's tokens, and its first step is that of ``grpo``. Nothing bounds b.
#
# ``gae``: PPO's. The state *before* a token does not depend on the choice, so V is a baseline; d_t = V_{t+1} - V_t, the
# last with the reward in place of the next V, and A_t = d_t + 0.95 A_{t+1}. The head learns A_t + V_t by least squares.
Array = NDArray[np.float64]

_MOMENTS = ("exp_avg", "exp_avg_sq")


class _Head(OnlineAdvantage, ABC):
    """A formulation with a head and the head's optimizer.

    Args:
        width: Numbers of a hidden state, H.
        learning_rate: The optimizer's, constant over the run.
    """

    _read: slice
    """Which states are read, one a token, of those before the first token and at each, [1 + T, H]."""

    def __init__(self, name: str, width: int, learning_rate: float) -> None:
        super().__init__(name)
        self._head = torch.zeros(width + 1, requires_grad=True)  # no random start: that would move the sampler's
        self._optimizer = torch.optim.AdamW([self._head], lr=learning_rate, weight_decay=0.0)
        self.remembers = self.reads_states = True

    def advantages(self, step: StepRollouts) -> tuple[Array, ...]:
        """The advantages of a step, [R][T]; then trains the head on it. A ``ValueError`` without hidden states."""
        if step.states is None:
            raise ValueError(f"{self.name} needs the hidden state of every token")
        lengths = [len(states) - 1 for states in step.states]
        with torch.enable_grad():
            inputs = torch.from_numpy(np.concatenate([states[self._read] for states in step.states]))
            outputs = inputs @ self._head[:-1] + self._head[-1]
            values = np.split(outputs.detach().numpy().astype(np.float64), np.cumsum(lengths)[:-1])
            advantages, targets = self._estimate(step, values)
            loss = self._loss(outputs, torch.from_numpy(np.concatenate(targets)).to(outputs)).mean()
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        # of the step's tokens, both before the head's update
        self.metrics = {"critic_mean_abs": float(outputs.detach().abs().mean()), "critic_loss": float(loss.detach())}
        return advantages

    @abstractmethod
    def _estimate(self, step: StepRollouts, outputs: Sequence[Array]) -> tuple[tuple[Array, ...], Sequence[Array]]:
        """From the head's outputs, [R][T], to advantages and to its targets, both [R][T]."""

    @abstractmethod
    def _loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Of each token, [N]."""

    @property
    def memory(self) -> Memory:
        """The head, the moments of its optimizer, and how many updates it had."""
        state = self._optimizer.state[self._head]
        arrays = {"head": self._head.detach(), **{name: state[name] for name in _MOMENTS}} if state else {}
        return Memory(
            numbers={"num_updates": float(state["step"]) if state else 0.0},
            arrays={name: array.numpy().copy() for name, array in arrays.items()},
        )

    def recall(self, memory: Memory) -> None:
        """Go on from an earlier head; a ``ValueError`` where that is of another width."""
        arrays = {name: torch.from_numpy(memory.arrays[name].copy()) for name in ("head", *_MOMENTS)}
        if any(array.shape != self._head.shape or array.dtype != self._head.dtype for array in arrays.values()):
            raise ValueError("the head that was kept is of another width")
        with torch.no_grad():
            self._head.copy_(arrays["head"])
        state = {name: arrays[name] for name in _MOMENTS} | {"step": torch.tensor(memory.numbers["num_updates"])}
        self._optimizer.load_state_dict(self._optimizer.state_dict() | {"state": {0: state}})


class TokenCritic(_Head):
    """``token_critic``; its arguments are the width of a hidden state, H, and the learning rate of its head."""

    _read = slice(1, None)

    def __init__(self, width: int, learning_rate: float) -> None:
        super().__init__("token_critic", width, learning_rate)
        self._outcome = OnlineAdvantage("grpo")

    def _estimate(self, step: StepRollouts, outputs: Sequence[Array]) -> tuple[tuple[Array, ...], Sequence[Array]]:
        outcome = np.concatenate(self._outcome.advantages(step))
        targets = [np.full(len(row), advantage) for row, advantage in zip(outputs, outcome, strict=True)]
        return tuple(row + target for row, target in zip(outputs, targets, strict=True)), targets

    def _loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return -targets * outputs


class ValueHead(_Head):
    """``gae``; its arguments are the width of a hidden state, H, and the learning rate of its head."""

    _read = slice(-1)

    def __init__(self, width: int, learning_rate: float) -> None:
        super().__init__("gae", width, learning_rate)

    def _estimate(self, step: StepRollouts, outputs: Sequence[Array]) -> tuple[tuple[Array, ...], Sequence[Array]]:
        rewards = np.concatenate(step.rewards)
        advantages = tuple(gae(values, reward) for values, reward in zip(outputs, rewards, strict=True))
        return advantages, [advantage + values for advantage, values in zip(advantages, outputs, strict=True)]

    def _loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).square() / 2


HEADS: dict[str, Callable[[int, float], OnlineAdvantage]] = {"token_critic": TokenCritic, "gae": ValueHead}
"""Formulation -> its constructor, from the width of a hidden state and the learning rate of its head."""


# A control for comparisons: every update from a gradient of one norm, so that formulations differ in direction alone.
#
# Clipping only shortens, and formulations differ in how long their gradients are: signs give more than differences from
# a mean. AdamW forgives a constant factor, not one that changes from step to step.
class NormMatch(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Scales each gradient to one norm, up or down, after clipping and before the optimizer's step.

    A gradient that is zero, where every group of the step is dead, has no direction and stays zero. The logged
    ``grad_norm`` is the one before.

    Args:
        norm: The norm of all trained parameters' gradients together.
    """

    def __init__(self, norm: float) -> None:
        self._norm = norm

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: torch.nn.Module, **_: Any) -> None:
        """Scale the model's gradients, which are ready."""
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if norm > 0:
            for gradient in gradients:
                gradient.mul_(self._norm / norm)
