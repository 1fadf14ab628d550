import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from gradscope.errors import InputError, UsageError, VerificationError
from gradscope.gradients.model.batches import TrainerPadding
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.step import heldout as heldout_module
from gradscope.gradients.step.heldout import _heldout_sequences, measure_heldout_gram
from gradscope.gradients.step.measure import measure_step
from gradscope.rollouts.groups import Rollout, RolloutGroup
from tests.gradients import models

ANSWERS = (((7, 8, 9), ((3, 4, 1), (5, 1))), ((2, 11), ((6, 6, 12, 1),)), ((19, 20, 21, 2), ((1,), (4, 5, 6, 7, 8, 1))))
SHARES = ((0.75, 0.25), (1.0,), (0.5, 0.5))


def heldout_groups() -> list[RolloutGroup]:
    return [
        prompt_of(f"q{prompt}", *[""] * len(answers), prompt_ids=prompt_ids, all_ids=answers)
        for prompt, (prompt_ids, answers) in enumerate(ANSWERS)
    ]


def expected_of(prepared: PreparedStep, temperature: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of the log-probabilities of the step's rollouts, and C_k, in float64 by autograd alone."""
    model, parameters = models.plain_model(prepared.policy)

    def row(prompt_ids: tuple, completion_ids: tuple) -> np.ndarray:
        answer = SimpleNamespace(prompt_ids=prompt_ids, completion_ids=completion_ids)
        return models.flat_gradient(models.plain_logprobs(model, answer, temperature).sum(), parameters)

    trained = [row(rollout.prompt_ids, rollout.completion_ids) for rollout in prepared.rollouts]
    heldout = [
        sum(share * row(prompt, ids) for share, ids in zip(weights, answers, strict=True))
        for (prompt, answers), weights in zip(ANSWERS, SHARES, strict=True)
    ]
    return np.stack(trained), np.stack(heldout)


@pytest.fixture
def llama() -> PreparedStep:
    return prepare_step(models.tiny_policy("llama_untied_biases"), models.tiny_groups(), models.DAPO)


def close(result: np.ndarray, expected: np.ndarray, tolerance: float = 1e-4) -> bool:
    return bool(np.abs(result - expected).max() <= tolerance * np.abs(expected).max())


@pytest.mark.parametrize(("name", "lora"), [*models.TYPICAL, ("mixtral", False)])
def test_products_are_those_of_plain_gradients(name: str, lora: bool) -> None:
    experts = name == "mixtral"
    policy = (
        models.policy_of(models.tiny_experts(name, implementation="eager"))
        if experts
        else models.tiny_policy(name, lora=lora)
    )
    prepared = prepare_step(policy, models.tiny_groups(), replace(models.DAPO, temperature=0.7))
    step = measure_step(prepared)
    result = measure_heldout_gram(prepared, step, heldout_groups(), SHARES)
    trained, heldout = expected_of(prepared, temperature=0.7)
    weight = models.weight_of(models.tiny_groups())
    assert close(result.cross, weight * trained @ heldout.T)
    assert close(result.norms, np.linalg.norm(heldout, axis=1))
    assert result.scales == pytest.approx(np.full(6, 1.0 / weight))
    assert close(step.score_gram * result.scales, weight * trained @ trained.T)
    assert result.notes == ()


@pytest.mark.parametrize("engine", ["loop", "stream", "prompt"])
def test_every_engine_agrees_and_changes_nothing_of_the_step(engine: str) -> None:
    objective = Objective(loss_type="grpo", beta=0.0)
    prepared = prepare_step(models.tiny_policy("qwen3_gqa_norms"), models.tiny_groups(), objective)
    step = measure_step(prepared, engine=engine)
    before = step.gram.copy(), prepared.plan, prepared.groups
    result = measure_heldout_gram(prepared, step, heldout_groups(), SHARES, engine=engine, verify="all")
    assert np.array_equal(step.gram, before[0])
    assert (prepared.plan is before[1], prepared.groups is before[2]) == (True, True)
    trained, heldout = expected_of(prepared)
    weights = 1.0 / (6 * np.array([len(rollout.completion_ids) for rollout in prepared.rollouts]))
    assert close(result.cross, (weights[:, None] * trained) @ heldout.T)
    assert result.scales == pytest.approx(1 / weights)  # grpo weighs each completion by its own length


def test_a_kl_term_and_an_entropy_bonus_are_none_of_the_answers_rows() -> None:
    policy = models.tiny_policy("llama_untied_biases")
    objective = replace(models.DAPO, beta=0.1, entropy_coef=0.05)
    prepared = prepare_step(replace(policy, reference=copy.deepcopy(policy.model)), models.tiny_groups(), objective)
    trained, heldout = expected_of(prepared)
    result = measure_heldout_gram(prepared, measure_step(prepared), heldout_groups(), SHARES)
    assert close(result.cross, models.weight_of(models.tiny_groups()) * trained @ heldout.T)


def test_tokens_that_nobody_sampled_are_no_part_of_an_answer(llama: PreparedStep) -> None:
    (group, *_), step = heldout_groups(), measure_step(llama)
    first, second = group.rollouts
    masked = replace(group, rollouts=(replace(first, mask=(False, False, False)), second))
    single = replace(group, rollouts=(second,))
    halved, full = (
        measure_heldout_gram(llama, step, [answers], [shares]).norms
        for answers, shares in ((masked, (0.5, 0.5)), (single, (1.0,)))
    )
    assert 2 * halved == pytest.approx(full, rel=1e-4)


def test_rollouts_whose_tokens_weigh_unequally_have_no_scale(llama: PreparedStep) -> None:
    plan = llama.plan
    uneven = [torch.linspace(1, 2, len(weights), dtype=torch.float64) * weights for weights in plan.weights]
    other = replace(llama, plan=replace(plan, weights=tuple(uneven)))
    assert measure_heldout_gram(other, measure_step(other), heldout_groups(), SHARES).scales is None
    empty = replace(llama, plan=replace(plan, weights=(torch.zeros_like(plan.weights[0]), *plan.weights[1:])))
    scales = measure_heldout_gram(empty, measure_step(empty), heldout_groups(), SHARES).scales
    assert (scales[0], np.count_nonzero(scales)) == (0.0, 5)


def test_learned_positions_stand_where_the_answer_begins() -> None:
    """GPT-2 sees the padding before a prompt; the step stands in the trainer's, an answer has none."""
    policy = models.tiny_policy("gpt2_tied_conv1d")
    plain_step = prepare_step(policy, models.tiny_groups(), models.DAPO)
    padded = prepare_step(replace(policy, padding=TrainerPadding()), models.tiny_groups(), models.DAPO)
    assert any(sequence.frame for sequence in padded.plan.sequences)
    result = measure_heldout_gram(padded, measure_step(padded), heldout_groups(), SHARES)
    _, heldout = expected_of(plain_step)
    assert close(result.norms, np.linalg.norm(heldout, axis=1))


def test_another_step_other_tokens_and_rows_that_do_not_fit_are_refused(llama: PreparedStep) -> None:
    step = measure_step(llama)
    with pytest.raises(VerificationError, match="other inner products beside held-out answers"):
        measure_heldout_gram(llama, replace(step, gram=step.gram * 1.01), heldout_groups(), SHARES)
    unknown = prompt_of("q0", "", prompt_ids=(7,), completion_ids=(99,))
    with pytest.raises(InputError, match="held-out q0, sample 0: token id 99 is outside"):
        measure_heldout_gram(llama, step, [unknown], [(1.0,)])
    llama.budget.row_bytes = 10
    with pytest.raises(UsageError, match="Keeping 11 gradient rows"):
        measure_heldout_gram(llama, step, heldout_groups(), SHARES, engine="loop")


class Letters:
    """A tokenizer of letters: a is 2, b is 3; 1 ends a text, 0 is what it has no letter for."""

    eos_token_id = 1

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        letters = text.lower().replace(" ", "")
        return {"input_ids": [ord(letter) - 95 if letter in "abcdefghijklst" else 0 for letter in letters]}

    def decode(self, ids: list[int]) -> str:
        return "".join("?."[token] if token < 2 else chr(token + 95) for token in ids)

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return f"s{''.join(message['content'] for message in messages)}t"


def prompt_of(prompt: str, *answers: str, all_ids: tuple = (), **fields: Any) -> RolloutGroup:
    """A prompt with its answers, as text or, by `all_ids` or `completion_ids`, as tokens."""
    name = f"held-out {prompt}"
    extra = [{"completion_ids": ids} for ids in all_ids] or [{}] * len(answers)
    rollouts = tuple(
        Rollout(group_id=name, sample=i, row=i, prompt=prompt, completion=answer, reward=1.0, **fields, **extra[i])
        for i, answer in enumerate(answers)
    )
    return RolloutGroup(step=0, group_id=name, prompt_id=prompt, rollouts=rollouts)


def step_of(*texts: tuple[str, str], tokenizer: Any = None, **changes: Any) -> PreparedStep:
    """Groups of three rollouts whose first has a prompt and a completion as text, beside the ids that were logged."""
    groups = models.tiny_groups(len(texts) or 1, 3)
    for index, (prompt, completion) in enumerate(texts):
        ids = {"prompt_ids": tuple(Letters()(prompt)["input_ids"]), "prompt": prompt}
        rollouts = [replace(rollout, **ids, **changes) for rollout in groups[index].rollouts]
        first = replace(rollouts[0], completion=completion, completion_ids=(*Letters()(completion)["input_ids"], 1))
        groups[index] = replace(groups[index], rollouts=(first, *rollouts[1:]))
    policy = replace(models.tiny_policy("llama_untied_biases"), tokenizer=tokenizer or Letters())
    return prepare_step(policy, groups, models.DAPO)


def test_text_becomes_tokens_as_the_trainers_does() -> None:
    answers = _heldout_sequences(
        step_of(("abc", "de")), [prompt_of("ab", "c", "cd"), prompt_of("ba", "e")], [(0.25, 0.75), (1.0,)]
    )
    assert [sequence.prompt_ids for sequence in answers.sequences] == [(2, 3), (2, 3), (3, 2)]
    assert [sequence.completion_ids for sequence in answers.sequences] == [(4, 1), (4, 5, 1), (6, 1)]
    assert (answers.owners, answers.shares) == ((0, 0, 1), (0.25, 0.75, 1.0))
    assert [(group.step, group.prompt_id, group.size) for group in answers.groups] == [(1, "ab", 2), (1, "ba", 1)]
    assert answers.notes == ("Held-out answers were tokenized from text.",)


def test_completions_that_other_ids_were_sampled_for_are_noted() -> None:
    prepared = step_of(("abc", "de"))
    other = replace(prepared, groups=tuple(models.changed(prepared.groups, completion="ed")))
    note = "Some of the run's own completions have other ids than their text gives, so held-out answers may too."
    assert _heldout_sequences(other, [prompt_of("ab", "c")], [(1.0,)]).notes[1] == note


def test_exact_ids_need_no_tokenizer_and_no_note() -> None:
    prepared = step_of()
    prepared = replace(prepared, policy=replace(prepared.policy, tokenizer=None))
    exact = prompt_of("", "", prompt_ids=(3, 4), completion_ids=(5, 1))
    assert _heldout_sequences(prepared, [exact], [(1.0,)]).notes == ()
    with pytest.raises(InputError, match="held-out ab has no token ids, and no tokenizer was found"):
        _heldout_sequences(prepared, [prompt_of("ab", "c")], [(1.0,)])
    half = _heldout_sequences(step_of(), [prompt_of("", "c", prompt_ids=(3, 4))], [(1.0,)])
    assert half.notes == ("Held-out answers were tokenized from text.",)
    # a log of ids alone shows nothing of its prompts
    assert _heldout_sequences(step_of(), [prompt_of("ab", "c")], [(1.0,)]).sequences[0].prompt_ids == (2, 3)


def test_prompts_of_the_step_are_left_out() -> None:
    prepared = step_of(("abc", "de"))
    answers = _heldout_sequences(prepared, [prompt_of("abc", "c"), prompt_of("ba", "e")], [(1.0,), (1.0,)])
    assert [group.prompt_id for group in answers.groups] == ["ba"]
    assert answers.notes[0] == "Held-out prompts that a step trains on are left out of that step."
    with pytest.raises(InputError, match="Every held-out prompt is trained on in this very step"):
        _heldout_sequences(prepared, [prompt_of("abc", "c")], [(1.0,)])


def test_answers_outside_the_vocabulary_are_left_out() -> None:
    answers = _heldout_sequences(step_of(("abc", "de")), [prompt_of("ab", "c", "z", "d")], [(0.25, 0.5, 0.25)])
    assert [sequence.completion_ids for sequence in answers.sequences] == [(4, 1), (5, 1)]
    assert answers.shares == (0.5, 0.5)
    assert [rollout.completion for rollout in answers.groups[0].rollouts] == ["c", "d"]
    assert "Held-out answers that the model's vocabulary cannot spell are left out." in answers.notes
    assert _heldout_sequences(step_of(("abc", "de")), [prompt_of("a b", "C d")], [(1.0,)]).shares == (1.0,)
    for lost in (prompt_of("ab", "z"), prompt_of("xb", "c")):
        with pytest.raises(InputError, match="No held-out answer can be spelled in the tokens of this model"):
            _heldout_sequences(step_of(("abc", "de")), [lost], [(1.0,)])


def test_prompts_that_a_template_wrapped_need_messages() -> None:
    messages = ({"role": "user", "content": "abc"},)
    wrapped = step_of(("abc", "de"), messages=messages)
    ids = tuple(Letters()(Letters().apply_chat_template(list(messages)))["input_ids"])
    prepared = prepare_step(wrapped.policy, models.changed(wrapped.groups, prompt_ids=ids), models.DAPO)
    with pytest.raises(InputError, match="other token ids than their text gives, as with a chat template") as error:
        _heldout_sequences(prepared, [prompt_of("ab", "c")], [(1.0,)])
    assert "as messages, or with prompt_ids" in error.value.hint
    prompt = prompt_of("ab", "c", messages=({"role": "user", "content": "ab"},))
    assert _heldout_sequences(prepared, [prompt], [(1.0,)]).sequences[0].prompt_ids == (20, 2, 3, 21)


def test_answers_have_no_padding_where_rows_have_some(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = replace(models.tiny_policy("gpt2_tied_conv1d"), padding=TrainerPadding(), tokenizer=Letters())
    prepared = prepare_step(policy, models.tiny_groups(), models.DAPO)
    (sequence,) = _heldout_sequences(prepared, [prompt_of("ab", "c")], [(1.0,)]).sequences
    assert sequence.frame is not None
    assert (sequence.start, sequence.length) == (0, sequence.num_tokens)
    monkeypatch.setattr(heldout_module, "scales_with_width", lambda _: True)
    with pytest.raises(InputError, match="positions change with the padded length of a batch"):
        _heldout_sequences(prepared, [prompt_of("ab", "c")], [(1.0,)])
