"""Made-up trainers with verl's, prime-rl's and NeMo-RL's semantics: replay's norm and rank's singular values."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.other_trainers import nemo_rl, prime_rl, verl
from benchmarks.other_trainers.judge import judge

TRAINERS = {"verl": verl, "prime-rl": prime_rl, "nemo-rl": nemo_rl}
CASES = [(trainer, name) for trainer, module in TRAINERS.items() for name in module.CASES]
QUICK = {("verl", "low_var_kl in the loss"), ("prime-rl", "default, traces"), ("nemo-rl", "tis")}


@pytest.mark.parametrize(
    ("trainer", "name"), [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES]
)
def test_a_run_is_reproduced_or_refused_with_its_reason(trainer: str, name: str, tmp_path: Path) -> None:
    judged = judge(TRAINERS[trainer], name, tmp_path)
    assert judged.right, judged
