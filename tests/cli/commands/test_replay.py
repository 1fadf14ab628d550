import json
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

GATE = "$ gradscope check "


def test_a_run_replays_from_its_own_folder(cli: Cli, tiny_run: Path) -> None:
    done = cli("replay", tiny_run, "--precision", "high", "--json", "--quiet")
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    engine = document["result"]["engine"]
    assert (engine["precision"], engine["dtype"], engine["tf32"]) == ("high", "float32", False)
    assert document["schema"] == "gradscope/replay"
    assert document["result"]["verdict"] == "match"
    assert [step["verdict"] for step in document["result"]["steps"]] == ["match", "match"]


def test_a_log_without_weights_decides_nothing_and_exits_1(cli: Cli, log: Path) -> None:
    done = cli("replay", log)
    assert done.code == 1
    assert done.out.startswith("Replay: grad_norm could not be recomputed at any step.")
    assert GATE not in done.out


def test_the_columns_of_a_script_may_be_named(cli: Cli, tmp_path: Path) -> None:
    log, rewards = tmp_path / "log.jsonl", ({"tests": 0.5, "format": 0.5}, {"tests": 0.0, "format": 0.0})
    rows = [{"step": 1, "prompt": "2+2?", "completion": "4", "reward": reward} for reward in rewards]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "as in --reward-column reward.tests.\n" in cli("replay", log).err
    done = cli("replay", log, "--reward-column", "reward.tests")
    assert (done.code, "grad_norm could not be recomputed at any step" in done.out) == (1, True)


@pytest.mark.parametrize("options", [[], ["--tolerance", "1e-4"]])
def test_the_printed_gate_has_the_exit_code_of_the_replay(cli: Cli, tiny_run: Path, options: list[str]) -> None:
    done = cli("replay", tiny_run, *options)
    assert (done.code, done.out.startswith("Replay: match at 2 of 2 steps. ")) == (0, True)
    gates = [line.removeprefix("$ gradscope ") for line in done.out.splitlines() if line.startswith(GATE)]
    assert len(gates) == (0 if options else 1)
    assert [cli(*shlex.split(gate)).code for gate in gates] == [0] * len(gates)


def test_a_wrong_loss_type_exits_1_and_so_does_its_gate(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    config = tmp_path / "wrong.json"
    config.write_text('{"loss_type": "dr_grpo", "max_completion_length": 64}')
    done = cli("replay", tiny_run, "--step", "1", "--run-config", config, "--batch-tokens", "4096")
    assert done.code == 1
    assert "mismatch at 1 of 1 step" in done.out
    (gate,) = [line.removeprefix("$ gradscope ") for line in done.out.splitlines() if line.startswith(GATE)]
    assert f"--run-config {config} --batch-tokens 4096" in gate
    checked = cli(*shlex.split(gate))
    assert checked.code == 1
    assert "FAIL" in checked.out
