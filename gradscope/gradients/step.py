"""One step's Gram matrix: the entry point of every diagnostic that needs gradients.

For outcome rewards a rollout's gradient is g_i = -A_i s_i + c_i, with s_i its score vector and c_i its KL part. The
Gram matrix of all score and KL rows is computed once; the Gram of gradients under any advantages A is then a product
of small matrices, and no formulation costs another backward pass.

Shapes: R rollouts, N rows, T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from gradscope.errors import InputError, UsageError
from gradscope.gradients.batches import DEFAULT_BATCH_TOKENS, Batch, PaddingSide, pad_batch, split_rows
from gradscope.gradients.forward import completion_logprobs
from gradscope.gradients.gram import GramAccumulator
from gradscope.gradients.loop import ROW_BYTES, loop_gram, row_bytes
from gradscope.gradients.noise import relative_row_error
from gradscope.gradients.objective import Objective
from gradscope.gradients.policy import Policy
from gradscope.gradients.rows import Row, RowPlan, plan_rows
from gradscope.gradients.stream import stream_gram
from gradscope.gradients.tokens import TokenSequence, token_sequences
from gradscope.gradients.verify import Verification, verify_gram
from gradscope.progress import ProgressCallback, no_progress
from gradscope.rollouts.types import RolloutGroup

Engine = Literal["auto", "loop", "stream"]
Verify = Literal["first", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGram:
    """All inner products of one step's gradient rows."""

    step: int
    """The trainer's step."""
    gram: np.ndarray
    """Inner products of all rows, float64, [N, N]."""
    rows: tuple[Row, ...]
    """What each row is, channel by channel, [N]."""
    group_ids: tuple[str, ...]
    """Group of each rollout, [R]."""
    samples: tuple[int, ...]
    """Index of each rollout within its group, [R]."""
    rewards: tuple[float | None, ...]
    """Scalar reward, [R]."""
    advantages: tuple[float | None, ...]
    """Logged scalar advantage; None where it was not logged, [R]."""
    logprobs: tuple[np.ndarray, ...]
    """The policy's log-probability of each completion token, [R][T]."""
    num_inferred_ids: int
    """Rollouts whose token ids were re-tokenized from text."""
    engine: Literal["loop", "stream"]
    """How the rows were computed."""
    dtype: str
    """Arithmetic of the model."""
    device: str
    """Where it ran."""
    num_parameters: int
    """Trainable parameters, P."""
    coverage: float
    """Share of them that the Gram covers: 1.0, or there would be an error."""
    slow_parameters: tuple[str, ...]
    """Parameters without a layer rule, computed one backward pass a row."""
    verification: Verification
    """The engine's self-check."""
    relative_row_error: float
    """Relative error of a row by arithmetic; times the Frobenius norm it is the noise floor of singular values."""
    notes: tuple[str, ...]
    """What a reader of the numbers should know, in sentences."""

    @property
    def num_rollouts(self) -> int:
        """R."""
        return len(self.samples)

    @property
    def score_gram(self) -> np.ndarray:
        """Inner products of the score vectors, [R, R]."""
        return self._block("score")

    @property
    def kl_gram(self) -> np.ndarray | None:
        """Inner products of the rollouts' KL parts, [R, R]; None where the loss has no KL term."""
        return self._block("kl") if any(row.channel == "kl" for row in self.rows) else None

    def gradient_gram(self, advantages: Sequence[float] | np.ndarray | Literal["logged"]) -> np.ndarray:
        """Inner products of the rollouts' gradients under some advantages, the KL part included.

        Args:
            advantages: One per rollout, [R], or ``logged``: what the optimizer saw, per-token advantages, importance
                ratios and clip included.

        Returns:
            The Gram matrix, [R, R]; its sum is the squared norm of the step's gradient.
        """
        mixing = self._mixing(advantages)
        return np.asarray(mixing @ self.gram @ mixing.T)

    def _block(self, channel: str) -> np.ndarray:
        rows = [number for number, row in enumerate(self.rows) if row.channel == channel]
        return self.gram[np.ix_(rows, rows)]

    def _mixing(self, advantages: Sequence[float] | np.ndarray | Literal["logged"]) -> np.ndarray:
        """Coefficients of the rows in each rollout's gradient, [R, N]."""
        channels = {row.channel for row in self.rows}
        reward = "logged" if isinstance(advantages, str) and "logged" in channels else "score"
        factors = np.ones(self.num_rollouts) if reward == "logged" else -self._scalars(advantages)
        mixing = np.zeros((self.num_rollouts, len(self.rows)))
        for number, row in enumerate(self.rows):
            if row.channel == reward:
                mixing[row.sequence, number] = factors[row.sequence]
            elif row.channel == "kl":
                mixing[row.sequence, number] = 1.0
        return mixing

    def _scalars(self, advantages: Sequence[float] | np.ndarray | Literal["logged"]) -> np.ndarray:
        values = self.advantages if isinstance(advantages, str) else advantages
        if any(value is None for value in values):
            raise InputError(
                f"Step {self.step}: not every rollout has a logged advantage.",
                hint="Name a formulation to compute advantages from rewards.",
            )
        array = np.asarray(values, dtype=np.float64)
        if array.shape != (self.num_rollouts,):
            raise ValueError(f"expected {self.num_rollouts} advantages, got an array of shape {array.shape}")
        return array


