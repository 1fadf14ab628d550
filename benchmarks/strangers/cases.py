"""All cases."""

from __future__ import annotations

from benchmarks.strangers.architectures import architecture_cases
from benchmarks.strangers.combined import combined_cases
from benchmarks.strangers.folders import folder_cases
from benchmarks.strangers.losses import loss_cases
from benchmarks.strangers.reduced import reduced_cases
from benchmarks.strangers.seeded import seeded_cases
from benchmarks.strangers.spoiled import spoiled_cases
from benchmarks.strangers.texts import text_cases
from benchmarks.strangers.untried import untried_cases

CASES = [
    *architecture_cases(),
    *loss_cases(),
    *text_cases(),
    *folder_cases(),
    *spoiled_cases(),
    *combined_cases(),
    *reduced_cases(),
    *seeded_cases(),
    *untried_cases(),
]
"""In the order of the table."""
