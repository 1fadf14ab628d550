"""`python -m benchmarks.other_trainers`: the made-up runs of other trainers, judged: a line each, then the count."""

import json
import tempfile
from pathlib import Path

import torch

from benchmarks.other_trainers import nemo_rl, prime_rl, verl
from benchmarks.other_trainers.judge import judge

torch.set_num_threads(1)
runs = []
for trainer in (verl, prime_rl, nemo_rl):
    for name in trainer.CASES:
        with tempfile.TemporaryDirectory() as folder:
            runs.append(run := judge(trainer, name, Path(folder)))
        line = {
            "trainer": run.trainer,
            "case": name,
            "right": run.right,
            "norm": max(run.norms, default=None),
            "sigma": max(run.sigmas, default=None),
            "refused": sorted(run.reasons),
            "verdicts": run.verdicts,
        }
        print(json.dumps(line), flush=True)
print(f"{sum(run.right for run in runs)} of {len(runs)} as they should be")
