import json
from pathlib import Path
from typing import Any

import pytest

from gradscope.__main__ import main
from gradscope.diagnostics.inputs import recomputed
from gradscope.diagnostics.replay.measure import replay_run
from gradscope.gradients.engine_options import EngineOptions
from tests.cli.conftest import Cli, without_figures

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_figures")]  # a run is trained for it

ARGUMENTS = ("--step", "1,2", "--advantage", "logged", "--group-size", "2", "--json")


@pytest.fixture
def interrupted_at_the_second_step(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ctrl-C in the second step that is computed, once; the steps that began."""
    computed: list[int] = []
    measure_as_before = recomputed.measure_step

    def measure_or_stop(prepared, **options):  # type: ignore[no-untyped-def]
        computed.append(prepared.step)
        if len(computed) == 2:
            raise KeyboardInterrupt
        return measure_as_before(prepared, **options)

    monkeypatch.setattr(recomputed, "measure_step", measure_or_stop)
    return computed


@pytest.fixture(scope="module")
def alone(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of both steps, measured by one command that nothing interrupts."""
    folder = tmp_path_factory.mktemp("alone") / "out"
    with without_figures():
        assert main(["rank", str(tiny_run), *ARGUMENTS, "--output", str(folder), "--quiet"]) == 0
    return folder


def result_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "rank.json").read_text())["result"]  # type: ignore[no-any-return]


def test_a_second_call_goes_on_where_ctrl_c_stopped(
    cli: Cli, tiny_run: Path, alone: Path, tmp_path: Path, interrupted_at_the_second_step: list[int]
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

    assert result_of(folder) == result_of(alone)
    for name in result_of(folder)["gram"].values():
        assert (folder / name).read_bytes() == (alone / name).read_bytes()


def test_force_starts_anew(cli: Cli, tiny_run: Path, tmp_path: Path, interrupted_at_the_second_step: list[int]) -> None:
    saved = tmp_path / ".out.unfinished" / "step_00001.safetensors"
    saved.parent.mkdir()
    saved.write_bytes(b'[length]{"__metadata__":{"key":"of an earlier call"}}')
    done = cli("replay", tiny_run, "--step", "1", "--output", tmp_path / "out", "--force")
    assert done.code == 0
    assert "again" not in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_finished_step_is_used_only_with_the_same_options(tiny_run: Path, tmp_path: Path) -> None:
    notices: list[str] = []

    def replay(**options: Any) -> str:
        notices.clear()
        engine = EngineOptions(unfinished=tmp_path / "finished", notice=notices.append, **options)
        replay_run(tiny_run, steps=[1], engine=engine)
        return " ".join(notices)

    assert replay() == ""
    used, anew = "is used again", "is computed again: what was kept is of other inputs or options"
    assert used in replay()
    for options in ({"engine": "stream"}, {"dtype": "bfloat16"}, {"batch_tokens": 100}):
        assert anew in replay(**options)
    (tmp_path / "finished" / "step_00001.safetensors").write_bytes(b"not a file of tensors")
    assert anew in replay(batch_tokens=100)


def test_steps_of_several_commands_are_one_result(cli: Cli, tiny_run: Path, alone: Path, tmp_path: Path) -> None:
    """As an array of jobs does: a command a step, and one that finds them all finished."""
    saved = tmp_path / "kept"
    for step in ("2", "1"):
        assert cli("rank", tiny_run, *ARGUMENTS[2:], "--step", step, "--keep", saved).code == 0
    joined = cli("rank", tiny_run, *ARGUMENTS, "--keep", saved, "--output", tmp_path / "out")
    for step in (1, 2):
        assert f"note: step {step} was finished before and is used again" in joined.err
    assert result_of(tmp_path / "out") == result_of(alone)
    assert sorted(path.name for path in saved.iterdir()) == ["step_00001.safetensors", "step_00002.safetensors"]
    # a report looks more closely at norms in reduced precision than rank does, so it computes its own
    again = cli("report", tiny_run, "--step", "1", "--keep", saved, "-o", tmp_path / "page.html")
    assert "step 1 is computed again" in again.err
