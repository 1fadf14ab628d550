"""Every causal-LM class that transformers ships, tiny: are gradscope's Gram matrices those of plain autograd?

`python benchmarks/architectures.py` prints the table of docs/architectures.md: one step of ragged rollouts through the
engines `stream` and `loop`, beside one float64 backward a rollout of the forward pass as the trainer runs it. With
`--train` each class also makes three steps of TRL's GRPO, and `replay` recomputes the norms that it logged. `--only
qwen3 gpt2` names model types; the table goes to `--out`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from oracle import Layout, Sampled, largest_difference, ragged, score_rows
from tiny_models import SPECIAL, tiny_model

TOLERANCE = 1e-5
FIRST_ID = 3
"""Ids below stand for padding, start and end."""
OUTCOMES = (
    "exact",
    "exact but for the padding's place",
    "refused",
    "random in training",
    "not trainable alone",
    "not instantiable",
    "wrong",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came out for one class."""

    model_type: str
    """The configuration's name for it."""
    name: str
    """The class."""
    kind: str
    """One of ``OUTCOMES``."""
    reason: str = ""
    """Why it is not exact."""
    error: float | None = None
    """Largest difference of an entry of the Gram matrix, in units of its rows' norms."""
    arithmetic: str = ""
    """Of gradscope's pass and of the oracle's."""
    num_slow: int = 0
    """Parameters without a layer rule: one backward a row."""
    num_parameters: int = 0
    """Parameters, tied ones once."""
    trained: str = ""
    """What became of three steps of TRL."""


def examine(model_type: str, name: str, folder: Path) -> Outcome:
    """Build a class, save it, and compare the matrices of one step."""
    found = Outcome(model_type=model_type, name=name, kind="exact")
    try:
        tiny_model(model_type).save_pretrained(folder)
    except Exception as error:
        return replace(found, kind="not instantiable", reason=first_line(error))
    rollouts = ragged(FIRST_ID, SPECIAL)
    try:
        expected, precision = oracle_gram(folder, rollouts, "trainer")
        again, _ = oracle_gram(folder, rollouts, "trainer")
    except Exception as error:
        return replace(found, kind="not trainable alone", reason=first_line(error))
    if largest_difference(again, expected) > TOLERANCE:
        return replace(found, kind="random in training", reason="two passes over one batch differ")
    return compare(found, folder, rollouts, expected, precision)


def compare(found: Outcome, folder: Path, rollouts: list[Sampled], expected: np.ndarray, precision: str) -> Outcome:
    """The package's matrix beside the oracle's: in float32, in float64 where that leaves a doubt, then compact."""
    from gradscope.errors import GradscopeError

    for dtype in ("float32", "float64"):
        try:
            grams, num_slow, num_parameters = our_grams(folder, rollouts, dtype)
        except GradscopeError as error:
            return replace(found, kind="refused", reason=str(error))
        except Exception as error:
            if dtype == "float64":  # some layers compute in float32 alone
                break
            return replace(found, kind="wrong", reason=f"{type(error).__name__}: {first_line(error)}")
        off = max(largest_difference(gram, expected) for gram in grams)
        found = replace(
            found,
            error=off,
            arithmetic=f"{dtype}, {precision}",
            num_slow=num_slow,
            num_parameters=num_parameters,
        )
        if off <= TOLERANCE:
            return found
    alone, _ = oracle_gram(folder, rollouts, "compact")
    compact = max(largest_difference(gram, alone) for gram in grams)
    if compact <= TOLERANCE:
        return replace(found, kind="exact but for the padding's place", reason=f"off by {off:.0e} as padded")
    return replace(found, kind="wrong", reason=f"off by {off:.1e}, each rollout alone by {compact:.1e}")


def our_grams(
    folder: Path, rollouts: list[Sampled], dtype: str, base: Path | None = None
) -> tuple[list[np.ndarray], int, int]:
    """The step's matrices by both engines, the parameters without a rule, and all of them; of an adapter on a base."""
    from gradscope.gradients.model.policy import load_measured_policy
    from gradscope.gradients.plan.objective import Objective
    from gradscope.gradients.plan.prepared_step import prepare_step
    from gradscope.gradients.step.measure import measure_step
    from gradscope.rollouts.run import WeightsRef

    kind: Any = "full" if base is None else "adapter"
    weights = WeightsRef(num_updates=0, path=folder, kind=kind, base=None if base is None else str(base))
    policy = load_measured_policy(weights, device="cpu", dtype=dtype)
    prepared = prepare_step(policy, groups_of(rollouts), Objective(loss_type="dapo"))
    stream, loop = (measure_step(prepared, engine=engine) for engine in ("stream", "loop"))
    return [stream.score_gram, loop.score_gram], len(stream.slow_parameters), policy.num_parameters


