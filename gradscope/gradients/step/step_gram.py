"""The engine's result at one step: one Gram matrix, from which any advantage's Gram is a product of small matrices.

For outcome rewards a rollout's gradient is g_i = -A_i s_i + c_i, with s_i its score vector and c_i its KL part. The
inner products of all score and KL rows are computed once; no formulation costs another backward pass.

Shapes: R rollouts, N rows, T tokens of a completion, P parameters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from msgspec import Struct, convert
from msgspec.structs import asdict
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from gradscope.errors import InputError
from gradscope.gradients.model.calls import uses_tf32
from gradscope.gradients.model.passes import backpropagate, own_gradients
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.plan.rows import EXTRA_CHANNELS, Channel, Row
from gradscope.gradients.step.verify import Verification
from gradscope.gradients.trained.norms import Assumption, TrainedNorms
from gradscope.metrics.gram.spectrum import Array
from gradscope.progress import ProgressCallback, no_progress
from gradscope.writing import atomic_write, repeatable

Chosen = Literal["loop", "stream", "prompt"]  # the engines


class StepGram(Struct, frozen=True, kw_only=True):
    """All inner products of one step's gradient rows."""

    step: int
    gram: Array  # inner products of all rows, float64, [N, N]
    rows: tuple[Row, ...]  # each row's sequence and channel, channel by channel, [N]
    group_ids: tuple[str, ...]  # group of each rollout, [R]
    samples: tuple[int, ...]  # index of each rollout within its group, [R]
    rewards: Array  # scalar reward, NaN where it is missing, [R]
    advantages: Array | None  # logged scalar advantage, [R]; None where any rollout lacks one
    logprobs: tuple[Array, ...]  # the policy's log-probability of each completion token, [R][T]
    num_inferred_ids: int  # rollouts whose token ids were re-tokenized from text
    engine: Chosen  # how the rows were computed
    dtype: str  # arithmetic of the model
    device: str
    batch_tokens: int  # most padded tokens of a forward pass of several rows; the number that fit, where memory ran out
    num_parameters: int  # trainable parameters, P
    coverage: float  # share of them that the Gram covers: 1.0, or there would be an error
    slow_parameters: tuple[str, ...]  # parameters without a layer rule, computed one backward pass a row
    verification: Verification
    tf32: bool  # whether float32 products could round to TF32
    relative_row_error: float
    """Relative error of a row by arithmetic; times the Frobenius norm it is the noise floor of singular values."""
    notes: tuple[str, ...]  # caveats of the numbers, in sentences
    trained: TrainedNorms | None = None  # norms by the trainer's own arithmetic; None where the matrix holds all of it
    assumption: Assumption | None = None
    """How the model was trained, inferred from the folder and the logged norm; None where nothing was in doubt."""
    other_texts: tuple[int, ...] = ()  # rows whose text is another one than their ids say
    untested: tuple[str, ...] = ()  # arguments of the loss that the norm does not depend on

    @property
    def precision(self) -> Literal["high", "reduced"]:
        """``high`` where all of it was float32 or better, as ``--precision high`` asks for."""
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
        """The same without the KL part and the entropy bonus, which no advantage multiplies, [R, R]."""
        return self._mixed("logged", extra=0.0) if self._has_logged() else None

    @property
    def parts(self) -> Mapping[str, tuple[float, float]]:
        """Channel that no advantage reaches -> norm of its part of the step's gradient, and its projection on that.

        Both are relative to the norm of the gradient; empty without advantages or a gradient.
        """
        mixing = self._mixing("logged", extra=1.0).sum(0) if self._has_logged() else np.zeros(len(self.rows))
        squared = float(mixing @ self.gram @ mixing)
        parts: dict[str, tuple[float, float]] = {}
        for channel in EXTRA_CHANNELS:
            part = np.array([row.channel == channel for row in self.rows], dtype=np.float64)
            if part.any() and squared > 0:
                size = math.sqrt(max(float(part @ self.gram @ part), 0.0) / squared)
                parts[channel] = size, float(part @ self.gram @ mixing) / squared
        return parts

    def gradient_gram(self, advantages: Sequence[float] | Array | Literal["logged"]) -> Array:
        """Inner products of the rollouts' gradients under some advantages, with the KL part and the entropy bonus.

        Args:
            advantages: One per rollout, [R], or ``logged``: those that the optimizer saw, per-token advantages,
                importance ratios and clip included.
        """
        return self._mixed(advantages, extra=1.0)

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

    def _mixed(self, advantages: Sequence[float] | Array | Literal["logged"], *, extra: float) -> Array:
        mixing = self._mixing(advantages, extra=extra)
        return np.asarray(mixing @ self.gram @ mixing.T)

    def _mixing(self, advantages: Sequence[float] | Array | Literal["logged"], *, extra: float) -> Array:
        """The rows that add up to each rollout's gradient, [R, N]."""
        by_token = isinstance(advantages, str) and any(row.channel == "logged" for row in self.rows)
        reward: Channel = "logged" if by_token else "score"
        factors = np.ones(self.num_rollouts)
        if not by_token:
            values = self.advantages if isinstance(advantages, str) else advantages
            if values is None:
                raise InputError(
                    f"Step {self.step}: not every rollout has a logged advantage.",
                    hint="Name a formulation to compute advantages from rewards.",
                )
            factors = -np.asarray(values, dtype=np.float64)
        if factors.shape != (self.num_rollouts,):
            raise ValueError(f"expected {self.num_rollouts} advantages, got an array of shape {factors.shape}")
        mixing = np.zeros((self.num_rollouts, len(self.rows)))
        for index, row in enumerate(self.rows):
            if row.channel == reward:
                mixing[row.sequence, index] = factors[row.sequence]
            elif row.channel in EXTRA_CHANNELS:
                mixing[row.sequence, index] = extra
        return mixing


