from __future__ import annotations

import pytest

from gradscope import errors
from gradscope.errors import GradscopeError

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GradscopeError)]


def test_there_are_a_handful_of_kinds() -> None:
    assert len(KINDS) == 6


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_carries_message_and_hint(kind: type[GradscopeError]) -> None:
    with pytest.raises(GradscopeError, match=r"It is broken\.") as caught:
        raise kind("It is broken.", hint="Mend it.")
    assert (caught.value.message, caught.value.hint, str(caught.value)) == (
        "It is broken.",
        "Mend it.",
        "It is broken.",
    )
    assert kind("It is broken.").hint is None
