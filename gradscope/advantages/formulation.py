"""An advantage formulation: formula, source, inputs, and when it is refused.

Shapes: N groups of a step, G rollouts of a group.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from gradscope.errors import UsageError
from gradscope.outside.limits import read_limited

Scope = Literal["group", "step", "length", "functions", "run", "token", "gram"]

_BEYOND_REWARDS = {
    "length": "it weighs rewards by the lengths of completions, which rewards alone do not tell",
    "functions": "it scales the rewards of each function by themselves, and their sum does not tell them",
    "run": "it depends on earlier steps of the run, which the rewards of a group do not tell",
    "token": "it has one advantage per token, made of what the trainer knows of each token",
    "gram": "it weighs rewards by the norms of score vectors, which `gradscope rank` has and rewards do not tell",
}


class Formulation(Struct, frozen=True, kw_only=True):
    """One way to turn the rewards of a group into advantages."""

    name: str  # the name in ``--advantage``, JSON and tables
    formula: str  # how it is computed, in one line of plain text
    source: str  # the paper or program that the formula is from
    needs_binary: bool = False  # whether it is defined for rewards of 0 and 1 only
    min_group_size: int = 1  # fewest rollouts of a group that it is defined for
    zero_sum: bool = False  # whether the advantages of every group sum to zero
    scope: Scope = "group"
    """Its inputs: the rewards of a group, of all groups of a step, also the lengths of completions, the rewards of
    each function, a memory of the run, numbers of each token, or a Gram matrix of score vectors."""
    function: Callable[[Any], Any] | None = None
    """From rewards [..., G] to advantages [..., G], with ``step`` from [N][G] to [N][G]; None where rewards alone do
    not decide."""
    digest: str | None = None  # SHA-256 of the file that a user's own is from; None for one of the package
    takes_c: bool = False  # whether it gives -1 to a group without a success and ``NAME:c=X`` gives -X instead

    def with_c(self, name: str, c: float) -> Formulation:
        """The same under another name, with -c for every rollout of a group without a success."""

        def function(rewards: Array) -> Array:
            assert self.function is not None, "what takes a constant is a function of rewards"
            failed = rewards.max(axis=-1, keepdims=True) == 0.0
            return np.asarray(np.where(failed, 0.0 - c, self.function(rewards)), dtype=np.float64)

        failed = f"and {0.0 - c:g} for every rollout of a group without a success"
        return replace(self, name=name, formula=f"{self.formula.partition(', and')[0]}, {failed}", function=function)

    def why_not(self, rewards: ArrayLike) -> str | None:
        """Why rewards, [..., G] or all groups of a step, [N, G], have no such advantage; None where they have one."""
        values = np.asarray(rewards, dtype=np.float64)
        if self.scope in _BEYOND_REWARDS:
            return _BEYOND_REWARDS[self.scope]
        if self.scope == "step" and values.ndim != 2:
            return "it is relative to all groups of a step, and this is one group"
        if values.shape[-1] < self.min_group_size:
            return f"{self.name} needs groups of at least {self.min_group_size}, this one has {values.shape[-1]}"
        other = values[(values != 0.0) & (values != 1.0)]
        if self.needs_binary and len(other):
            return f"it is defined for rewards of 0 and 1, and there is a reward of {other[0]:g}"
        return None


# A formulation of the user's own: one decorated function in a file, named as ``my.py:name``.
#
# The file is code and is run, so it is run only where a user names it: on a command line or in a call. A name that is
# read from a log, a manifest or a file of settings runs nothing.
Array = NDArray[np.float64]
Function = TypeVar("Function", bound=Callable[..., Any])

_MARK = "__gradscope_formulation__"  # the attribute by which a function is one: fields of its Formulation


def advantage_formulation(
    *, needs_binary: bool = False, min_group_size: int = 1, by_step: bool = False
) -> Callable[[Function], Function]:
    """Make a function of rewards a formulation that ``--advantage FILE.py:NAME`` takes.

    The function gets the rewards of one group as float64, [G], and returns one advantage a rollout, [G]. The first line
    of its docstring is the formula that is shown.

    Args:
        needs_binary: Whether it is for rewards of 0 and 1 only; others are then refused before it is called.
        min_group_size: Fewest rollouts of a group that it is for.
        by_step: Whether it gets all groups of a step at once, a list of N arrays [G], and returns as many.

    >>> @advantage_formulation(min_group_size=2)
    ... def centered(rewards):
    ...     '''r - median(r)'''
    ...     return rewards - np.median(rewards)
    >>> centered(np.array([1.0, 0.0, 0.0])).tolist()
    [1.0, 0.0, 0.0]
    """

    def mark(function: Function) -> Function:
        scope = "step" if by_step else "group"
        setattr(function, _MARK, {"needs_binary": needs_binary, "min_group_size": min_group_size, "scope": scope})
        return function

    return mark


def is_in_file(name: str) -> bool:
    """Whether a name is of a function in a file, ``<path>.py:<function>``, whether or not there is one.

    >>> is_in_file("my.py:centered"), is_in_file("grpo")
    (True, False)
    """
    path, colon, function = name.rpartition(":")
    return bool(colon and function) and path.endswith(".py")


def read_formulation(name: str) -> Formulation:
    """Run the file of a name, ``my.py:name`` with the path from the working directory, and take its function.

    Raises:
        UsageError: The file cannot be read or run, or has no such function, or one without the decorator.
    """
    path, _, function_name = name.rpartition(":")
    try:
        source = read_limited(Path(path))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}.",
            hint="Name a file from here and a function in it: --advantage my.py:name",
        ) from error
    # run from the bytes whose digest is recorded; no bytecode is written
    module = ModuleType(f"gradscope_file_{hashlib.sha256(source).hexdigest()[:16]}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # where dataclasses and the like look their module up
    try:
        exec(compile(source, path, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise UsageError(f"{path} does not run: {_summary(error, path)}.", hint="Mend the file.") from error
    function = getattr(module, function_name, None)
    options = getattr(function, _MARK, None)
    if not isinstance(options, dict):
        marked = [other for other, value in vars(module).items() if isinstance(getattr(value, _MARK, None), dict)]
        hint = f"{path} has {', '.join(marked)}." if marked else "Put @gradscope.advantage_formulation() above it."
        problem = "is no formulation" if callable(function) else "is not there"
        raise UsageError(f"{function_name!r} {problem} in {path}.", hint=hint)
    assert callable(function), "what is marked is a function"
    lines = (function.__doc__ or "").strip().splitlines()
    checked = _CheckedFunction(name=name, path=path, function=function)
    return Formulation(
        name=name,
        formula=lines[0] if lines else function_name,
        source=path,
        function=checked.by_step if options["scope"] == "step" else checked.by_group,
        digest=hashlib.sha256(source).hexdigest(),
        **options,
    )


class _CheckedFunction(Struct, frozen=True, kw_only=True):
    """A function of a file with its answers checked."""

    name: str
    path: str
    function: Callable[..., Any]

    def by_group(self, rewards: Array) -> Array:
        """Advantages of groups of one size, [..., G], a group at a time."""
        groups = rewards.reshape(-1, rewards.shape[-1])
        advantages = [self._checked(self._call(group.copy()), group.shape) for group in groups]
        return np.reshape(advantages, rewards.shape)

    def by_step(self, rewards: Iterable[Array]) -> tuple[Array, ...]:
        """Advantages of all groups of a step, [N][G]."""
        groups = list(rewards)
        answer = self._call([group.copy() for group in groups])
        try:
            answers = list(answer)
        except TypeError:
            answers = []
        if len(answers) != len(groups):
            raise UsageError(
                f"{self.name} gives no list of {len(groups)} arrays for {len(groups)} groups.",
                hint="With by_step it returns one array a group, in their order.",
            )
        return tuple(self._checked(answer, group.shape) for answer, group in zip(answers, groups, strict=True))

    def _call(self, rewards: Any) -> Any:
        try:
            return self.function(rewards)
        except Exception as error:
            raise UsageError(f"{self.name} fails: {_summary(error, self.path)}.", hint="Mend the function.") from error

    def _checked(self, answer: Any, shape: tuple[int, ...]) -> Array:
        try:
            values = np.asarray(answer, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{self.name} gives no numbers: {error}.", hint="It returns an array of floats."
            ) from error
        if values.shape != shape:
            raise UsageError(
                f"{self.name} gives advantages of shape {values.shape} for rewards of shape {shape}.",
                hint="It returns one advantage a rollout.",
            )
        if not np.all(np.isfinite(values)):
            raise UsageError(
                f"{self.name} gives an advantage that is not finite.",
                hint="Look at groups of equal rewards, whose standard deviation is zero.",
            )
        return values


def _summary(error: BaseException, path: str) -> str:
    """An error in one line, with the line of the file that it is about."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    position = f" (line {lines[-1]})" if lines and lines[-1] else ""
    message = (str(error.msg if isinstance(error, SyntaxError) else error).strip().splitlines() or [""])[0].rstrip(".")
    return f"{type(error).__name__}{': ' if message else ''}{message}{position}"
