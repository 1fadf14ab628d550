from __future__ import annotations

import io
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.rollouts.readers.scan.cut_lines import Lines, whole_lines

COMMA = re.compile(r",[ \t]*(?=[\]}])")
END_OF_KEY = re.compile(r'(?:(?<!\\)|(?<=\\\\))"[ \t]*(?=:)')


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


LONG = [" " * 70, '"' + "\t" * 200 + ":", "," + " " * 130 + "]"]


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(st.text(st.sampled_from('a": ,]}\\'), max_size=12) | st.sampled_from(LONG), max_size=6))
def test_keys_and_commas_are_counted_by_letter(pieces: list[str]) -> None:
    lines = Lines.of(["\n".join(pieces).encode() or b"\n"])
    text = [lines[at].decode().rstrip("\n") for at in range(len(lines))]
    assert lines.with_commas.tolist() == [at for at, line in enumerate(text) for _ in COMMA.findall(line)]
    assert lines.num_keys.tolist() == [len(END_OF_KEY.findall(line)) for line in text]


def test_long_runs_of_blanks_take_no_longer_than_letters() -> None:
    lines = Lines.of([b'{"a"' + b" " * 5_000_000 + b": [1," + b"\t" * 5_000_000 + b"]}\n"])
    assert (lines.num_keys.tolist(), lines.with_commas.tolist()) == ([1], [0])
