"""dL/dW, tensor by tensor: how many directions of each weight a step's update moves, and those of single groups.

The gradient of the step is added up by ordinary backward passes, as in training; then each two-dimensional
parameter is decomposed alone. The sizes of its entries say how much of it is (near) zero.

Of single groups there are many advantages at once. dL/dW is linear in the advantages, so each rollout's gradient is
formed once and every formulation, group size and null is a combination of them: the backward passes of one step,
whatever is asked of it. Parameters go in blocks whose gradients fit the memory; each block costs the step's backward
passes again. The squared norms of all blocks must add up to the step's Gram matrix, or nothing is returned.

Shapes: R rollouts, G rollouts of a group, C channels, V combinations, O outputs, I inputs of a weight, m = min(O, I).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import nn

from gradscope.estimate import Estimate
from gradscope.gradients.engines.loop import parameter_blocks
from gradscope.gradients.model.batches import PaddedBatch, pad_batch
from gradscope.gradients.model.passes import Weigh, add_gradients, completion_logprobs, gradients_on
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.plan.rows import Row
from gradscope.gradients.processes import num_connected
from gradscope.gradients.step.step_gram import StepGram
from gradscope.gradients.step.verify import require_agreement, row_tolerance_of
from gradscope.metrics.gram.geometry import row_sparsity
from gradscope.metrics.gram.spectrum import Array, gaussian_directions, rank_counts
from gradscope.progress import ProgressCallback, no_progress


class WeightSpectrum(Struct, frozen=True, kw_only=True):
    """The singular values of one parameter's gradient."""

    tensor: str
    shape: tuple[int, int]  # its shape, (O, I)
    singular_values: NDArray[np.float64]  # descending, [min(O, I)]
    entries: Mapping[str, Estimate]  # sparsity of the sizes of its entries, by definition


def matrix_names(trainable: Mapping[str, nn.Parameter]) -> list[str]:
    """The two-dimensional parameters, in the model's order."""
    return [name for name, parameter in trainable.items() if parameter.dim() == 2]


def measure_weight_spectra(
    prepared: PreparedStep, progress: ProgressCallback = no_progress, *, weights: Collection[str] | None = None
) -> tuple[WeightSpectrum, ...]:
    """Spectra of the step's gradient as the optimizer saw it, one a matrix: logged advantages, KL part included.

    Args:
        weights: Names of the matrices; None: all.

    Raises:
        InputError: A rollout has no logged advantage.
    """
    trainable, gradient = prepared.policy.trainable, step_gradient(prepared)
    matrices = [name for name in matrix_names(trainable) if weights is None or name in weights]
    spectra = []
    for done, name in enumerate(matrices, start=1):
        shape = trainable[name].shape
        matrix = gradient.pop(name, torch.zeros(shape, device=prepared.policy.device))
        spectra.append(
            WeightSpectrum(
                tensor=name,
                shape=(shape[0], shape[1]),
                singular_values=torch.linalg.svdvals(matrix.double()).cpu().numpy(),
                entries=row_sparsity(matrix.abs().flatten().double().cpu().numpy()),
            )
        )
        progress(done, len(matrices), "tensors")
    return tuple(spectra)


def step_gradient(prepared: PreparedStep) -> dict[str, torch.Tensor]:
    """The gradient of the step's loss by parameter; a parameter that gets none is absent."""
    plan = prepared.plan
    score_rows = list(plan.index("score").values())

    def weigh(batch: PaddedBatch) -> Weigh:
        return lambda position, logprobs: plan.gradient(plan.rows[batch.rows[position]].sequence, logprobs)

    def attempt(batch_tokens: int) -> dict[str, torch.Tensor]:
        gradient: dict[str, torch.Tensor] = {}

        def add(name: str, grad: torch.Tensor) -> None:
            part = grad.detach().to(torch.promote_types(grad.dtype, torch.float32))
            gradient[name] = gradient[name] + part if name in gradient else part.clone()

        for batch in prepared.batches(score_rows, batch_tokens):
            prepared.backward(batch, weigh(batch), add)
        return gradient

    return prepared.budget.fit([plan.lengths[row] for row in score_rows], attempt)


