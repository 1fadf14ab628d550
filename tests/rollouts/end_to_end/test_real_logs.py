"""Known answers that nobody here computed, beside those of tests/diagnostics: the shared data's own descriptions."""

from pathlib import Path

import pytest

from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run


def test_the_weights_of_two_rewards_are_inferred_and_checkpoints_have_their_base(shared_data: Path) -> None:
    run = read_run(shared_data / "runs" / "trl_lora" / "run")
    assert "Reward weights fitted to 20 logged steps: accuracy_reward 1, format_reward 0.1." in run.source.inferred
    assert ({group.size for group in run.groups}, run.steps) == ({4}, tuple(range(1, 21)))
    assert [(ref.num_updates, Path(ref.base or "").name) for ref in run.weights] == [
        (number, "base_model") for number in (5, 10, 15, 20)
    ]
    assert all(rollout.completion_ids for group in run.groups for rollout in group.rollouts)


def test_what_is_given_leaves_nothing_to_infer(shared_data: Path) -> None:
    folder = shared_data / "runs" / "trl_full"
    run = read_run(
        folder / "run",
        ReadOptions(
            initial_weights=folder / "init_model",
            trainer_args=folder / "RUN.json",
            completion_ids=folder / "true_completion_ids.parquet",
        ),
    )
    assert (run.source.inferred, run.source.missing) == ((), ())
    assert [ref.num_updates for ref in run.weights] == [0, 5, 10, 15, 20]
    assert all(rollout.completion_ids for group in run.groups for rollout in group.rollouts)


@pytest.mark.parametrize(
    ("name", "groups", "noted"),
    [
        ("with_eval", {1: 4, 3: 4}, {2, 4}),  # overwritten by evaluations
        ("eval_logging_steps_3", {3: 4}, {6}),
        ("logging_steps_3", {3: 4, 6: 4, 7: 4}, set()),
        ("duplicate_prompts", {1: 4, 2: 4, 3: 4}, set()),
        ("num_iterations_2", {1: 4, 3: 4}, {1, 3}),
        ("steps_per_generation_2", {1: 8, 3: 8}, {1, 3}),
    ],
)
def test_the_quirks_of_trl(shared_data: Path, name: str, groups: dict[int, int], noted: set[int]) -> None:
    run = read_run(shared_data / "runs" / "quirks" / name)
    assert {step: len(run.groups_at(step)) for step in run.steps} == groups
    assert {group.size for group in run.groups} == {4}
    assert set(run.notes) == noted


@pytest.mark.parametrize("name", ["v1", "legacy"])
def test_verls_dumps(shared_data: Path, name: str) -> None:
    run = read_run(shared_data / "runs" / "verl_sample" / name)
    assert [(step, [group.size for group in run.groups_at(step)]) for step in run.steps] == [(1, [4] * 6), (2, [4] * 6)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_groups", "size", "total"),
    [
        ("gsm8k/example_model_solutions.jsonl", 1319, 4, 290 + 2 * 236 + 3 * 205 + 4 * 156),
        ("reasoning_gym/rg_easy_n3_raw_qwq32b.jsonl.gz", 5050, 3, None),
    ],
)
def test_files_of_samples(shared_data: Path, name: str, num_groups: int, size: int, total: float | None) -> None:
    run = read_run(shared_data / name)
    assert run.source.format == "samples"
    assert len(run.groups) == num_groups
    assert {group.size for group in run.groups} == {size}
    reward_sum = sum(reward for group in run.groups for reward in group.rewards if reward is not None)
    assert total is None or reward_sum == pytest.approx(total, abs=0.1)
    assert run.source.quarantined.num_rows == 0
