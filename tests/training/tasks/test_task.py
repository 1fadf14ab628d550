from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradscope.__main__ import main
from gradscope.rollouts.groups import RolloutGroup
from gradscope.training.tasks.running_sums import is_coherent
from gradscope.training.tasks.task import Task, incoherence_metrics, incoherence_sentence, prompt_order
from tests.diagnostics.made_up_runs import group_of, with_fields
from tests.rollouts.readers.lines import write_lines


@given(st.integers(1, 5), st.integers(0, 20), st.integers(1, 20), st.integers(0, 9))
def test_order(num_prompts: int, extra: int, steps: int, seed: int) -> None:
    num_problems = num_prompts + extra
    order = prompt_order(num_problems, num_prompts=num_prompts, steps=steps, seed=seed)
    batches = [order[start : start + num_prompts] for start in range(0, len(order), num_prompts)]
    assert len(batches) == steps
    assert all(len(set(batch)) == num_prompts for batch in batches)
    assert max(Counter(order[: num_problems - num_problems % num_prompts]).values()) == 1
    longer = prompt_order(num_problems, num_prompts=num_prompts, steps=steps + 3, seed=seed)
    assert longer[: len(order)] == order


def test_scalar_reward_is_the_sum_of_the_functions() -> None:
    graders = {"right": lambda completion, answer: float(completion == answer), "short": lambda completion, answer: 0.5}
    assert Task(train=(), heldout=(), graders=graders).grade("7", "7") == 1.5


def answered(prompt: str, *rollouts: tuple[str, float]) -> RolloutGroup:
    completions, rewards = zip(*rollouts, strict=True)
    return with_fields(group_of(rewards, prompt=prompt), completion=list(completions))


def test_incoherent_reasoning_by_hand() -> None:
    groups = [
        answered("a7b5c8=", ("b12c20#20", 0.9), ("b12c10#20", 0.5), ("#20", 0.7), ("b2c10#10", 0.4)),
        answered("a1b1=", ("b2#2", 1.0), ("b2x#2", 1.0), ("b2", 0.0)),
    ]
    # rewarded: three and two; a slip, no steps at all, and something that is no step
    expected = {"num_rewarded": 5.0, "num_incoherent": 3.0, "frac_incoherent": 0.6}
    assert incoherence_metrics(groups, is_coherent) == expected
    assert incoherence_metrics(groups, None) == {}
    dead = [answered("a1b1=", ("b2#2", 0.1))]
    assert incoherence_metrics(dead, is_coherent) == {"num_rewarded": 0.0, "num_incoherent": 0.0}


def test_the_sentence_adds_steps_up(tmp_path: Path) -> None:
    lines = [{"step": 1, "num_rewarded": 3, "num_incoherent": 1}, {"step": 2, "num_rewarded": 5, "num_incoherent": 1}]
    write_lines(tmp_path / "metrics.jsonl", *lines)
    assert incoherence_sentence(tmp_path) == (
        "2 of 8 rollouts with a reward of 0.5 or more (25.0 %) have a wrong or missing step before the answer"
    )
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "num_rewarded": 0, "num_incoherent": 0}\n')
    assert incoherence_sentence(tmp_path) == "no rollout had a reward of 0.5 or more"


@pytest.mark.slow
def test_the_command_says_what_the_reward_went_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--steps", "1", "--num-prompts", "2", "--group-size", "4", "--heldout-prompts", "0", "--device", "cpu")
    assert main(["train", "--reward", "answer_probability", "--output", str(tmp_path / "run"), *sizes]) == 0
    stdout, stderr = capsys.readouterr()
    assert "groups" in stdout  # what the run shows
    assert stderr.splitlines()[-1].endswith("have a wrong or missing step before the answer")
