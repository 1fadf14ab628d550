import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gradscope import replay_run
from gradscope.errors import InputError, UsageError
from gradscope.rollouts.run_folder import heldout_path, read_manifest, read_metrics, step_path
from gradscope.rollouts.store import read_steps
from gradscope.training.config import TrainConfig
from gradscope.training.grpo.policy import (
    EMBEDDED_FOLDER,
    AnswerProbability,
    HeldoutSampling,
    _prompt_cache,
    _split_ids,
    check_prompts,
    load_trained_policy,
    sample,
)
from gradscope.training.tasks.load import load_task
from gradscope.training.tasks.running_sums import ANSWER_MARK, grade_answer, grade_steps
from gradscope.training.tasks.task import AnswerMark, Problem, incoherence_sentence
from gradscope.training.train import train
from tests.gradients.models import plain_logprobs
from tests.trained import HELD_OUT, MakeRun
from tests.training.conftest import build_tokenizer, model_before, rollouts_at, save_model, short_config

HELLO = Problem(prompt_id="hello", prompt="How many?", answer="5")


def test_embedded_model_is_small_and_has_one_token_a_character() -> None:
    policy = load_trained_policy("embedded", dtype="float32", chat=True)
    assert sum(parameter.numel() for parameter in policy.model.parameters()) < 100_000
    assert (EMBEDDED_FOLDER / "model.safetensors").stat().st_size < 500_000
    tokenizer = policy.tokenizer
    assert tokenizer.decode(policy.encode(Problem(prompt_id="p", prompt="a7b5=", answer="12"))) == "a7b5="
    assert policy.eos_ids() == {tokenizer.eos_token_id}
    assert not policy.chat
    ids = tokenizer("a7b5c8=b12c20#20")["input_ids"]
    assert len(ids) == 16
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == "a7b5c8=b12c20#20"
    with pytest.raises(InputError, match="hello has characters that the model's tokenizer does not know"):
        check_prompts(policy, [HELLO], 8)


def test_chat_template_is_used_where_there_is_one(chat_model: Path) -> None:
    policy = load_trained_policy(str(chat_model), dtype="float32", chat=True)
    assert policy.messages(HELLO) == [{"role": "user", "content": "How many?"}]
    assert policy.tokenizer.decode(policy.encode(HELLO)) == "<|user|>How many?<eos><|assistant|>"
    assert policy.notes == ()


def test_missing_padding_and_template_are_made_up_for_and_noted(gpt2_model: Path) -> None:
    policy = load_trained_policy(str(gpt2_model), dtype="float32", chat=True)
    assert (policy.tokenizer.pad_token, policy.messages(HELLO)) == ("<eos>", None)
    parts = ("padding token", "chat template")
    assert [note.partition(";")[0] for note in policy.notes] == [f"The tokenizer has no {part}" for part in parts]


def spoiled(folder: Path, damage: str) -> None:
    """A model folder with one damage."""
    if damage == "adapter":
        folder.mkdir()
        (folder / "adapter_config.json").write_text("{}")
    elif damage != "no folder":
        save_model(folder, eos=damage != "no end", vocab_size=40 if damage == "other tokenizer" else 300)
    config, weights = folder / "config.json", folder / "model.safetensors"
    settings = {"other shape": {"hidden_size": 32}, "too few weights": {"num_hidden_layers": 2}}
    if damage in settings:
        config.write_text(json.dumps(json.loads(config.read_text()) | settings[damage]))
    elif damage == "pickle":
        weights.rename(folder / "pytorch_model.bin")
    elif damage == "cut off":
        weights.write_bytes(weights.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("no end", "has no end-of-sequence token"),
        ("other tokenizer", r"has 2\d\d tokens and the model embeds 40"),
        *((damage, "cannot be read") for damage in ("no folder", "pickle", "cut off", "other shape")),
        ("too few weights", "lacks 9 of the model's weights"),
        ("adapter", "is an adapter; a run starts from a whole model"),
    ],
)
def test_a_folder_that_cannot_be_trained_is_refused(tmp_path: Path, damage: str, message: str) -> None:
    spoiled(tmp_path / "m", damage)
    with pytest.raises(InputError, match=message):
        load_trained_policy(str(tmp_path / "m"), dtype="float32", chat=True)


def test_long_prompts_are_refused(tmp_path: Path) -> None:
    policy = load_trained_policy(str(save_model(tmp_path / "m", positions=64)), dtype="float32", chat=True)
    check_prompts(policy, [HELLO], 32)
    with pytest.raises(InputError, match=r"hello has \d+ tokens; with 60 of a completion .* 64 positions"):
        check_prompts(policy, [HELLO], 60)