def measure_step(
    policy: Policy,
    groups: Sequence[RolloutGroup],
    objective: Objective,
    *,
    engine: Engine = "auto",
    verify: Verify = "first",
    batch_tokens: int | None = None,
    progress: ProgressCallback | None = None,
    padding_side: PaddingSide = "right",
    max_row_bytes: int = ROW_BYTES,
) -> StepGram:
    """The Gram matrix of one step's gradient rows, checked against an ordinary backward pass.

    Args:
        policy: The weights that the step's update started from.
        groups: The step's rollouts.
        objective: The trainer's loss.
        engine: ``loop``, ``stream``, or ``auto``: ``loop`` while all rows fit ``max_row_bytes``.
        verify: Check the first batch, or all.
        batch_tokens: Most padded tokens of a forward pass of ``stream`` and of the self-check.
        progress: Called as sequences are done.
        padding_side: Where batches are padded; results do not depend on it.
        max_row_bytes: Memory that ``loop`` may spend on rows.

    Returns:
        The step's Gram matrix.

    Raises:
        ValueError: The groups are not of one step, or there are none.
        InputError: The trainer's gradient cannot be formed from these rollouts and settings.
    """
    steps = {group.step for group in groups}
    if len(steps) != 1:
        raise ValueError(f"expected the groups of one step, got steps {sorted(steps)}")
    step = steps.pop()
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    reason = objective.reason_against(rollouts)
    if reason is not None:
        raise InputError(f"Step {step}: the trainer's gradient cannot be formed: {reason}.")
    sequences = token_sequences(policy, groups, max_completion_length=objective.max_completion_length)
    batch_tokens = DEFAULT_BATCH_TOKENS if batch_tokens is None else batch_tokens
    reference = _reference_logprobs(policy, sequences, objective, batch_tokens)
    plan = plan_rows(sequences, rollouts, objective, reference)
    batches = _batches(policy, plan, batch_tokens, padding_side)
    work = _Work(policy, plan, batches, progress or no_progress)
    chosen = _choose(engine, policy, len(plan.rows), max_row_bytes)
    slow = work.loop(max_row_bytes) if chosen == "loop" else work.stream(max_row_bytes)
    gram = work.gram()
    checked = verify_gram(policy, plan, gram, batches if verify == "all" else batches[:1], len(batches))
    return StepGram(
        step=step,
        gram=gram,
        rows=plan.rows,
        group_ids=tuple(sequence.group_id for sequence in sequences),
        samples=tuple(sequence.sample for sequence in sequences),
        rewards=tuple(rollout.reward for rollout in rollouts),
        advantages=tuple(rollout.advantage for rollout in rollouts),
        logprobs=tuple(work.logprobs[i] for i in range(len(sequences))),
        num_inferred_ids=sum(sequence.inferred for sequence in sequences),
        engine=chosen,
        dtype=str(policy.dtype).removeprefix("torch."),
        device=str(policy.device),
        num_parameters=policy.num_parameters,
        coverage=1.0,
        slow_parameters=tuple(sorted(slow)),
        verification=checked,
        relative_row_error=relative_row_error(policy, plan, np.sqrt(np.clip(np.diag(gram), 0, None)).tolist()),
        notes=(*policy.notes, *_notes(plan, slow)),
    )


