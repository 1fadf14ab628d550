import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


def test_two_files_are_compared_pair_by_pair(cli: Cli, samples: tuple[Path, Path]) -> None:
    done = cli("passk", *samples, "--json", "--k", "1", "--k", "4", "--k", "5")
    assert done.code == 0
    document = json.loads(done.out)
    assert document["schema"] == "gradscope/passk"
    first, second = document["result"]["tables"]
    assert first["num_samples"] == [4, 4]
    assert first["rows"][0]["pass_at_k"]["value"] == (1 + 2) / 4 / 6
    assert second["rows"][1]["pass_at_k"]["value"] == 4 / 6
    assert "4 samples" in first["rows"][2]["pass_at_k"]["undefined"]
    assert document["result"]["comparison"]["solved"] == {"both": 2, "first_only": 0, "second_only": 2, "neither": 2}


def test_what_to_do_next_is_the_table_that_is_left(cli: Cli, samples: tuple[Path, Path]) -> None:
    before, after = samples
    alone = cli("passk", before)
    assert (alone.code, "difference" in alone.out) == (0, False)
    assert alone.out.startswith("before.jsonl: pass@1 = ")
    assert alone.out.endswith(f"$ gradscope passk {before} --show files\n")
    assert cli("passk", before, after, "-q").out.endswith(f"$ gradscope passk {before} {after} -q --show pairs\n")
    assert "$ gradscope" not in cli("passk", before, after, "--show", "pairs").out


def test_the_figure_is_written(cli: Cli, samples: tuple[Path, Path], tmp_path: Path) -> None:
    assert cli("passk", *samples, "-o", tmp_path / "out", "-q").err == ""
    assert (tmp_path / "out" / "passk.png").read_bytes().startswith(b"\x89PNG")


def test_counts_under_other_names_are_named(cli: Cli, tmp_path: Path) -> None:
    table = tmp_path / "counts.csv"
    table.write_text("task_id,tries,score\na,8,8\nb,8,2\nc,8,0\n")
    refused = cli("passk", table)
    assert refused.code == 2
    assert "whole numbers up to 8 as rewards: counts of correct samples are no verdicts" in refused.err
    assert "--n-column N --c-column C" in refused.err
    done = cli("passk", table, "--n-column", "tries", "--c-column", "score", "--k", "1", "--json", "--quiet")
    assert done.code == 0
    (row,) = json.loads(done.out)["result"]["tables"][0]["rows"]
    assert row["pass_at_k"]["value"] == pytest.approx(10 / 24)
    unknown = cli("passk", table, "--n-column", "trials", "--c-column", "score")
    assert (unknown.code, "There is no column 'trials'" in unknown.err) == (2, True)
