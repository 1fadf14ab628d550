from __future__ import annotations

from pathlib import Path

from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.beside.configuration import trainer_settings
from gradscope.rollouts.readers.parsing.request import ReadRequest


def test_the_first_readable_file_counts_and_what_is_given_wins(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("{[")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "config.yaml").write_text("actor:\n  n: 2\n  m: 3\n")
    (tmp_path / "given.toml").write_text("[actor]\nn = 5\n")
    files = [tmp_path / name for name in ("none.json", "broken.yaml", "list.json", "config.yaml")]
    request = ReadRequest(path=tmp_path, options=ReadOptions(trainer_args=tmp_path / "given.toml"))
    settings = trainer_settings(request, "some", files)
    assert dict(settings.values) == {"actor.n": 5, "actor.m": 3, "trainer": "some"}
    assert settings.origin == f"{tmp_path / 'config.yaml'} and {tmp_path / 'given.toml'}"


def test_without_any_file_only_the_trainer_is_known(tmp_path: Path) -> None:
    settings = trainer_settings(ReadRequest(path=tmp_path), "some", [])
    assert (dict(settings.values), settings.origin) == ({"trainer": "some"}, None)
