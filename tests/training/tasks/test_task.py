"""The order of prompts: whole passes, no prompt twice in a step, the same beginning for longer runs."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.training.tasks.task import Task, prompt_order


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(0, 20), st.integers(1, 20), st.integers(0, 9))
def test_order(num_prompts: int, more: int, steps: int, seed: int) -> None:
    num_problems = num_prompts + more
    order = prompt_order(num_problems, num_prompts=num_prompts, steps=steps, seed=seed)
    batches = [order[start : start + num_prompts] for start in range(0, len(order), num_prompts)]
    assert len(batches) == steps
    assert all(len(set(batch)) == num_prompts for batch in batches)
    counts = Counter(order[: num_problems - num_problems % num_prompts])
    assert max(counts.values()) == 1
    longer = prompt_order(num_problems, num_prompts=num_prompts, steps=steps + 3, seed=seed)
    assert longer[: len(order)] == order


def test_scalar_reward_is_the_sum_of_the_functions() -> None:
    graders = {"right": lambda completion, answer: float(completion == answer), "short": lambda completion, answer: 0.5}
    task = Task(name="two", train=(), heldout=(), graders=graders)
    assert task.grade("7", "7") == 1.5
