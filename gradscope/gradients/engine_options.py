"""How gradients are computed: one record, from which the flags of every command that computes any are made.

Nothing heavy is imported here, so that `gradscope rank --help` loads no torch.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Struct

from gradscope.errors import MissingDependencyError, UsageError
from gradscope.option import Option
from gradscope.progress import NoticeCallback, no_notice

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Precision = Literal["auto", "high"]
Engine = Literal["auto", "loop", "stream", "prompt"]
Verify = Literal["first", "all"]

_option = partial(Option, panel="Model")


def missing_library(*additional: str) -> str | None:
    """The first library that gradients need, or additional one, that is not installed; None where all are."""
    return next((name for name in ("torch", "transformers", "peft", *additional) if find_spec(name) is None), None)


def require_libraries(*additional: str) -> None:
    """Raise before any import if a required library is not installed.

    ``additional`` libraries come with the extra ``train``.

    Raises:
        MissingDependencyError: One of them is not installed.
    """
    if (name := missing_library(*additional)) is not None:
        purpose, extra = ("Recording needs", "train") if additional else ("Gradients need", "gradients")
        raise MissingDependencyError(
            f"{purpose} {name}, which is not installed.", hint=f"pip install 'gradscope[{extra}]'"
        )


def parse_batch_tokens(text: str) -> int | None:
    """The tokens of a batch as typed on a command line, ``auto`` or an integer; None for ``auto``.

    Raises:
        UsageError: It is neither.
    """
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{text!r} is not a number of tokens.", hint="Use auto, or a whole number from 1 on.")
    return int(text)


class EngineOptions(Struct, frozen=True, kw_only=True):
    """How the gradients are computed. The defaults are exact and choose by the machine and the model."""

    device: Annotated[Device, _option("Where to compute.", "auto|cpu|cuda")] = "auto"  # auto: a GPU where there is one
    dtype: Annotated[
        Dtype,
        _option(
            "What the weights are loaded in; auto: float32 on the CPU, that of the checkpoint on CUDA.",
            "auto|float32|bfloat16|float16",
        ),
    ] = "auto"
    """Sums of products are float64 in any case."""
    precision: Annotated[
        Precision,
        _option("high: --dtype float32 with TF32 off, to confirm a low rank that was found in less.", "auto|high"),
    ] = "auto"
    batch_tokens: Annotated[
        int | None,
        _option(
            "Most tokens of one forward pass, padding included; auto (default): halved while memory runs out.",
            "auto|N",
            parse=parse_batch_tokens,
            shows_default=False,
        ),
    ] = None
    engine: Annotated[Engine, _option("How gradients are computed.", "auto|loop|stream|prompt")] = "auto"
    """All three give the same Gram matrix to rounding; they differ in time and memory."""
    verify: Annotated[Verify, _option("Which batches to check against an ordinary backward pass.", "first|all")] = (
        "first"
    )
    """Two rows of a step cost little and catch a wrong layer rule; ``all`` doubles the time."""
    notice: NoticeCallback = no_notice  # called with messages for the user, such as that a batch did not fit
    unfinished: Annotated[
        Path | None,
        _option(
            "Keep each finished step there, and use those that are there: for commands after this one, or beside it.",
            "DIR",
            flags=("--keep",),
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.precision not in ("auto", "high"):
            raise UsageError(f"There is no precision {self.precision!r}.", hint="Use auto or high.")
        if self.precision == "high" and self.dtype not in ("auto", "float32"):
            raise UsageError(
                f"--precision high computes in float32, and --dtype {self.dtype} asks for another one.",
                hint="Leave one of them out.",
            )
