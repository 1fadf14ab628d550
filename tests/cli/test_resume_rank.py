from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import gradscope.gradients.step
from tests.cli.conftest import Cli

ARGUMENTS = ("--advantage", "logged", "--group-size", "2", "--json")


@pytest.fixture
def interrupted_at_the_second_step(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ctrl-C in the second step that is computed, once; the steps that were asked for."""
    computed: list[int] = []
    measure = gradscope.gradients.step.measure_step

    def measure_or_stop(policy, groups, *arguments, **options):  # type: ignore[no-untyped-def]
        computed.append(groups[0].step)
        if len(computed) == 2:
            raise KeyboardInterrupt
        return measure(policy, groups, *arguments, **options)

    monkeypatch.setattr(gradscope.gradients.step, "measure_step", measure_or_stop)
    return computed


def test_a_second_call_goes_on_where_ctrl_c_stopped(
    cli: Cli, tiny_run: Path, tmp_path: Path, interrupted_at_the_second_step: list[int]
) -> None:
    computed = interrupted_at_the_second_step
    folder, kept = tmp_path / "out", tmp_path / ".out.unfinished"
    done = cli("rank", tiny_run, *ARGUMENTS, "--output", folder)
    assert (done.code, done.out) == (130, "")
    assert f"stopped; the same command goes on from the 1 finished steps in {kept}" in done.err
    assert [path.name for path in tmp_path.iterdir()] == [kept.name]
    assert [path.name for path in kept.iterdir()] == ["step_00001.safetensors"]

    done = cli("rank", tiny_run, *ARGUMENTS, "--output", folder)
    assert done.code == 0
    assert "note: step 1 was finished before the interruption and is used again" in done.err
    assert computed == [1, 2, 2]
    assert not kept.exists()

    whole = cli("rank", tiny_run, *ARGUMENTS, "--output", tmp_path / "whole")
    resumed, uninterrupted = (json.loads(text) for text in (done.out, whole.out))
    assert resumed["result"] == uninterrupted["result"]
    for name in resumed["result"]["gram"].values():
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_kept_steps_of_other_options_or_weights_are_not_used(
    cli: Cli, tiny_run: Path, tmp_path: Path, interrupted_at_the_second_step: list[int]
) -> None:
    computed = interrupted_at_the_second_step
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    cli("rank", run, *ARGUMENTS, "--output", tmp_path / "out")
    kept = tmp_path / ".out.unfinished" / "step_00001.safetensors"
    assert kept.is_file()
    saved = kept.read_bytes()

    other = cli("rank", run, *ARGUMENTS, "--output", tmp_path / "out", "--engine", "stream")
    assert "note: step 1 is computed again: what was kept is of other inputs or options" in other.err
    assert computed == [1, 2, 1, 2]

    shutil.rmtree(tmp_path / "out")
    kept.parent.mkdir()
    kept.write_bytes(saved)
    weights = next(path for path in run.rglob("*.safetensors") if "checkpoint-0" in path.parts)
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    changed = cli("rank", run, *ARGUMENTS, "--output", tmp_path / "out")
    assert "is computed again" in changed.err
    assert "used again" not in changed.err


def test_force_starts_anew(cli: Cli, tiny_run: Path, tmp_path: Path, interrupted_at_the_second_step: list[int]) -> None:
    cli("rank", tiny_run, *ARGUMENTS, "--output", tmp_path / "out")
    done = cli("rank", tiny_run, *ARGUMENTS, "--output", tmp_path / "out", "--force")
    assert done.code == 0
    assert "again" not in done.err
    assert interrupted_at_the_second_step == [1, 2, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_kept_file_that_is_damaged_is_computed_again(
    cli: Cli, tiny_run: Path, tmp_path: Path, interrupted_at_the_second_step: list[int]
) -> None:
    kept = tmp_path / ".out.unfinished" / "step_00001.safetensors"
    kept.parent.mkdir()
    kept.write_bytes(b"not a file of tensors")
    interrupted_at_the_second_step.extend((0, 0))
    done = cli("rank", tiny_run, *ARGUMENTS, "--step", "1", "--output", tmp_path / "out")
    assert done.code == 0
    assert "step 1 is computed again" in done.err
