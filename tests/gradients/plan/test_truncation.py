from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from gradscope.errors import InputError
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.truncation import with_status
from gradscope.rollouts.trl_version import TrlVersion
from gradscope.rollouts.types import Rollout

ROLLOUT = Rollout(group_id="g", sample=0, row=0, prompt="p", completion="c", reward=1.0, completion_ids=(7, 5))
MASKING = Objective(mask_truncated=True)
NEW, OLD = (dataclasses.replace(MASKING, trl=TrlVersion(numbers)) for numbers in ((1, 15), (1, 14)))


def policy(eos=3, pad=0, declared=None):
    tokenizer = SimpleNamespace(eos_token_id=eos, pad_token_id=pad)
    return SimpleNamespace(
        tokenizer=tokenizer, model=SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=declared))
    )


def status(last, of=MASKING, **ends):
    return with_status(dataclasses.replace(ROLLOUT, completion_ids=(7, last)), policy(**ends), of).status


def test_a_completion_ends_with_the_end_of_a_sequence_or_padding():
    assert [status(last) for last in (3, 0, 5)] == ["completed", "completed", "truncated"]
    assert status(3, pad=None) == "completed"


def test_what_the_generation_configuration_declares_ends_since_a_version():
    assert status(9, NEW, declared=[3, 9]) == "completed"
    assert status(9, NEW, declared=9) == "completed"
    assert status(9, OLD, declared=[3, 9]) == "truncated"
    with pytest.raises(InputError, match="whether token 9 ends a completion depends on TRL's version") as caught:
        status(9, declared=[3, 9])
    assert "trl_version" in caught.value.hint
    assert caught.value.cause == "settings_unknown"


def test_without_an_end_of_sequence_nothing_can_be_told():
    with pytest.raises(InputError, match="no tokenizer with an end-of-sequence token"):
        status(3, eos=None)


def test_nothing_is_changed_that_is_known_or_not_asked_for():
    told = dataclasses.replace(ROLLOUT, status="completed")
    text = dataclasses.replace(ROLLOUT, completion_ids=None)
    assert with_status(told, policy(), MASKING) is told
    assert with_status(text, policy(), MASKING) is text
    assert with_status(ROLLOUT, policy(), Objective()) is ROLLOUT
