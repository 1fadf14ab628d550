"""Which answers are held against a step, as which tokens, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.gradients.model.padding import TrainerPadding
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.step import heldout_answers
from gradscope.gradients.step.heldout_answers import heldout_sequences
from gradscope.rollouts.types import Rollout, RolloutGroup
from tests.gradients.models import DAPO, tiny_groups, tiny_policy


class Letters:
    """A tokenizer of letters: a is 2, b is 3; 1 ends a text, 0 is what it has no letter for."""

    eos_token_id = 1

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(one) - 95 if one in "abcdefghijkl" else 0 for one in text.lower() if one != " "]}

    def decode(self, ids: list[int]) -> str:
        return "".join("?."[one] if one < 2 else chr(one + 95) for one in ids)

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [20, *self("".join(one["content"] for one in messages))["input_ids"], 21]}


def prompt_of(prompt: str, *answers: str, **fields: Any) -> RolloutGroup:
    name = f"held-out {prompt}"
    rollouts = tuple(
        Rollout(group_id=name, sample=at, row=at, prompt=prompt, completion=answer, reward=1.0, **fields)
        for at, answer in enumerate(answers)
    )
    return RolloutGroup(step=0, group_id=name, prompt_id=prompt, rollouts=rollouts)


def step_of(*texts: tuple[str, str], tokenizer: Any = None, **changes: Any) -> PreparedStep:
    """Groups of three rollouts whose first has a prompt and a completion as text, beside the ids that were logged."""
    groups = tiny_groups(len(texts) or 1, 3)
    for place, (prompt, completion) in enumerate(texts):
        ids = {"prompt_ids": tuple(Letters()(prompt)["input_ids"]), "prompt": prompt}
        rollouts = [dataclasses.replace(rollout, **ids, **changes) for rollout in groups[place].rollouts]
        first = dataclasses.replace(
            rollouts[0], completion=completion, completion_ids=(*Letters()(completion)["input_ids"], 1)
        )
        groups[place] = dataclasses.replace(groups[place], rollouts=(first, *rollouts[1:]))
    policy = dataclasses.replace(tiny_policy("llama_untied_biases"), tokenizer=tokenizer or Letters())
    return prepare_step(policy, groups, DAPO)


def test_text_becomes_tokens_as_the_trainers_does() -> None:
    found = heldout_sequences(
        step_of(("abc", "de")), [prompt_of("ab", "c", "cd"), prompt_of("ba", "e")], [(0.25, 0.75), (1.0,)]
    )
    assert [sequence.prompt_ids for sequence in found.sequences] == [(2, 3), (2, 3), (3, 2)]
    assert [sequence.completion_ids for sequence in found.sequences] == [(4, 1), (4, 5, 1), (6, 1)]
    assert (found.owners, found.shares) == ((0, 0, 1), (0.25, 0.75, 1.0))
    assert [(group.step, group.prompt_id, group.size) for group in found.groups] == [(1, "ab", 2), (1, "ba", 1)]
    assert found.notes == ("Held-out answers were tokenized from text.",)


def test_completions_that_other_ids_were_sampled_for_are_told() -> None:
    prepared = step_of(("abc", "de"))
    first = dataclasses.replace(prepared.groups[0].rollouts[0], completion="ed")
    groups = (dataclasses.replace(prepared.groups[0], rollouts=(first, *prepared.groups[0].rollouts[1:])),)
    found = heldout_sequences(dataclasses.replace(prepared, groups=groups), [prompt_of("ab", "c")], [(1.0,)])
    assert found.notes[1] == (
        "Some of the run's own completions have other ids than their text gives, so held-out answers may too."
    )


def test_exact_ids_need_no_tokenizer_and_no_note() -> None:
    prepared = step_of()
    prepared = dataclasses.replace(prepared, policy=dataclasses.replace(prepared.policy, tokenizer=None))
    exact = prompt_of("", "", prompt_ids=(3, 4), completion_ids=(5, 1))
    assert heldout_sequences(prepared, [exact], [(1.0,)]).notes == ()
    with pytest.raises(InputError, match="held-out ab has no token ids, and no tokenizer was found"):
        heldout_sequences(prepared, [prompt_of("ab", "c")], [(1.0,)])
    half = heldout_sequences(step_of(), [prompt_of("", "c", prompt_ids=(3, 4))], [(1.0,)])
    assert half.notes == ("Held-out answers were tokenized from text.",)


def test_prompts_of_the_step_are_left_out() -> None:
    prepared = step_of(("abc", "de"))
    found = heldout_sequences(prepared, [prompt_of("abc", "c"), prompt_of("ba", "e")], [(1.0,), (1.0,)])
    assert [group.prompt_id for group in found.groups] == ["ba"]
    assert found.notes[0] == "Held-out prompts that a step trains on are left out of that step."
    with pytest.raises(InputError, match="Every held-out prompt is trained on in this very step"):
        heldout_sequences(prepared, [prompt_of("abc", "c")], [(1.0,)])


def test_answers_outside_the_vocabulary_are_left_out() -> None:
    found = heldout_sequences(step_of(("abc", "de")), [prompt_of("ab", "c", "z", "d")], [(0.25, 0.5, 0.25)])
    assert [sequence.completion_ids for sequence in found.sequences] == [(4, 1), (5, 1)]
    assert found.shares == (0.5, 0.5)
    assert [rollout.completion for rollout in found.groups[0].rollouts] == ["c", "d"]
    assert "Held-out answers that the model's vocabulary cannot spell are left out." in found.notes
    assert heldout_sequences(step_of(("abc", "de")), [prompt_of("a b", "C d")], [(1.0,)]).shares == (1.0,)
    for lost in (prompt_of("ab", "z"), prompt_of("xb", "c")):
        with pytest.raises(InputError, match="No held-out answer can be spelled in the tokens of this model"):
            heldout_sequences(step_of(("abc", "de")), [lost], [(1.0,)])


def test_prompts_that_a_template_wrapped_need_messages() -> None:
    messages = ({"role": "user", "content": "abc"},)
    wrapped = step_of(("abc", "de"), messages=messages)
    ids = tuple(Letters().apply_chat_template(list(messages))["input_ids"])
    rollouts = tuple(dataclasses.replace(rollout, prompt_ids=ids) for rollout in wrapped.rollouts)
    groups = (dataclasses.replace(wrapped.groups[0], rollouts=rollouts),)
    prepared = prepare_step(wrapped.policy, groups, DAPO)
    with pytest.raises(InputError, match="other token ids than their text gives, as with a chat template") as error:
        heldout_sequences(prepared, [prompt_of("ab", "c")], [(1.0,)])
    assert "as messages, or with prompt_ids" in error.value.hint
    asked = prompt_of("ab", "c", messages=({"role": "user", "content": "ab"},))
    assert heldout_sequences(prepared, [asked], [(1.0,)]).sequences[0].prompt_ids == (20, 2, 3, 21)


def test_a_log_of_ids_alone_shows_nothing_of_its_prompts() -> None:
    assert heldout_sequences(step_of(), [prompt_of("ab", "c")], [(1.0,)]).sequences[0].prompt_ids == (2, 3)


def test_answers_stand_without_padding_beside_rows_that_have_some(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = dataclasses.replace(tiny_policy("gpt2_tied_conv1d"), padding=TrainerPadding(), tokenizer=Letters())
    prepared = prepare_step(policy, tiny_groups(), DAPO)
    (sequence,) = heldout_sequences(prepared, [prompt_of("ab", "c")], [(1.0,)]).sequences
    assert sequence.frame is not None
    assert (sequence.start, sequence.length) == (0, sequence.num_tokens)
    monkeypatch.setattr(heldout_answers, "scales_with_width", lambda _: True)
    with pytest.raises(InputError, match="positions change with the padded length of a batch"):
        heldout_sequences(prepared, [prompt_of("ab", "c")], [(1.0,)])
