"""What the sections of `gpu.py` share: the table, the clock, limits, models and their steps."""

from __future__ import annotations

import gc
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from benchmarks.random_steps import random_policy, random_step

SHAPES: dict[str, dict[str, Any]] = {
    "0.5B": {
        **{"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24},
        **{"num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 64},
    },
    "4B": {
        **{"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
    },
    "8B": {
        **{"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "tie_word_embeddings": False},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
    },
}
"""Qwen3's, the first of them Qwen2.5-0.5B's; all but the largest tie their head to the embedding."""
TINY = {
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8},
}
GROUP, PROMPT = 8, 64  # rollouts of a group; tokens of a prompt, where nothing else is said


class Row(Struct, frozen=True):
    """A row of the table."""

    seconds: Sequence[float] = ()  # of each run
    plain: float | None = None  # the plain pass's seconds
    floor: float | None = None  # seconds of the matrix products alone
    peak: float | None = None  # bytes above the model
    note: str = ""  # whatever else is to say
    name: str = ""  # of the row, where a case has several


class Case(Struct, frozen=True):
    """Something to measure."""

    name: str  # what
    run: Callable[[], Iterable[Row]]  # measures it


class Section(Struct, frozen=True):
    """Cases that answer one question."""

    name: str  # what it is called
    share: float  # its share of the time
    cases: Callable[[Setting], Iterable[Case]]  # from where it runs to what it runs, the most valuable first


class Table:
    """The one table below its heading, printed and kept row by row."""

    def __init__(self, path: Path, heading: str) -> None:
        self._path = path
        path.write_text("")
        self.num_rows = self.failed = 0
        self.say(f"{heading}\n\n| section | case | seconds | / plain | / floor | peak above the model, GB | |")
        self.say("|---|---|---|---|---|---|---|")

    def say(self, line: str) -> None:
        """Print a line and keep it."""
        print(line, flush=True)
        with self._path.open("a") as file:
            file.write(f"{line}\n")

    def add(self, section: str, case: str, row: Row) -> None:
        """A row of a case."""
        middle = statistics.median(row.seconds) if row.seconds else None
        shown = "" if middle is None else f"{middle:.4g} ({min(row.seconds):.4g}-{max(row.seconds):.4g})"
        plain, floor = ("" if middle is None or not of else f"{middle / of:.2f}" for of in (row.plain, row.floor))
        peak = "" if row.peak is None else f"{row.peak / 1e9:.2f}"
        self.say(f"| {section} | {row.name or case} | {shown} | {plain} | {floor} | {peak} | {row.note} |")
        self.num_rows += 1
        self.failed += row.note.startswith(("failed", "left out", "out of"))

    @contextmanager
    def says_what_went_wrong(self, section: str, case: str) -> Iterator[None]:
        """Turn an error into a row; Ctrl-C goes on up."""
        try:
            yield
        except TimeoutError:
            self.add(section, case, Row(note="out of time"))
        except Exception as error:
            kind = "out of memory" if "emory" in str(error) else f"failed: {type(error).__name__}"
            self.add(section, case, Row(note=f"{kind}: {' '.join(str(error).split())[:160]}".replace("|", "/")))


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the case that takes longer, as soon as Python has a say."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Setting(Struct):
    """Where everything runs, and the model at hand."""

    device: Any  # the card
    dry: bool  # whether sizes are tiny
    rates: dict[str, float] = {}  # products in FLOP/s by dtype, as measured
    _made: tuple[Any, Any] | None = None

    @property
    def repeats(self) -> int:
        """Runs of a case."""
        return 1 if self.dry else 3

    def size(self, number: int) -> int:
        """A number of tokens or rollouts, or the tiny one in its place."""
        return number if not self.dry else min(number, 4 if number <= 64 else 12 if number <= 500 else 16)

    def policy(self, shape: str, trained: str = "full") -> Any:
        """A policy with random weights, in bfloat16 on a card; the last one is kept until another is asked for."""
        key, dtype = (shape, trained), "float32" if self.dry else "bfloat16"
        if self._made is None or self._made[0] != key:
            self._made = None
            self.tidy()
            self._made = (key, random_policy(TINY if self.dry else SHAPES[shape], trained, dtype, self.device))
        return self._made[1]

    def forget(self) -> None:
        """Let the next case make a policy of its own."""
        self._made = None

    def tidy(self) -> None:
        """Give back what the last case left."""
        gc.collect()
        if self.device.type == "cuda":
            import torch

            torch.cuda.empty_cache()

    def seconds(self, work: Callable[[], object], repeats: int | None = None) -> list[float]:
        """Seconds of each run of something, after one that does not count."""
        work()
        return [self.once(work) for _ in range(repeats or self.repeats)]

    def once(self, work: Callable[[], object]) -> float:
        """Seconds of one run, everything that it queued included."""
        self.wait()
        start = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - start

    def wait(self) -> None:
        """Until the card has nothing to do."""
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.device)

    def peak(self, work: Callable[[], object]) -> float | None:
        """Most bytes that one run holds above what there was; None on the CPU."""
        if self.device.type != "cuda":
            work()
            return None
        import torch

        self.tidy()
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        work()
        return torch.cuda.max_memory_allocated(self.device) - before


def prepared_step(setting: Setting, policy: Any, size: int, length: int, prompt: int = PROMPT) -> Any:
    """A step of so many rollouts of so many tokens, ready to measure."""
    length = setting.size(length)
    prompt = min(setting.size(prompt), length // 2)
    return random_step(policy, [length - prompt] * setting.size(size), prompt, GROUP)


def plain_pass(prepared: Any) -> Callable[[], None]:
    """Forward and backward passes of a step's rows in the same batches, as training does them."""
    import torch

    from gradscope.gradients.model.passes import completion_logprobs

    policy, plan = prepared.policy, prepared.plan

    def plain() -> None:
        for batch in prepared.batches(range(len(plan.rows)), prepared.budget.tokens):
            logprobs = completion_logprobs(policy.model, batch, 1.0)
            torch.stack([row.sum() for row in logprobs]).sum().backward()
        for parameter in policy.trainable.values():
            parameter.grad = None

    return plain
