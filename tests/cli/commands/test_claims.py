import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

MINE = """[[claims]]
name = "mine.[red]"
source = "me"
claim = "Half of all rollouts pass."
metric = "pass_rate"
settle = "More prompts."
between = [0.0, 1.0]
"""


def test_every_claim_has_a_row_and_a_file_adds_its_own(cli: Cli, log: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(MINE)
    done = cli("claims", log, "--claims", tmp_path / "mine.toml", "--json")
    assert done.code == 0
    document = json.loads(done.out)
    assert document["schema"] == "gradscope/claims"
    rows = {row["name"]: row for row in document["result"]["claims"]}
    assert rows["mine.[red]"]["verdict"] == "supported"
    assert rows["dead_groups.persist"]["verdict"] == "cannot_tell"
    assert rows["reach.compression"]["estimate"]["undefined"]


def test_the_table_names_each_claim_and_what_would_settle_it(cli: Cli, log: Path, tmp_path: Path) -> None:
    done = cli("claims", log, "--no-gradients", "-o", tmp_path / "out")
    assert done.code == 0
    assert done.out.startswith("Of 34 claims this run supports ")
    assert "and cannot tell 34." in done.out
    assert done.out.splitlines()[-1] == f"$ gradscope report {log}"
    more = cli("claims", log, "--no-gradients", "--show", "all")
    assert "Would settle it: More groups." in more.out
    assert "Gradients were not recomputed, as asked" in " ".join(more.out.split())
    assert (tmp_path / "out" / "claims_claims.csv").is_file()
    assert not list((tmp_path / "out").glob("*.png"))


def test_samples_are_those_that_are_named(cli: Cli, log: Path, samples: tuple[Path, Path]) -> None:
    done = cli("claims", log, "--samples", samples[0], "--samples", samples[1], "--json", "-q")
    (row,) = [claim for claim in json.loads(done.out)["result"]["claims"] if claim["name"] == "reach.compression"]
    assert row["estimate"]["value"] == pytest.approx(2 / 6)
    assert (row["verdict"], row["null"]["value"]) == ("cannot_tell", 0.0)


def test_wrong_input_is_said(cli: Cli, log: Path, tmp_path: Path) -> None:
    absent = cli("claims", log, "--claims", tmp_path / "absent.toml")
    assert (absent.code, absent.out) == (2, "")
    assert "cannot be read" in absent.err
    step = cli("claims", log, "--step", "9")
    assert (step.code, "has no rollouts of step 9" in step.err) == (2, True)
