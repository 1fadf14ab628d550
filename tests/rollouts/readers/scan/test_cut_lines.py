from __future__ import annotations

import io

from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.rollouts.readers.scan.cut_lines import Lines, whole_lines


def test_lines_of_several_pieces_know_their_pieces_and_ends() -> None:
    lines = Lines.of([b"a\nbc\n", b"d", b"\n", b"e\nf"])
    assert [lines[at] for at in range(len(lines))] == [b"a\n", b"bc\n", b"d", b"\n", b"e\n", b"f"]
    assert lines.lines_of_piece == (2, 1, 1, 2)
    assert lines.open_lines == {2, 5}
    assert lines.to_arrow()["line"].to_pylist() == ["a\n", "bc\n", "d\n", "\n", "e\n", "f\n"]


@settings(max_examples=50, deadline=None)
@given(data=st.binary(max_size=60).map(lambda data: data.replace(b"\x00", b"\n")), size=st.integers(1, 20))
def test_blocks_of_whole_lines_are_the_stream_again(data: bytes, size: int) -> None:
    blocks = list(whole_lines(io.BytesIO(data).read, size))
    assert b"".join(blocks) == data
    assert all(block.endswith(b"\n") for block in blocks[:-1])
