from __future__ import annotations

import dataclasses

import pytest

from gradscope.errors import InputError
from gradscope.gradients.model.tokenize import token_sequences
from gradscope.rollouts.types import Rollout, RolloutGroup
from tests.gradients.models import VOCAB, tiny_policy


class LetterTokenizer:
    """a = 1, b = 2, ...; 20 begins a prompt, 21 ends a completion, chat turns are wrapped in 22."""

    eos_token_id = 21

    def __call__(self, text, add_special_tokens=True):
        ids = [ord(letter) - 96 for letter in text]
        return {"input_ids": [20, *ids] if add_special_tokens else ids}

    def apply_chat_template(self, messages, *, add_generation_prompt, tokenize, return_dict, end=22):
        assert add_generation_prompt
        assert tokenize
        assert return_dict
        assert all(set(message) == {"role", "content"} for message in messages)
        text = "".join(message["content"] for message in messages)
        return {"input_ids": [22, *self(text, add_special_tokens=False)["input_ids"], end]}


POLICY = dataclasses.replace(tiny_policy("llama_untied_biases"), tokenizer=LetterTokenizer())


def sequence(policy=POLICY, limit=None, template=None, **values):
    defaults = {"group_id": "g", "sample": 0, "row": 0, "prompt": "ab", "completion": "cd", "reward": 1.0}
    rollout = Rollout(**{**defaults, **values})
    group = RolloutGroup(step=3, group_id="g", prompt_id="p", rollouts=(rollout,))
    return token_sequences(policy, [group], max_completion_length=limit, chat_template_kwargs=template)[0]


def test_logged_ids_are_used_as_they_are():
    found = sequence(prompt_ids=(5, 6), completion_ids=(7,), mask=(False,))
    assert (found.prompt_ids, found.completion_ids, found.mask, found.inferred) == ((5, 6), (7,), (False,), False)
    assert found.length == 3


def test_text_is_tokenized_as_trl_does():
    found = sequence()
    assert found.prompt_ids == (20, 1, 2)
    assert found.completion_ids == (3, 4, 21)
    assert found.mask == (True, True, True)
    assert found.inferred


def test_a_conversation_goes_through_the_template_without_null_keys():
    found = sequence(messages=({"role": "user", "content": "ab", "tool_calls": None},))
    assert found.prompt_ids == (22, 1, 2, 22)


def test_the_trainers_arguments_reach_the_template():
    found = sequence(messages=({"role": "user", "content": "ab"},), template={"end": 19})
    assert found.prompt_ids == (22, 1, 2, 19)


def test_a_completion_at_the_limit_has_no_end_token():
    assert sequence(limit=2).completion_ids == (3, 4)
    assert sequence(limit=3).completion_ids == (3, 4, 21)
    assert sequence(limit=1).completion_ids == (3,)


def test_a_tokenizer_without_end_token_adds_none():
    tokenizer = LetterTokenizer()
    tokenizer.eos_token_id = None
    assert sequence(dataclasses.replace(POLICY, tokenizer=tokenizer)).completion_ids == (3, 4)


def test_text_without_a_tokenizer_is_refused():
    with pytest.raises(InputError, match="no token ids, and no tokenizer was found"):
        sequence(dataclasses.replace(POLICY, tokenizer=None))


def test_a_mask_that_does_not_match_is_refused():
    with pytest.raises(InputError, match="loss mask of 1 tokens and a completion of 2"):
        sequence(completion_ids=(1, 2), prompt_ids=(1,), mask=(True,))


def test_an_empty_prompt_is_refused():
    with pytest.raises(InputError, match="empty prompt"):
        sequence(prompt_ids=(), completion_ids=(1,))


@pytest.mark.parametrize("wrong", [VOCAB, -1])
def test_ids_outside_the_vocabulary_are_refused(wrong):
    with pytest.raises(InputError, match=f"Step 3, group g, sample 0: token id {wrong} is outside .* {VOCAB}"):
        sequence(prompt_ids=(1,), completion_ids=(2, wrong))


def test_more_tokens_than_a_table_of_positions_has_are_refused():
    policy = dataclasses.replace(tiny_policy("gpt2_tied_conv1d"), tokenizer=LetterTokenizer())
    assert sequence(policy, prompt_ids=(1,), completion_ids=(2,) * 31).length == 32
    with pytest.raises(InputError, match="sample 0 has 33 tokens; the model's table of positions ends at 32"):
        sequence(policy, prompt_ids=(1,), completion_ids=(2,) * 32)


def test_rotary_positions_go_on_beyond_what_the_model_was_built_for():
    assert sequence(prompt_ids=(1,), completion_ids=(2,) * 32).length == 33