# The norm of one step's gradient, by one forward and backward pass over its rollouts.
#
# A norm alone needs no inner products of rows, which cost several passes. Where it is not the logged one, the Gram
# matrix and its other possible explanations are computed after all.
class StepNorm(Struct, frozen=True, kw_only=True):
    """The numbers of a step's gradient that a replay needs."""

    norm: float | None  # of the gradient that the optimizer saw; None where no advantages were logged
    floor: float  # up to where a norm of this step is rounding
    logprobs: tuple[Array, ...]  # the policy's log-probability of each completion token, [R][T]
    num_inferred_ids: int  # rollouts whose token ids were re-tokenized from text
    described: Mapping[str, object]  # how it was computed, for the JSON document
    as_clipped: float | None = None
    """The same as PyTorch's clipping adds it up, in the dtype of the gradients: float32 is 2e-5 off on a table of 30 M
    numbers. None where it is not known."""
    parts: Mapping[str, tuple[float, float]] = {}
    """``kl``, ``entropy``: norm of that part of the gradient, and its projection on the gradient, over the norm of the
    gradient; absent without such a term, where the gradient is zero, and where it was not looked at."""
    trained: TrainedNorms | None = None  # norms by the trainer's own arithmetic; None where this one holds all of it
    other_texts: tuple[int, ...] = ()  # rows whose text is another one than their ids say
    untested: tuple[str, ...] = ()  # arguments of the loss that the norm does not depend on

    @property
    def num_rollouts(self) -> int:
        """R."""
        return len(self.logprobs)


class _Pass(Struct):
    """The results of one pass over all batches."""

    squares: float = 0.0
    as_clipped: float = 0.0
    kl_squares: float = 0.0
    kl_along: float = 0.0  # inner product of the KL part and the gradient
    logprobs: dict[int, torch.Tensor] = {}


def measure_norm(prepared: PreparedStep, progress: ProgressCallback = no_progress) -> StepNorm:
    """The norm of a step's gradient under its logged advantages, which all rollouts have, and of its KL part."""
    policy, plan, budget = prepared.policy, prepared.plan, prepared.budget
    rows = range(len(plan.sequences))

    done = budget.fit(plan.lengths[: len(rows)], lambda tokens: _one_pass(prepared, tokens, progress))
    norm, dtype, tf32 = done.squares**0.5, str(policy.dtype).removeprefix("torch."), uses_tf32(policy.device)
    return StepNorm(
        norm=norm,
        as_clipped=done.as_clipped,
        floor=0.0,
        parts={"kl": (done.kl_squares**0.5 / norm, done.kl_along / norm**2)} if plan.index("kl") and norm > 0 else {},
        logprobs=on_cpu([done.logprobs[row] for row in rows]),
        num_inferred_ids=sum(sequence.inferred for sequence in plan.sequences),
        described={
            "engine": "backward",
            "dtype": dtype,
            "precision": "high" if dtype in ("float32", "float64") and not tf32 else "reduced",
            "tf32": tf32,
            "device": str(policy.device),
            "batch_tokens": budget.tokens,
            "num_parameters": policy.num_parameters,
            "coverage": 1.0,
        },
    )


