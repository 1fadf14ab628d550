from pathlib import Path
from typing import Any, cast

import pytest
import torch

from gradscope import replay_run
from gradscope.rollouts.run_folder import read_manifest
from gradscope.rollouts.store import read_steps
from gradscope.training.recording.rows import local_rows
from tests.training.stock import answer, assert_reproduced, record, short


def _spread(completions: list[Any], **_: Any) -> list[float]:
    return [float(row % 2) for row, _ in enumerate(completions)]


def _every_other(completions: list[Any], **_: Any) -> list[float | None]:
    return [None if row % 2 == 0 else 1.0 for row, _ in enumerate(completions)]


@pytest.mark.slow
def test_conversations_keep_their_messages_and_the_models_name(tmp_path: Path, chat_model: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": f"{n} and {n}?"}], "answer": str(2 * n)} for n in range(4)]
    trainer, run = record(tmp_path, model=chat_model, rows=rows, rewards=_spread, max_completion_length=8)
    assert_reproduced(replay_run(run))
    groups = read_steps(run)
    assert all(list(group.rollouts[0].messages or ()) in [row["prompt"] for row in rows] for group in groups)
    assert groups[0].rollouts[0].prompt.endswith("?")
    assert read_manifest(run).model == str(chat_model)
    tokenizer = trainer.processing_class
    for rollout in groups[0].rollouts:
        assert tokenizer.decode(list(rollout.prompt_ids or ())).endswith("<|assistant|>")
        assert rollout.status == ("completed" if (rollout.completion_ids or ())[-1] in (0, 1) else "truncated")


@pytest.mark.slow
def test_a_reward_that_is_none_is_missing_and_one_that_all_lack_leaves_no_reward(tmp_path: Path) -> None:
    _, run = record(tmp_path, rewards=[short, _every_other], reward_weights=[1.0, 2.0], max_steps=1)
    rollouts = [rollout for group in read_steps(run) for rollout in group.rollouts]
    assert {row for row, rollout in enumerate(rollouts) if rollout.rewards["short"] is None} == set(range(0, 16, 3))
    assert {row for row, rollout in enumerate(rollouts) if rollout.reward is None} == {0, 6, 12}
    for rollout in rollouts:
        first, second = rollout.rewards["short"], rollout.rewards["_every_other"]
        expected = None if first is None and second is None else (first or 0.0) + 2.0 * (second or 0.0)
        assert rollout.reward == (None if expected is None else pytest.approx(expected))


@pytest.mark.slow
def test_an_update_of_several_batches_has_all_of_them_and_two_functions_have_two_names(tmp_path: Path) -> None:
    arguments = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "steps_per_generation": 1}
    _, run = record(tmp_path, rewards=[answer, answer], loss_type="grpo", max_steps=2, **arguments)
    assert list(read_steps(run)[0].rollouts[0].rewards) == ["answer", "answer_2"]
    assert [group.group_id for group in read_steps(run)[:4]] == [f"00001-{index:03d}" for index in range(4)]
    (first, _) = replay_run(run).steps
    assert first.cause is not None
    assert first.cause.startswith("an update covers several generation batches")


class _Words:
    """A tokenizer that gives every token the same word."""

    def decode(self, ids: list[int], **_: Any) -> str:
        return "w" * len(ids)


@pytest.mark.parametrize(
    ("logged", "corrected", "sampler", "trainers"),
    [
        ({"sampling_per_token_logps": -1.0, "old_per_token_logps": -2.0}, True, (-1.0,) * 2, (-2.0,) * 2),
        ({"sampling_per_token_logps": -1.0, "old_per_token_logps": -2.0}, False, (-2.0,) * 2, None),
        ({"old_per_token_logps": -2.0}, True, (-2.0,) * 2, None),
        ({"sampling_per_token_logps": -1.0}, True, (-1.0,) * 2, None),
        ({}, True, None, None),
    ],
)
def test_rows_have_the_trainers_log_probabilities_and_those_of_a_sampler(
    logged: dict[str, float], corrected: bool, sampler: tuple[float, ...] | None, trainers: tuple[float, ...] | None
) -> None:
    output = {
        "prompt_ids": torch.tensor([[5]]),
        "prompt_mask": torch.tensor([[1]]),
        "advantages": torch.tensor([0.5]),
        **{name: torch.full((1, 3), value) for name, value in logged.items()},
    }
    (row,) = local_rows(
        [{"prompt": "p"}], output, [[7, 2]], tokenizer=cast(Any, _Words()), end_ids={2}, corrected=corrected
    )
    assert (row["logprobs"], row["trainer_logprobs"]) == (sampler, trainers)
