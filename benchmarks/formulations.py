"""Time of every formulation at three group sizes once the Gram matrix of a step is there.

Run `python benchmarks/formulations.py`. 128 rollouts in 16 groups of 8 with rewards of 0 and 1; spectra of every part,
all ranks with their nulls and intervals, no backward pass. The unit is seconds of one core.
"""

from __future__ import annotations

import numpy as np
from workload import seconds, spread

from gradscope.advantages.registry import FORMULATIONS
from gradscope.diagnostics.rank.rollout_spectra import step_spectra
from gradscope.diagnostics.rank.rows import StepRows

NUM_GROUPS, SIZE, WIDTH = 16, 8, 1000
GROUP_SIZES = (2, 4, None)


def main() -> None:
    """Print one line."""
    rows = made_up_step()

    pairs = [
        (name, size)
        for name, entry in FORMULATIONS.items()
        for size in GROUP_SIZES
        if size is None or size >= entry.min_group_size
    ]

    def work() -> None:
        for name, size in pairs:
            step_spectra(rows, name, size, by_group=False)

    work()
    found = spread([seconds(work) for _ in range(5)])
    print(f"{len(pairs)} pairs of {len(FORMULATIONS)} formulations and {len(GROUP_SIZES)} group sizes: {found} s")


def made_up_step() -> StepRows:
    """Rows of a group lean the same way; every fourth group is dead."""
    rng = np.random.default_rng(0)
    lean = np.repeat(rng.normal(size=(NUM_GROUPS, WIDTH)), SIZE, axis=0)
    vectors = lean + rng.normal(size=(NUM_GROUPS * SIZE, WIDTH))
    rewards = rng.integers(0, 2, size=(NUM_GROUPS, SIZE)).astype(float)
    rewards[::4] = 1.0
    return StepRows(
        step=1,
        gram=vectors @ vectors.T,
        policy_gram=None,
        full_gram=None,
        rewards=rewards.flatten(),
        advantages=None,
        group_ids=tuple(str(group) for group in range(NUM_GROUPS) for _ in range(SIZE)),
        samples=tuple(sample for _ in range(NUM_GROUPS) for sample in range(SIZE)),
        num_parameters=WIDTH,
        relative_row_error=1e-5,
    )


if __name__ == "__main__":
    main()
