"""`python -m benchmarks.other_trainers`: every made-up run of the other trainers, judged."""

import torch

from benchmarks.other_trainers import nemo_rl, prime_rl, verl
from benchmarks.other_trainers.judge import print_all

torch.set_num_threads(1)
print_all([verl, prime_rl, nemo_rl])
