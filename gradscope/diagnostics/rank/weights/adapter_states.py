"""Whether a LoRA adapter does anything yet, and how far its product is from one of unrelated factors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradscope.estimate import Estimate
from gradscope.metrics.gram.matrix_frames import factor_alignment, frame_of, unrelated_factors
from gradscope.metrics.gram.spectrum import Array, effective_rank
from gradscope.results.update import AdapterState

if TYPE_CHECKING:
    from gradscope.gradients.model.checkpoint import Checkpoint


def adapter_states(
    name: str, checkpoints: Sequence[Checkpoint], matrices: Sequence[Array], size: Estimate
) -> list[AdapterState]:
    """One product at each checkpoint.

    Args:
        name: The weight that it is added to.
        matrices: s B A at each checkpoint, [O, I].
        size: |W|_F of that weight.

    Returns:
        By checkpoint; none of a whole model.
    """
    return [
        _state(name, checkpoint, matrix, size)
        for checkpoint, matrix in zip(checkpoints, matrices, strict=True)
        if checkpoint.factors
    ]


def _state(name: str, checkpoint: Checkpoint, matrix: Array, size: Estimate) -> AdapterState:
    down, up = checkpoint.factors[name]()
    rank = len(down)
    left, right = unrelated_factors((up.shape[0], down.shape[1]), rank)
    return AdapterState(
        tensor=name,
        num_updates=checkpoint.num_updates,
        rank=rank,
        a_norm=Estimate.exact(float(np.linalg.norm(down))),
        b_norm=Estimate.exact(float(np.linalg.norm(up))),
        product_size=size.map(lambda norm: float(np.linalg.norm(matrix)) / norm),
        effective_rank=_rank_of(up, down),
        unrelated_rank=_rank_of(left, right),
        alignment=factor_alignment(up, down),
        unrelated_alignment=factor_alignment(left, right),
    )


def _rank_of(up: Array, down: Array) -> Estimate:
    return effective_rank(frame_of(up @ down).values[: len(down)])
