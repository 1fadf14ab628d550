import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.rollouts.readers.lines import write_lines


def test_a_run_of_ours_is_taken_apart_and_its_parts_add_up(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    done = cli("spike", tiny_run, "--step", "2", "-o", tmp_path / "out")
    assert done.code == 0
    assert done.out.startswith("It is unknown whether step 2 stands out: 1 other step")
    assert "Without rollout " in done.out
    assert len(done.out.splitlines()) <= 21
    assert done.out.splitlines()[-1] == f"$ gradscope report {tiny_run} --step 2"
    more = cli("spike", tiny_run, "--step", "2", "--show", "all")
    assert all(title in more.out for title in ("left out", "parameter", "position", "by chance"))
    assert {"spike.png", "spike.json", "spike_tokens.csv"} <= {path.name for path in (tmp_path / "out").iterdir()}
    document = json.loads((tmp_path / "out" / "spike.json").read_text())
    assert document["schema"] == "gradscope/spike"
    report = document["result"]
    (logged,) = [metric["value"]["value"] for metric in report["metrics"] if metric["name"] == "grad_norm"]
    norm = report["grad_norm"]["value"]
    assert norm == pytest.approx(logged, rel=1e-5)
    assert sum(rollout["projection_share"]["value"] or 0.0 for rollout in report["rollouts"]) == pytest.approx(1.0)
    assert sum(tensor["tensor_share"] for tensor in report["tensors"]) == pytest.approx(1.0)
    assert sum(tensor["norm"] ** 2 for tensor in report["tensors"]) == pytest.approx(norm**2, rel=1e-4)
    assert report["tokens"][0]["norm"] >= report["tokens"][-1]["norm"] > 0
    assert report["removals"][0]["grad_norm"] < norm


def test_without_weights_the_log_alone_tells(cli: Cli, log: Path) -> None:
    done = cli("spike", log, "--step", "1", "--json")
    result = json.loads(done.out)["result"]
    assert (done.code, result["metrics"], len(result["rollouts"])) == (0, [], 12)
    assert result["grad_norm"]["undefined"]


@pytest.mark.parametrize("command", [("spike", "--step", "1"), ("claims", "--no-gradients")])
def test_the_reward_may_be_named(cli: Cli, command: tuple[str, ...], tmp_path: Path) -> None:
    rows = [{"step": row // 4, "task": f"t{row // 2}", "neat": row % 2} for row in range(16)]
    log = write_lines(tmp_path / "own.jsonl", *rows)
    named = ("--reward-column", "neat", "--group-column", "task")
    assert (cli(*command, log).code, cli(*command, log, *named).code) == (2, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [((), "No step can be singled out"), (("--step", "9"), "has nothing of step 9"), (("--step", "0"), "--step")],
)
def test_wrong_input_is_said(cli: Cli, log: Path, options: tuple[str, ...], message: str) -> None:
    done = cli("spike", log, *options)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert "hint: " in done.err
