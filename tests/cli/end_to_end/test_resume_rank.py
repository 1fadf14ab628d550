import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gradscope.diagnostics.inputs import recomputed
from gradscope.diagnostics.replay.measure import replay_run
from gradscope.gradients.engine_options import EngineOptions
from gradscope.rollouts.store import checksum_path
from tests.cli.conftest import Cli

pytestmark = pytest.mark.slow  # a run is trained for it

ARGUMENTS = ("--advantage", "logged", "--group-size", "2", "--json")


@pytest.fixture
def interrupted_at_the_second_step(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ctrl-C in the second step that is computed, once; the steps that were asked for."""
    computed: list[int] = []
    measure_as_before = recomputed.measure_step

    def measure_or_stop(prepared, **options):  # type: ignore[no-untyped-def]
        computed.append(prepared.step)
        if len(computed) == 2:
            raise KeyboardInterrupt
        return measure_as_before(prepared, **options)

    monkeypatch.setattr(recomputed, "measure_step", measure_or_stop)
    return computed


def test_a_second_call_goes_on_where_ctrl_c_stopped(
    cli: Cli, tiny_run: Path, tmp_path: Path, interrupted_at_the_second_step: list[int]
) -> None:
    computed = interrupted_at_the_second_step
    folder, saved = tmp_path / "out", tmp_path / ".out.unfinished"
    done = cli("rank", tiny_run, *ARGUMENTS, "--output", folder)
    assert (done.code, done.out) == (130, "")
    assert f"stopped; the same command goes on from the 1 finished step in {saved}" in done.err
    assert [path.name for path in tmp_path.iterdir()] == [saved.name]
    assert [path.name for path in saved.iterdir()] == ["step_00001.safetensors"]

    done = cli("rank", tiny_run, *ARGUMENTS, "--output", folder)
    assert done.code == 0
    assert "note: step 1 was finished before and is used again" in done.err
    assert computed == [1, 2, 2]
    assert not saved.exists()

    alone = cli("rank", tiny_run, *ARGUMENTS, "--output", tmp_path / "whole")
    resumed, uninterrupted = (json.loads(text) for text in (done.out, alone.out))
    assert resumed["result"] == uninterrupted["result"]
    for name in resumed["result"]["gram"].values():
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_force_starts_anew(cli: Cli, tiny_run: Path, tmp_path: Path, interrupted_at_the_second_step: list[int]) -> None:
    saved = tmp_path / ".out.unfinished" / "step_00001.safetensors"
    saved.parent.mkdir()
    saved.write_bytes(b'[length]{"__metadata__":{"key":"of an earlier call"}}')
    done = cli("replay", tiny_run, "--step", "1", "--output", tmp_path / "out", "--force")
    assert done.code == 0
    assert "again" not in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def change_a_weight(run: Path) -> None:
    path = run / "checkpoints" / "checkpoint-0" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def change_a_reward(run: Path) -> None:
    path = run / "rollouts" / "step_00001.parquet"
    table = pq.read_table(path)
    index = table.column_names.index("reward")
    pq.write_table(table.set_column(index, table.field(index), [[0.5] * len(table)]), path)
    checksum_path(path).unlink()


def damage_what_is_kept(run: Path) -> None:
    (run.parent / "kept" / "step_00001.safetensors").write_bytes(b"not a file of tensors")


def test_a_kept_step_is_used_only_for_the_same_question(tiny_run: Path, tmp_path: Path) -> None:
    run, output = tmp_path / "run", []
    shutil.copytree(tiny_run, run)

    def replay(**options: Any) -> str:
        output.clear()
        engine = EngineOptions(unfinished=tmp_path / "kept", notice=output.append, **options)
        replay_run(run, steps=[1], engine=engine)
        return " ".join(output)

    assert replay() == ""
    used, anew = "is used again", "is computed again: what was kept is of other inputs or options"
    assert used in replay()
    for options in ({"engine": "stream"}, {"verify": "all"}, {"dtype": "bfloat16"}, {"batch_tokens": 100}):
        assert anew in replay(**options)
    assert anew in replay()
    for spoil in (change_a_weight, change_a_reward, damage_what_is_kept):
        assert used in replay()
        spoil(run)
        assert anew in replay()


def test_steps_of_several_commands_are_one_result(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    """As an array of jobs does: a command a step, and one that finds them all finished."""
    saved = tmp_path / "kept"
    for step in ("2", "1"):
        assert cli("rank", tiny_run, *ARGUMENTS, "--step", step, "--keep", saved).code == 0
    joined, alone = (
        cli("rank", tiny_run, *ARGUMENTS, "--step", "1,2", *options) for options in (("--keep", saved), ())
    )
    for step in (1, 2):
        assert f"note: step {step} was finished before and is used again" in joined.err
    assert json.loads(joined.out)["result"] == json.loads(alone.out)["result"]
    assert sorted(path.name for path in saved.iterdir()) == ["step_00001.safetensors", "step_00002.safetensors"]
    # a report looks more closely at norms in reduced precision than rank does, so it computes its own
    assert "step 1 is computed again" in cli("report", tiny_run, "--keep", saved, "-o", tmp_path / "page.html").err
