import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gradscope.advantages.group import return_to_go
from gradscope.advantages.online import Memory, StepRollouts
from gradscope.advantages.registry import compute_advantages
from gradscope.rollouts.groups import RolloutGroup
from gradscope.rollouts.run_folder import checkpoint_path, metrics_path, read_metrics
from gradscope.rollouts.store import read_steps
from gradscope.training.config import TrainConfig
from gradscope.training.grpo.trainer import HEADS, NormMatch, TokenCritic, _batch_numbers
from gradscope.training.train import train
from tests.diagnostics.made_up_runs import group_of, with_fields
from tests.gradients.models import plain_logprobs
from tests.trained import MakeRun
from tests.training.conftest import model_before, rollouts_at, short_config


def test_every_step_has_its_groups_whose_ids_and_texts_belong_together(short_run: MakeRun) -> None:
    from transformers import AutoTokenizer

    run = short_run()
    groups, tokenizer = read_steps(run), AutoTokenizer.from_pretrained(checkpoint_path(run, 0))
    assert [group.step for group in groups] == [1] * 4 + [2] * 4 + [3] * 4
    assert [group.group_id for group in groups[4:8]] == ["00002-000", "00002-001", "00002-002", "00002-003"]
    assert all([rollout.sample for rollout in group.rollouts] == [0, 1, 2, 3] for group in groups)
    assert [rollout.row for group in groups[:4] for rollout in group.rollouts] == list(range(16))
    assert len({group.prompt_id for group in groups}) == 8  # each of the eight prompts, twice in 12 groups at most
    for group in groups:
        for rollout in group.rollouts:
            assert tokenizer.decode(rollout.prompt_ids) == rollout.prompt == group.prompt_id
            assert tokenizer.decode(rollout.completion_ids, skip_special_tokens=True) == rollout.completion
            ended = rollout.completion_ids[-1] == tokenizer.eos_token_id
            assert rollout.status == ("completed" if ended else "truncated")
            assert tokenizer.eos_token_id not in rollout.completion_ids[:-1]


def test_metrics_have_the_trainers_norm_and_share_of_degenerate_groups(short_run: MakeRun) -> None:
    run = short_run()
    metrics = read_metrics(run)
    assert list(metrics) == [1, 2, 3]
    assert [json.loads(line)["step"] for line in metrics_path(run).read_text().splitlines()] == [1, 2, 3]
    for step, values in metrics.items():
        rewards = [group.rewards for group in read_steps(run) if group.step == step]
        degenerate = sum(len(set(group)) == 1 for group in rewards)
        assert values["num_groups"] == 4
        assert values["num_degenerate_groups"] == degenerate
        assert values["frac_reward_zero_std"] == degenerate / 4
        assert values["reward"] == pytest.approx(np.mean(rewards))
        assert values["grad_norm"] > 0
        assert values["learning_rate"] == TrainConfig().learning_rate


def group(number: int, rewards: list[float], lengths: list[int], status: Any = "completed") -> RolloutGroup:
    made = group_of(rewards, prompt=str(number), functions={"answer": rewards})
    return with_fields(made, completion_ids=[(1,) * length for length in lengths], status=status)


def test_of_the_batch_by_hand() -> None:
    numbers = _batch_numbers([group(0, [1.0, 1.0], [2, 4]), group(1, [0.0, 1.0, 0.0], [9, 9, 6], "truncated")])
    # 3 of 5 pass: variance 5/4 x 3/5 x 2/5 = 3/10
    assert numbers["reward"] == numbers["rewards/answer/mean"] == pytest.approx(0.6)
    assert numbers["reward_std"] == numbers["rewards/answer/std"] == pytest.approx(0.3**0.5)
    assert numbers["frac_reward_zero_std"] == 0.5  # a group is a group, whatever its size
    assert numbers["completions/clipped_ratio"] == pytest.approx(0.6)
    lengths = [numbers[f"completions/{name}_length"] for name in ("mean", "min", "max")]
    assert lengths == [6.0, 2.0, 9.0]
    assert numbers["completions/mean_terminated_length"] == 3.0
    unended = _batch_numbers([group(0, [1.0, 0.0], [2, 4], "truncated")])
    assert (unended["completions/max_terminated_length"], unended["completions/clipped_ratio"]) == (0.0, 1.0)


