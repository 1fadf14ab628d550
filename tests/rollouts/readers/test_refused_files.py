from __future__ import annotations

import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.readers.detect import read_run

ROWS = "prompt_id;step;reward\n" + "".join(f"p{place};1;{reward}\n" for place in (1, 2) for reward in ("0,5", "1,0"))


@pytest.mark.parametrize("rows", [ROWS, ROWS.replace(",", ".")], ids=["decimal commas", "decimal points"])
@pytest.mark.parametrize("name", ["log.csv", "my $log's.csv"])
def test_a_csv_with_semicolons_is_refused_with_the_command_that_converts_it(
    tmp_path: Path, name: str, rows: str
) -> None:
    log = tmp_path / name
    log.write_text(rows)
    with pytest.raises(InputError, match="has semicolons between its columns, and CSV has commas") as caught:
        read_run(log)
    _, _, pasted = (caught.value.hint or "").partition(": ")
    program, *arguments = shlex.split(pasted)
    assert program == "python"
    subprocess.run([sys.executable, *arguments], check=True)
    rewards = [one.reward for group in read_run(log.with_suffix(".parquet")).groups for one in group.rollouts]
    assert rewards == [0.5, 1.0, 0.5, 1.0]


@pytest.mark.parametrize("name", ["notes.txt", "train.log", "README"])
def test_text_is_no_log(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("step 1 reward 0.5\n")
    with pytest.raises(InputError, match="is text without rows") as caught:
        read_run(tmp_path / name)
    assert "log_completions=True" in (caught.value.hint or "")


def test_weights_are_no_log(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\0\0")
    with pytest.raises(InputError, match="is a file of weights, without rollouts"):
        read_run(tmp_path / "model.safetensors")


def test_an_archive_is_unpacked_by_the_command_of_its_hint(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "logs.zip", "w") as archive:
        archive.writestr("log.jsonl", '{"prompt_id": "a", "step": 1, "reward": 1}\n')
    with pytest.raises(InputError, match="is an archive") as caught:
        read_run(tmp_path / "logs.zip")
    _, *arguments = shlex.split((caught.value.hint or "").partition(": ")[2])
    subprocess.run([sys.executable, *arguments], check=True, cwd=tmp_path)
    assert read_run(tmp_path / "log.jsonl").steps == (1,)


def test_another_file_of_rows_keeps_the_general_answer(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"is not a log that gradscope knows\. Its columns are 'a', 'b'"):
        read_run(tmp_path / "log.csv")
