from pathlib import Path

import pytest

from tests.cli.conftest import Cli

LOG = Path(__file__).resolve().parents[3] / "fixtures/logs/art"


def test_the_part_is_named_and_is_read_as_the_log(cli: Cli, tmp_path: Path) -> None:
    done = cli("reduce", LOG, "-o", tmp_path / "parts")
    (part,) = (tmp_path / "parts").iterdir()
    assert (done.code, done.out) == (0, f"{part}\n")
    of_parts, of_log = cli("degeneracy", tmp_path / "parts"), cli("degeneracy", LOG)
    assert of_parts.code == of_log.code
    assert of_parts.out.replace(str(part.parent), "RUN").split() == of_log.out.replace(str(LOG), "RUN").split()


def test_the_same_files_are_refused_before_anything_is_written(cli: Cli, tmp_path: Path) -> None:
    assert cli("reduce", LOG, "-o", tmp_path).code == 0
    done = cli("reduce", LOG, "-o", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "were reduced before" in done.err
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("command", ["rank", "claims"])
def test_what_needs_texts_or_ids_names_the_log(cli: Cli, tmp_path: Path, command: str) -> None:
    cli("reduce", LOG, "-o", tmp_path)
    done = cli(command, tmp_path)
    assert done.code == 2
    assert "holds rewards alone" in done.err
    assert str(LOG) in done.err
