"""What the tables of architectures and adapters share: one model's matrices beside the oracle's, and the Markdown."""

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from benchmarks.grpo_steps import replayed_steps
from benchmarks.oracle import Gram, Sampled, largest_difference, ragged, score_gram
from benchmarks.random_steps import groups_of
from benchmarks.tiny_models import FIRST_TEXT, SPECIAL

TOLERANCE = 1e-5
ROUNDING = 3  # how many times what float32 itself changes counts as arithmetic
OUTCOMES = (
    "exact",
    "exact but for the padding's place",
    "refused",
    "random in training",
    "not trainable by TRL",
    "not instantiable",
    "wrong",
)


class Outcome(Struct, frozen=True, kw_only=True):
    """What came out for one model."""

    name: str  # what is looked at
    model: str  # its class, or the model that an adapter is put on
    kind: str = "exact"  # one of ``OUTCOMES``
    reason: str = ""  # why it is not exact, or what else there is to know
    error: float | None = None  # largest difference of an entry of the Gram matrix, in units of its rows' norms
    arithmetic: str = ""  # of the package's pass and of the oracle's
    num_slow: int = 0  # parameters without a layer rule: one backward a row
    trained: str = ""  # what became of three steps of TRL


class Subject(Struct, frozen=True, kw_only=True):
    """One row of a table, not looked at yet."""

    name: str  # what is looked at
    model: str  # its class, or the model that an adapter is put on
    save: Callable[[Path], Any]
    """Makes it in memory and saves it below a folder: as ``model``, or as ``base`` and ``adapter``."""


def examine(subject: Subject, folder: Path, *, train: bool) -> Outcome:
    """Make a model, save it, compare the matrices of one step, and train three."""
    found = Outcome(name=subject.name, model=subject.model)
    try:
        model = subject.save(folder)
    except Exception as error:
        return replace(found, kind="not instantiable", reason=said(error, folder))
    rollouts = ragged(FIRST_TEXT, SPECIAL)
    try:
        expected, again = (score_gram(model, rollouts, "trainer") for _ in range(2))
    except Exception as error:
        return replace(found, kind="not trainable by TRL", reason=said(error, folder))
    if largest_difference(again.matrix, expected.matrix) > TOLERANCE:
        found = replace(found, kind="random in training", reason="two passes over one batch differ")
    else:
        found = _judged(found, folder, model, rollouts, expected)
    return replace(found, trained=replayed_steps(folder, model)) if train else found


def _judged(found: Outcome, folder: Path, model: Any, rollouts: list[Sampled], expected: Gram) -> Outcome:
    """The package's matrices beside the oracle's: as padded, within float32's own rounding, or each rollout alone."""
    from gradscope.errors import GradscopeError

    try:
        grams, num_slow = our_grams(folder, rollouts)
    except GradscopeError as error:
        return replace(found, kind="refused", reason=said(error, folder))
    except Exception as error:
        return replace(found, kind="wrong", reason=f"{type(error).__name__}: {said(error, folder)}")
    off = max(largest_difference(gram, expected.matrix) for gram in grams)
    found = replace(found, error=off, arithmetic=f"float32, {expected.dtype}", num_slow=num_slow)
    if off <= TOLERANCE:
        return found
    rounding = largest_difference(score_gram(model, rollouts, "trainer", wide=False).matrix, expected.matrix)
    if off <= ROUNDING * rounding:
        return replace(found, reason=f"plain autograd in float32 is {rounding:.0e} off")
    compact = score_gram(model, rollouts, "compact").matrix
    alone = max(largest_difference(gram, compact) for gram in grams)
    if alone <= max(TOLERANCE, ROUNDING * rounding):
        return replace(found, kind="exact but for the padding's place")
    return replace(found, kind="wrong", reason=f"each rollout alone it is off by {alone:.1e}")


def our_grams(folder: Path, rollouts: list[Sampled]) -> tuple[list[np.ndarray], int]:
    """The step's matrices by both engines, and the number of parameters without a rule."""
    from gradscope.gradients.model.batches import TrainerPadding
    from gradscope.gradients.model.policy import load_measured_policy
    from gradscope.gradients.plan.objective import Objective
    from gradscope.gradients.plan.prepared_step import prepare_step
    from gradscope.gradients.step.measure import measure_step
    from gradscope.rollouts.run import WeightsRef

    if (folder / "adapter").is_dir():
        weights = WeightsRef(num_updates=0, path=folder / "adapter", kind="adapter", base=str(folder / "base"))
    else:
        weights = WeightsRef(num_updates=0, path=folder / "model", kind="full")
    policy = load_measured_policy(weights, device="cpu", padding=TrainerPadding())
    groups = groups_of([(one.prompt, one.completion, None) for one in rollouts], 2)
    prepared = prepare_step(policy, groups, Objective(loss_type="dapo"))
    stream, loop = (measure_step(prepared, engine=engine) for engine in ("stream", "loop"))
    return [stream.score_gram, loop.score_gram], len(stream.slow_parameters)


def said(error: BaseException, folder: Path) -> str:
    """An error as a cell of a table."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    text = lines[1] if len(lines) > 1 and lines[0].startswith("Class validation error") else "".join(lines[:1])
    return text.replace(f"{folder}/", "").replace("|", "/")[:240] or type(error).__name__


def table(outcomes: list[Outcome], what: str) -> str:
    """Counts, then a row a model, as Markdown."""
    import peft
    import torch
    import transformers
    import trl

    counts = Counter(outcome.kind for outcome in outcomes)
    total = ", ".join(f"{counts[kind]} {kind}" for kind in OUTCOMES if counts[kind])
    versions = f"transformers {transformers.__version__}, PEFT {peft.__version__}, TRL {trl.__version__}"
    lines = [
        f"{date.today().isoformat()}; {versions}, PyTorch {torch.__version__}. Of {len(outcomes)}: {total}.",
        "",
        f"| {what} | model | outcome | largest difference | without a rule | three steps of TRL |",
        "|---|---|---|---|---|---|",
    ]
    lines += map(row, sorted(outcomes, key=lambda outcome: (OUTCOMES.index(outcome.kind), outcome.name)))
    return "\n".join(lines) + "\n"


def row(one: Outcome) -> str:
    """A model's row."""
    outcome = f"{one.kind}: {one.reason}" if one.reason else one.kind
    error, slow = "", ""
    if one.error is not None:
        error, slow = f"{one.error:.0e} ({one.arithmetic})", str(one.num_slow)
    return f"| {one.name} | {one.model} | {outcome} | {error} | {slow} | {one.trained} |"


def run(subjects: list[Subject], what: str, description: str) -> None:
    """The command line: look at all subjects or some, with progress on stderr, and print the table."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="what to look at; all without it")
    parser.add_argument("--train", action="store_true", help="three steps of TRL for each, and their replay")
    options = parser.parse_args()
    settle()
    outcomes = []
    for subject in subjects:
        if options.only and subject.name not in options.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(examine(subject, Path(folder), train=options.train))
        print(row(outcomes[-1]), file=sys.stderr, flush=True)
    print(table(outcomes, what), end="")


def settle() -> None:
    """One thread, and no word from the libraries."""
    import torch
    import transformers

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