class _Work:
    """One step's computation: the accumulator, and each sequence's log-probabilities as they come."""

    def __init__(self, policy: Policy, plan: RowPlan, batches: Sequence[Batch], progress: ProgressCallback) -> None:
        self._policy, self._plan, self._batches, self._progress = policy, plan, batches, progress
        self._accumulator = GramAccumulator(len(plan.rows), policy.device)
        self.logprobs: dict[int, np.ndarray] = {}

    def loop(self, max_bytes: int) -> frozenset[str]:
        policy = self._policy
        loop_gram(policy.model, policy.trainable, self._plan, self._accumulator, self._done, max_bytes=max_bytes)
        return frozenset()

    def stream(self, max_bytes: int) -> frozenset[str]:
        policy = self._policy
        slow = stream_gram(policy.model, policy.trainable, self._plan, self._batches, self._accumulator, self._done)
        if slow:
            rest = {name: policy.trainable[name] for name in slow}
            loop_gram(policy.model, rest, self._plan, self._accumulator, self._done, max_bytes=max_bytes)
        return slow

    def gram(self) -> np.ndarray:
        whole = self._accumulator.gram.cpu().numpy()
        return np.asarray((whole + whole.T) / 2)

    def _done(self, sequence: int, logprobs: torch.Tensor) -> None:
        self.logprobs[sequence] = logprobs.double().cpu().numpy()
        self._progress(len(self.logprobs), len(self._plan.sequences), "rollouts")


def _choose(engine: Engine, policy: Policy, num_rows: int, max_row_bytes: int) -> Literal["loop", "stream"]:
    if engine not in ("auto", "loop", "stream"):
        raise UsageError(f"There is no engine {engine!r}.", hint="Use auto, loop or stream.")
    if engine != "auto":
        return engine
    return "loop" if row_bytes(num_rows, policy.trainable) <= max_row_bytes else "stream"


def _batches(policy: Policy, plan: RowPlan, batch_tokens: int, padding_side: PaddingSide) -> list[Batch]:
    of_row = [plan.sequences[row.sequence] for row in plan.rows]
    split = split_rows([sequence.length for sequence in of_row], batch_tokens)
    return [pad_batch(rows, [of_row[row] for row in rows], policy.device, padding_side) for rows in split]


def _reference_logprobs(
    policy: Policy, sequences: Sequence[TokenSequence], objective: Objective, batch_tokens: int
) -> list[torch.Tensor] | None:
    if not objective.beta:
        return None
    found: dict[int, torch.Tensor] = {}
    with policy.as_reference() as model, torch.no_grad():
        for rows in split_rows([sequence.length for sequence in sequences], batch_tokens):
            batch = pad_batch(rows, [sequences[row] for row in rows], policy.device)
            found.update(zip(rows, completion_logprobs(model, batch, objective.temperature), strict=True))
    return [found[row] for row in range(len(sequences))]


def _notes(plan: RowPlan, slow: frozenset[str]) -> list[str]:
    notes = []
    inferred = sum(sequence.inferred for sequence in plan.sequences)
    if inferred:
        notes.append(f"{inferred} of {len(plan.sequences)} rollouts were re-tokenized from text; ids may differ.")
    if plan.objective.assumed:
        notes.append(f"Not known and taken at TRL's default: {', '.join(plan.objective.assumed)}.")
    if plan.objective.importance_ratio:
        notes.append(
            "Score vectors carry the importance ratio; the clip depends on the advantage's sign and enters "
            "only the logged gradient."
        )
    if slow:
        notes.append(
            f"{len(slow)} parameters have no layer rule and took one backward pass a row: {sorted(slow)[0]}"
            f"{', ...' if len(slow) > 1 else ''}."
        )
    return notes