# Norms of the step's gradient, parameter by parameter: which layers a large gradient is in.
#
# One ordinary backward pass over the step's rollouts, as in training; nothing of size rollouts times parameters is
# held.
class TensorNorm(Struct, frozen=True, kw_only=True):
    """One parameter's part of the step's gradient."""

    tensor: str
    num_entries: int  # numbers in it
    norm: float  # norm of its gradient; NaN or infinite where that overflowed


def measure_tensor_norms(
    prepared: PreparedStep, gradient: Mapping[str, torch.Tensor] | None = None
) -> tuple[TensorNorm, ...]:
    """Norms of the step's gradient as the optimizer saw it, one a trainable parameter: their squares add up to its own.

    Args:
        gradient: The gradient, as ``step_gradient`` returns it; None: it is computed.

    Raises:
        InputError: A rollout has no logged advantage.
    """
    gradient = step_gradient(prepared) if gradient is None else gradient
    return tuple(
        TensorNorm(
            tensor=name,
            num_entries=parameter.numel(),
            norm=float(gradient[name].double().norm()) if name in gradient else 0.0,
        )
        for name, parameter in prepared.policy.trainable.items()
    )


# The updates of SGD, Adam and Muon, each fresh, for the same gradient, matrix by matrix.
#
# The optimizers are PyTorch's own, with nothing behind them and without weight decay. Adam's first step has the signs
# of the gradient, Muon's its directions with equal singular values. Learning rates of the three are not comparable; so
# for the share that bfloat16 keeps each step is scaled to the size of Adam's at the logged learning rate.
Optimizer = Literal["sgd", "adam", "muon"]
OPTIMIZERS: Mapping[Optimizer, Callable[[nn.Parameter], torch.optim.Optimizer]] = {
    "sgd": lambda parameter: torch.optim.SGD([parameter], lr=1.0),
    "adam": lambda parameter: torch.optim.Adam([parameter], lr=1.0),
    "muon": lambda parameter: torch.optim.Muon([parameter], lr=1.0, weight_decay=0.0),
}
"""Name -> the optimizer of one matrix, at learning rate 1."""


class MatrixSteps(Struct, frozen=True, kw_only=True):
    """The first steps of the three optimizers on one matrix."""

    tensor: str
    num_entries: int  # O I
    products: Array  # inner products of the steps at learning rate 1, in the order of :data:`OPTIMIZERS`, [3, 3]
    singular_values: tuple[Array, ...]  # of each step, descending, [3][min(O, I)]
    num_moved: tuple[int, ...] | None
    """Entries whose bfloat16 rounding each step changes, at the size of Adam's; None without a learning rate, [3]."""


def measure_optimizer_steps(
    trainable: Mapping[str, nn.Parameter],
    gradient: Mapping[str, torch.Tensor],
    learning_rate: float | None,
    progress: ProgressCallback = no_progress,
) -> tuple[MatrixSteps, ...]:
    """The steps on every matrix that the step's gradient reaches, in the model's order.

    ``gradient`` is as ``step_gradient`` returns it, the learning rate as logged.
    """
    measured = []
    matrices = {
        name: parameter
        for name, parameter in trainable.items()
        if parameter.dim() == 2 and name in gradient and bool(gradient[name].any())
    }
    for done, (name, parameter) in enumerate(matrices.items(), start=1):
        steps = [_step(optimizer, gradient[name]) for optimizer in OPTIMIZERS.values()]
        flat = torch.stack([step.flatten() for step in steps]).double()
        measured.append(
            MatrixSteps(
                tensor=name,
                num_entries=parameter.numel(),
                products=np.asarray((flat @ flat.t()).cpu().numpy(), dtype=np.float64),
                singular_values=tuple(torch.linalg.svdvals(step.double()).cpu().numpy() for step in steps),
                num_moved=None if learning_rate is None else _count_moved(parameter, steps, learning_rate),
            )
        )
        progress(done, len(matrices), "tensors")
    return tuple(measured)


def _step(optimizer: Callable[[nn.Parameter], torch.optim.Optimizer], gradient: torch.Tensor) -> torch.Tensor:
    """The first step from nothing, so that no rounding of weights is in it."""
    with torch.enable_grad():
        parameter = nn.Parameter(torch.zeros_like(gradient))
        parameter.grad = gradient.clone()
        optimizer(parameter).step()
    return parameter.detach()


