"""The probability of the true answer as reward: by hand, against a plain forward, and through whole runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope import replay_run
from gradscope.errors import InputError, UsageError
from gradscope.rollouts.run_folder import checkpoint_path, heldout_path, read_manifest, read_metrics
from gradscope.rollouts.store import read_steps
from gradscope.training.grpo.answer_probability import AnswerProbability, split_ids
from gradscope.training.grpo.policy import load_trained_policy
from gradscope.training.setup.config import TrainConfig
from gradscope.training.tasks.incoherence import incoherence_sentence
from gradscope.training.tasks.load import load_task
from gradscope.training.tasks.running_sums import ANSWER_MARK, grade_answer
from gradscope.training.tasks.task import AnswerMark, Problem
from gradscope.training.train import train
from tests.training.conftest import SHORT, build_tokenizer

MakeRun = Callable[..., Path]


DENSE = {"reward": "answer_probability"}


def short(output: Path, **settings: Any) -> TrainConfig:
    return TrainConfig.from_json(SHORT | DENSE | settings | {"output": str(output)})


@pytest.mark.parametrize(
    ("mark", "completion", "reasoning"),
    [
        (ANSWER_MARK, "b12c20#20", "b12c20#"),
        (ANSWER_MARK, "b12#12#13", "b12#"),
        (ANSWER_MARK, "b12c2", "b12c2#"),
        (AnswerMark(text="####", is_last=True), "a #### 3 b #### 4", "a #### 3 b ####"),
        (AnswerMark(text="####", is_last=True), "a 3", "a 3####"),
    ],
)
def test_where_reasoning_ends(mark: AnswerMark, completion: str, reasoning: str) -> None:
    assert mark.reasoning(completion) == reasoning


class Pieces:
    """A tokenizer whose tokens are these pieces of text, the longest first."""

    eos_token_id = 0

    def __init__(self, *pieces: str) -> None:
        self._pieces = ("", *pieces)

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        ids = []
        while text:
            piece = max((one for one in self._pieces[1:] if text.startswith(one)), key=len)
            ids.append(self._pieces.index(piece))
            text = text[len(piece) :]
        return {"input_ids": ids}

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(self._pieces[token] for token in ids)


@pytest.mark.parametrize(
    ("pieces", "sampled", "given", "scored"),
    [
        # the tokens of the reasoning as sampled, not as the tokenizer would make them of the same text
        (("a", "aa", "#", "7", "8"), ["a", "a", "#", "8"], ["a", "a", "#"], ["7"]),
        # the mark is the beginning of a sampled token
        (("a", "#", "#8", "7", "8"), ["a", "#8"], ["a"], ["#", "7"]),
        # the mark and the true answer are one token
        (("a", "#", "#7", "7", "8"), ["a", "#", "8"], ["a"], ["#7"]),
        # no mark
        (("a", "#", "7", "8"), ["a", "8"], ["a", "8"], ["#", "7"]),
    ],
)
def test_joins(pieces: tuple[str, ...], sampled: list[str], given: list[str], scored: list[str]) -> None:
    tokenizer = Pieces(*pieces)
    ids = {
        name: [pieces.index(piece) + 1 for piece in names]
        for name, names in {"sampled": sampled, "given": given, "scored": scored}.items()
    }
    found = split_ids(tokenizer, ids["sampled"], ANSWER_MARK.reasoning("".join(sampled)), "7")
    assert found == (tuple(ids["given"]), tuple(ids["scored"]))


def test_joins_of_a_byte_level_tokenizer() -> None:
    tokenizer = build_tokenizer(["so it is #### 72", "#### 72 and #### 7 é"])
    mark = AnswerMark(text="####", is_last=True)
    for text in ("so it is #### 7", "é #### é", "so", "####", ""):
        sampled, reasoning = tokenizer(text)["input_ids"], mark.reasoning(text)
        given, scored = split_ids(tokenizer, sampled, reasoning, " 72")
        assert given == tuple(sampled[: len(given)])
        assert tokenizer.decode([*given, *scored]) == reasoning + " 72"


def test_by_hand() -> None:
    """A model that always says a with probability 1/2, b 1/4, c and the end 1/8."""
    import torch

    tokenizer = Pieces("a", "b", "#")
    logits = torch.log(torch.tensor([1 / 8, 1 / 2, 1 / 4, 1 / 8]))

    class Policy:
        def __init__(self) -> None:
            self.tokenizer, self.model = tokenizer, None

        def eos_ids(self) -> frozenset[int]:
            return frozenset([0])

        def encode(self, problem: Problem) -> list[int]:
            return list(tokenizer(problem.prompt)["input_ids"])

    shapes = []

    def forward(ids: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(ids.shape))
        return logits.expand(*ids.shape, 4)

    problems = [Problem(prompt_id="p", prompt="aa", answer=answer) for answer in ("ab", "ab", "b", "")]
    completions = [[1, 3, 2, 0], [1, 3, 2, 0], [2, 2], [0]]
    one = AnswerProbability(Policy(), ANSWER_MARK, temperature=1.0, rows_at_once=2)  # type: ignore[arg-type]
    one.forward = forward
    # a, b, end; the same; without a mark it is scored too: #, b, end; and #, end
    assert one(problems, completions) == [round(1 / 64, 6), round(1 / 64, 6), round(1 / 256, 6), round(1 / 64, 6)]
    assert shapes == [(2, 7), (1, 4)]  # equal rows are computed once
    cold = AnswerProbability(Policy(), ANSWER_MARK, temperature=0.5, rows_at_once=4)  # type: ignore[arg-type]
    cold.forward = forward
    squares = np.array([1 / 64, 1 / 4, 1 / 16, 1 / 64])
    of_end, of_a, of_b, _ = squares / squares.sum()
    assert cold(problems[:1], completions[:1]) == [round(of_a * of_b * of_end, 6)]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}, {"lora_rank": 2}, {"sampling": "reallocated"}], ids=str)
def test_recorded_rewards_are_those_of_the_weights_before_the_step(
    short_run: MakeRun, settings: dict[str, Any]
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    run = short_run(**DENSE, **settings)
    policy = load_trained_policy("embedded", dtype="float32", chat=False)
    for step in (1, 3):
        model = AutoModelForCausalLM.from_pretrained(checkpoint_path(run, step - 1))
        for rollout in (r for group in read_steps(run) if group.step == step for r in group.rollouts):
            answer = str(sum(int(character) for character in rollout.prompt if character.isdigit()))
            given = policy.tokenizer(rollout.prompt + ANSWER_MARK.reasoning(rollout.completion))["input_ids"]
            scored = [*policy.tokenizer(answer)["input_ids"], policy.tokenizer.eos_token_id]
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([[*given, *scored]])).logits[0] / settings.get("temperature", 1.0)
            places = torch.log_softmax(logits[len(given) - 1 : -1], -1).gather(-1, torch.tensor(scored)[:, None])
            assert rollout.reward == rollout.rewards["answer_probability"]
            assert rollout.reward == pytest.approx(places.sum().exp().item(), abs=2e-6)
            assert rollout.rewards["answer"] == grade_answer(rollout.completion, answer)


@pytest.mark.slow
def test_everything_of_such_a_run_is_reproduced(short_run: MakeRun) -> None:
    run = short_run(**DENSE)
    manifest = read_manifest(run)
    assert manifest.trainer_arguments["reward_weights"] == [0.0, 1.0]
    assert manifest.config["reward"] == "answer_probability"
    assert "probability of the true answer" in manifest.notes[1]
    report = replay_run(run)
    assert report.verdict == "match"
    for step in report.steps:
        verdicts = {quantity.name: quantity.verdict for quantity in step.quantities}
        assert {verdicts[name] for name in ("reward", "advantage", "frac_reward_zero_std")} == {"match"}
        assert step.relative_error.get("grad_norm", 0.0) < 1e-5
    rows = [json.loads(line) for line in (heldout_path(run, "after") or Path()).read_text().splitlines()]
    assert {row["reward"] for row in rows} <= {0.0, 1.0}
    assert all(row["correct"] is (row["reward"] == 1.0) for row in rows)


@pytest.mark.slow
def test_the_first_rollouts_are_those_of_the_outcome(short_run: MakeRun) -> None:
    dense, plain = (
        [rollout.completion_ids for group in read_steps(run) if group.step == 1 for rollout in group.rollouts]
        for run in (short_run(**DENSE), short_run())
    )
    assert dense == plain


@pytest.mark.slow
def test_a_task_from_a_file(tmp_path: Path, gsm8k_file: Path, chat_model: Path) -> None:
    settings = {"task": "gsm8k", "data": str(gsm8k_file), "model": str(chat_model), "heldout_prompts": 2}
    settings |= {"train_prompts": None, "num_prompts": 2, "steps": 1, "max_completion_length": 8}
    run = train(short(tmp_path / "run", **settings))
    assert all(0.0 <= (rollout.reward or 0.0) <= 1.0 for group in read_steps(run) for rollout in group.rollouts)
    assert "num_rewarded" not in read_metrics(run)[1]
    assert incoherence_sentence(run) is None


@pytest.mark.slow
def test_the_answer_must_fit_the_models_positions(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"steps": 1, "heldout_prompts": 0}
    problems = load_task(short(tmp_path, **settings)).train
    answer = 1 + max(len(problem.answer) for problem in problems) + 1  # the mark, digits, the end
    room = 64 - max(len(problem.prompt) for problem in problems) - answer
    train(short(tmp_path / "fits", max_completion_length=room, **settings))
    with pytest.raises(InputError, match="does not fit the model's 64 positions"):
        train(short(tmp_path / "long", max_completion_length=room + 1, **settings))
    train(short(tmp_path / "plain", max_completion_length=room + 1, reward="outcome", **settings))


@pytest.mark.parametrize("task", ["starved", "steps"])
def test_tasks_without_reasoning(task: str) -> None:
    with pytest.raises(UsageError, match=f"The answer of the task {task} is the whole completion"):
        TrainConfig.from_json(DENSE | {"task": task})


@pytest.mark.parametrize(
    ("name", "words"),
    [("sign", "sign is defined for rewards of 0 and 1, and --reward"), ("per_step", "per_step reads rewards of steps")],
)
def test_formulations_that_cannot_have_it(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        train(short(tmp_path / "run", advantage=name))
    assert not (tmp_path / "run").exists()