def groups_of(rollouts: list[Sampled]) -> list[Any]:
    """The rollouts as a log would give them, two of a group."""
    from gradscope.rollouts.types import Rollout, RolloutGroup

    def rollout(row: int, sampled: Sampled) -> Rollout:
        return Rollout(
            group_id=f"g{row // 2}",
            sample=row % 2,
            row=row,
            prompt="",
            completion="",
            prompt_ids=sampled.prompt,
            completion_ids=sampled.completion,
            reward=float(row % 2),
        )

    rows = [rollout(row, sampled) for row, sampled in enumerate(rollouts)]
    return [
        RolloutGroup(step=1, group_id=f"g{at // 2}", prompt_id=f"p{at // 2}", rollouts=tuple(rows[at : at + 2]))
        for at in range(0, len(rows), 2)
    ]


def oracle_gram(folder: Path, rollouts: list[Sampled], layout: Layout) -> tuple[np.ndarray, str]:
    """The matrix by plain autograd, and in what arithmetic: float64 where the model runs in it."""
    import torch
    from transformers import AutoModelForCausalLM

    for dtype in (torch.float64, torch.float32):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).train()
        for module in model.modules():
            if hasattr(getattr(module, "config", None), "_experts_implementation"):
                module.config._experts_implementation = "eager"  # the fused kernels know no float64
        try:
            rows = score_rows(model, rollouts, layout)
        except RuntimeError:
            if dtype == torch.float32:
                raise
            continue
        if dtype == torch.float64 and not np.isfinite(rows).all():
            continue  # a softmax in float32 takes float64's largest mask for infinity, and padding has nothing else
        return rows @ rows.T, str(dtype).removeprefix("torch.")
    raise AssertionError("float32 returns or raises")


def first_line(error: BaseException) -> str:
    """An error as a cell of a table."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    text = lines[1] if len(lines) > 1 and lines[0].startswith("Class validation error") else "".join(lines[:1])
    return f"{type(error).__name__}: {text}"[:160].replace("|", "/")


def table(outcomes: list[Outcome]) -> str:
    """Counts, then a row a class, as Markdown."""
    import peft
    import torch
    import transformers
    import trl

    counts = Counter(outcome.kind for outcome in outcomes)
    total = ", ".join(f"{counts[kind]} {kind}" for kind in OUTCOMES if counts[kind])
    versions = f"transformers {transformers.__version__}, PEFT {peft.__version__}, TRL {trl.__version__}"
    lines = [
        f"{date.today().isoformat()}; {versions}, PyTorch {torch.__version__}. {len(outcomes)} model types: {total}.",
        "",
        "| model type | class | outcome | largest error | without a rule | three steps of TRL |",
        "|---|---|---|---|---|---|",
    ]
    for one in sorted(outcomes, key=lambda outcome: (OUTCOMES.index(outcome.kind), outcome.model_type)):
        said = f"{one.kind}: {one.reason}" if one.reason else one.kind
        error = "" if one.error is None else f"{one.error:.0e} ({one.arithmetic})"
        slow = str(one.num_slow) if one.error is not None else ""
        lines.append(f"| {one.model_type} | {one.name} | {said} | {error} | {slow} | {one.trained} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table, with progress on stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="TYPE", help="model types to look at; all of them without it")
    parser.add_argument("--train", action="store_true", help="three steps of TRL for each class, and their replay")
    parser.add_argument("--out", type=Path, help="also write the table there")
    options = parser.parse_args()
    warnings.simplefilter("ignore")

    import torch
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    outcomes = []
    for model_type in options.only or CLASSES:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            outcome = examine(model_type, CLASSES[model_type], Path(folder) / "model")
            if options.train and outcome.kind not in ("not instantiable", "not trainable alone"):
                outcome = replace(outcome, trained=trained(Path(folder)))
        outcomes.append(outcome)
        seconds = time.perf_counter() - started
        error = "" if outcome.error is None else f" {outcome.error:.0e}"
        print(
            f"{model_type}: {outcome.kind}{error} {outcome.reason} [{outcome.num_slow} slow] {outcome.trained} ({seconds:.1f} s)",
            file=sys.stderr,
            flush=True,
        )
    text = table(outcomes)
    print(text, end="")
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