def _count_moved(parameter: nn.Parameter, steps: list[torch.Tensor], learning_rate: float) -> tuple[int, ...]:
    """Entries that bfloat16 sees move, by each step at the norm of Adam's."""
    size = learning_rate * float(steps[list(OPTIMIZERS).index("adam")].double().norm())
    weights = parameter.detach().double()
    before = weights.to(torch.bfloat16)
    return tuple(
        int((before != (weights + step.double() * (size / step.double().norm())).to(torch.bfloat16)).sum())
        for step in steps
    )


_CHUNK_BYTES = 2**28  # memory for the combinations of one tensor that are decomposed together
_MANY_ROWS = 64  # a matrix of as many rows is its own average: one draw of the random null instead of two


class Combinations(Struct, frozen=True, kw_only=True):
    """Sums of the gradients of one group's rollouts."""

    group_id: str
    rollouts: tuple[int, ...]  # its rollouts within the step, [G]
    by_token: bool
    """Whether a second channel follows, the gradient with the logged advantage of every token: C is 2 or 1."""
    factors: Array  # factors on each rollout's gradient, score vectors first, [V, C G]
    has_null: NDArray[np.bool_]  # which combinations are compared with unrelated rows of their norms, [V]


class GroupWeightRanks(Struct, frozen=True, kw_only=True):
    """Rank counts of the spectra of the combinations of one group, for one weight."""

    group_id: str
    tensor: str
    shape: tuple[int, int]  # its shape, (O, I)
    counts: Array
    """Effective rank, stable rank, participation ratio and energy of two directions; NaN for a zero matrix, [V, 4]."""
    gaussian: Array  # the same of unrelated rows (of the smaller side) of the same norms; NaN where not wanted, [V, 4]


def measure_group_weights(
    prepared: PreparedStep,
    step: StepGram,
    groups: Sequence[Combinations],
    *,
    weights: Collection[str] | None = None,
    progress: ProgressCallback = no_progress,
) -> tuple[GroupWeightRanks, ...]:
    """The ranks of every combination, group by group and matrix by matrix; ``weights`` names the matrices, None: all.

    The diagonal of the step's Gram matrix is what the gradients' squared norms must add up to. More parameters than
    the budget's memory holds the gradients of, of a group's rollouts, go in several blocks.

    Raises:
        VerificationError: The gradients do not add up to the step's Gram matrix.
    """
    trainable = prepared.policy.trainable
    width = max((len(group.rollouts) * (1 + group.by_token) for group in groups), default=0)
    blocks = list(parameter_blocks(trainable, width, prepared.budget.row_bytes))
    squares = dict.fromkeys((row for group in groups for row in group.rollouts), 0.0)
    ranks: list[GroupWeightRanks] = []
    for number, block in enumerate(blocks):
        for index, group in enumerate(groups):
            progress(number * len(groups) + index, len(blocks) * len(groups), "groups")
            ranks.extend(_group_ranks(prepared, group, block, squares, weights))
    if squares:
        totals, expected = np.array(list(squares.values())), np.diag(step.score_gram)[list(squares)]
        scale = np.maximum(expected, expected.mean())
        error = float(np.max(np.abs(totals - expected) / scale, initial=0.0)) if scale.all() else 0.0
        limit = row_tolerance_of(prepared.policy)
        require_agreement("The weights' gradients disagree with the rollouts' Gram matrix", error, limit)
    return tuple(ranks)


def _group_ranks(
    prepared: PreparedStep,
    group: Combinations,
    block: Mapping[str, nn.Parameter],
    squares: dict[int, float],
    weights: Collection[str] | None,
) -> Iterator[GroupWeightRanks]:
    rows = _rollout_gradients(prepared, group, block)
    while rows:
        name = next(iter(rows))
        gradients = rows.pop(name)
        scores = gradients[: len(group.rollouts)].flatten(1)
        for rollout, square in zip(group.rollouts, scores.double().square().sum(dim=1).tolist(), strict=True):
            squares[rollout] += square
        if gradients.dim() == 3 and (weights is None or name in weights):
            counts, gaussian = _combined(gradients, group)
            shape = (gradients.shape[1], gradients.shape[2])
            yield GroupWeightRanks(group_id=group.group_id, tensor=name, shape=shape, counts=counts, gaussian=gaussian)


