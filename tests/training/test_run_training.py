from typing import Any

import pytest

from gradscope.rollouts.run_folder import read_metrics
from gradscope.rollouts.store import read_steps
from tests.training.conftest import MakeRun


def test_formulations_share_the_first_rollouts_and_then_part(short_run: MakeRun) -> None:
    def logprobs(name: str, step: int) -> list[Any]:
        groups = read_steps(short_run(advantage=name))
        return [rollout.logprobs for group in groups if group.step == step for rollout in group.rollouts]

    assert logprobs("grpo", 1) == logprobs("sign", 1)
    assert logprobs("grpo", 2) != logprobs("sign", 2)


def test_accumulated_gradient_is_the_same_gradient(short_run: MakeRun) -> None:
    full, parts = short_run(), short_run(gradient_accumulation_steps=4)

    norms = [read_metrics(run)[1]["grad_norm"] for run in (full, parts)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
