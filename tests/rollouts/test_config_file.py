from pathlib import Path

import pytest

from gradscope.rollouts.config_file import config_format, flattened, read_document


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.json", '{"actor": {"n": 2}}'), ("a.yaml", "actor:\n  n: 2\n"), ("a.toml", "[actor]\nn = 2\n")],
)
def test_three_formats_say_the_same(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert flattened(read_document(tmp_path / name)) == {"actor.n": 2}
    assert config_format(tmp_path / name).lower() == name[2:]


@pytest.mark.parametrize("name", ["a.json", "a.yml", "a.toml"])
def test_what_is_none_of_its_format_is_an_error(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("{[")
    with pytest.raises(ValueError, match=r"."):
        read_document(tmp_path / name)


def test_references_have_the_value_that_they_name() -> None:
    config = {"a": 1, "b": "${a}", "c": "${oc.select:none.such,7}", "d": "${b}", "e": "${e}", "f": "${gone}"}
    assert flattened(config) == {"a": 1, "b": 1, "c": 7, "d": 1, "e": None, "f": None}
