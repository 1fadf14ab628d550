"""What the engine finds at one step: one Gram matrix, from which any advantage's Gram is a product of small matrices.

For outcome rewards a rollout's gradient is g_i = -A_i s_i + c_i, with s_i its score vector and c_i its KL part. The
inner products of all score and KL rows are computed once; no formulation costs another backward pass.

Shapes: R rollouts, N rows, T tokens of a completion, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gradscope.errors import InputError
from gradscope.gradients.plan.rows import BESIDE, Channel, Row
from gradscope.gradients.step.verify import Verification
from gradscope.gradients.trained.assumptions import Assumption
from gradscope.gradients.trained.norms import TrainedNorms
from gradscope.metrics.gram.spectrum import Array

Chosen = Literal["loop", "stream", "prompt"]
"""The engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGram:
    """All inner products of one step's gradient rows."""

    step: int
    """The trainer's step."""
    gram: Array
    """Inner products of all rows, float64, [N, N]."""
    rows: tuple[Row, ...]
    """What each row is, channel by channel, [N]."""
    group_ids: tuple[str, ...]
    """Group of each rollout, [R]."""
    samples: tuple[int, ...]
    """Index of each rollout within its group, [R]."""
    rewards: Array
    """Scalar reward, NaN where it is missing, [R]."""
    advantages: Array | None
    """Logged scalar advantage, [R]; None where any rollout lacks one."""
    logprobs: tuple[Array, ...]
    """The policy's log-probability of each completion token, [R][T]."""
    num_inferred_ids: int
    """Rollouts whose token ids were re-tokenized from text."""
    engine: Chosen
    """How the rows were computed."""
    dtype: str
    """Arithmetic of the model."""
    device: str
    """Where it ran."""
    batch_tokens: int
    """Most padded tokens of a forward pass of several rows; what fit, where memory ran out."""
    num_parameters: int
    """Trainable parameters, P."""
    coverage: float
    """Share of them that the Gram covers: 1.0, or there would be an error."""
    slow_parameters: tuple[str, ...]
    """Parameters without a layer rule, computed one backward pass a row."""
    verification: Verification
    """The engine's self-check."""
    tf32: bool
    """Whether float32 products could round to TF32."""
    relative_row_error: float
    """Relative error of a row by arithmetic; times the Frobenius norm it is the noise floor of singular values."""
    notes: tuple[str, ...]
    """What a reader of the numbers should know, in sentences."""
    trained: TrainedNorms | None = None
    """Norms by the trainer's own arithmetic; None where the matrix holds all of it."""
    assumption: Assumption | None = None
    """How the model was trained, as far as the folder and the logged norm tell; None where nothing was in doubt."""
    other_texts: tuple[int, ...] = ()
    """Rows whose text is another one than their ids say."""

    @property
    def precision(self) -> Literal["high", "reduced"]:
        """``high`` where all of it was float32 or better: what ``--precision high`` asks for."""
        return "high" if self.dtype in ("float32", "float64") and not self.tf32 else "reduced"

    @property
    def num_rollouts(self) -> int:
        """R."""
        return len(self.samples)

    @property
    def score_gram(self) -> Array:
        """Inner products of the score vectors, [R, R]."""
        return self._block("score")

    @property
    def kl_gram(self) -> Array | None:
        """Inner products of the rollouts' KL parts, [R, R]; None where the loss has no KL term."""
        return self._block("kl") if any(row.channel == "kl" for row in self.rows) else None

    @property
    def logged_gram(self) -> Array | None:
        """Inner products of the gradients that the optimizer saw, [R, R]; None where advantages were not logged."""
        return self.gradient_gram("logged") if self._has_logged() else None

    @property
    def policy_gram(self) -> Array | None:
        """The same without what no advantage reaches, the KL part and the entropy bonus, [R, R]."""
        return self._mixed("logged", beside=0.0) if self._has_logged() else None

    @property
    def frac_kl(self) -> float | None:
        """Norm of the KL part of the step's gradient over the norm of the whole.

        None without a KL term, without logged advantages, and where the whole is zero.
        """
        part, whole = self.kl_gram, self.logged_gram
        if part is None or whole is None or whole.sum() <= 0:
            return None
        return float(np.sqrt(max(part.sum(), 0.0) / whole.sum()))

    def gradient_gram(self, advantages: Sequence[float] | Array | Literal["logged"]) -> Array:
        """Inner products of the rollouts' gradients under some advantages, with the KL part and the entropy bonus.

        Args:
            advantages: One per rollout, [R], or ``logged``: what the optimizer saw, per-token advantages, importance
                ratios and clip included.

        Returns:
            The Gram matrix, [R, R]; its sum is the squared norm of the step's gradient.
        """
        return self._mixed(advantages, beside=1.0)

    def describe(self) -> dict[str, object]:
        """How it was computed, for the JSON document."""
        return {
            "engine": self.engine,
            "dtype": self.dtype,
            "precision": self.precision,
            "tf32": self.tf32,
            "device": self.device,
            "batch_tokens": self.batch_tokens,
            "num_parameters": self.num_parameters,
            "coverage": self.coverage,
            "slow_parameters": list(self.slow_parameters),
            "relative_row_error": self.relative_row_error,
            "verification": self.verification.describe(),
            "notes": list(self.notes),
        }

    def _has_logged(self) -> bool:
        return self.advantages is not None or any(row.channel == "logged" for row in self.rows)

    def _block(self, channel: Channel) -> Array:
        rows = [index for index, row in enumerate(self.rows) if row.channel == channel]
        return self.gram[np.ix_(rows, rows)]

    def _mixed(self, advantages: Sequence[float] | Array | Literal["logged"], *, beside: float) -> Array:
        """Gram of the rows that each rollout's gradient is made of."""
        by_token = isinstance(advantages, str) and any(row.channel == "logged" for row in self.rows)
        reward: Channel = "logged" if by_token else "score"
        factors = np.ones(self.num_rollouts) if by_token else -self._scalars(advantages)
        mixing = np.zeros((self.num_rollouts, len(self.rows)))
        for index, row in enumerate(self.rows):
            if row.channel == reward:
                mixing[row.sequence, index] = factors[row.sequence]
            elif row.channel in BESIDE:
                mixing[row.sequence, index] = beside
        return np.asarray(mixing @ self.gram @ mixing.T)

    def _scalars(self, advantages: Sequence[float] | Array | Literal["logged"]) -> Array:
        values = self.advantages if isinstance(advantages, str) else advantages
        if values is None:
            raise InputError(
                f"Step {self.step}: not every rollout has a logged advantage.",
                hint="Name a formulation to compute advantages from rewards.",
            )
        array = np.asarray(values, dtype=np.float64)
        if array.shape != (self.num_rollouts,):
            raise ValueError(f"expected {self.num_rollouts} advantages, got an array of shape {array.shape}")
        return array
