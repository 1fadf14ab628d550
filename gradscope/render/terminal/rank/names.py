"""The tables that `gradscope rank --show` adds to its answer. It stands apart so that help loads nothing else."""

from __future__ import annotations

ALL = "all"
"""The name of all tables together."""

TABLES = (
    "steps",
    "formulations",
    "spectra",
    "weights",
    "tokens",
    "updates",
    "sparsity",
    "geometry",
    "signal",
    "baselines",
    "findings",
    "engine",
)
"""Names of the tables, in the order in which they are printed."""
