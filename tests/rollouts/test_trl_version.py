from __future__ import annotations

import pytest

from gradscope.rollouts.trl_version import UNKNOWN, TrlVersion


@pytest.mark.parametrize(("text", "numbers"), [("1.16.0", (1, 16)), ("0.28.0.dev0", (0, 28)), ("1", ()), (None, ())])
def test_a_version_is_read_as_far_as_it_matters(text, numbers):
    assert TrlVersion.parse(text).numbers == numbers


def test_versions_are_compared_by_number():
    assert TrlVersion((1, 9)).is_before(1, 10)
    assert not TrlVersion((1, 10)).is_before(1, 10)


def test_no_version_is_before_none():
    assert not UNKNOWN.known
    assert not UNKNOWN.is_before(99)