def on_cpu(parts: Sequence[torch.Tensor]) -> tuple[Array, ...]:
    """Numbers of all rollouts, copied at once: each copy waits for the device."""
    ends = np.cumsum([len(part) for part in parts])
    return tuple(np.split(torch.cat(list(parts)).cpu().numpy(), ends[:-1]))


def _one_pass(prepared: PreparedStep, batch_tokens: int, progress: ProgressCallback) -> _Pass:
    plan, done = prepared.plan, _Pass()
    trainable, has_kl = prepared.policy.trainable, bool(plan.index("kl"))
    kl_parts: dict[str, torch.Tensor] = {}
    with own_gradients(trainable):
        for batch in prepared.batches(range(len(plan.sequences)), batch_tokens):
            outputs = prepared.outputs(batch)
            sequences = [plan.rows[row].sequence for row in batch.rows]
            detached = [(sequence, row.detach()) for sequence, row in zip(sequences, outputs, strict=True)]
            if has_kl:
                saved_grads = {name: parameter.grad for name, parameter in trainable.items()}
                for name, parameter in trainable.items():
                    parameter.grad = kl_parts.get(name)
                weights = [plan.cotangent(Row(sequence=sequence, channel="kl"), row) for sequence, row in detached]
                backpropagate(outputs, weights, retain_graph=True)
                for name, parameter in trainable.items():
                    if parameter.grad is not None:
                        kl_parts[name] = parameter.grad
                    parameter.grad = saved_grads[name]
            backpropagate(outputs, [plan.gradient(sequence, row) for sequence, row in detached])
            done.logprobs.update({sequence: plan.logprobs(sequence, row).double() for sequence, row in detached})
            progress(len(done.logprobs), len(plan.sequences), "rollouts")
        gradients = [parameter.grad for parameter in trainable.values() if parameter.grad is not None]
        done.squares, done.as_clipped = _squares(gradients), float(torch.nn.utils.get_total_norm(gradients))
        done.kl_along = sum(_inner(part, trainable[name].grad) for name, part in kl_parts.items())
    done.kl_squares = _squares(kl_parts.values())
    return done


def _inner(first: torch.Tensor, second: torch.Tensor | None) -> float:
    return 0.0 if second is None else float((first.double() * second.double()).sum())


def _squares(gradients: Iterable[torch.Tensor]) -> float:
    return sum(float(torch.linalg.vector_norm(part, dtype=torch.float64)) ** 2 for part in gradients)


# One step's Gram matrix as a safetensors file, so that interrupted work need not compute it again.
#
# The file has a key of its inputs; it is never read under another one.
_ARRAYS = ("gram", "rewards", "advantages", "logprobs")


def write_step(path: Path, step: StepGram | StepNorm, key: str) -> None:
    """Write all fields of a step, with the key of its inputs."""
    rest = asdict(step)
    arrays = {name: array for name in _ARRAYS[:-1] if (array := rest.get(name)) is not None} | {
        "logprobs": np.concatenate([np.zeros(0), *step.logprobs]),
        "lengths": np.array([len(row) for row in step.logprobs], dtype=np.int64),
    }
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    described = json.dumps(
        {name: value for name, value in rest.items() if name not in _ARRAYS},
        default=lambda value: sorted(value) if isinstance(value, frozenset) else asdict(value),
    )
    atomic_write(path, repeatable(save(contiguous, metadata={"key": key, "step": described})), force=True)


def read_step(path: Path, key: str) -> StepGram | StepNorm | None:
    """Read a step again; None where there is no such file, or it is of something else than the key."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("key") != key:
                return None
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError):
        return None
    logprobs = tuple(np.split(arrays.pop("logprobs"), np.cumsum(arrays.pop("lengths"))[:-1]))
    fields = {"advantages": None, **json.loads(metadata["step"]), **arrays, "logprobs": logprobs}
    return convert(fields, StepGram) if "gram" in arrays else convert(fields, StepNorm)
