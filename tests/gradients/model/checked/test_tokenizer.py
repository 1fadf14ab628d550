"""A tokenizer comes from the first folder that has a whole one."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from gradscope.errors import InputError
from gradscope.gradients.model.checked.tokenizer import load_tokenizer
from tests.gradients.models import write_tokenizer


def test_the_first_whole_one_is_loaded(tmp_path: Path) -> None:
    empty, broken, whole, other = (tmp_path / name for name in "abcd")
    empty.mkdir()
    write_tokenizer(broken, 5)
    (broken / "tokenizer.json").write_text("{")
    write_tokenizer(whole, 6)
    write_tokenizer(other, 7)
    assert len(load_tokenizer([empty, broken, whole, other])) == 6
    assert load_tokenizer([empty]) is None


def test_where_none_is_whole_the_first_is_named(tmp_path: Path) -> None:
    for name in "ab":
        write_tokenizer(tmp_path / name, 5)
        (tmp_path / name / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match=r"a/tokenizer\.json is not JSON"):
        load_tokenizer([tmp_path / "a", tmp_path / "b"])


def test_one_that_names_the_class_for_any_tokenizer_gets_it(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 5)
    assert type(load_tokenizer([tmp_path])) is PreTrainedTokenizerFast