DENSE = {"reward": "answer_probability"}


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
            piece = max((piece for piece in self._pieces[1:] if text.startswith(piece)), key=len)
            ids.append(self._pieces.index(piece))
            text = text[len(piece) :]
        return {"input_ids": ids}

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(self._pieces[token] for token in ids)


@pytest.mark.parametrize(
    ("pieces", "sampled", "inputs", "scored"),
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
def test_joins(pieces: tuple[str, ...], sampled: list[str], inputs: list[str], scored: list[str]) -> None:
    sampled_ids, *expected = (tuple(pieces.index(piece) + 1 for piece in names) for names in (sampled, inputs, scored))
    reasoning = ANSWER_MARK.reasoning("".join(sampled))
    assert _split_ids(Pieces(*pieces), list(sampled_ids), reasoning, "7") == tuple(expected)


def test_joins_of_a_byte_level_tokenizer() -> None:
    tokenizer = build_tokenizer(["so it is #### 72", "#### 72 and #### 7 é"])
    mark = AnswerMark(text="####", is_last=True)
    for text in ("so it is #### 7", "é #### é", "so", "####", ""):
        sampled, reasoning = tokenizer(text)["input_ids"], mark.reasoning(text)
        inputs, scored = _split_ids(tokenizer, sampled, reasoning, " 72")
        assert inputs == tuple(sampled[: len(inputs)])
        assert tokenizer.decode([*inputs, *scored]) == reasoning + " 72"


def test_by_hand() -> None:
    """A model that always says a with probability 1/2, b 1/4, c and the end 1/8."""
    tokenizer = Pieces("a", "b", "#")
    logits = torch.log(torch.tensor([1 / 8, 1 / 2, 1 / 4, 1 / 8]))

    policy: Any = SimpleNamespace(
        tokenizer=tokenizer,
        model=None,
        eos_ids=lambda: frozenset([0]),
        encode=lambda problem: list(tokenizer(problem.prompt)["input_ids"]),
    )
    shapes = []

    def forward(ids: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(ids.shape))
        return logits.expand(*ids.shape, 4)

    problems = [Problem(prompt_id="p", prompt="aa", answer=answer) for answer in ("ab", "ab", "b", "")]
    completions = [[1, 3, 2, 0], [1, 3, 2, 0], [2, 2], [0]]
    first = AnswerProbability(policy, ANSWER_MARK, temperature=1.0, batch_size=2)
    first.forward = forward
    # a, b, end; the same; without a mark it is scored too: #, b, end; and #, end
    assert first(problems, completions) == [round(1 / 64, 6), round(1 / 64, 6), round(1 / 256, 6), round(1 / 64, 6)]
    assert shapes == [(2, 7), (1, 4)]  # equal rows are computed once
    cold = AnswerProbability(policy, ANSWER_MARK, temperature=0.5, batch_size=4)
    cold.forward = forward
    squares = np.array([1 / 64, 1 / 4, 1 / 16, 1 / 64])
    p_end, p_a, p_b, _ = squares / squares.sum()
    assert cold(problems[:1], completions[:1]) == [round(p_a * p_b * p_end, 6)]


@pytest.mark.parametrize("settings", [HELD_OUT, {"temperature": 0.7, "lora_rank": 2}], ids=str)
def test_recorded_rewards_are_of_the_weights_before_the_step(short_run: MakeRun, settings: dict[str, Any]) -> None:
    run = short_run(**DENSE, **settings)
    policy = load_trained_policy("embedded", dtype="float32", chat=False)
    for step in (1, 3):
        model = model_before(run, step)
        for rollout in rollouts_at(run, step):
            answer = str(sum(int(character) for character in rollout.prompt if character.isdigit()))
            inputs = policy.tokenizer(rollout.prompt + ANSWER_MARK.reasoning(rollout.completion))["input_ids"]
            scored = [*policy.tokenizer(answer)["input_ids"], policy.tokenizer.eos_token_id]
            with torch.no_grad():
                tokens = SimpleNamespace(prompt_ids=inputs, completion_ids=scored)
                logprobs = plain_logprobs(model, tokens, settings.get("temperature", 1.0))
            assert rollout.reward == rollout.rewards["answer_probability"]
            assert rollout.reward == pytest.approx(logprobs.sum().exp().item(), abs=2e-6)
            assert rollout.rewards["answer"] == grade_answer(rollout.completion, answer)


def test_everything_of_such_a_run_is_reproduced(short_run: MakeRun) -> None:
    run = short_run(**DENSE, **HELD_OUT)
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
    dense, sparse = ([rollout.completion_ids for rollout in rollouts_at(folder, 1)] for folder in (run, short_run()))
    assert dense == sparse


@pytest.mark.slow
def test_a_task_from_a_file(tmp_path: Path, gsm8k_file: Path, chat_model: Path) -> None:
    settings = {"task": "gsm8k", "data": str(gsm8k_file), "model": str(chat_model), **HELD_OUT}
    settings |= {"heldout_prompts": 2, "train_prompts": None, "num_prompts": 2, "steps": 1, "max_completion_length": 8}
    run = train(short_config(tmp_path / "run", **DENSE, **settings))
    assert all(0.0 <= (rollout.reward or 0.0) <= 1.0 for group in read_steps(run) for rollout in group.rollouts)
    assert "num_rewarded" not in read_metrics(run)[1]
    assert incoherence_sentence(run) is None


@pytest.mark.slow
def test_the_answer_must_fit_the_models_positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Path] = []
    monkeypatch.setattr("gradscope.training.run_training.fit", lambda run, *_, **__: trained.append(run))
    problems = load_task(short_config(tmp_path, **DENSE)).train
    answer = 1 + max(len(problem.answer) for problem in problems) + 1  # the mark, digits, the end
    room = 64 - max(len(problem.prompt) for problem in problems) - answer
    train(short_config(tmp_path / "fits", max_completion_length=room, **DENSE))
    with pytest.raises(InputError, match="does not fit the model's 64 positions"):
        train(short_config(tmp_path / "long", max_completion_length=room + 1, **DENSE))
    train(short_config(tmp_path / "plain", max_completion_length=room + 1))
    assert trained == [tmp_path / "fits", tmp_path / "plain"]


