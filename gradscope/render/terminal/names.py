"""The tables that ``--show`` adds to each command's answer. A module of their own, so that help loads nothing else."""

from __future__ import annotations

from collections.abc import Mapping

ALL = "all"  # the name of all tables together
VERDICT = "verdict"  # the name of the answer without its table: nothing but the first sentences
NOTES = "notes"  # the name of inferences and gaps from reading a run, which stderr shows

TABLES: Mapping[str, tuple[str, ...]] = {
    "degeneracy": (
        *("shares", "sizes", "steps", "cost", "advantages", "rewards", "prompts", "environments", "policies"),
        *("metrics", "findings"),
    ),
    "passk": ("files", "pairs", "findings"),
    "rank": (
        *("steps", "formulations", "channels", "spectra", "weights", "tokens", "energy", "corrections"),
        *("entropy", "kl", "turns", "logprobs", "updates", "frames", "adapters", "optimizers", "modules"),
        *("sparsity", "geometry", "signal", "kinds", "interference", "heldout", "baselines", "findings"),
        "engine",
    ),
    "spike": ("metrics", "rollouts", "removals", "tokens", "tensors", "findings"),
    "replay": ("steps", "causes", "findings"),
    "claims": ("reasons", "findings"),
    "compare": ("cells", "pairs", "findings"),
    "check": ("requirements",),
    "report": ("sections", "runs"),
}
"""Command -> names of its further tables, in the order in which they are printed."""


def choices_of(command: str) -> tuple[str, ...]:
    """The names that ``--show`` takes in a command."""
    return (*TABLES.get(command, ()), NOTES, VERDICT, ALL)