def assert_logprobs(run: Path, *, steps: tuple[int, ...], temperature: float) -> None:
    """Row by row, without any padding, from the checkpoint before each step."""
    for step in steps:
        model = model_before(run, step)
        for rollout in rollouts_at(run, step):
            with torch.no_grad():
                expected = plain_logprobs(model, rollout, temperature)
            np.testing.assert_allclose(rollout.logprobs, expected, rtol=1e-4, atol=1e-5)


def test_advantages_of_tokens_are_recorded_one_a_token(short_run: MakeRun) -> None:
    for group in read_steps(short_run(advantage="per_step")):
        expected = return_to_go([rollout.token_rewards or () for rollout in group.rollouts])
        for rollout, advantage in zip(group.rollouts, expected, strict=True):
            assert rollout.advantage is None
            np.testing.assert_allclose(rollout.token_advantages, advantage, rtol=1e-6, atol=1e-7)


def test_logprobs_are_those_of_the_weights_before_the_step(short_run: MakeRun) -> None:
    run = short_run(advantage="grpo_negative:c=0.5", temperature=0.7, loss_type="grpo")
    assert_logprobs(run, steps=(1, 3), temperature=0.7)


STATES = [[[1.0, 0.0], [0.0, 2.0]], [[1.0, 1.0]]]  # of two rollouts, of two tokens and of one


def step(rewards: Sequence[float] = (1.0, 0.0), states: Any = STATES) -> StepRollouts:
    first = [[7.0, -5.0]]  # before the first token: a critic of what was chosen does not read it
    inputs = None if states is None else [np.array(first + rows, dtype=np.float32) for rows in states]
    nothing: list[list[float]] = [[0.0], [0.0]]
    return StepRollouts(
        rewards=[np.array(rewards)], prompt_ids=("p",), logprobs=nothing, max_logprobs=nothing, states=inputs
    )


def test_two_steps_by_hand() -> None:
    online = HEADS["token_critic"](2, 0.1)
    assert online.by_token
    assert online.remembers
    plus, minus = compute_advantages("grpo", [1.0, 0.0])
    assert [advantage.tolist() for advantage in online.advantages(step())] == [[plus, plus], [minus]]
    assert online.metrics == {"critic_mean_abs": 0.0, "critic_loss": 0.0}
    # gradients: -(plus/3) (1 - 1, 2 - 1) for w, -(plus/3) for c; AdamW's first update is the rate times their signs
    second = online.advantages(step())
    np.testing.assert_allclose(second[0], [plus + 0.1, plus + 2 * 0.1 + 0.1], rtol=1e-6)
    np.testing.assert_allclose(second[1], [minus + 0.1 + 0.1], rtol=1e-6)
    assert online.metrics["critic_mean_abs"] == pytest.approx((0.1 + 0.3 + 0.2) / 3)
    assert online.metrics["critic_loss"] == pytest.approx(-plus * (0.1 + 0.3 - 0.2) / 3)


def test_two_steps_of_a_value_head_by_hand() -> None:
    """Its states are those before each token: (7, -5), (1, 0) of the first rollout and (7, -5) of the second."""
    online = HEADS["gae"](2, 0.1)
    first = online.advantages(step())
    np.testing.assert_allclose(np.concatenate(first), [0.95, 1.0, 0.0])  # no value yet: r 0.95^(T - t)
    # gradients of the mean of (V - R)^2 / 2 with V = 0 and R = .95, 1, 0: -(.95 7 + 1) / 3, (.95 5) / 3, -1.95 / 3;
    # AdamW's first update is the rate times their signs
    weights, bias = np.array([0.1, -0.1]), 0.1
    single, two = np.array([7.0, -5.0]) @ weights + bias, np.array([1.0, 0.0]) @ weights + bias
    second = online.advantages(step())
    np.testing.assert_allclose(second[0], [two - single + 0.95 * (1 - two), 1 - two], rtol=1e-6)
    np.testing.assert_allclose(second[1], [0.0 - single], rtol=1e-6)
    assert online.metrics["critic_mean_abs"] == pytest.approx((2 * single + two) / 3)
    squares = np.concatenate(second) ** 2  # of V against A + V
    assert online.metrics["critic_loss"] == pytest.approx(squares.mean() / 2)


def test_a_dead_group_moves_the_head_no_further_than_its_momentum() -> None:
    online = TokenCritic(2, 0.1)
    assert not np.concatenate(online.advantages(step(rewards=(1.0, 1.0)))).any()
    assert not online.memory.arrays["head"].any()


