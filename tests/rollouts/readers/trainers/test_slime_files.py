from pathlib import Path

from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.trainers.slime_files import evaluation_rows
from tests.rollouts.readers.lines import rewards_of, set_aside
from tests.rollouts.readers.reduced import assert_reduced_alike
from tests.rollouts.readers.trainers.test_token_logs import archive, sample


def cut(index: int, reward: float, *tokens: int) -> dict[str, object]:
    return sample(index, rollout_id=index, reward=reward, tokens=list(tokens), prompt="2+2?", response=str(tokens))


def test_a_rollout_that_was_cut_into_samples_counts_once(tmp_path: Path) -> None:
    """As agents' are, whose contexts are compacted: the samples share index, group and rollout."""
    samples = [cut(0, 1.0, 5, 9, 2), cut(0, 1.0, 5, 9, 3), cut(0, 1.0, 5, 9, 2), cut(1, 0.0, 5, 9, 4)]
    path = archive(tmp_path / "rollout_data/3.pt", {"rollout_id": 3, "samples": samples})
    run = read_run(path)
    assert (rewards_of(run), set_aside(run)) == ({"3:0": (1.0, 0.0)}, {})
    first, second = run.groups[0].rollouts
    assert [of.completion_ids for of in first.earlier] + [first.completion_ids] == [(9, 2), (9, 3), (9, 2)]
    assert (second.earlier, "several sequences" in run.source.inferred[0]) == ((), True)
    assert_reduced_alike(path)


def test_samples_of_one_rollout_with_rewards_of_their_own_all_count(tmp_path: Path) -> None:
    """As those of several agents: the mean over what slime's own rewards within a group are centred on."""
    samples = [cut(0, 1.0, 5, 9, 2), cut(0, 0.5, 5, 9, 3), {**cut(1, 0.0, 5, 9, 4), "rollout_id": [[]]}]
    run = read_run(archive(tmp_path / "rollout_data/3.pt", {"rollout_id": 3, "samples": samples}))
    assert (rewards_of(run), set_aside(run)) == ({"3:0": (1.0, 0.5, 0.0)}, {})


def test_an_evaluation_is_grouped_by_prompts_and_told_from_training(tmp_path: Path) -> None:
    """slime numbers the samples of each data set from 0, and no group."""
    numbered = [("a", 1.0), ("a", 0.0), ("b", 0.0), ("b", 0.0), ("c", 1.0), ("c", 1.0)]
    samples = [
        sample(at % 4, group_index=None, reward=reward, prompt=prompt) for at, (prompt, reward) in enumerate(numbered)
    ]
    path = archive(tmp_path / "rollout_data/eval_7.pt", {"rollout_id": 7, "samples": samples})
    run = read_run(path)
    assert (run.source.format, run.steps, list(rewards_of(run).values())) == (
        "slime-eval",
        (7,),
        [(1.0, 0.0), (0.0, 0.0), (1.0, 1.0)],
    )
    assert [row["group_index"] for _, row in evaluation_rows(path, QuarantineLog())] == [0, 0, 1, 1, 2, 2]
    archive(tmp_path / "rollout_data/7.pt", {"rollout_id": 7, "samples": [cut(0, 1.0, 5, 9, 2), cut(1, 0.0, 5, 9, 4)]})
    both = read_run(tmp_path)
    assert (both.source.format, rewards_of(both)) == ("slime", {"7:0": (1.0, 0.0)})
