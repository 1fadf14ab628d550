import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.diagnostics.compared_runs import write_run


def write_grid(folder: Path, seeds: range = range(3)) -> Path:
    for advantage, gain in (("grpo", 0.0), ("sign", 0.1)):
        for seed in seeds:
            rewards = [value + gain + 0.01 * seed * (1 + gain) for value in (0.1, 0.2, 0.3, 0.4)]
            write_run(folder / f"{advantage}-{seed}", advantage=advantage, seed=seed, rewards=rewards)
    return folder


def test_table_on_stdout_talk_on_stderr(cli: Cli, tmp_path: Path) -> None:
    done = cli("compare", write_grid(tmp_path / "grid"))
    assert done.code == 0
    assert done.out.startswith("None of the 5 tests decides")
    assert "sign - grpo" in done.out
    assert "6 finished runs of gradscope" in done.err
    assert done.out.splitlines()[-1] == f"$ gradscope report {tmp_path / 'grid'}"


def test_folders_beside_each_other_have_no_page(cli: Cli, tmp_path: Path) -> None:
    done = cli("compare", write_grid(tmp_path / "a"), write_grid(tmp_path / "b", range(3, 6)))
    assert done.code == 0
    assert "$ gradscope" not in done.out


@pytest.mark.slow
def test_json_has_what_scripts_rely_on_and_files_hold_the_rest(cli: Cli, tmp_path: Path) -> None:
    output = tmp_path / "out"
    done = cli("compare", write_grid(tmp_path / "grid"), "--k", "2", "--json", "--quiet", "--output", output)
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    assert document["schema"] == "gradscope/compare"
    assert {pair["metric"] for pair in document["result"]["pairs"]} == set(document["result"]["metrics"])
    assert set(document["result"]["metrics"]) <= set(document["definitions"])
    assert len(document["inputs"]) == 18
    names = {path.name for path in output.iterdir()}
    assert {"compare.json", "compare_pairs.csv", "compare_curves.png", "compare_forest.svg"} <= names
