from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Cli
from tests.contract import missing_fields


def test_a_run_replays_from_its_own_folder(cli: Cli, tiny_run: Path) -> None:
    done = cli("replay", tiny_run, "--json", "--quiet")
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    assert missing_fields("replay", document) == []
    assert document["result"]["verdict"] == "match"
    assert [step["verdict"] for step in document["result"]["steps"]] == ["match", "match"]