@pytest.mark.parametrize(
    ("name", "words"),
    [("sign", "sign is defined for rewards of 0 and 1, and --reward"), ("per_step", "per_step reads rewards of steps")],
)
def test_formulations_that_cannot_have_it(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        train(short_config(tmp_path / "run", advantage=name, **DENSE))
    assert not (tmp_path / "run").exists()
    for task in ("starved", "steps"):
        with pytest.raises(UsageError, match=f"The answer of the task {task} is the whole completion"):
            TrainConfig.from_json(DENSE | {"task": task})


@pytest.mark.parametrize("prompts", [("a7b5=", "a7b5c8d9="), ("a",)], ids=["of two lengths", "of one token"])
def test_a_shared_cache_changes_no_sample(prompts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    policy = load_trained_policy("embedded", dtype="float32", chat=False)
    problems = [Problem(prompt_id=prompt, prompt=prompt, answer="") for prompt in prompts]
    sampling = HeldoutSampling(num_samples=16, batch_size=64, max_completion_length=20, temperature=1.0, seed=3)
    shared = sample(policy, problems, sampling)
    monkeypatch.setattr("gradscope.training.grpo.policy._prompt_cache", lambda *_: None)
    assert sample(policy, problems, sampling) == shared
    assert len(set(shared)) > 1


def test_a_model_with_another_cache_samples_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = load_trained_policy("embedded", dtype="float32", chat=False)
    batch = {"input_ids": torch.tensor([[1, 2, 3]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    monkeypatch.setattr(policy.model, "get_decoder", lambda: lambda **_: SimpleNamespace(past_key_values=None))
    assert _prompt_cache(policy.model, batch, 2) is None


def test_heldout_samples_before_and_after(short_run: MakeRun) -> None:
    run = short_run(**HELD_OUT)
    for when in ("before", "after"):
        rows = [json.loads(line) for line in heldout_path(run, when).read_text().splitlines()]  # type: ignore[arg-type]
        assert len(rows) == 16
        assert [rows[i]["prompt_id"] for i in range(0, 16, 4)] == list(dict.fromkeys(row["prompt_id"] for row in rows))
        assert {row["prompt_id"] for row in rows}.isdisjoint(group.prompt_id for group in read_steps(run))
        assert all(row["reward"] == grade_answer(row["completion"], row["answer"]) for row in rows)
        assert all(row["correct"] is (row["reward"] == 1.0) for row in rows)
    # held-out sampling does not touch the training
    assert not heldout_path(short_run(), "before").exists()
    assert step_path(short_run(), 3).read_bytes() == step_path(run, 3).read_bytes()


def test_rewards_are_the_graders(short_run: MakeRun) -> None:
    for group in read_steps(short_run()):
        answer = str(sum(int(character) for character in group.prompt_id if character.isdigit()))
        for rollout in group.rollouts:
            assert rollout.reward == rollout.rewards["answer"] == grade_answer(rollout.completion, answer)
            assert len(rollout.token_rewards) == len(rollout.completion_ids)
            assert sum(rollout.token_rewards) == sum(grade_steps(rollout.prompt, list(rollout.completion)))