def _rollout_gradients(
    prepared: PreparedStep, group: Combinations, block: Mapping[str, nn.Parameter]
) -> dict[str, torch.Tensor]:
    """The gradients of each rollout's rows by each parameter of a block, [C G, *shape]."""
    policy, plan, parameters = prepared.policy, prepared.plan, list(block.values())
    rows = {
        name: torch.zeros(
            (1 + group.by_token) * len(group.rollouts),
            *parameter.shape,
            dtype=torch.promote_types(parameter.dtype, torch.float32),
            device=parameter.device,
        )
        for name, parameter in block.items()
    }

    def gather(batch: PaddedBatch, row: Row, position: int) -> None:
        """Where several processes hold parts of the gradients: only a full backward pass gathers them."""

        def put(name: str, grad: torch.Tensor) -> None:
            rows[name][position] = grad.detach()

        with gradients_on(policy.trainable, on=False):
            prepared.backward(batch, lambda _, outputs: plan.cotangent(row, outputs), put, block)

    with gradients_on(block, on=True):
        for index, sequence in enumerate(group.rollouts):
            batch = pad_batch([0], [plan.sequences[sequence]], policy.device)
            channels = [Row(sequence=sequence, channel="score")]
            if group.by_token:
                channels.append(Row(sequence=sequence, channel="logged"))
            if num_connected() > 1:
                for number, row in enumerate(channels):
                    gather(batch, row, number * len(group.rollouts) + index)
                continue
            (logprobs,) = completion_logprobs(policy.model, batch, plan.objective.temperature)
            for number, row in enumerate(channels):
                weights, is_last = plan.cotangent(row, logprobs.detach()), row is channels[-1]
                position = number * len(group.rollouts) + index
                add_gradients(list(rows.values()), position, logprobs, parameters, weights, is_last=is_last)
    return rows


def _combined(gradients: torch.Tensor, group: Combinations) -> tuple[Array, Array]:
    """Counts of all combinations of one tensor and of their nulls, [V, 4] each."""
    small, large = sorted(gradients.shape[1:])
    wide = (gradients if gradients.shape[1] == small else gradients.transpose(1, 2)).double()
    factors = torch.as_tensor(group.factors, dtype=torch.float64, device=wide.device)
    chunk_size = max(1, _CHUNK_BYTES // (8 * small * large))
    counts, gaussian = [], np.full((len(factors), 4), np.nan)
    for first in range(0, len(factors), chunk_size):
        part = factors[first : first + chunk_size]
        matrices = torch.einsum("vg,gml->vml", part, wide)
        gram = matrices @ matrices.transpose(1, 2)
        counts.append(rank_counts(_values(gram)))
        for index in np.flatnonzero(group.has_null[first : first + chunk_size]).tolist():
            gaussian[first + index] = _unrelated(gram[index].diagonal(), small, large)
    return np.concatenate(counts), gaussian


def _values(gram: torch.Tensor) -> Array:
    """Singular values from Gram matrices scaled to their largest entry, descending, [..., m]."""
    scale = gram.abs().amax(dim=(-2, -1), keepdim=True).clamp(min=torch.finfo(gram.dtype).tiny)
    squares = torch.linalg.eigvalsh(gram / scale).flip(-1).clamp(min=0.0)
    return np.asarray(squares.sqrt().cpu().numpy(), dtype=np.float64)


def _unrelated(squared_norms: torch.Tensor, small: int, large: int) -> Array:
    """Mean counts of rows of these norms that have nothing in common, [4]."""
    norms = squared_norms.clamp(min=0.0).sqrt()
    if not bool(norms.any()):
        return np.full(4, np.nan)
    directions = gaussian_directions(small, large, 2 if small < _MANY_ROWS else 1)
    drawn = torch.as_tensor(directions, device=norms.device) * (norms / norms.max())[:, None]
    return np.asarray(rank_counts(_values(drawn @ drawn.mT)).mean(axis=0), dtype=np.float64)
