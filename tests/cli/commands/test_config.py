from pathlib import Path

import pytest

from gradscope.cli.remembered import FILE
from tests.cli.conftest import Cli


def test_config_lists_a_run_and_a_folder(cli: Cli, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSCOPE_REMEMBER", "1")
    monkeypatch.chdir(tmp_path)
    assert cli("config", log).out.startswith(f"Nothing is remembered for {log}.")
    assert cli("config").out.startswith("Nothing is remembered for runs here.")
    assert cli("degeneracy", log, "--reader", "generic", "--step-column", "step").code == 0
    line = f"log.jsonl: --reader generic, --step-column step  # {FILE}\n"
    assert cli("config", "log.jsonl").out == cli("config").out == line
    Path("outputs").mkdir()
    Path(FILE).rename(f"outputs/{FILE}")
    assert cli("config").out == f"outputs/{line.replace(FILE, f'outputs/{FILE}')}"
