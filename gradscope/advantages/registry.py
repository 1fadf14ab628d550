"""Every advantage formulation by name: the one list that training, rank and degeneracy choose from.

A new formulation is one function and one row in :mod:`gradscope.advantages.entries`. The inputs of a formulation are
its ``scope``: the rewards of a group, those of the step, lengths of completions, the rewards of each function, what
the run remembers, something of every token, or a Gram matrix. The first two are functions of rewards and can be asked
"what if" of any log; those of the run and of tokens exist while a run is trained (:mod:`gradscope.advantages.online`),
the last where `rank` has the matrix (:mod:`gradscope.advantages.group`).
"""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradscope.advantages.entries import ENTRIES
from gradscope.advantages.formulation import Formulation, is_in_file, read_formulation
from gradscope.errors import UsageError

Array = NDArray[np.float64]

LOGGED = "logged"  # the name of the advantage that the optimizer saw

ALL_FORMULATIONS: dict[str, Formulation] = {entry.name: entry for entry in ENTRIES}
"""Name -> entry: all there are; those of scope ``gram`` are for ``rank``, a run can be trained with any other."""
FORMULATIONS: dict[str, Formulation] = {
    name: entry for name, entry in ALL_FORMULATIONS.items() if entry.scope == "group"
}
"""Name -> entry of the formulations of one group's rewards, which can be computed from any log."""
GRAM_FORMULATIONS: dict[str, Formulation] = {
    name: entry for name, entry in ALL_FORMULATIONS.items() if entry.scope in ("gram", "length")
}
"""Name -> entry of those that weigh the rewards of a group, which any recomputed step has as well."""


CONSTANT = ":c="  # between the name of a formulation that takes a constant and its value, as in ``sign:c=0.5``
_FROM_FILES: dict[str, Formulation] = {}  # name -> entry of the user's own that were named so far


def named_formulation(name: str) -> Formulation:
    """A formulation by its name, ``sign:c=0.5`` with another constant; of ``my.py:name`` the file is run now."""
    if is_in_file(name):
        _FROM_FILES[name] = read_formulation(name)
    return formulation(name)


def short_name(name: str) -> str:
    """A name for folders and ids: of one in a file, without its folders.

    >>> short_name("rules/my.py:centered"), short_name("sign:c=0.5"), short_name("grpo")
    ('my.centered', 'sign-c0.5', 'grpo')
    """
    path, _, function = name.rpartition(":")
    return f"{Path(path).stem}.{function}" if is_in_file(name) else name.replace(CONSTANT, "-c")


def is_formulation(name: str) -> bool:
    """Whether there is such a formulation; one in a file counts once it is loaded."""
    return name in ALL_FORMULATIONS or name in _FROM_FILES or _with_constant(name) is not None


@functools.cache
def _with_constant(name: str) -> Formulation | None:
    """The formulation of ``NAME:c=X``; None where NAME takes no constant or X is none."""
    entry = ALL_FORMULATIONS.get(name.partition(CONSTANT)[0])
    try:
        constant = float(name.partition(CONSTANT)[2])
    except ValueError:
        return None
    if entry is None or not entry.takes_c or not 0 <= constant < math.inf:
        return None
    return entry.with_c(name, constant)


def formulation(name: str) -> Formulation:
    """A formulation by its name. No file is run: the name may be one that a log gives.

    Raises:
        UsageError: There is no such formulation; the hint names them, the nearest ones first.

    >>> formulation("dr_grpo").formula
    'r - mean(r)'
    """
    entry = ALL_FORMULATIONS.get(name) or _FROM_FILES.get(name) or _with_constant(name)
    if entry is not None:
        return entry
    if is_in_file(name):
        raise UsageError(
            f"{name} is code in a file, which runs only where you name it.", hint=f"Add --advantage {name}"
        )
    near = difflib.get_close_matches(name, ALL_FORMULATIONS, n=3, cutoff=0.5)
    listed = ", ".join(ALL_FORMULATIONS)
    constants = " and ".join(f"{entry.name}{CONSTANT}X" for entry in ENTRIES if entry.takes_c)
    meant = f"Did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
    raise UsageError(
        f"There is no advantage formulation {name!r}.",
        hint=f"{meant}There are: {listed}; {constants}, X 0 or more; my.py:name is one of your own.",
    )


def compute_advantages(name: str, rewards: ArrayLike) -> Array:
    """The advantages of a group or several of one size, [..., G], in float64; TRL's float32 differs by about 1e-7.

    For a formulation of the step [N, G]; several reward functions are already one weighted sum.

    Raises:
        UsageError: There is no such formulation, or these rewards have no such advantage.
        ValueError: There is no reward, or one is not finite.

    >>> compute_advantages("rloo", [1.0, 0.0, 0.0]).tolist()
    [1.0, -0.5, -0.5]
    """
    chosen = formulation(name)
    values = np.asarray(rewards, dtype=np.float64)
    return np.asarray(_function(chosen, values)(values), dtype=np.float64)


def compute_step_advantages(name: str, rewards: Iterable[ArrayLike]) -> tuple[Array, ...]:
    """The advantages of all groups of a step, which may differ in size, [N][G]; refused likewise.

    >>> found = compute_step_advantages("batch_mean", [[1.0, 1.0, 1.0], [0.0]])
    >>> [group.tolist() for group in found]
    [[0.25, 0.25, 0.25], [-0.75]]
    """
    chosen, groups = formulation(name), [np.asarray(group, dtype=np.float64) for group in rewards]
    sizes = sorted({len(group) for group in groups})
    indices = [[index for index, group in enumerate(groups) if len(group) == size] for size in sizes]
    stacks = [np.stack([groups[index] for index in of_size]) for of_size in indices]
    functions = [_function(chosen, stack) for stack in stacks]
    if chosen.scope == "step":
        return tuple(functions[0](groups))
    by_index: dict[int, Array] = {}
    for of_size, stack, function in zip(indices, stacks, functions, strict=True):
        by_index |= dict(zip(of_size, function(stack), strict=True))
    return tuple(by_index[index] for index in range(len(groups)))


def _function(chosen: Formulation, values: Array) -> Callable[[Any], Any]:
    """The formulation's function, once these rewards have such an advantage."""
    if values.ndim < 1 or values.shape[-1] < 1 or not np.all(np.isfinite(values)):
        raise ValueError("advantages need at least one reward, and all of them finite")
    reason = chosen.why_not(values)
    if reason is not None or chosen.function is None:
        raise UsageError(
            f"These rewards have no {chosen.name!r} advantage: {reason}.",
            hint="'grpo', 'dr_grpo' and 'reinforce' are defined for any reward.",
        )
    return chosen.function
