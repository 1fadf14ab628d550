from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradscope.rollouts.readers.scan.prompts import Prompts


@given(st.lists(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 3), max_size=8), max_size=5))
def test_each_prompt_is_asked_for_once_and_found_again(blocks: list[list[int]]) -> None:
    prompts, asked = Prompts(), list[int]()
    for block in blocks:

        def id_at(place: int, block: list[int] = block) -> str:
            asked.append(block[place])
            return str(block[place])

        numbers = prompts.of(np.array(block, dtype=np.uint64), id_at)
        assert [prompts.ids[number] for number in numbers] == [str(one) for one in block]
    assert sorted(asked) == sorted({one for block in blocks for one in block})
    assert len(prompts.ids) == len(asked)