def test_it_goes_on_from_its_memory() -> None:
    online, restored = TokenCritic(2, 0.1), TokenCritic(2, 0.1)
    online.advantages(step())
    restored.recall(online.memory)
    for rewards in ((0.0, 1.0), (1.0, 0.0)):
        following = [critic.advantages(step(rewards)) for critic in (online, restored)]
        np.testing.assert_array_equal(np.concatenate(following[0]), np.concatenate(following[1]))


def test_memory_of_another_head() -> None:
    online = TokenCritic(2, 0.1)
    online.advantages(step())
    with pytest.raises(ValueError, match="the head that was kept is of another width"):
        TokenCritic(3, 0.1).recall(online.memory)
    with pytest.raises(KeyError, match="head"):
        online.recall(Memory())
    with pytest.raises(ValueError, match="token_critic needs the hidden state of every token"):
        online.advantages(step(states=None))


def test_the_first_step_is_that_of_grpo(short_run: MakeRun) -> None:
    runs = [short_run(advantage=name) for name in ("grpo", "token_critic")]
    for expected, ours in zip(*(rollouts_at(run, 1) for run in runs), strict=True):
        assert expected.completion_ids == ours.completion_ids
        assert set(ours.token_advantages) == {expected.advantage}
    for expected, ours in zip(*(rollouts_at(run, 2) for run in runs), strict=True):  # made by the same weights
        assert expected.logprobs == ours.logprobs
    grpo, critic = map(read_metrics, runs)
    assert grpo[1]["grad_norm"] == critic[1]["grad_norm"]
    assert (critic[1]["critic_mean_abs"], critic[3]["critic_mean_abs"] > 0.0) == (0.0, True)
    assert "critic_loss" not in grpo[1]


@pytest.mark.parametrize(
    ("advantage", "settings"),
    [("token_critic", {"lora_rank": 2, "gradient_accumulation_steps": 4}), ("gae", {})],
    ids=str,
)
def test_the_head_reads_the_states_of_each_token(short_run: MakeRun, advantage: str, settings: dict[str, Any]) -> None:
    """The second step's bonus, from an update by hand on states that a plain forward of each rollout gives."""
    run = short_run(advantage=advantage, checkpoint_every=1, **settings)
    online = HEADS[advantage](64, TrainConfig().critic_learning_rate)
    for number in (1, 2):
        model, states = model_before(run, number), []
        for rollout in rollouts_at(run, number):
            ids = torch.tensor([[*rollout.prompt_ids, *rollout.completion_ids]])
            with torch.no_grad():
                last = model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0]
            states.append(last[len(rollout.prompt_ids) - 1 :].numpy())
        rewards = [np.array(group.rewards, dtype=np.float64) for group in read_steps(run) if group.step == number]
        expected = online.advantages(
            StepRollouts(rewards=rewards, prompt_ids=(), logprobs=(), max_logprobs=(), states=states)
        )
        for ours, rollout in zip(expected, rollouts_at(run, number), strict=True):
            np.testing.assert_allclose(ours, rollout.token_advantages, rtol=1e-4, atol=1e-5)


@pytest.fixture
def norms() -> Iterator[list[float]]:
    """The norm of the gradient that each step of an optimizer starts from."""
    seen: list[float] = []

    def see(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        seen.append(float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])))

    handle = register_optimizer_step_pre_hook(see)
    yield seen
    handle.remove()


def test_each_update_has_the_norm_of_the_log(short_run: MakeRun, tmp_path: Path, norms: list[float]) -> None:
    settings = {"advantage": "batch_mean", "gradient_accumulation_steps": 4}
    run, baseline = train(short_config(tmp_path / "run", match_grad_norm=2.5, **settings)), short_run(**settings)
    assert norms[:3] == pytest.approx([2.5] * 3, rel=1e-5)
    assert read_metrics(run)[1]["grad_norm"] == read_metrics(baseline)[1]["grad_norm"]
    first, second = (checkpoint_path(folder, 3) / "model.safetensors" for folder in (run, baseline))
    assert first.read_bytes() != second.read_bytes()
    model = torch.nn.Linear(2, 1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    NormMatch(1.0).on_pre_optimizer_step(None, None, None, model=model)
    assert not any(parameter.grad.any() for parameter in model.parameters())  # a gradient of zero stays
